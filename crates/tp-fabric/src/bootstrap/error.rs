//! Why ranks did not meet.

use super::Disagreement;
use crate::meeting::MeetingError;
use crate::types::{Rank, World};

/// Why the ranks did not come together. Every message is one line that says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BootError {
    /// A world that the bootstrap does not serve.
    #[error("a world of {world} cannot be: want 1 to {}", crate::settings::MAX_WORLD)]
    World {
        /// The world.
        world: World,
    },
    /// A rank outside of its world.
    #[error("rank {rank} is not below the world {world}")]
    Rank {
        /// The rank.
        rank: Rank,
        /// The world.
        world: World,
    },
    /// Beyond loopback and no secret.
    #[error(
        "TF_TP_SECRET is unset and the master `{master}` is not loopback: anybody could join. \
         On one host run `export TF_TP_SECRET=$(tf-tp-test secret)` and give that value to every rank \
         (TF_TP_INSECURE=1 goes without)"
    )]
    NoSecret {
        /// The master as given.
        master: String,
    },
    /// Something else listens on the port.
    #[error(
        "port {port} is in use on this host: another run or program listens there; choose another TF_TP_PORT for all ranks"
    )]
    PortInUse {
        /// The port.
        port: u16,
    },
    /// Rank 0 cannot listen.
    #[error("failed to listen on {place}: {reason}")]
    Listen {
        /// Address and port.
        place: String,
        /// The system's words.
        reason: String,
    },
    /// The system refused something that the bootstrap needs.
    #[error("failed to {what}: {reason}")]
    System {
        /// What was being done.
        what: String,
        /// The system's words.
        reason: String,
    },
    /// The master's name has no address.
    #[error(
        "failed to resolve the master `{master}` within {seconds:.1} s: {reason}; set TF_TP_MASTER to rank 0's address"
    )]
    Resolve {
        /// The name.
        master: String,
        /// The resolver's words.
        reason: String,
        /// How long it was tried, seconds (in a form that compares).
        seconds: Seconds,
    },
    /// Rank 0 was never reached.
    #[error("failed to reach rank 0 at {master} port {port} within {seconds:.1} s: {reason}")]
    Unreachable {
        /// The master as given.
        master: String,
        /// The port.
        port: u16,
        /// How long it was tried.
        seconds: Seconds,
        /// What each address did last.
        reason: String,
    },
    /// Rank 0 does not want this rank.
    #[error("rank 0 on {host} refused this rank: {reason}")]
    Refused {
        /// Rank 0's host.
        host: String,
        /// Its own words.
        reason: String,
    },
    /// Something answers on the port that is not rank 0 of this session.
    #[error("{place} does not answer as rank 0 of this session: {reason}")]
    NotRankZero {
        /// The address that was tried.
        place: String,
        /// What is wrong with the answer.
        reason: String,
    },
    /// The deadline passed with ranks missing.
    #[error("rank {} never came within {seconds:.1} s{seen}", crate::text::ranks(ranks))]
    Missing {
        /// Who is missing.
        ranks: Vec<Rank>,
        /// The deadline.
        seconds: Seconds,
        /// Who else came and was turned away; empty, or begins with a semicolon.
        seen: String,
    },
    /// A rank that had come is gone again.
    #[error("lost rank {rank} on {host} during the boot: {reason}")]
    Lost {
        /// Who.
        rank: Rank,
        /// Its host's name.
        host: String,
        /// What was seen.
        reason: String,
    },
    /// This rank came when the boot had failed already.
    #[error("the boot had failed before this rank came: {reason}")]
    Over {
        /// Rank 0's own words.
        reason: String,
    },
    /// Ranks differ in what must be equal.
    #[error(transparent)]
    Disagree(#[from] Disagreement),
    /// A meeting of the boot failed.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
}

/// A time for messages, kept in milliseconds so that errors compare.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seconds(u64);

impl From<std::time::Duration> for Seconds {
    fn from(time: std::time::Duration) -> Self {
        Self(u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
    }
}

impl std::fmt::Display for Seconds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.0 / 1000, self.0 % 1000 / 100)
    }
}

impl BootError {
    /// The exit code of a rank that ends with this error: 2 for what other settings would mend, 3 for what this host
    /// cannot, 70 where a peer is missing or lost.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::World { .. } | Self::Rank { .. } | Self::NoSecret { .. } | Self::Resolve { .. } => 2,
            Self::Refused { .. } | Self::NotRankZero { .. } | Self::Disagree(_) => 2,
            Self::PortInUse { .. } | Self::Listen { .. } | Self::System { .. } => 3,
            Self::Unreachable { .. } | Self::Missing { .. } | Self::Lost { .. } | Self::Over { .. } => 70,
            Self::Meeting(MeetingError::Refused { .. }) => 3,
            Self::Meeting(_) => 70,
        }
    }

    pub(super) fn system(what: &str, error: &impl std::fmt::Display) -> Self {
        Self::System {
            what: what.to_owned(),
            reason: error.to_string(),
        }
    }
}
