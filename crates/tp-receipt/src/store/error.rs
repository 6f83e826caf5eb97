//! What can go wrong with a receipt directory.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// A receipt directory could not be made, written or taken up again.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory is there already; receipts are never written over.
    #[error("{} exists already; name a directory that does not exist (--out DIR)", .0.display())]
    Exists(PathBuf),
    /// The directory cannot be made.
    #[error("cannot create {}: {source}{}", path.display(), advice(source))]
    Create {
        /// The directory.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// A file in it cannot be written or read.
    #[error("cannot {what} {}: {source}{}", path.display(), advice(source))]
    Io {
        /// What was tried.
        what: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// It cannot be taken up again.
    #[error("cannot resume {}: {why}", path.display())]
    Resume {
        /// The directory.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Another run that is under way writes it.
    #[error(
        "{} is in use by another run{}; wait until it has ended",
        path.display(),
        process.map(|p| format!(" (process {p})")).unwrap_or_default()
    )]
    InUse {
        /// The directory.
        path: PathBuf,
        /// The process that writes it, where the system tells.
        process: Option<u32>,
    },
    /// Calls came in an order that makes no sense.
    #[error("receipt: {0}")]
    Order(String),
    /// The redaction's private files cannot be used.
    #[error(transparent)]
    Redact(#[from] crate::redact::RedactError),
}

fn advice(source: &std::io::Error) -> &'static str {
    match source.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "; make room and resume the run: what was recorded so far is kept"
        }
        ErrorKind::ReadOnlyFilesystem => "; a receipt needs a writable file system (--out DIR)",
        ErrorKind::PermissionDenied => {
            "; a receipt needs a directory that this user may write to (--out DIR)"
        }
        _ => "",
    }
}

impl StoreError {
    /// The orchestrator's exit code for it: 2, since the output cannot be used, from the start or from some moment on;
    /// 1 for a mistake of ours.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Order(_) => 1,
            _ => 2,
        }
    }

    /// The error as it is to be told of a receipt that was to be at `dir` and never came there from `temporary`.
    pub(super) fn not_within(self, temporary: &Path, dir: &Path) -> Self {
        match self {
            Self::Io { path, source, .. } if path.starts_with(temporary) => Self::Create {
                path: path
                    .strip_prefix(temporary)
                    .map(|name| dir.join(name))
                    .unwrap_or(path.clone()),
                source,
            },
            other => other,
        }
    }
}

pub(crate) fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> StoreError {
    let path = path.to_owned();
    move |source| StoreError::Io { what, path, source }
}
