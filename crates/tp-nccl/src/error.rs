//! What can go wrong: finding the library, and a call into it.

use std::fmt::Write as _;
use std::path::PathBuf;

/// One file that was tried as libnccl, and why it was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", candidate.display())]
pub struct Attempt {
    /// A path, or a bare name that the system's loader searches for.
    pub candidate: PathBuf,
    /// The loader's own words, or the symbols that the file lacks.
    pub reason: String,
}

/// No usable libnccl.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Every candidate of the search was tried.
    #[error(
        "failed to load libnccl: tried {}; install NCCL 2.28 or newer (libnccl2, or nvidia-nccl-cu13 of PyPI), or name the \
         file in TF_NCCL_LIB",
        list(attempts)
    )]
    NotFound {
        /// What was tried, in order.
        attempts: Vec<Attempt>,
    },
    /// `TF_NCCL_LIB` names a file that is no usable libnccl. Nothing else is tried then.
    #[error("failed to load libnccl from TF_NCCL_LIB: {attempt}; name a libnccl.so.2, or unset it to search")]
    Override {
        /// The file and what was wrong with it.
        attempt: Attempt,
    },
}

impl LoadError {
    /// What was tried, in order.
    pub fn attempts(&self) -> &[Attempt] {
        match self {
            Self::NotFound { attempts } => attempts,
            Self::Override { attempt } => std::slice::from_ref(attempt),
        }
    }
}

/// Candidates that are simply not there say the same thing: they are put together, so that the others stand out.
fn list(attempts: &[Attempt]) -> String {
    let mut text = String::new();
    for (number, attempt) in attempts.iter().enumerate() {
        let separator = if number == 0 { "" } else { "; " };
        let _ = write!(text, "{separator}{attempt}");
    }
    if text.is_empty() {
        "nothing".to_owned()
    } else {
        text
    }
}

/// A call that NCCL refused, or that this NCCL does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The call returned something else than success or in progress.
    #[error("failed to call {call}: {text} (code {code}){}{library}", detail(last_error), library = from(library))]
    Failed {
        /// The function.
        call: &'static str,
        /// Its `ncclResult_t`.
        code: u32,
        /// What NCCL calls that code.
        text: String,
        /// NCCL's own account of the last error in this process; may be empty.
        last_error: String,
        /// The file that NCCL was loaded from.
        library: PathBuf,
    },
    /// The communicator was aborted or closed.
    #[error("the NCCL communicator was aborted or closed")]
    Aborted,
    /// The library has no such function.
    #[error("failed to call {call}: {} (NCCL {version}) has no such function; a newer NCCL is needed", library.display())]
    Missing {
        /// The function.
        call: &'static str,
        /// The file that NCCL was loaded from.
        library: PathBuf,
        /// Its version.
        version: crate::Version,
    },
}

fn detail(last_error: &str) -> String {
    if last_error.is_empty() {
        String::new()
    } else {
        format!(": {last_error}")
    }
}

fn from(library: &std::path::Path) -> String {
    format!(", in {}", library.display())
}
