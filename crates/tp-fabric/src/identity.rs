//! Who this process is: the hash of its executable and the identity of its host.

use crate::os;
use sha2::{Digest, Sha256};
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// SHA-256 of the running executable, lower-case hexadecimal. Kept under the user's cache directory by device, inode,
/// change time and size, so that a binary is read once and not at every start.
pub fn binary_sha256() -> io::Result<String> {
    let mut file = os::executable()?;
    sha256_cached(&mut file, cache_directory().as_deref())
}

/// What makes two ranks count as on one host: `override_id` where it is given, else the kernel's boot id and the network
/// namespace.
pub fn host_id(override_id: Option<&str>) -> io::Result<String> {
    override_id.map_or_else(os::host_id, |id| Ok(id.to_owned()))
}

/// The host's name for people, as messages give it.
pub fn host_name() -> String {
    os::host_name()
}

fn cache_directory() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("tp-bringup").join("sha256"))
}

fn sha256_cached(file: &mut File, directory: Option<&Path>) -> io::Result<String> {
    let before = file.metadata()?;
    let entry = directory.map(|directory| directory.join(key(&before)));
    if let Some(found) = entry.as_deref().and_then(read_entry) {
        return Ok(found);
    }
    let hash = sha256(file)?;
    // A file that changed while it was read has a hash that belongs to no key.
    let unchanged = key(&before) == key(&file.metadata()?);
    if let (Some(entry), true) = (entry, unchanged) {
        // Without the cache the next start only takes a little longer.
        let _ = write_entry(&entry, &hash);
    }
    Ok(hash)
}

fn key(meta: &Metadata) -> String {
    format!(
        "{}-{}-{}.{:09}-{}",
        meta.dev(),
        meta.ino(),
        meta.ctime(),
        meta.ctime_nsec(),
        meta.size()
    )
}

/// An entry counts only where it is ours and well-formed.
fn read_entry(path: &Path) -> Option<String> {
    let file = File::open(path).ok()?;
    if file.metadata().ok()?.uid() != nix::unistd::geteuid().as_raw() {
        return None;
    }
    let mut text = String::new();
    file.take(65).read_to_string(&mut text).ok()?;
    let good = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    good.then_some(text)
}

/// More entries than anybody has binaries in use; what lies there then is mostly of builds long gone.
const ENTRIES_MAX: usize = 256;

/// Written beside and renamed, so that no reader sees half an entry.
fn write_entry(path: &Path, hash: &str) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("no directory"))?;
    fs::create_dir_all(directory)?;
    let entries: Vec<_> = fs::read_dir(directory)?.filter_map(Result::ok).collect();
    if entries.len() >= ENTRIES_MAX {
        for entry in entries {
            let _ = fs::remove_file(entry.path());
        }
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}", std::process::id()));
    let written = fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| file.write_all(hash.as_bytes()))
        .and_then(|()| fs::rename(&beside, path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// SHA-256 of what is left of a file, lower-case hexadecimal.
fn sha256(file: &mut File) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 18];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(hex::encode(hasher.finalize())),
            Ok(n) => hasher.update(buffer.get(..n).unwrap_or_default()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    #[test]
    fn the_cache_is_used_and_a_changed_file_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, cache) = (dir.path().join("binary"), dir.path().join("cache"));
        fs::write(&path, b"").unwrap();
        let hash = |path: &Path| sha256_cached(&mut File::open(path).unwrap(), Some(&cache)).unwrap();
        assert_eq!(hash(&path), EMPTY);
        let entry = fs::read_dir(&cache).unwrap().next().unwrap().unwrap().path();
        let planted = "0".repeat(64);
        fs::write(&entry, &planted).unwrap();
        assert_eq!(hash(&path), planted, "an entry with this key is believed");
        fs::write(&entry, "short").unwrap();
        assert_eq!(hash(&path), EMPTY, "a broken entry is not");
        fs::write(&path, b"other").unwrap();
        assert_eq!(hash(&path), hex::encode(Sha256::digest(b"other")));
    }

    #[test]
    fn the_host_id_can_be_set() {
        assert_eq!(host_id(Some("machine-7")).unwrap(), "machine-7");
        assert_eq!(host_id(None).unwrap(), host_id(None).unwrap());
    }
}
