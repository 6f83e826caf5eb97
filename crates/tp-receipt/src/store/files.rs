//! Files that are there whole or not at all.

use super::error::{StoreError, io};
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{Error, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The ending of files that are not yet in place.
pub const TEMPORARY: &str = ".tmp";

/// SHA-256, lower-case hex.
pub fn sha256(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

/// Opens a file of a receipt to read it. Every reader comes here: a receipt may be anybody's, a pipe in it would make
/// its reader wait for ever, a device would never end, and a link would lead out of it. None of the three is opened.
pub fn open(path: &Path) -> std::io::Result<File> {
    open_with(path, OpenOptions::new().read(true))
}

/// As [`open`], for a file of a receipt that is there and is to be opened otherwise.
pub fn open_with(path: &Path, options: &mut OpenOptions) -> std::io::Result<File> {
    plain(&std::fs::symlink_metadata(path)?)?;
    // What is put in its place between the two calls is neither followed nor waited for.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = options.custom_flags(flags.bits()).open(path)?;
    plain(&file.metadata()?)?;
    Ok(file)
}

fn plain(meta: &Metadata) -> std::io::Result<()> {
    if meta.is_file() {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, NOT_PLAIN))
}

/// What is said of a file of a receipt that is none.
pub const NOT_PLAIN: &str = "it is not a plain file";

/// The bytes of a file of a receipt.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The text of a file of a receipt.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    open(path)?.read_to_string(&mut text)?;
    Ok(text)
}

/// SHA-256 of the first `limit` bytes (all by default) of a file of a receipt, and how many bytes that were.
pub fn sha256_of(path: &Path, limit: Option<u64>) -> std::io::Result<(String, u64)> {
    sha256_of_open(open(path)?, limit)
}

/// As [`sha256_of`], of a file that is open.
pub fn sha256_of_open(file: File, limit: Option<u64>) -> std::io::Result<(String, u64)> {
    // A receipt of many ranks has thousands of small files.
    let size = file.metadata()?.len().saturating_add(1).min(1 << 18);
    let mut file = file.take(limit.unwrap_or(u64::MAX));
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; size as usize];
    let mut bytes = 0;
    loop {
        let n = file.read(&mut buffer)?;
        if n == 0 {
            return Ok((hex::encode(hasher.finalize()), bytes));
        }
        hasher.update(&buffer[..n]);
        bytes += n as u64;
    }
}

/// The path of a file that is not yet in place.
pub fn temporary(dir: &Path, name: &str) -> PathBuf {
    dir.join(format!("{name}{TEMPORARY}"))
}

/// Writes `NAME.tmp` and waits until it is on the disk. On a failure nothing is left.
pub fn write_temporary(dir: &Path, name: &str, bytes: &[u8]) -> Result<PathBuf, StoreError> {
    let path = temporary(dir, name);
    let written = OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .open(&path)
        .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()));
    written.map_err(|e| {
        // Half a file would only take the room that was missing.
        let _ = std::fs::remove_file(&path);
        io("write", &path)(e)
    })?;
    Ok(path)
}

/// Puts a temporary file in its place.
pub fn put(dir: &Path, name: &str) -> Result<(), StoreError> {
    let temporary = temporary(dir, name);
    std::fs::rename(&temporary, dir.join(name)).map_err(io("rename", &temporary))
}

/// Writes a file whole: temporary name, disk, rename.
pub fn write(dir: &Path, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
    write_temporary(dir, name, bytes)?;
    put(dir, name)
}

/// Waits until the directory's own entries are on the disk.
pub fn sync_dir(dir: &Path) -> Result<(), StoreError> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(io("sync", dir))
}

/// Every file below a directory, relative, with `/`, in order; links and other things that are no plain files too. A
/// directory with nothing in it is listed as well; its name ends with `/`.
pub fn list(dir: &Path) -> std::io::Result<Vec<String>> {
    fn walk(dir: &Path, prefix: &str, out: &mut Vec<String>) -> std::io::Result<()> {
        let before = out.len();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
            if entry.file_type()?.is_dir() {
                walk(&entry.path(), &format!("{name}/"), out)?;
            } else {
                out.push(name);
            }
        }
        if out.len() == before && !prefix.is_empty() {
            out.push(prefix.to_owned());
        }
        Ok(())
    }
    let mut out = Vec::new();
    walk(dir, "", &mut out)?;
    out.sort();
    Ok(out)
}

/// Whether a name of [`list`] is that of a directory with nothing in it.
pub fn is_empty_dir(name: &str) -> bool {
    name.ends_with('/')
}

/// Removes the directories above a file of a receipt in which nothing is left.
pub fn remove_empty_above(dir: &Path, name: &str) {
    for above in Path::new(name).ancestors().skip(1) {
        // One with something in it stays, and so do those above it.
        if above.as_os_str().is_empty() || std::fs::remove_dir(dir.join(above)).is_err() {
            return;
        }
    }
}

/// A name as one component of a path: letters, digits, `.`, `_`, `-`; never hidden, never empty.
pub fn component(name: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || "._-".contains(c) {
            c
        } else {
            '_'
        }
    };
    let text: String = name.chars().take(100).map(safe).collect();
    if text.is_empty() || text.starts_with('.') {
        format!("_{text}")
    } else {
        text
    }
}
