//! What is refused before anything is started.

use crate::Error;
use crate::inventory::Inventory;
use std::path::Path;

/// Where this machine's id stands, as systemd and dbus keep it.
const MACHINE_ID: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];

/// Compares the machine that the inventory means with this one, where it says which.
///
/// # Errors
/// Refused: it is another machine, or it has no id to compare.
pub fn check_machine(inventory: &Inventory) -> Result<(), Error> {
    check_against(
        inventory,
        MACHINE_ID
            .iter()
            .find_map(|path| read(Path::new(path)))
            .as_deref(),
    )
}

fn read(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

fn check_against(inventory: &Inventory, actual: Option<&str>) -> Result<(), Error> {
    for host in &inventory.hosts {
        let Some(wanted) = &host.machine_id else { continue };
        let found = actual.ok_or_else(|| {
            Error::Refused(format!(
                "host {}: the inventory says machine_id {wanted}; this machine has none",
                host.name
            ))
        })?;
        if !found.eq_ignore_ascii_case(wanted) {
            return Err(Error::Refused(format!(
                "host {}: the inventory says machine_id {wanted}, the machine that answers has {found}: it is another one, or \
                 was installed anew; correct the inventory",
                host.name
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 19: a stale inventory must not run against the wrong machine.
    #[test]
    fn another_machine_than_meant_is_refused() {
        let text = "schema = 1\n[cluster]\nname = \"c\"\nlauncher = \"local\"\n[[host]]\nname = \"a\"\nmachine_id = \"0a1b\"\n";
        let inventory = Inventory::parse("x.toml", text, Path::new(".")).unwrap();
        assert!(check_against(&inventory, Some("0A1B")).is_ok());
        let error = check_against(&inventory, Some("ffff")).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(
            error.to_string().contains("0a1b") && error.to_string().contains("ffff"),
            "{error}"
        );
        assert!(check_against(&inventory, None).is_err());
    }
}
