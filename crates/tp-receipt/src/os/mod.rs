//! What differs between systems.

#[cfg(all(target_os = "linux", not(portable_os)))]
mod linux;
#[cfg(all(target_os = "linux", not(portable_os)))]
use linux as system;

#[cfg(any(not(target_os = "linux"), portable_os))]
mod portable;
#[cfg(any(not(target_os = "linux"), portable_os))]
use portable as system;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub use system::{lock_holder, sync_files};

/// Leaves a file readable and writable by its owner alone.
pub fn make_private(path: &Path) -> std::io::Result<()> {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
}
