//! The hosts of an inventory for commands that only look: one that cannot be reached does not keep the others from being
//! looked at.

use super::args::Target;
use crate::Error;
use crate::doctor::Hosts;
use crate::exec::find_runner;
use crate::host::{Host, LocalHost};
use crate::inventory::{Inventory, Launcher};
use std::sync::Arc;

/// Every host by its name, or why it cannot be used.
///
/// # Errors
/// Refused: the launcher cannot be used from here at all.
pub(super) fn connect(inventory: &Inventory, target: &Target) -> Result<Hosts, Error> {
    match inventory.launcher {
        Launcher::Local => {
            let runner = find_runner(target.runner.as_deref())?;
            let host = |name: &String| -> Arc<dyn Host> { Arc::new(LocalHost::new(name.clone(), &runner)) };
            Ok(inventory
                .hosts
                .iter()
                .map(|entry| (entry.name.clone(), Ok(host(&entry.name))))
                .collect())
        }
        Launcher::Ssh | Launcher::Slurm => Err(Error::Refused(format!(
            "the `{}` launcher cannot be used from here yet",
            inventory.launcher.name()
        ))),
    }
}
