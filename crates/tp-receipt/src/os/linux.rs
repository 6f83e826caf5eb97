//! Linux.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
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
        crate::store::files::open(&dir.join(name))?.sync_all()?;
    }
    Ok(())
}

/// The process that holds the lock on a file; `None` where the kernel does not tell, as within another PID namespace.
pub fn lock_holder(file: &File) -> Option<u32> {
    let inode = file.metadata().ok()?.ino().to_string();
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    // `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE START END`. Some file systems show another device number here than
    // to stat, so the inode alone has to tell; two that match tell nothing.
    let mut holders = locks.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let kind = fields.next()?;
        let pid = fields.nth(2)?;
        let at = fields.next()?.rsplit(':').next()?;
        (kind == "FLOCK" && at == inode).then(|| pid.parse::<u32>().ok().filter(|pid| *pid > 0))
    });
    match (holders.next(), holders.next()) {
        (Some(pid), None) => pid,
        _ => None,
    }
}
