//! Why a collective call did not come to its end.

use super::Call;
use crate::types::Rank;
use std::time::Duration;

/// Why a call failed. The text is one line: what, which ranks, why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CollectiveError {
    /// The arguments are wrong; nothing was sent and nothing is poisoned.
    #[error("refused {call}: {reason}")]
    Invalid {
        /// The call.
        call: Call,
        /// What is wrong with it.
        reason: String,
    },
    /// The backend cannot do this call; nothing was sent and nothing is poisoned.
    #[error("refused {call}: {reason}")]
    Unsupported {
        /// The call.
        call: Call,
        /// Why not, and what can.
        reason: String,
    },
    /// Another thread is inside a call; nothing was sent and nothing is poisoned.
    #[error(
        "refused {call}: another thread is inside a call of this transport; one transport serves one order of calls"
    )]
    Busy {
        /// The call.
        call: Call,
    },
    /// A second stream; nothing was sent and nothing is poisoned.
    #[error(
        "refused {call} on stream {given:#x}: this transport serves stream {bound:#x}; open another transport for a second stream"
    )]
    SecondStream {
        /// The call.
        call: Call,
        /// The stream that was given.
        given: u64,
        /// The stream that the transport was first used with.
        bound: u64,
    },
    /// The call, or one before it, met a failure of the transport.
    #[error(transparent)]
    Failed(#[from] Failure),
    /// An earlier call failed; this one did nothing.
    #[error("this transport has failed before and does nothing more: {0}")]
    Poisoned(Failure),
}

impl CollectiveError {
    /// Whether the call was refused for its arguments alone, and the backend still works.
    pub fn is_refusal(&self) -> bool {
        !matches!(self, Self::Failed(_) | Self::Poisoned(_))
    }

    /// The transport's failure behind this error, if it is one.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Failed(failure) | Self::Poisoned(failure) => Some(failure),
            _ => None,
        }
    }
}

/// A failure that poisons a transport; the first one is kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// `abort` was called on this rank.
    #[error("aborted: {reason}")]
    Aborted {
        /// The words of whoever aborted.
        reason: String,
    },
    /// Ranks did not come within the wait.
    #[error("{call} timed out after {} ms: nothing from {}", waited.as_millis(), ranks(missing))]
    Timeout {
        /// The call.
        call: Call,
        /// Every rank whose part had not come.
        missing: Vec<Rank>,
        /// How long was waited.
        waited: Duration,
    },
    /// A rank went away or says that it has failed.
    #[error("{call} failed: rank {rank}: {reason}")]
    PeerFailed {
        /// The call.
        call: Call,
        /// The rank that failed first, as far as is known.
        rank: Rank,
        /// What was seen or what it said.
        reason: String,
    },
    /// Ranks are in different calls.
    #[error("ranks are out of step: this rank is in `{mine}`, rank {rank} in {theirs}")]
    Desync {
        /// This rank's call.
        mine: Call,
        /// The other rank.
        rank: Rank,
        /// The other's call, in words.
        theirs: String,
    },
    /// The wire or the region did what it must not.
    #[error("{call} failed on the wire to rank {rank}: {reason}")]
    Wire {
        /// The call.
        call: Call,
        /// The peer.
        rank: Rank,
        /// What happened: the errno, the flag value, the bound that was broken.
        reason: String,
    },
    /// The library or the driver below gave an error that names no rank.
    #[error("{call} failed: {reason}")]
    Backend {
        /// The call that was entered last.
        call: Call,
        /// Their own words.
        reason: String,
    },
    /// The proxy thread has stopped.
    #[error("the proxy thread failed: {reason}")]
    Proxy {
        /// Its own words.
        reason: String,
    },
    /// The backend was closed.
    #[error("the transport is closed")]
    Closed,
}

impl Failure {
    /// The ranks that this failure names as missing, gone or out of step.
    pub fn culprits(&self) -> &[Rank] {
        match self {
            Self::Timeout { missing, .. } => missing,
            Self::PeerFailed { rank, .. } | Self::Desync { rank, .. } | Self::Wire { rank, .. } => {
                std::slice::from_ref(rank)
            }
            Self::Aborted { .. } | Self::Backend { .. } | Self::Proxy { .. } | Self::Closed => &[],
        }
    }

    /// Whether the cause may lie with another rank: it is named, or this rank was told to stop. What a peer's transport says
    /// can arrive before the fate channel says why.
    pub fn may_be_foreign(&self) -> bool {
        !self.culprits().is_empty() || matches!(self, Self::Aborted { .. })
    }
}

/// `rank 3`, `ranks 1, 2 and 5`.
fn ranks(all: &[Rank]) -> String {
    match all {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [head @ .., last] => {
            let head: Vec<String> = head.iter().map(Rank::to_string).collect();
            format!("ranks {} and {last}", head.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::CallKind;
    use crate::types::DType;

    #[test]
    fn a_timeout_names_every_missing_rank() {
        let call = Call::new(CallKind::AllGather, DType::F32, 64);
        let waited = Duration::from_millis(120);
        let missing = vec![Rank(1), Rank(2), Rank(5)];
        let failure = Failure::Timeout {
            call,
            missing: missing.clone(),
            waited,
        };
        assert_eq!(
            failure.to_string(),
            "all_gather f32 64 B timed out after 120 ms: nothing from ranks 1, 2 and 5"
        );
        assert_eq!(failure.culprits(), missing);
        assert!(failure.may_be_foreign());
    }

    #[test]
    fn an_abort_may_be_anothers_doing_and_an_error_of_the_driver_is_ones_own() {
        let reason = "x".to_owned();
        assert!(
            Failure::Aborted {
                reason: reason.clone()
            }
            .may_be_foreign()
        );
        let call = Call::new(CallKind::Barrier, DType::U8, 0);
        assert!(!Failure::Backend { call, reason }.may_be_foreign());
    }

    #[test]
    fn refusals_leave_the_transport_usable() {
        let call = Call::new(CallKind::Barrier, DType::U8, 0);
        assert!(CollectiveError::Busy { call }.is_refusal());
        assert!(!CollectiveError::Poisoned(Failure::Closed).is_refusal());
    }
}
