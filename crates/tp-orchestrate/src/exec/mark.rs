//! A mark of every run that this user's workstation began: a file that is locked while the run lives and goes with it.
//! What a run that was killed left on the hosts is told from strangers' by it.

use std::fs::File;
use std::path::{Path, PathBuf};

/// The mark of a run under way; it goes with this value.
#[derive(Debug)]
pub struct RunMark {
    path: PathBuf,
    #[expect(dead_code, reason = "held, not read")]
    lock: File,
}

impl RunMark {
    /// Marks a run. Without a place for it there is none, and `stop` must be told the run.
    pub fn set(run_id: &str) -> Option<Self> {
        let dir = dir()?;
        std::fs::create_dir_all(&dir).ok()?;
        let path = dir.join(run_id);
        let lock = File::create(&path).ok()?;
        lock.try_lock().ok()?;
        Some(Self { path, lock })
    }
}

impl Drop for RunMark {
    fn drop(&mut self) {
        // A mark that stays names a run that has left nothing.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The runs that this workstation began and that did not come to their end: nobody holds their mark any more.
pub fn ended_early() -> Vec<String> {
    let Some(entries) = dir().and_then(|dir| std::fs::read_dir(dir).ok()) else {
        return Vec::new();
    };
    let free = |path: &Path| File::open(path).is_ok_and(|file| file.try_lock().is_ok());
    entries
        .flatten()
        .filter(|entry| free(&entry.path()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect()
}

/// Forgets a run whose leftovers are gone.
pub fn forget(run_id: &str) {
    let plain = !run_id.is_empty() && run_id.bytes().all(|b| b.is_ascii_alphanumeric());
    if let Some(dir) = dir().filter(|_| plain) {
        let _ = std::fs::remove_file(dir.join(run_id));
    }
}

fn dir() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_STATE_HOME").or_else(|| Some(std::env::home_dir()?.join(".local/state")))?;
    Some(base.join("tp-bringup/runs"))
}
