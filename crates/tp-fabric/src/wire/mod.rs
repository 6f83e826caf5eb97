//! How bytes get into the peers' regions.
//!
//! [`Wire`] is all that the host backend and the proxy know of it. A wire is opened by all ranks together, over a
//! [`Meeting`](crate::meeting::Meeting), and ends with [`Opened`]: this rank's own region, and the way to the others'.

pub(crate) mod choose;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub mod shm;
pub mod tcp;
pub mod verbs;

use crate::region::{Header, Region};
use crate::types::{Rank, WireKind};
use std::time::Duration;

/// A message on its way.
#[derive(Clone, Copy, Debug)]
pub struct Parcel<'a> {
    /// Who gets it.
    pub peer: Rank,
    /// Its number in the stream to that peer; its slot and the flag's value follow from it.
    pub seq: u64,
    /// Its header; `header.len` is `payload.len()`.
    pub header: Header,
    /// Its payload, at most a slot. In the own region's staging slots where the wire [needs](Wire::needs_staging) it.
    pub payload: &'a [u8],
}

/// Why a wire failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The connection to a peer broke or brought what it must not.
    #[error("rank {peer}: {reason}")]
    Peer {
        /// The peer.
        peer: Rank,
        /// The errno's text, or the bound that was broken.
        reason: String,
    },
    /// `give_up` said so while the wire was waiting.
    #[error("given up while the wire was waiting for rank {peer}")]
    GivenUp {
        /// The peer that did not take the bytes.
        peer: Rank,
    },
}

/// A way to the peers' regions. One thread at a time calls [`put`](Self::put), [`answer`](Self::answer),
/// [`progress`](Self::progress), [`idle`](Self::idle) and [`close`](Self::close); the others are for any thread.
pub trait Wire: Send + Sync {
    /// Which one.
    fn kind(&self) -> WireKind;

    /// Whether payloads must lie in the own region's staging slots (registered memory).
    fn needs_staging(&self) -> bool {
        false
    }

    /// Sends a message: all of it becomes visible in the peer's bay before its flag does. May block while the peer's end
    /// takes nothing, and asks `give_up` now and then. When it returns, the payload may be used again as soon as
    /// [`settled`](Self::settled) counts it.
    fn put(&self, parcel: &Parcel<'_>, give_up: &dyn Fn() -> bool) -> Result<(), WireError>;

    /// Tells a peer how many of its messages were consumed (the explicit answer). Blocks like `put`.
    fn answer(&self, peer: Rank, consumed: u64, give_up: &dyn Fn() -> bool) -> Result<(), WireError>;

    /// How many of the messages put to `peer` need their payload no longer; `u64::MAX` where that is all of them by the
    /// time `put` returns.
    fn settled(&self, peer: Rank) -> u64 {
        let _ = peer;
        u64::MAX
    }

    /// Moves whatever can be moved without waiting: takes what has arrived, reaps completions. Whether anything moved.
    /// A peer that is lost is not an error here but in [`lost`](Self::lost), since its last messages may be all that
    /// is needed of it.
    fn progress(&self) -> bool {
        false
    }

    /// Why nothing more will come from a peer, if so.
    fn lost(&self, peer: Rank) -> Option<String> {
        let _ = peer;
        None
    }

    /// Waits until something may have arrived, [`wake`](Self::wake) is called, or the time is over; may return early.
    fn idle(&self, most: Duration) {
        std::thread::sleep(most);
    }

    /// Whether [`idle`](Self::idle) ends when something arrives, so that long waits cost no latency.
    fn idle_wakes(&self) -> bool {
        false
    }

    /// Ends an `idle` of another thread.
    fn wake(&self) {}

    /// Tells the peers that this rank goes no further because `culprit` has failed, without blocking; nothing is put
    /// afterwards. The first call counts.
    fn halt(&self, culprit: Rank, reason: &str);

    /// Ends in good order after success: everything put reaches the peers. Waits at most `most` for them.
    fn close(&self, most: Duration);
}

/// What opening a wire gives.
pub struct Opened {
    /// This rank's region.
    pub region: Region,
    /// The way to the others'.
    pub wire: Box<dyn Wire>,
}
