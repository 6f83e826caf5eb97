//! What the host backend is opened with, and why it could not be.

use crate::meeting::MeetingError;
use crate::rails::RdmaConfig;
use crate::types::{Rank, WireKind, World};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;
use zeroize::Zeroizing;

/// Who hands messages to the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The calling thread itself: no staging copy, no second thread. The lowest latency.
    Direct,
    /// A proxy thread, as for a GPU: the calling thread stages into the region and rings a doorbell.
    Doorbell,
}

/// What the host backend is opened with. `slot_bytes`, `one_shot_max` and `wire` must be equal on all ranks, which is
/// checked when it is opened.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The wire; `None` takes shared memory where all ranks are on one host, RDMA where `rdma` finds rails between all that
    /// are not, TCP otherwise.
    pub wire: Option<WireKind>,
    /// What this rank brings to the pick of rails; `None` where it has nothing to do with RDMA.
    pub rdma: Option<RdmaConfig>,
    /// Bytes of one slot: the largest message; larger calls go in several. Rounded up to a multiple of 4096; 4 KiB to
    /// 16 MiB.
    pub slot_bytes: usize,
    /// Bytes up to which an all-reduce of more than two ranks goes in one step (every rank sends everything to every
    /// other) instead of two (each rank reduces its part and gives it to all). Both give the same bits.
    pub one_shot_max: usize,
    /// The longest wait for the peers within one call.
    pub wait: Duration,
    /// The longest time for opening, all ranks together.
    pub setup: Duration,
    /// Who hands messages to the wire.
    pub delivery: Delivery,
    /// Identity of this host (boot id and network namespace): ranks with equal ones can share memory.
    pub host_id: String,
    /// This rank's address as its peers reach it; the TCP wire listens there, on a free port.
    pub address: IpAddr,
    /// The session's secret, with which peers prove themselves on the TCP wire. May be empty where the session has
    /// none; then only a key that the meeting hands out keeps strangers away.
    pub secret: Zeroizing<Vec<u8>>,
}

impl Default for HostConfig {
    fn default() -> Self {
        Self {
            wire: None,
            rdma: None,
            slot_bytes: 256 << 10,
            one_shot_max: 32 << 10,
            wait: Duration::from_secs(120),
            setup: Duration::from_secs(60),
            delivery: Delivery::Direct,
            host_id: String::new(),
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            secret: Zeroizing::new(Vec::new()),
        }
    }
}

/// Why a backend could not be opened. Every rank gets an error when one does.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A value of the configuration is out of its range; a setting is wrong.
    #[error("failed to open the host backend: {what} is {value}; it must be {range}")]
    Config {
        /// Which one.
        what: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        range: &'static str,
    },
    /// More ranks than the backend serves.
    #[error("failed to open the host backend: it serves up to {most} ranks, the world has {world}")]
    World {
        /// The world asked for.
        world: World,
        /// The largest one.
        most: u32,
    },
    /// The wire cannot be had with this backend or between these hosts.
    #[error("failed to open the host backend over {wire}: {reason}")]
    NoWire {
        /// The wire.
        wire: WireKind,
        /// Why not, and what to take.
        reason: String,
    },
    /// The ranks have no rails; its exit code says whether a variable or the fabric is at fault.
    #[error("failed to open the host backend over verbs: {0}")]
    Rails(tp_hca::PickError),
    /// Ranks have different layouts or settings.
    #[error("failed to open the host backend: {field} is {mine} on this rank and {theirs} on rank {rank}")]
    Disagree {
        /// The first field that differs.
        field: String,
        /// This rank's value.
        mine: String,
        /// A rank with another one.
        rank: Rank,
        /// Its value.
        theirs: String,
    },
    /// This rank could not do its part (memory, a socket).
    #[error("failed to {what}: {reason}")]
    Local {
        /// What failed.
        what: String,
        /// The errno's text or what was found instead.
        reason: String,
    },
    /// Another rank could not do its part, or is gone.
    #[error(transparent)]
    Meeting(#[from] MeetingError),
}
