//! Why a session did not open or close.

use crate::bootstrap::BootError;
use crate::collective::CollectiveError;
use crate::fate::EXIT_CODE;
use crate::host::OpenError;
use crate::meeting::MeetingError;
use crate::settings::SettingsError;
use crate::types::BackendKind;

/// Why a session did not open or close.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// Settings that cannot be used.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The ranks did not come together.
    #[error(transparent)]
    Boot(#[from] BootError),
    /// This host or process could not do its part.
    #[error("failed to {what}: {reason}")]
    Local {
        /// What.
        what: String,
        /// The system's words.
        reason: String,
    },
    /// A meeting after the boot failed.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
    /// The host backend could not be opened.
    #[error(transparent)]
    Host(#[from] OpenError),
    /// A GPU backend could not be opened.
    #[error("failed to open backend {backend}: {reason}")]
    Gpu {
        /// Which one.
        backend: BackendKind,
        /// What was missing or differed, and what to do.
        reason: String,
    },
    /// The last barrier or the backend's close failed.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
}

impl SessionError {
    /// The exit code that a rank leaves with: 2 for what other settings would mend, 3 for what this host cannot, 70 for a lost
    /// peer.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Settings(_) => 2,
            Self::Boot(error) => error.exit_code(),
            Self::Local { .. } | Self::Gpu { .. } => 3,
            Self::Meeting(error) => of_meeting(error),
            Self::Host(OpenError::Config { .. } | OpenError::World { .. } | OpenError::Disagree { .. }) => 2,
            Self::Host(OpenError::Meeting(error)) => of_meeting(error),
            Self::Host(OpenError::Rails(error)) => error.exit_code().into(),
            Self::Host(_) => 3,
            Self::Collective(_) => EXIT_CODE,
        }
    }
}

fn of_meeting(error: &MeetingError) -> i32 {
    match error {
        MeetingError::Refused { .. } => 3,
        MeetingError::Lost { .. } | MeetingError::OutOfStep { .. } => EXIT_CODE,
    }
}
