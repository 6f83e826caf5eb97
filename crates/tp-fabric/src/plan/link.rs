//! Both ends of the plan link.

use super::frame::{self, Batch, HEADER, Head, Kind};
use super::{HOLD_WORDS_MAX, PLAN_WORDS_MAX, PlanError, pin};
use crate::os;
use crate::settings::Pin;
use crate::types::{Rank, World};
use nix::poll::{PollFd, PollFlags};
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// How a link behaves.
#[derive(Clone, Copy, Debug)]
pub struct PlanConfig {
    /// How long a follower polls before it blocks; zero: it blocks at once.
    pub spin: Duration,
    /// Where a follower's receiving thread runs, from its first plan on.
    pub pin: Pin,
    /// A CPU that `auto` leaves alone: the proxy thread's.
    pub avoid_cpu: Option<u32>,
}

/// The plan link of one rank. Waits end when the other end goes; a peer that is only stuck is the fate channel's business.
#[derive(Debug)]
pub struct PlanLink {
    rank: Rank,
    /// On rank 0 one per follower, in rank order; on a follower the one to rank 0.
    links: Vec<TcpStream>,
    config: PlanConfig,
    held: Vec<Vec<i64>>,
    held_words: usize,
    waiting: Batch,
    bytes: Vec<u8>,
    scratch: Vec<u8>,
    pinned: Option<Option<u32>>,
    stopped: bool,
}

impl PlanLink {
    /// A link over the plan connections.
    pub fn new(rank: Rank, world: World, links: Vec<TcpStream>, config: PlanConfig) -> io::Result<Self> {
        let expected = if rank == Rank(0) { world.size() - 1 } else { 1 };
        if links.len() != expected {
            return Err(io::Error::other(format!(
                "{} plan connections where {expected} belong",
                links.len()
            )));
        }
        for link in &links {
            link.set_nonblocking(true)?;
        }
        Ok(Self {
            rank,
            links,
            config,
            held: Vec::new(),
            held_words: 0,
            waiting: Batch::default(),
            bytes: Vec::new(),
            scratch: vec![0; 64 << 10],
            pinned: None,
            stopped: false,
        })
    }

    /// Rank 0: sends a plan to every follower, together with those held back before it, as one frame where they fit one.
    pub fn send(&mut self, words: &[i64]) -> Result<(), PlanError> {
        self.check_sender(words.len())?;
        if self.held.is_empty() {
            return self.broadcast(Kind::Plan, words);
        }
        let held = std::mem::take(&mut self.held);
        self.held_words = 0;
        let all: usize = held.iter().map(|plan| plan.len() + 1).sum::<usize>() + words.len() + 2;
        if all <= PLAN_WORDS_MAX {
            return self.broadcast(Kind::Batch, &frame::batch(&held, words));
        }
        for plan in held {
            self.broadcast(Kind::Plan, &plan)?;
        }
        self.broadcast(Kind::Plan, words)
    }

    /// Rank 0: keeps a plan back until the next [`PlanLink::send`], at most [`HOLD_WORDS_MAX`] words and as many plans in
    /// all; what goes beyond sends those that are held first.
    pub fn hold(&mut self, words: &[i64]) -> Result<(), PlanError> {
        self.check_sender(words.len())?;
        if self.held_words + words.len() > HOLD_WORDS_MAX || self.held.len() == HOLD_WORDS_MAX {
            self.flush()?;
        }
        if words.len() > HOLD_WORDS_MAX {
            return self.broadcast(Kind::Plan, words);
        }
        self.held_words += words.len();
        self.held.push(words.to_vec());
        Ok(())
    }

    /// Rank 0: sends what is held.
    pub fn flush(&mut self) -> Result<(), PlanError> {
        self.held_words = 0;
        match self.held.pop() {
            None => Ok(()),
            Some(last) => self.send(&last),
        }
    }

    /// Rank 0: sends what is held, then the stop word; nothing can be sent after it.
    pub fn stop(&mut self) -> Result<(), PlanError> {
        self.check_sender(0)?;
        self.flush()?;
        self.broadcast(Kind::Stop, &[])?;
        self.stopped = true;
        Ok(())
    }

    /// A follower: the next plan into `buffer`; gives its length, or `None` for the stop word. A plan that does not fit is
    /// dropped, and the one after it can be received.
    pub fn recv(&mut self, buffer: &mut [i64]) -> Result<Option<usize>, PlanError> {
        let Some(plan) = self.next(buffer.len())? else {
            return Ok(None);
        };
        match buffer.get_mut(..plan.len()) {
            Some(place) => {
                place.copy_from_slice(&plan);
                Ok(Some(plan.len()))
            }
            None => Err(PlanError::TooLarge {
                words: plan.len(),
                room: buffer.len(),
            }),
        }
    }

    /// A follower: the next plan, however long, in place of what `buffer` held; `false` for the stop word.
    pub fn recv_grow(&mut self, buffer: &mut Vec<i64>) -> Result<bool, PlanError> {
        match self.next(PLAN_WORDS_MAX)? {
            Some(plan) => {
                *buffer = plan;
                Ok(true)
            }
            None => Ok(false),
        }
    }

    /// The CPU that the receiving thread was pinned to at its first plan.
    pub fn pinned_cpu(&self) -> Option<u32> {
        self.pinned.flatten()
    }

    fn check_sender(&self, words: usize) -> Result<(), PlanError> {
        if self.rank != Rank(0) {
            return Err(PlanError::NotRankZero);
        }
        // protocol 5.6
        if self.stopped {
            return Err(PlanError::Stopped);
        }
        if words > PLAN_WORDS_MAX {
            return Err(PlanError::TooLarge {
                words,
                room: PLAN_WORDS_MAX,
            });
        }
        Ok(())
    }

    /// Sends one frame to all followers, each at its own pace.
    fn broadcast(&mut self, kind: Kind, words: &[i64]) -> Result<(), PlanError> {
        frame::encode(&mut self.bytes, kind, words);
        let mut left: Vec<(usize, &[u8])> = (0..self.links.len())
            .map(|index| (index, self.bytes.as_slice()))
            .collect();
        loop {
            for (index, rest) in &mut left {
                let Some(link) = self.links.get_mut(*index) else {
                    continue;
                };
                write_some(link, rest).map_err(|reason| closed(*index + 1, reason))?;
            }
            left.retain(|(_, rest)| !rest.is_empty());
            if left.is_empty() {
                return Ok(());
            }
            let links = left.iter().filter_map(|(index, _)| self.links.get(*index));
            let mut fds: Vec<_> = links
                .map(|link| PollFd::new(link.as_fd(), PollFlags::POLLOUT))
                .collect();
            os::poll(&mut fds, None).map_err(|e| closed(0, e.to_string()))?;
        }
    }

    /// The next plan of at most `room` words; `None` for the stop word.
    fn next(&mut self, room: usize) -> Result<Option<Vec<i64>>, PlanError> {
        if self.rank == Rank(0) {
            return Err(PlanError::NotFollower);
        }
        if let Some(plan) = self.waiting.next() {
            return Ok(Some(plan));
        }
        if self.stopped {
            return Ok(None);
        }
        let head = self.read_head()?;
        if self.pinned.is_none() {
            self.pinned = Some(pin::pin(self.config.pin, self.config.avoid_cpu));
        }
        match head.kind {
            Kind::Stop => {
                self.stopped = true;
                Ok(None)
            }
            // protocol 5.5
            Kind::Plan if head.words > room => {
                self.read_words(head.words, false)?;
                Err(PlanError::TooLarge {
                    words: head.words,
                    room,
                })
            }
            Kind::Plan => Ok(Some(self.read_words(head.words, true)?)),
            Kind::Batch => {
                let words = self.read_words(head.words, true)?;
                self.waiting = Batch::check(words).map_err(|reason| closed(0, reason))?;
                Ok(self.waiting.next())
            }
        }
    }

    fn read_head(&mut self) -> Result<Head, PlanError> {
        let mut header = [0; HEADER];
        let mut filled = 0;
        // protocol 5.4
        let mut spin_until = (!self.config.spin.is_zero()).then(|| Instant::now() + self.config.spin);
        while filled < HEADER {
            match self.read_some(header.get_mut(filled..).unwrap_or_default())? {
                Some(n) => filled += n,
                // Where CPUs are scarce, the sender may be the one that waits for this CPU.
                None if spin_until.is_some_and(|until| Instant::now() < until) => std::thread::yield_now(),
                None => {
                    spin_until = None;
                    self.block()?;
                }
            }
        }
        frame::read_head(&header).map_err(|reason| closed(0, reason))
    }

    /// Reads the words of a frame; memory grows with what has come, not with what was claimed.
    fn read_words(&mut self, count: usize, keep: bool) -> Result<Vec<i64>, PlanError> {
        let mut words = Vec::with_capacity(if keep { count.min(1 << 17) } else { 0 });
        let mut rest = Vec::with_capacity(8);
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut left = count * 8;
        let result = loop {
            if left == 0 {
                break Ok(words);
            }
            let wants = left.min(scratch.len());
            match self.read_some(scratch.get_mut(..wants).unwrap_or_default()) {
                Ok(Some(n)) => {
                    left -= n;
                    if keep {
                        frame::append(&mut words, &mut rest, scratch.get(..n).unwrap_or_default());
                    }
                }
                Ok(None) => {
                    if let Err(error) = self.block() {
                        break Err(error);
                    }
                }
                Err(error) => break Err(error),
            }
        };
        self.scratch = scratch;
        result
    }

    /// Reads what is there; `None` where nothing is yet.
    fn read_some(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, PlanError> {
        let Some(link) = self.links.first_mut() else {
            return Err(closed(0, "there is no connection".to_owned()));
        };
        loop {
            match link.read(buffer) {
                Ok(0) => {
                    return Err(closed(
                        0,
                        "end of stream: it failed, exited or was killed".to_owned(),
                    ));
                }
                Ok(n) => return Ok(Some(n)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(closed(0, error.to_string())),
            }
        }
    }

    fn block(&self) -> Result<(), PlanError> {
        let mut fds: Vec<_> = self
            .links
            .iter()
            .take(1)
            .map(|link| PollFd::new(link.as_fd(), PollFlags::POLLIN))
            .collect();
        os::poll(&mut fds, None)
            .map(drop)
            .map_err(|e| closed(0, e.to_string()))
    }
}

fn write_some(link: &mut TcpStream, rest: &mut &[u8]) -> Result<(), String> {
    while !rest.is_empty() {
        match link.write(rest) {
            Ok(n) => *rest = rest.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(())
}

fn closed(rank: usize, reason: String) -> PlanError {
    PlanError::PeerClosed {
        rank: Rank(u32::try_from(rank).unwrap_or(u32::MAX)),
        reason,
    }
}
