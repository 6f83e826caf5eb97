//! `events.jsonl`: appended line by line, hashed as it grows.

use super::error::{StoreError, io};
use super::files;
use crate::receipt::DerivedFrom;
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file's name.
pub const NAME: &str = "events.jsonl";

/// Lines are handed to the system at the latest this long after the one before them, so that a killed orchestrator
/// loses no more; a flood of checks does not cost a system call each.
const FLUSH_EVERY: Duration = Duration::from_millis(20);
/// Or when this much has gathered, bytes.
const FLUSH_AT: usize = 1 << 18;

pub(super) struct EventsFile {
    path: PathBuf,
    file: File,
    pending: Vec<u8>,
    flushed: Instant,
    lines: u64,
    bytes: u64,
    hasher: Sha256,
}

/// Opens the record of an earlier run so that nobody else writes it: an advisory lock that the system frees when the
/// process ends, however it ends, and that leaves nothing on the disk.
pub(super) fn hold(dir: &Path) -> Result<File, StoreError> {
    let path = dir.join(NAME);
    let file = open(&path)?;
    lock(&file, dir, &path)?;
    // Its writer may have put a new file in its place between the two calls; that one is then locked, not this one.
    let inode = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
    let held = file.metadata().map(inode).map_err(io("look at", &path))?;
    let named = std::fs::symlink_metadata(&path)
        .map(inode)
        .map_err(io("look at", &path))?;
    if held != named {
        return Err(StoreError::InUse {
            path: dir.to_owned(),
            process: None,
        });
    }
    Ok(file)
}

/// Locks the record that waits under its temporary name: before it has the other one, so that nobody comes between.
pub(super) fn hold_temporary(dir: &Path) -> Result<File, StoreError> {
    let temporary = files::temporary(dir, NAME);
    let file = open(&temporary)?;
    lock(&file, dir, &temporary)?;
    Ok(file)
}

fn open(path: &Path) -> Result<File, StoreError> {
    files::open_with(path, OpenOptions::new().append(true)).map_err(io("open", path))
}

fn lock(file: &File, dir: &Path, path: &Path) -> Result<(), StoreError> {
    match file.try_lock() {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(StoreError::InUse {
            path: dir.to_owned(),
            process: crate::os::lock_holder(file),
        }),
        // A file system without locks: a run is possible there, only not guarded.
        Err(TryLockError::Error(e)) if e.kind() == ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(e)) => Err(io("lock", path)(e)),
    }
}

impl EventsFile {
    /// A new file; it is an error when there is one.
    pub fn create(dir: &Path) -> Result<Self, StoreError> {
        let path = dir.join(NAME);
        let file = OpenOptions::new()
            .create_new(true)
            .append(true)
            .open(&path)
            .map_err(io("create", &path))?;
        lock(&file, dir, &path)?;
        Ok(Self::new(path, file, 0, 0, Sha256::new()))
    }

    /// The directory has another name now.
    pub fn moved(&mut self, dir: &Path) {
        self.path = dir.join(NAME);
    }

    /// The file of an earlier run, as [`hold`] or [`hold_temporary`] gave it, of which `good` are the whole lines. What stands
    /// behind them is cut off.
    pub fn reopen(dir: &Path, file: File, good: &[u8]) -> Result<Self, StoreError> {
        let path = dir.join(NAME);
        file.set_len(good.len() as u64).map_err(io("truncate", &path))?;
        let lines = good.iter().filter(|b| **b == b'\n').count() as u64;
        Ok(Self::new(
            path,
            file,
            lines,
            good.len() as u64,
            Sha256::new_with_prefix(good),
        ))
    }

    fn new(path: PathBuf, file: File, lines: u64, bytes: u64, hasher: Sha256) -> Self {
        Self {
            path,
            file,
            pending: Vec::new(),
            flushed: Instant::now(),
            lines,
            bytes,
            hasher,
        }
    }

    /// Takes a line; it waits for [`EventsFile::flush`].
    pub fn append(&mut self, line: &str) {
        self.pending.extend_from_slice(line.as_bytes());
        self.pending.push(b'\n');
        self.lines += 1;
    }

    /// Whether lines that wait are to be handed to the system.
    pub fn is_due(&self) -> bool {
        self.pending.len() >= FLUSH_AT || self.flushed.elapsed() >= FLUSH_EVERY
    }

    /// Hands everything to the system.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.flushed = Instant::now();
        if self.pending.is_empty() {
            return Ok(());
        }
        if let Err(e) = self.file.write_all(&self.pending) {
            // The file ends with a whole line again, and the lines wait for another try.
            let _ = self.file.set_len(self.bytes);
            return Err(io("write", &self.path)(e));
        }
        self.hasher.update(&self.pending);
        self.bytes += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }

    /// Waits until everything is on the disk.
    pub fn sync(&mut self) -> Result<(), StoreError> {
        self.flush()?;
        self.file.sync_data().map_err(io("sync", &self.path))
    }

    /// What a document that is derived now rests on.
    pub fn so_far(&self) -> DerivedFrom {
        DerivedFrom {
            lines: self.lines,
            bytes: self.bytes,
            sha256: hex::encode(self.hasher.clone().finalize()),
            ..DerivedFrom::default()
        }
    }
}
