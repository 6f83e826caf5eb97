//! Who lives: the fate channel's decisions, without a socket or a clock of its own.

use super::frame::{Decoder, Frame};
use super::{FateConfig, FateReport, MemoryReport};
use crate::types::Rank;
use std::time::{Duration, Instant};

/// What this rank knows of the ranks it has a connection to: all others on rank 0, rank 0 on the others.
pub(super) struct Watch {
    me: Rank,
    hosts: Vec<String>,
    limit: Duration,
    peers: Vec<Peer>,
    expecting_stop: bool,
    stop_seen: bool,
}

struct Peer {
    rank: Rank,
    decoder: Decoder,
    heard: Instant,
    /// When it last had acknowledged all that it was sent.
    taken: Instant,
    phase: String,
    bye: Option<Instant>,
    ended: bool,
    memory: Option<(u64, Instant)>,
}

impl Watch {
    pub fn new(config: &FateConfig, now: Instant) -> Self {
        let world = u32::try_from(config.hosts.len()).unwrap_or(u32::MAX);
        let ranks = if config.rank == Rank(0) {
            1..world
        } else {
            0..world.min(1)
        };
        let peer = |rank| Peer {
            rank: Rank(rank),
            decoder: Decoder::default(),
            heard: now,
            taken: now,
            phase: "boot".to_owned(),
            bye: None,
            ended: false,
            memory: None,
        };
        Self {
            me: config.rank,
            hosts: config.hosts.clone(),
            limit: config.limit,
            peers: ranks.map(peer).collect(),
            expecting_stop: false,
            stop_seen: false,
        }
    }

    /// Bytes came from a peer.
    pub fn bytes(&mut self, index: usize, bytes: &[u8], now: Instant) -> Option<FateReport> {
        let peer = self.peers.get_mut(index)?;
        peer.heard = now;
        peer.decoder.push(bytes);
        loop {
            let peer = self.peers.get_mut(index)?;
            match peer.decoder.next() {
                Ok(None) => return None,
                Ok(Some(frame)) => {
                    if let Some(report) = self.frame(index, frame, now) {
                        return Some(report);
                    }
                }
                Err(what) => {
                    peer.ended = true;
                    return self.blame(index, &what);
                }
            }
        }
    }

    fn frame(&mut self, index: usize, frame: Frame, now: Instant) -> Option<FateReport> {
        let own_world = self.hosts.len();
        let peer = self.peers.get_mut(index)?;
        match frame {
            Frame::Beat { phase } => peer.phase = phase,
            Frame::Memory { available } => peer.memory = Some((available, now)),
            Frame::Stop => self.stop_seen = true,
            Frame::Bye => peer.bye = Some(now),
            Frame::Fail {
                culprit,
                host,
                phase,
                reason,
            } => {
                if culprit.index() >= own_world {
                    return self.blame(index, "blamed a rank that does not exist");
                }
                return Some(FateReport {
                    culprit,
                    host,
                    phase,
                    reason,
                    own: culprit == self.me,
                });
            }
        }
        None
    }

    // protocol 4.4
    /// A peer's connection ended. After its bye that is as it should be; without one the rank is dead.
    pub fn end(&mut self, index: usize, how: &str) -> Option<FateReport> {
        let peer = self.peers.get_mut(index)?;
        peer.ended = true;
        if peer.bye.is_some() {
            return None;
        }
        let midway = if peer.decoder.is_midway() {
            ", in the middle of a frame"
        } else {
            ""
        };
        self.blame(
            index,
            &format!("went away without a clean stop ({how}{midway}): it failed, exited or was killed"),
        )
    }

    // protocol 4.5
    /// Time has passed.
    pub fn tick(&mut self, now: Instant) -> Option<FateReport> {
        let limit = self.limit;
        let silent = |peer: &Peer| {
            !peer.ended && peer.bye.is_none() && now.saturating_duration_since(peer.heard) > limit
        };
        if let Some(index) = self.peers.iter().position(silent) {
            let text = format!(
                "no heartbeat for {:.1} s: it is stopped, cut off or without power",
                limit.as_secs_f64()
            );
            return self.blame(index, &text);
        }
        // protocol 4.14
        let deaf = |peer: &Peer| {
            !peer.ended && peer.bye.is_none() && now.saturating_duration_since(peer.taken) > limit
        };
        if let Some(index) = self.peers.iter().position(deaf) {
            let text = format!(
                "nothing that rank {} sent has arrived for {:.1} s: it is cut off in one direction",
                self.me,
                limit.as_secs_f64()
            );
            return self.blame(index, &text);
        }
        // protocol 4.11
        // Ranks may close in any order, but one that is gone while this one still works would leave it waiting.
        let gone = |peer: &Peer| {
            peer.bye
                .is_some_and(|bye| now.saturating_duration_since(bye) > limit)
        };
        if !self.expecting_stop
            && let Some(index) = self.peers.iter().position(gone)
        {
            let text = format!(
                "left by a clean stop {:.1} s ago while rank {} is still at work",
                limit.as_secs_f64(),
                self.me
            );
            return self.blame(index, &text);
        }
        None
    }

    /// When [`Watch::tick`] may next have something to say, if nothing comes until then.
    pub fn deadline(&self) -> Option<Instant> {
        let of = |peer: &Peer| match peer.bye {
            None if !peer.ended => Some(peer.heard.min(peer.taken)),
            Some(bye) if !self.expecting_stop => Some(bye),
            _ => None,
        };
        self.peers
            .iter()
            .filter_map(of)
            .min()
            .map(|since| since + self.limit)
    }

    /// A peer's system has acknowledged all that was sent, or does not tell.
    pub fn taken(&mut self, index: usize, now: Instant) {
        if let Some(peer) = self.peers.get_mut(index) {
            peer.taken = now;
        }
    }

    /// This process itself did not run for a while (stopped, starved): its peers get a new interval before they are judged.
    pub fn forgive(&mut self, now: Instant) {
        for peer in &mut self.peers {
            peer.heard = now;
            peer.taken = now;
            peer.bye = peer.bye.map(|_| now);
        }
    }

    /// From now on peers may leave by a clean stop.
    pub fn expect_stop(&mut self) {
        self.expecting_stop = true;
    }

    /// Whether rank 0 has announced a stop.
    pub fn stop_seen(&self) -> bool {
        self.stop_seen
    }

    /// Whether every peer has said its bye.
    pub fn all_left(&self) -> bool {
        self.peers.iter().all(|peer| peer.bye.is_some() || peer.ended)
    }

    /// The ranks that have not said their bye.
    pub fn still_here(&self) -> Vec<Rank> {
        self.peers
            .iter()
            .filter(|peer| peer.bye.is_none() && !peer.ended)
            .map(|peer| peer.rank)
            .collect()
    }

    /// The last memory report of every rank; `None` where there is none.
    pub fn memory(&self, now: Instant) -> Vec<Option<MemoryReport>> {
        let mut out = vec![None; self.hosts.len()];
        for peer in &self.peers {
            if let (Some(place), Some((available, at))) = (out.get_mut(peer.rank.index()), peer.memory) {
                *place = Some(MemoryReport {
                    available,
                    age: now.saturating_duration_since(at),
                });
            }
        }
        out
    }

    fn blame(&self, index: usize, what: &str) -> Option<FateReport> {
        let peer = self.peers.get(index)?;
        let host = self
            .hosts
            .get(peer.rank.index())
            .cloned()
            .unwrap_or_else(|| "?".to_owned());
        let (culprit, phase, reason) = (peer.rank, peer.phase.clone(), what.to_owned());
        Some(FateReport {
            culprit,
            host,
            phase,
            reason,
            own: false,
        })
    }
}

/// One report of several that came at once: what a rank said itself counts before what was seen from outside, then the
/// lowest rank; the others are mentioned.
pub(super) fn merge(mut reports: Vec<FateReport>, said: impl Fn(&FateReport) -> bool) -> Option<FateReport> {
    reports.sort_by_key(|report| (!said(report), report.culprit));
    let mut all = reports.into_iter();
    let mut first = all.next()?;
    let also: Vec<String> = all
        .filter(|other| other.culprit != first.culprit)
        .map(|other| other.culprit.to_string())
        .collect();
    if !also.is_empty() {
        first.reason = format!("{} (also lost: rank {})", first.reason, also.join(", "));
    }
    Some(first)
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
