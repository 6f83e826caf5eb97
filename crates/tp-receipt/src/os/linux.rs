//! Linux.

use std::fs::File;
use std::path::Path;

/// With more files than this, one call for the whole file system is the shorter way.
const ONE_BY_ONE: usize = 64;

/// Waits until these files are on the disk.
pub fn sync_files<'a>(dir: &Path, names: impl Iterator<Item = &'a String>) -> std::io::Result<()> {
    let names: Vec<&String> = names.collect();
    if names.len() > ONE_BY_ONE {
        return nix::unistd::syncfs(File::open(dir)?).map_err(Into::into);
    }
    for name in names {
        File::open(dir.join(name))?.sync_all()?;
    }
    Ok(())
}
