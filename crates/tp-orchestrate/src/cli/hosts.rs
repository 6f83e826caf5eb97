//! The hosts of an inventory for commands that only look: one that cannot be reached does not keep the others from being
//! looked at, and nothing is brought anywhere.

use super::args::Target;
use crate::Error;
use crate::deploy::Runners;
use crate::doctor::Hosts;
use crate::exec::find_runner;
use crate::host::ssh::{self, HostKeys};
use crate::host::{Allocation, Host, HostError, LocalHost, SlurmHost, SshHost};
use crate::inventory::{Inventory, Launcher};
use std::path::PathBuf;
use std::sync::Arc;

/// Every host by its name, or why it cannot be used.
///
/// # Errors
/// Refused: the launcher cannot be used from here at all, or there is no runner here to look for.
pub(super) fn connect(inventory: &Inventory, target: &Target) -> Result<Hosts, Error> {
    let names = inventory.hosts.iter().map(|entry| entry.name.clone());
    match inventory.launcher {
        Launcher::Local => {
            let runner = find_runner(target.runner.first().map(PathBuf::as_path))?;
            let host = |name: String| -> Arc<dyn Host> { Arc::new(LocalHost::new(name, &runner)) };
            Ok(names.map(|name| (name.clone(), Ok(host(name)))).collect())
        }
        Launcher::Slurm => {
            let runner = find_runner(target.runner.first().map(PathBuf::as_path))?;
            let allocation = Allocation::get(inventory).map_err(refused)?;
            let host = |name: String| -> Arc<dyn Host> {
                Arc::new(SlurmHost::new(name, &runner, Arc::clone(&allocation)))
            };
            Ok(names.map(|name| (name.clone(), Ok(host(name)))).collect())
        }
        Launcher::Ssh => {
            let meant = Runners::meant(inventory, &target.runner)?;
            let options = ssh::Options {
                keys: HostKeys::Known,
                limit: None,
            };
            let ready = |host: Result<Arc<SshHost>, HostError>| -> Result<Arc<dyn Host>, Error> {
                let host = host.map_err(refused)?;
                if let Some(path) = meant.path_on(&host)? {
                    host.set_runner(path);
                }
                Ok(host)
            };
            Ok(names
                .zip(ssh::connect(inventory, &options).into_iter().map(ready))
                .collect())
        }
    }
}

fn refused(error: HostError) -> Error {
    Error::Refused(error.to_string())
}
