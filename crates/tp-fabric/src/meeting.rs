//! What the parts that need all ranks at once (backends, wires, the pick) ask of the bootstrap.
//!
//! [`Meeting`] is all they know of it, so that they can be tried with threads of one process as well as with processes.

use crate::types::{Rank, World};

/// A lock-step exchange among all ranks. Every rank makes the same calls in the same order; the operation name travels
/// with each call, so that ranks which got out of step are told which call each was in.
pub trait Meeting: Send {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn world(&self) -> World;

    /// Every rank gives bytes and gets the bytes of all, in rank order. Lengths may differ.
    fn all_gather(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError>;

    /// Rank 0's bytes, on every rank. What the others give is ignored.
    fn broadcast(&mut self, op: &str, mine: &[u8]) -> Result<Vec<u8>, MeetingError> {
        let give = if self.rank() == Rank(0) { mine } else { &[] };
        let mut all = self.all_gather(op, give)?;
        Ok(all.swap_remove(0))
    }

    /// Every rank says whether its part of `op` went well; either all go on or all get [`MeetingError::Refused`] with
    /// the reason of the lowest rank that failed.
    fn verdict(&mut self, op: &str, mine: Result<(), String>) -> Result<(), MeetingError> {
        let mut blob = vec![u8::from(mine.is_ok())];
        if let Err(reason) = &mine {
            blob.extend_from_slice(reason.as_bytes());
        }
        let all = self.all_gather(op, &blob)?;
        for (rank, answer) in self.world().ranks().zip(all) {
            match answer.split_first() {
                Some((1, _)) => {}
                Some((_, reason)) => {
                    let reason = String::from_utf8_lossy(reason).into_owned();
                    return Err(MeetingError::Refused {
                        op: op.to_owned(),
                        rank,
                        reason,
                    });
                }
                None => {
                    let reason = "gave an empty verdict".to_owned();
                    return Err(MeetingError::Refused {
                        op: op.to_owned(),
                        rank,
                        reason,
                    });
                }
            }
        }
        Ok(())
    }

    /// Returns when every rank has called it.
    fn barrier(&mut self, op: &str) -> Result<(), MeetingError> {
        self.all_gather(op, &[]).map(drop)
    }
}

/// Why a meeting did not come to an end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeetingError {
    /// A rank could not do its part.
    #[error("failed to {op}: rank {rank}: {reason}")]
    Refused {
        /// What was being done.
        op: String,
        /// The lowest rank that could not.
        rank: Rank,
        /// Its own words.
        reason: String,
    },
    /// Ranks were in different calls.
    #[error(
        "ranks are out of step: this rank is in call {mine_number} `{mine}`, rank {rank} in call {theirs_number} `{theirs}`"
    )]
    OutOfStep {
        /// This rank's operation.
        mine: String,
        /// Its number, from 0.
        mine_number: u64,
        /// The other rank.
        rank: Rank,
        /// The other's operation.
        theirs: String,
        /// Its number.
        theirs_number: u64,
    },
    /// A rank is gone or the deadline has passed.
    #[error("lost rank {rank} in `{op}`: {reason}")]
    Lost {
        /// What was being done.
        op: String,
        /// Who is gone.
        rank: Rank,
        /// What was seen: end of stream, the errno, the deadline.
        reason: String,
    },
}
