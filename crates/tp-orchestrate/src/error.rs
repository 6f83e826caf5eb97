//! The error that a command ends with: one line, and the exit code that says whose fault it is.

use crate::exit_code;

/// Why a command could not do what it was asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The command line, the inventory, or an output is wrong; exit 2.
    #[error("{0}")]
    Usage(String),
    /// The command is right and this machine or a host cannot; exit 3.
    #[error("{0}")]
    Refused(String),
    /// The work was done and its result is bad; exit 1.
    #[error("{0}")]
    Failed(String),
}

impl Error {
    /// The exit code of [`crate::exit_code`] that goes with the error.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit_code::USAGE,
            Self::Refused(_) => exit_code::REFUSED,
            Self::Failed(_) => exit_code::FAILED,
        }
    }
}

impl From<crate::inventory::InventoryError> for Error {
    fn from(error: crate::inventory::InventoryError) -> Self {
        Self::Usage(error.to_string())
    }
}
