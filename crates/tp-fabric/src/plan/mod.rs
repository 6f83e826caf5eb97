//! The plan link: rank 0 sends words to all other ranks, over the connections that carried the meetings of the boot.

mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod link;
mod pin;

pub use link::{PlanConfig, PlanLink};

use crate::types::Rank;

/// Most words of one plan: 512 MiB.
pub const PLAN_WORDS_MAX: usize = 64 << 20;
/// Most words that [`PlanLink::hold`] keeps.
pub const HOLD_WORDS_MAX: usize = 1024;

/// Why a plan did not get across.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// The other end is gone, or sent what is no plan.
    #[error("lost rank {rank} on the plan link: {reason}")]
    PeerClosed {
        /// The rank at the other end.
        rank: Rank,
        /// What was seen.
        reason: String,
    },
    /// The plan does not fit; on a follower it was read and dropped, so that the next one can be received.
    #[error("a plan of {words} words does not fit into {room}")]
    TooLarge {
        /// Its length.
        words: usize,
        /// What there is room for.
        room: usize,
    },
    /// Only rank 0 sends.
    #[error("only rank 0 sends plans")]
    NotRankZero,
    /// Only the other ranks receive.
    #[error("rank 0 sends plans and receives none")]
    NotFollower,
    /// The link was stopped.
    #[error("the plan link was stopped")]
    Stopped,
}
