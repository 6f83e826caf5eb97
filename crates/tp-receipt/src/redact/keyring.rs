//! The workstation's key and the map from pseudonyms back to names: two private files that never leave it.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What a pseudonym stands for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// `host`, `user`, `address`, `hardware`, `uuid`, `serial`, `mail`, `fingerprint`, `path`.
    pub kind: String,
    /// The name itself.
    pub original: String,
}

/// The key or the map could not be used.
#[derive(Debug, thiserror::Error)]
pub enum RedactError {
    /// No place for it.
    #[error(
        "neither XDG_STATE_HOME nor HOME is set, so the redaction key has no place; set one, or run with --no-redact"
    )]
    NoHome,
    /// A file cannot be used.
    #[error("redaction: cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Others may read it.
    #[error("redaction: {} can be read by others (mode {mode:o}); chmod 600 it", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is not what was written.
    #[error("redaction: {} is damaged ({why}); move it away and a new one is made", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
}

/// Where the key and the map are kept.
#[derive(Clone, Debug)]
pub struct Keyring {
    dir: PathBuf,
}

impl Keyring {
    /// `$XDG_STATE_HOME/tp-bringup`, else `~/.local/state/tp-bringup`.
    ///
    /// # Errors
    /// Neither variable is set.
    pub fn of_user() -> Result<Self, RedactError> {
        let set = |name| {
            std::env::var_os(name)
                .filter(|v| !v.is_empty())
                .map(PathBuf::from)
        };
        let state = set("XDG_STATE_HOME")
            .filter(|p| p.is_absolute())
            .or_else(|| set("HOME").map(|h| h.join(".local/state")))
            .ok_or(RedactError::NoHome)?;
        Ok(Self::at(state.join("tp-bringup")))
    }

    /// In that directory, which is made when it is not there.
    pub fn at(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into() }
    }

    /// The directory itself.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file with the map.
    pub fn map_path(&self) -> PathBuf {
        self.dir.join("redaction-map.json")
    }

    /// The file with the key.
    pub fn key_path(&self) -> PathBuf {
        self.dir.join("redaction-key")
    }

    /// The key; made when there is none.
    pub(super) fn key(&self) -> Result<[u8; 32], RedactError> {
        let path = self.key_path();
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(io("create", &self.dir))?;
        for _ in 0..2 {
            match File::open(&path) {
                Ok(file) => return read_key(file, &path),
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => self.make_key(&path)?,
                Err(e) => return Err(io("open", &path)(e)),
            }
        }
        Err(RedactError::Damaged {
            path,
            why: "it vanished".into(),
        })
    }

    /// Makes a key under another name and links it into place, so that of two processes that start at once both use
    /// the one that came first.
    fn make_key(&self, path: &Path) -> Result<(), RedactError> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|e| RedactError::Io {
            what: "get random bytes for",
            path: path.to_owned(),
            source: std::io::Error::other(e.to_string()),
        })?;
        let temporary = self.dir.join(format!("redaction-key.{}.tmp", std::process::id()));
        write_private(&temporary, format!("{}\n", hex::encode(key)).as_bytes())?;
        let linked = std::fs::hard_link(&temporary, path);
        std::fs::remove_file(&temporary).map_err(io("remove", &temporary))?;
        match linked {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => Err(io("create", path)(e)),
            _ => Ok(()),
        }
    }

    /// The map as it is on disk; empty when there is none.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or it is damaged.
    pub fn map(&self) -> Result<BTreeMap<String, Entry>, RedactError> {
        let path = self.map_path();
        let mut text = String::new();
        match File::open(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
            Err(e) => return Err(io("open", &path)(e)),
            Ok(mut file) => {
                private(&file, &path)?;
                file.read_to_string(&mut text).map_err(io("read", &path))?;
            }
        }
        serde_json::from_str(&text).map_err(|e| RedactError::Damaged {
            path,
            why: e.to_string(),
        })
    }

    /// Adds entries to the map on disk; other processes may do the same at the same time.
    pub(super) fn merge(&self, new: &BTreeMap<String, Entry>) -> Result<(), RedactError> {
        let lock = self.dir.join("redaction-map.lock");
        let file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(&lock)
            .map_err(io("open", &lock))?;
        file.lock().map_err(io("lock", &lock))?;
        let mut map = self.map()?;
        let before = map.len();
        for (pseudonym, entry) in new {
            map.entry(pseudonym.clone()).or_insert_with(|| entry.clone());
        }
        if map.len() == before {
            return Ok(());
        }
        let path = self.map_path();
        let temporary = self.dir.join("redaction-map.json.tmp");
        let text = serde_json::to_string_pretty(&map).map_err(|e| RedactError::Damaged {
            path: path.clone(),
            why: e.to_string(),
        })?;
        write_private(&temporary, text.as_bytes())?;
        std::fs::rename(&temporary, &path).map_err(io("rename", &path))
    }
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> RedactError {
    let path = path.to_owned();
    move |source| RedactError::Io { what, path, source }
}

fn write_private(path: &Path, bytes: &[u8]) -> Result<(), RedactError> {
    // Left from a process that was killed, perhaps with another mode.
    let _ = std::fs::remove_file(path);
    let mut file = OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(io("create", path))?;
    file.write_all(bytes)
        .and_then(|()| file.sync_all())
        .map_err(io("write", path))
}

fn private(file: &File, path: &Path) -> Result<(), RedactError> {
    let mode = file.metadata().map_err(io("look at", path))?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(RedactError::Open {
            path: path.to_owned(),
            mode,
        });
    }
    Ok(())
}

fn read_key(mut file: File, path: &Path) -> Result<[u8; 32], RedactError> {
    private(&file, path)?;
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(io("read", path))?;
    let mut key = [0; 32];
    hex::decode_to_slice(text.trim(), &mut key).map_err(|e| RedactError::Damaged {
        path: path.to_owned(),
        why: e.to_string(),
    })?;
    Ok(key)
}
