//! One call in progress: sending and awaiting messages by the protocol's rules, with bounded waits.

use super::Delivery;
use super::shared::Shared;
use crate::collective::{Call, Failure};
use crate::proxy::Backoff;
use crate::region::protocol::{Breach, Inbound, Outbound, Ringer};
use crate::region::{self, Header, Post, Word, Words};
use crate::types::{Rank, World};
use crate::wire::{Parcel, WireError};
use std::time::{Duration, Instant};

/// The longest sleep on a wire that wakes its sleeper, between two looks at what does not.
const LONGEST_IDLE: Duration = Duration::from_millis(50);

/// The streams of this rank; whoever holds them is in a call.
#[derive(Debug)]
pub(crate) struct Streams {
    outbound: Vec<Outbound>,
    inbound: Vec<Inbound>,
    pub(super) ringer: Ringer,
    /// The raw handle of the stream that this transport serves.
    pub(super) bound: Option<u64>,
}

impl Streams {
    pub(super) fn new(world: World) -> Self {
        Self {
            outbound: vec![Outbound::default(); world.size()],
            inbound: vec![Inbound::default(); world.size()],
            ringer: Ringer::default(),
            bound: None,
        }
    }
}

/// A set of ranks, one bit each; worlds have up to 64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ranks(u64);

impl Ranks {
    pub(super) fn none() -> Self {
        Self(0)
    }

    pub(super) fn one(rank: Rank) -> Self {
        Self(1 << rank.0)
    }

    pub(super) fn with(self, rank: Rank) -> Self {
        Self(self.0 | 1 << rank.0)
    }

    pub(super) fn without(self, rank: Rank) -> Self {
        Self(self.0 & !(1 << rank.0))
    }

    pub(super) fn peers(world: World, me: Rank) -> Self {
        world.peers(me).fold(Self(0), Self::with)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Rank> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let next = left.trailing_zeros();
            (next < 64).then(|| {
                left &= left - 1;
                Rank(next)
            })
        })
    }
}

/// What is sent to the peers of a message: the same bytes to all, or each its own.
#[derive(Clone, Copy)]
pub(super) enum Payload<'a> {
    Same(*const u8, usize),
    Each(&'a dyn Fn(Rank) -> (*const u8, usize)),
}

impl Payload<'_> {
    fn of(&self, peer: Rank) -> (*const u8, usize) {
        match self {
            Self::Same(at, len) => (*at, *len),
            Self::Each(of) => of(peer),
        }
    }
}

/// What a wait is for.
#[derive(Clone, Copy)]
enum Need {
    /// The next message of these ranks.
    From(Ranks),
    /// A free slot at this rank.
    Room(Rank),
    /// A free entry of the doorbell.
    Entry,
}

/// A call in progress on this rank.
pub(super) struct Turn<'a> {
    pub(super) shared: &'a Shared,
    pub(super) streams: &'a mut Streams,
    pub(super) call: Call,
    pub(super) delivery: Delivery,
}

impl Turn<'_> {
    pub(super) fn me(&self) -> Rank {
        self.shared.rank()
    }

    pub(super) fn world(&self) -> World {
        self.shared.region().layout().world()
    }

    pub(super) fn peers(&self) -> Ranks {
        Ranks::peers(self.world(), self.me())
    }

    /// Bytes of a slot.
    pub(super) fn slot(&self) -> usize {
        self.shared.region().layout().slot()
    }

    /// Sends one message to each of `to`.
    ///
    /// # Safety
    /// Each payload is readable for its length, at most a slot (all of `Each` together at most a slot), until this
    /// returns.
    pub(super) unsafe fn post(&mut self, to: Ranks, part: u32, payload: Payload<'_>) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            match self.delivery {
                Delivery::Direct => self.put(to, part, payload),
                Delivery::Doorbell => self.stage(to, part, payload),
            }
        }
    }

    fn header(&self, peer: Rank, part: u32, len: usize) -> Header {
        let answer = self.streams.inbound[peer.index()].consumed();
        Header {
            call: self.call.encode(),
            part,
            len: len as u32,
            answer,
        }
    }

    /// # Safety
    /// As [`post`](Self::post).
    unsafe fn put(&mut self, to: Ranks, part: u32, payload: Payload<'_>) -> Result<(), Failure> {
        for peer in to.iter() {
            let seq = self.room(peer)?;
            let (at, len) = payload.of(peer);
            let header = self.header(peer, part, len);
            // An empty payload may have any address, also none.
            let at = if len == 0 { std::ptr::dangling() } else { at };
            // SAFETY: the caller's promise.
            let payload = unsafe { std::slice::from_raw_parts(at, len) };
            let parcel = Parcel {
                peer,
                seq,
                header,
                payload,
            };
            self.on_wire(|wire, give_up| wire.put(&parcel, give_up))?;
            self.streams.outbound[peer.index()].sent();
        }
        Ok(())
    }

    /// Runs one of the wire's blocking calls, bounded like any wait.
    fn on_wire(
        &self,
        run: impl FnOnce(&dyn crate::wire::Wire, &dyn Fn() -> bool) -> Result<(), WireError>,
    ) -> Result<(), Failure> {
        let shared = self.shared;
        let begun = std::cell::OnceCell::new();
        let give_up = || shared.has_failed() || begun.get_or_init(Instant::now).elapsed() > shared.wait();
        match run(shared.wire(), &give_up) {
            Ok(()) => Ok(()),
            Err(WireError::Peer { peer, reason }) => Err(shared.peer_failed(peer, reason)),
            Err(WireError::GivenUp { peer }) => Err(shared.failure().unwrap_or_else(|| Failure::Timeout {
                call: self.call,
                missing: vec![peer],
                waited: shared.wait(),
            })),
        }
    }

    /// # Safety
    /// As [`post`](Self::post).
    unsafe fn stage(&mut self, to: Ranks, part: u32, payload: Payload<'_>) -> Result<(), Failure> {
        let region = self.shared.region();
        let entry = self.entry()?;
        let mut used = 0;
        for (index, peer) in to.iter().enumerate() {
            let seq = self.room(peer)?;
            let (at, len) = payload.of(peer);
            let offset = if matches!(payload, Payload::Same(..)) {
                0
            } else {
                used
            };
            if index == 0 || matches!(payload, Payload::Each(_)) {
                let staged = region.staging(entry, offset, len);
                // SAFETY: the source is readable by the caller's promise, `staging` checked the target, and the entry is
                // free, so the proxy does not read it now.
                unsafe { region::copy(at, staged, len) };
                used += len;
            }
            let post = Post::Message {
                seq,
                header: self.header(peer, part, len),
                offset: offset as u32,
            };
            // SAFETY: the entry is free, and this is the kernel.
            unsafe { region.write_post(entry, peer, &post) };
            self.streams.outbound[peer.index()].sent();
        }
        self.ring(entry, to);
        Ok(())
    }

    fn ring(&mut self, entry: usize, to: Ranks) {
        self.shared.region().store(Word::Mask { entry }, to.0);
        self.streams.ringer.ring(self.shared.region());
    }

    /// Tells `to` how many of their messages were consumed.
    pub(super) fn answer(&mut self, to: Ranks) -> Result<(), Failure> {
        if to == Ranks::none() {
            return Ok(());
        }
        if self.delivery == Delivery::Direct {
            for peer in to.iter() {
                let consumed = self.streams.inbound[peer.index()].consumed();
                self.on_wire(|wire, give_up| wire.answer(peer, consumed, give_up))?;
            }
            return Ok(());
        }
        let entry = self.entry()?;
        for peer in to.iter() {
            let post = Post::Answer {
                consumed: self.streams.inbound[peer.index()].consumed(),
            };
            // SAFETY: the entry is free, and this is the kernel.
            unsafe { self.shared.region().write_post(entry, peer, &post) };
        }
        self.ring(entry, to);
        Ok(())
    }

    /// Waits for the next message of `source`, the `part`-th of this call with `len` bytes, and gives its payload's
    /// address, valid until [`consume`](Self::consume). Names all of `pending` when the time is over.
    pub(super) fn take(
        &mut self,
        source: Rank,
        part: u32,
        len: usize,
        pending: Ranks,
    ) -> Result<*const u8, Failure> {
        self.until(Need::From(pending), |turn| {
            turn.streams.inbound[source.index()]
                .arrived(turn.shared.region(), source)
                .map_err(|b| (source, b))
        })?;
        let region = self.shared.region();
        let bay = self.streams.inbound[source.index()].bay(source);
        // SAFETY: the message has arrived and is not consumed.
        let header = unsafe { region.header(bay) };
        if header.call != self.call.encode() || header.part != part || header.len as usize != len {
            return Err(self.out_of_step(source, &header, part, len));
        }
        let learnt = self.streams.outbound[source.index()].answer(header.answer);
        learnt.map_err(|breach| self.breach(source, &breach))?;
        Ok(region.payload(bay, len))
    }

    /// The message from `source` that was taken is read; its slot may be used again.
    pub(super) fn consume(&mut self, source: Rank) {
        let consumed = self.streams.inbound[source.index()].consume();
        self.shared.region().store(Word::Consumed { source }, consumed);
    }

    /// Number of the next message to `peer`, when its slot is free.
    fn room(&mut self, peer: Rank) -> Result<u64, Failure> {
        let mut seq = 0;
        self.until(Need::Room(peer), |turn| {
            let region = turn.shared.region();
            let Streams {
                outbound, inbound, ..
            } = &mut *turn.streams;
            let (outbound, inbound) = (&mut outbound[peer.index()], &inbound[peer.index()]);
            let mut attempt = || {
                if let Some(free) = outbound.next(region, peer)? {
                    seq = free;
                    return Ok(true);
                }
                // The answer may stand in the peer's next message, which this call takes only after it has sent.
                if inbound.arrived(region, peer)? {
                    // SAFETY: arrived and not consumed.
                    outbound.answer(unsafe { region.header(inbound.bay(peer)) }.answer)?;
                }
                Ok(match outbound.next(region, peer)? {
                    Some(free) => {
                        seq = free;
                        true
                    }
                    None => false,
                })
            };
            attempt().map_err(|breach| (peer, breach))
        })?;
        Ok(seq)
    }

    fn entry(&mut self) -> Result<usize, Failure> {
        let mut entry = 0;
        self.until(Need::Entry, |turn| {
            Ok(turn
                .streams
                .ringer
                .next(turn.shared.region())
                .inspect(|free| entry = *free)
                .is_some())
        })?;
        Ok(entry)
    }

    /// Waits until `ready`, the transport fails, or the time is over.
    fn until(
        &mut self,
        need: Need,
        mut ready: impl FnMut(&mut Self) -> Result<bool, (Rank, Breach)>,
    ) -> Result<(), Failure> {
        let shared = self.shared;
        let direct = self.delivery == Delivery::Direct;
        let mut backoff = None;
        let mut begun = None;
        loop {
            if ready(self).map_err(|(rank, breach)| self.breach(rank, &breach))? {
                return Ok(());
            }
            if shared.has_failed() {
                return Err(shared.failure().unwrap_or(Failure::Closed));
            }
            if direct && shared.wire().progress() {
                continue;
            }
            let backoff = backoff
                .get_or_insert_with(|| Backoff::new(shared.crowded(), direct && shared.wire().idle_wakes()));
            if backoff.spin() {
                continue;
            }
            if let Some(failure) = shared.noticed() {
                return Err(failure);
            }
            let waited = begun.get_or_insert_with(Instant::now).elapsed();
            let missing = if waited > shared.wait() {
                self.missing(need)
            } else {
                Vec::new()
            };
            let gone = self
                .missing(need)
                .into_iter()
                .find_map(|rank| Some((rank, shared.wire().lost(rank)?)));
            // What was missing may have come since, just before its sender left.
            if (gone.is_some() || waited > shared.wait()) && ready(self).is_ok_and(|ready| ready) {
                return Ok(());
            }
            if let Some((rank, reason)) = gone {
                return Err(shared.peer_failed(rank, reason));
            }
            if waited > shared.wait() {
                return Err(match need {
                    Need::Entry => Failure::Proxy {
                        reason: format!("posted nothing within {} ms", waited.as_millis()),
                    },
                    Need::From(_) | Need::Room(_) => Failure::Timeout {
                        call: self.call,
                        missing,
                        waited,
                    },
                });
            }
            let left = shared.wait().saturating_sub(waited).min(LONGEST_IDLE);
            backoff.pause(|nap| match (direct, shared.wire().idle_wakes()) {
                (true, true) => shared.wire().idle(left),
                (true, false) => shared.wire().idle(nap),
                (false, _) => std::thread::sleep(nap),
            });
        }
    }

    /// The ranks that a wait is still for.
    fn missing(&self, need: Need) -> Vec<Rank> {
        let arrived =
            |rank: &Rank| self.streams.inbound[rank.index()].arrived(self.shared.region(), *rank) == Ok(true);
        match need {
            Need::From(ranks) => ranks.iter().filter(|rank| !arrived(rank)).collect(),
            Need::Room(rank) => vec![rank],
            Need::Entry => Vec::new(),
        }
    }

    fn breach(&self, rank: Rank, breach: &Breach) -> Failure {
        Failure::Wire {
            call: self.call,
            rank,
            reason: breach.to_string(),
        }
    }

    fn out_of_step(&self, rank: Rank, header: &Header, part: u32, len: usize) -> Failure {
        let theirs = match Call::decode(&header.call) {
            Some(call) if call == self.call => {
                format!(
                    "the same call with {} B in part {} where {len} B in part {part} are due",
                    header.len, header.part
                )
            }
            Some(call) => format!("`{call}`"),
            None => "a call that this version does not know".to_owned(),
        };
        Failure::Desync {
            mine: self.call,
            rank,
            theirs,
        }
    }
}
