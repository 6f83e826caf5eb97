//! The queue pairs to one peer, and what is under way on them.

use super::RailEnd;
use super::extent::LINES;
use crate::types::Rank;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tp_verbs::post::{Poster, Put, Write};
use tp_verbs::{Completion, CompletionQueue, Context, MemoryRegion, QueuePair};

/// Requests of one queue pair outstanding at most: each of [`LINES`] puts has two, and a halt needs a few more.
pub(super) const DEPTH: u32 = 3 * LINES as u32;
/// Puts that the last ones of a transport (its notice, its goodbye) may use beyond the others.
const SPARE: usize = 2;

/// One device of this rank, with what is registered and completed on it.
#[derive(Debug)]
pub(super) struct Device {
    pub completions: Arc<CompletionQueue>,
    pub region: MemoryRegion,
    pub context: Arc<Context>,
    /// Puts on it that have not completed.
    pub outstanding: usize,
}

/// A put that has not completed.
#[derive(Debug)]
struct Flight {
    chain: u64,
    /// When it was first seen under way: the clock is read at looks, not for each put.
    at: Option<Instant>,
    /// Which message it is a part of; 0 for what is none.
    message: u64,
}

/// One queue pair.
#[derive(Debug)]
pub(super) struct Rail {
    pub pair: QueuePair,
    pub poster: Poster,
    pub near: RailEnd,
    /// Index of its device.
    pub device: usize,
    chains: u64,
    flights: VecDeque<Flight>,
    /// The first look after something was posted or completed last.
    heard: Option<Instant>,
}

/// All rails to a peer.
#[derive(Debug)]
pub(super) struct Link {
    pub rails: Vec<Rail>,
    /// Messages put.
    pub sent: u64,
    /// Number of the next message from the peer.
    pub expected: u64,
}

impl Link {
    /// How many messages are wholly acknowledged.
    pub fn settled(&self) -> u64 {
        let oldest = self.rails.iter().filter_map(Rail::oldest_message).min();
        oldest.map_or(self.sent, |message| message - 1)
    }

    /// Whether every rail takes another put.
    pub fn has_room(&self) -> bool {
        self.rails.iter().all(|rail| rail.flights.len() + SPARE < LINES)
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        self.rails.iter().all(|rail| rail.flights.is_empty())
    }
}

/// What a completion belongs to, in the number that its request carries.
fn id(peer: Rank, rail: usize, chain: u64) -> u64 {
    u64::from(peer.0) << 48 | (rail as u64 & 0xff) << 40 | (chain & CHAIN)
}

const CHAIN: u64 = (1 << 40) - 1;

/// The peer and the rail that a completion belongs to.
pub(super) fn whose(completion: &Completion) -> (usize, usize) {
    (
        (completion.id >> 48) as usize,
        (completion.id >> 40 & 0xff) as usize,
    )
}

impl Rail {
    pub fn new(pair: QueuePair, poster: Poster, near: RailEnd, device: usize) -> Self {
        Self {
            pair,
            poster,
            near,
            device,
            chains: 0,
            flights: VecDeque::with_capacity(LINES),
            heard: None,
        }
    }

    /// Number of the next put, and so of its outgoing line.
    pub fn next(&self) -> u64 {
        self.chains
    }

    /// Whether the next put's outgoing line is free.
    pub fn has_line(&self) -> bool {
        self.flights.len() < LINES
    }

    fn oldest_message(&self) -> Option<u64> {
        self.flights
            .iter()
            .map(|flight| flight.message)
            .find(|message| *message != 0)
    }

    /// Posts these writes, the last of which carries `flag` inside. The error says why not.
    pub fn post(&mut self, peer: Rank, writes: &[Write], flag: u32, message: u64) -> Result<(), String> {
        let put = Put {
            id: id(peer, self.position(), self.chains),
            local_key: self.poster.local.key,
            remote_key: self.poster.remote.key,
            writes,
            flags: &[],
            flags_inside: Some(flag),
        };
        let chain = self.poster.chain(&put).map_err(|refused| refused.to_string())?;
        // SAFETY: the poster's windows are this rank's memory and the peer's, registered with this queue pair's device for as
        // long as the wire lives; payloads stay unchanged until `settled` counts them, lines until their put completes.
        unsafe { self.pair.post(&chain) }.map_err(|error| error.to_string())?;
        self.flights.push_back(Flight {
            chain: self.chains & CHAIN,
            at: None,
            message,
        });
        self.chains += 1;
        self.heard = None;
        Ok(())
    }

    fn position(&self) -> usize {
        self.near.rail
    }

    /// Takes a completion: everything up to its put is done. How many puts that were.
    pub fn complete(&mut self, completion: &Completion) -> usize {
        let chain = completion.id & CHAIN;
        let Some(last) = self.flights.iter().position(|flight| flight.chain == chain) else {
            // A request without a completion of its own failed, and its put is counted already.
            return 0;
        };
        self.flights.drain(..=last);
        self.heard = None;
        last + 1
    }

    /// Gives what is new since the last look this time.
    pub fn look(&mut self, now: Instant) {
        self.heard.get_or_insert(now);
        let new = self
            .flights
            .iter_mut()
            .rev()
            .take_while(|flight| flight.at.is_none());
        new.for_each(|flight| flight.at = Some(now));
    }

    /// How long the oldest put has been under way, as far as looks saw it.
    pub fn waited(&self, now: Instant) -> Option<Duration> {
        Some(now.saturating_duration_since(self.flights.front()?.at?))
    }

    /// Whether nothing has been heard of the peer's device for that long, because nothing was asked of it.
    pub fn is_silent(&self, now: Instant, long: Duration) -> bool {
        let heard = |at| now.saturating_duration_since(at) >= long;
        self.flights.is_empty() && self.heard.is_some_and(heard)
    }

    /// Forgets what is under way; after the queue pair was drained.
    pub fn forget(&mut self) -> usize {
        let count = self.flights.len();
        self.flights.clear();
        count
    }
}

/// Which peers nothing more comes from, and why. Any thread may ask.
#[derive(Debug)]
pub(super) struct Losses(Vec<(AtomicBool, Mutex<Option<String>>)>);

impl Losses {
    pub fn new(world: usize) -> Self {
        Self(
            (0..world)
                .map(|_| (AtomicBool::new(false), Mutex::new(None)))
                .collect(),
        )
    }

    /// The first reason counts.
    pub fn lose(&self, peer: Rank, reason: String) {
        let (lost, why) = &self.0[peer.index()];
        lock(why).get_or_insert(reason);
        lost.store(true, Ordering::Release);
    }

    pub fn is_lost(&self, peer: Rank) -> bool {
        self.0[peer.index()].0.load(Ordering::Acquire)
    }

    pub fn reason(&self, peer: Rank) -> Option<String> {
        self.is_lost(peer)
            .then(|| lock(&self.0[peer.index()].1).clone())?
    }
}

/// The values under this wire's locks are whole whenever a thread can leave them.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
