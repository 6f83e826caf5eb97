//! How a transport ends: in good order, or halted, drained and kept.

use super::VerbsWire;
use super::link::lock;
use crate::region::layout::NOTICE;
use crate::types::Rank;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tp_verbs::post::Write;

/// How long a halt waits for its notices to reach the peers.
const NOTICES: Duration = Duration::from_millis(50);
/// How long a halt waits for the queue pairs to give back what was under way.
const DRAIN: Duration = Duration::from_millis(250);
/// A queue that has been empty for this long is drained.
const QUIET: Duration = Duration::from_millis(5);

/// What a halt found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Halted {
    /// Queue pairs in all.
    pub queue_pairs: usize,
    /// Of these, how many are in the error state.
    pub in_error: usize,
    /// Puts that were under way and came back, acknowledged or flushed.
    pub drained: usize,
    /// Puts that did not come back in time.
    pub stuck: usize,
}

impl VerbsWire {
    /// Leaves a notice with every peer, moves all queue pairs to the error state and takes back what was under way. The
    /// memory stays mapped and registered: a device may still be writing into it.
    pub(super) fn halt_now(&self, culprit: Rank, reason: &str) {
        if self.halted.swap(true, Ordering::AcqRel) {
            return;
        }
        for (rank, region) in self.neighbours.iter().enumerate() {
            if let Some(region) = region
                && rank != self.me.index()
            {
                region.leave_notice(self.me, culprit, reason);
            }
        }
        self.notify(culprit, reason);
        let report = self.drain();
        tracing::info!(
            "verbs transport halted: {} of {} queue pairs in the error state, {} puts drained, {} stuck; its memory stays mapped and registered",
            report.in_error,
            report.queue_pairs,
            report.drained,
            report.stuck
        );
        *lock(&self.report) = Some(report);
    }

    fn notify(&self, culprit: Rank, reason: &str) {
        let text = &reason.as_bytes()[..reason.floor_char_boundary(NOTICE - 1)];
        let mut notice = [0u8; NOTICE];
        notice[0] = text.len() as u8;
        notice[1..=text.len()].copy_from_slice(text);
        let word = u64::from(culprit.0) + 1;
        for peer in self.region.layout().world().peers(self.me) {
            if self.losses.is_lost(peer) {
                continue;
            }
            let mut inner = lock(&self.inner);
            // One that cannot be told learns it from the fate channel.
            let _ = self.post_words(&mut inner, peer, |line, remote| {
                let (text, flag) = (line, line + NOTICE as u64);
                let layout = self.region.layout();
                // SAFETY: an outgoing line is longer than both together, free, and ours under the lock.
                unsafe {
                    (text as *mut u8).copy_from_nonoverlapping(notice.as_ptr(), NOTICE);
                    (flag as *mut u64).write_unaligned(word);
                }
                let at = |offset: usize| remote + offset as u64;
                let writes = [
                    Write {
                        local: text,
                        remote: at(layout.notice(self.me)),
                        length: NOTICE as u32,
                    },
                    Write {
                        local: flag,
                        remote: at(layout.word(crate::region::Word::Notice { peer: self.me })),
                        length: 8,
                    },
                ];
                (writes, culprit.0 + 1)
            });
        }
        let until = Instant::now() + NOTICES;
        while Instant::now() < until {
            let mut inner = lock(&self.inner);
            self.reap(&mut inner);
            let waiting = inner
                .links()
                .any(|(peer, link)| !self.losses.is_lost(peer) && !link.is_idle());
            drop(inner);
            if !waiting {
                break;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn drain(&self) -> Halted {
        let mut report = Halted::default();
        {
            let inner = lock(&self.inner);
            for rail in inner.links().flat_map(|(_, link)| &link.rails) {
                report.queue_pairs += 1;
                // What could not be moved is seen when the states are counted.
                let _ = rail.pair.fail();
            }
        }
        let until = Instant::now() + DRAIN;
        let mut quiet = Instant::now();
        loop {
            let mut inner = lock(&self.inner);
            let before: usize = inner.devices.iter().map(|device| device.outstanding).sum();
            let moved = self.reap(&mut inner);
            let after: usize = inner.devices.iter().map(|device| device.outstanding).sum();
            report.drained += before - after;
            let now = Instant::now();
            if moved {
                quiet = now;
            }
            // Requests without a completion of their own leave one when they are flushed, so that an empty count is not the end.
            if (after == 0 && now - quiet >= QUIET) || now >= until {
                for rail in inner.links_mut().flat_map(|(_, link)| &mut link.rails) {
                    report.stuck += rail.forget();
                    let state = rail.pair.state();
                    report.in_error += usize::from(state.is_ok_and(|state| state == tp_verbs::State::Error));
                }
                return report;
            }
            drop(inner);
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    /// Waits until everything put has been acknowledged, says goodbye to every peer and waits for theirs: then nobody
    /// writes into this rank's memory any more, and everything can be freed.
    pub(super) fn close_now(&self, most: Duration) {
        let until = Instant::now() + most;
        let peers = || {
            let all = self.region.layout().world().peers(self.me);
            all.filter(|peer| self.is_remote(*peer) && !self.losses.is_lost(*peer))
        };
        let wait = |done: &dyn Fn() -> bool| {
            while !done() && Instant::now() < until {
                let moved = self.reap(&mut lock(&self.inner));
                if !moved {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        };
        let idle = || {
            let inner = lock(&self.inner);
            peers().all(|peer| inner.link(peer).is_none_or(super::link::Link::is_idle))
        };
        wait(&idle);
        for peer in peers() {
            let mut inner = lock(&self.inner);
            // Where it cannot be said, the peer waits as long as it is willing to, and goes.
            let _ = self.post_words(&mut inner, peer, |line, remote| {
                // SAFETY: an outgoing line, free, and ours under the lock.
                unsafe { (line as *mut u64).write_unaligned(1) };
                let write = Write {
                    local: line,
                    remote: remote + self.memory.extent().bye(self.me) as u64,
                    length: 8,
                };
                ([write], 1)
            });
        }
        wait(&|| idle() && peers().all(|peer| self.has_said_bye(peer)));
    }
}
