//! Why something on the GPU could not be done.

use crate::meeting::MeetingError;
use cudarc::driver::DriverError;

/// Why a GPU, its memory or a launch could not be had. One line: what, why, what to do.
#[derive(Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no driver on this host.
    #[error(
        "failed to load libcuda.so.1: no NVIDIA driver on this host, or its folder is not on the loader's path"
    )]
    NoDriver,
    /// The driver is older than what the kernels need.
    #[error("the NVIDIA driver serves CUDA {}.{}, this binary needs 13.0: install driver 580 or newer", .found / 1000, .found % 1000 / 10)]
    OldDriver {
        /// What the driver says: 1000 * major + 10 * minor.
        found: i32,
    },
    /// The kernel image has no code for this GPU.
    #[error("the kernel image does not serve this GPU, compute capability {major}.{minor}")]
    NotServed {
        /// Major number.
        major: i32,
        /// Minor number.
        minor: i32,
    },
    /// A driver call failed.
    #[error("failed to {what}: {name}: {text}")]
    Driver {
        /// What was being done.
        what: String,
        /// The driver's name of the error.
        name: String,
        /// Its text.
        text: String,
    },
    /// Shared host memory could not be had.
    #[error("failed to {what}: {source}")]
    Io {
        /// What was being done.
        what: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// The ranks could not agree.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
}

/// Names what a driver call was for.
pub(crate) trait Doing<T> {
    /// `failed to {what}: …`.
    fn doing(self, what: &str) -> Result<T, GpuError>;
}

impl<T> Doing<T> for Result<T, DriverError> {
    fn doing(self, what: &str) -> Result<T, GpuError> {
        self.map_err(|error| {
            let name = error
                .error_name()
                .map_or_else(|_| format!("{:?}", error.0), |n| n.to_string_lossy().into_owned());
            let text = error
                .error_string()
                .map_or_else(|_| "unknown".to_owned(), |t| t.to_string_lossy().into_owned());
            GpuError::Driver {
                what: what.to_owned(),
                name,
                text,
            }
        })
    }
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: &str) -> Result<T, GpuError> {
        self.map_err(|source| GpuError::Io {
            what: what.to_owned(),
            source,
        })
    }
}
