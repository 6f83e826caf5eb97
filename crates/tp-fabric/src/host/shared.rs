//! What the calling thread, the proxy and whoever aborts share: the region, the wire, and the first failure.

use crate::collective::{Call, Failure};
use crate::region::{Region, Word, Words};
use crate::types::Rank;
use crate::wire::Wire;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Shared by all threads of one transport.
pub(crate) struct Shared {
    me: Rank,
    region: Region,
    wire: Box<dyn Wire>,
    wait: Duration,
    crowded: bool,
    /// Set after `failure` is.
    failed: AtomicBool,
    failure: Mutex<Option<Failure>>,
    /// The call that was entered last, for failures that are noticed outside of it.
    call: Mutex<Call>,
}

impl Shared {
    pub(crate) fn new(me: Rank, region: Region, wire: Box<dyn Wire>, wait: Duration, crowded: bool) -> Self {
        let call = Mutex::new(Call::barrier());
        Self {
            me,
            region,
            wire,
            wait,
            crowded,
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            call,
        }
    }

    pub(crate) fn rank(&self) -> Rank {
        self.me
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    pub(crate) fn wire(&self) -> &dyn Wire {
        &*self.wire
    }

    /// The longest wait for peers.
    pub(crate) fn wait(&self) -> Duration {
        self.wait
    }

    /// Whether more threads of this host's ranks want to run than there are processors.
    pub(crate) fn crowded(&self) -> bool {
        self.crowded
    }

    /// Notes the call that begins.
    pub(crate) fn enter(&self, call: Call) {
        *lock(&self.call) = call;
    }

    /// Whether there is a failure.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// The first failure.
    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }

    /// Records a failure, if it is the first, tells the peers, and ends this rank's waits. Returns the first one.
    pub(crate) fn fail(&self, failure: Failure) -> Failure {
        let first = {
            let mut slot = lock(&self.failure);
            if let Some(first) = &*slot {
                return first.clone();
            }
            slot.insert(failure).clone()
        };
        self.failed.store(true, Ordering::Release);
        self.region.store(Word::Abort, 1);
        if first != Failure::Closed && !self.told_by_a_peer() {
            let culprit = match &first {
                Failure::Timeout { .. } | Failure::PeerFailed { .. } => first.culprits().first().copied(),
                _ => None,
            };
            self.wire.halt(culprit.unwrap_or(self.me), &notice(&first));
        }
        self.wire.wake();
        first
    }

    /// A rank that failed told everybody itself.
    fn told_by_a_peer(&self) -> bool {
        self.region
            .layout()
            .world()
            .peers(self.me)
            .any(|peer| self.region.load(Word::Notice { peer }) != 0)
    }

    /// The failure that a peer has left a notice of.
    pub(crate) fn noticed(&self) -> Option<Failure> {
        let world = self.region.layout().world();
        let (rank, reason) = world.peers(self.me).find_map(|peer| self.region.notice(peer))?;
        Some(Failure::PeerFailed {
            call: *lock(&self.call),
            rank,
            reason,
        })
    }

    /// A peer's end broke; its own words, if it has left any, say more than the wire's.
    pub(crate) fn peer_failed(&self, rank: Rank, reason: String) -> Failure {
        self.noticed().unwrap_or_else(|| Failure::PeerFailed {
            call: *lock(&self.call),
            rank,
            reason,
        })
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared")
            .field("rank", &self.me)
            .field("failure", &self.failure())
            .finish_non_exhaustive()
    }
}

/// What peers are told, short enough for a notice.
fn notice(failure: &Failure) -> String {
    match failure {
        Failure::Desync { mine, rank, theirs } => {
            format!("out of step: in `{mine}`, rank {rank} in {theirs}")
        }
        Failure::PeerFailed { reason, .. } => reason.clone(),
        other => other.to_string(),
    }
}

/// The values under these locks are whole whenever a thread can leave them.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
