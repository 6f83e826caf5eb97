//! The verbs wire: RDMA writes into the peers' registered memory, over one reliable connected queue pair for each rail.
//!
//! A payload of up to [`SMALL`] bytes goes with its header in one line whose flags are inside: one work request. A larger one is
//! striped over the rails in 16-byte packs; each rail writes its stripe straight into the peer's receive slot and behind it,
//! on the same queue pair, a line: two chained requests. The receiver's [`progress`](Wire::progress) takes lines that have
//! come whole and publishes their messages in its own region, where kernels wait for them.
//!
//! Ranks of one host have no rails; their regions share memory, and messages between them are copied.
//!
//! A dead path is found in three ways: by an event of the device, by a failed completion, and, since a driver may repeat
//! for ever, by this wire's own patience with an acknowledgement; while nothing is under way it writes beats.

mod cells;
mod extent;
mod fault;
mod halt;
mod link;
mod memory;
mod open;
mod record;
mod watch;

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    //! A part of the fuzz target `texts`.

    use super::record::Record;

    /// What a peer says of its memory and its ends of the rails. What was read reads the same again.
    pub fn record(bytes: &[u8]) {
        if let Ok(record) = Record::decode(bytes) {
            // Text that was none is longer now than it was.
            let again = Record::decode(&record.encode());
            assert!(record.has_replaced_text() || again.as_ref() == Ok(&record));
        }
    }

    #[cfg(test)]
    pub fn record_seed() -> Vec<u8> {
        super::record::sample(2).1.encode()
    }
}

pub use cells::SMALL;
pub use fault::Fault;
pub use halt::Halted;
pub use open::{VerbsConfig, open};

use super::{Parcel, Wire, WireError};
use crate::region::layout::{Bay, HEADER};
use crate::region::{Header, Region, Word, Words, partition};
use crate::types::{Rank, WireKind};
use cells::{CELL, LINE_CELLS};
use link::{Device, Link, Losses, lock, whose};
use memory::Memory;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tp_verbs::post::{MAX_WRITE, Write};
use tp_verbs::{Gid, PortNum};
use watch::Watch;

/// Calls of `progress` between two looks at the clock.
const CLOCK_EVERY: u32 = 64;
/// Calls of `progress` between two looks for completions while nobody waits for one.
const REAP_EVERY: u32 = 8;

/// This rank's end of one rail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RailEnd {
    /// The peer.
    pub peer: Rank,
    /// Which rail of the pair, from 0, in the order that both ends know.
    pub rail: usize,
    /// RDMA device.
    pub device: String,
    /// Its port.
    pub port: PortNum,
    /// Index of the GID that packets come from.
    pub gid_index: u8,
    /// The GID that must be there.
    pub gid: Gid,
    /// The peer's device and port, for messages.
    pub far: String,
}

impl fmt::Display for RailEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "rail {}, {} port {} to {} of rank {}",
            self.rail, self.device, self.port, self.far, self.peer
        )
    }
}

/// Links and devices, which whoever posts or reaps holds.
#[derive(Debug)]
struct Inner {
    /// By rank; none to this rank and to those of this host. Before the devices: queue pairs go first.
    links: Vec<Option<Link>>,
    devices: Vec<Device>,
    /// For each bounce slot the message that is in it.
    bounces: Vec<Option<(Rank, u64)>>,
    next_bounce: usize,
}

impl Inner {
    fn link(&self, peer: Rank) -> Option<&Link> {
        self.links[peer.index()].as_ref()
    }

    fn links(&self) -> impl Iterator<Item = (Rank, &Link)> {
        let ranked = self.links.iter().zip(0..);
        ranked.filter_map(|(link, rank)| Some((Rank(rank), link.as_ref()?)))
    }

    fn links_mut(&mut self) -> impl Iterator<Item = (Rank, &mut Link)> {
        let ranked = self.links.iter_mut().zip(0..);
        ranked.filter_map(|(link, rank)| Some((Rank(rank), link.as_mut()?)))
    }
}

/// An open verbs wire.
#[derive(Debug)]
pub struct VerbsWire {
    me: Rank,
    /// Stopped first: it looks at the devices.
    watch: Option<Watch>,
    inner: Mutex<Inner>,
    losses: Arc<Losses>,
    liveness: Duration,
    turns: AtomicU32,
    halted: AtomicBool,
    report: Mutex<Option<Halted>>,
    /// The regions of the ranks of this host, by rank; its own among them where there are several.
    neighbours: Vec<Option<Region>>,
    region: Region,
    memory: Memory,
}

impl VerbsWire {
    fn is_remote(&self, peer: Rank) -> bool {
        peer != self.me && self.neighbours[peer.index()].is_none()
    }

    /// What the halt found, once there was one.
    pub fn halted(&self) -> Option<Halted> {
        *lock(&self.report)
    }

    fn broke(peer: Rank, reason: impl Into<String>) -> WireError {
        let reason = reason.into();
        WireError::Peer { peer, reason }
    }

    /// Takes completions; whether there were any.
    fn reap(&self, inner: &mut Inner) -> bool {
        let Inner { links, devices, .. } = inner;
        let mut moved = false;
        for (number, device) in devices.iter_mut().enumerate() {
            let Device {
                completions,
                outstanding,
                ..
            } = device;
            let polled = completions.poll(|completion| {
                let (peer, rail) = whose(&completion);
                let link = links.get_mut(peer).and_then(Option::as_mut);
                let Some(rail) = link.and_then(|link| link.rails.get_mut(rail)) else {
                    return;
                };
                *outstanding -= rail.complete(&completion).min(*outstanding);
                if let Err(failure) = &completion.result {
                    self.losses
                        .lose(rail.near.peer, format!("{}: {failure}", rail.near));
                }
            });
            match polled {
                Ok(count) => moved |= count > 0,
                Err(error) => {
                    for (peer, link) in links
                        .iter()
                        .zip(0..)
                        .filter_map(|(l, r)| Some((Rank(r), l.as_ref()?)))
                    {
                        if link.rails.iter().any(|rail| rail.device == number) {
                            self.losses.lose(peer, error.to_string());
                        }
                    }
                }
            }
        }
        moved
    }

    /// Loses peers that do not acknowledge, and asks those that were asked nothing for a while.
    fn check_liveness(&self, inner: &mut Inner) {
        let now = Instant::now();
        for (_, link) in inner.links_mut() {
            link.rails.iter_mut().for_each(|rail| rail.look(now));
        }
        let mut silent = Vec::new();
        for (peer, link) in inner.links() {
            if self.losses.is_lost(peer) {
                continue;
            }
            for rail in &link.rails {
                if let Some(waited) = rail.waited(now).filter(|waited| *waited > self.liveness) {
                    let reason = format!(
                        "{}: nothing was acknowledged for {:.1} s: the peer's host is gone, the path is cut, or its MTU is \
                         smaller than agreed",
                        rail.near,
                        waited.as_secs_f64()
                    );
                    self.losses.lose(peer, reason);
                } else if rail.is_silent(now, self.liveness / 3) {
                    silent.push((peer, rail.near.rail));
                }
            }
        }
        for (peer, rail) in silent {
            let beat = self.memory.extent().beat(self.me, rail);
            let posted = self.post_word(inner, peer, rail, beat, 1);
            if let Err(reason) = posted {
                self.losses.lose(peer, reason);
            }
        }
    }

    /// Writes one word over a rail, at `offset` of the peer's memory.
    fn post_word(
        &self,
        inner: &mut Inner,
        peer: Rank,
        rail: usize,
        offset: usize,
        value: u64,
    ) -> Result<(), String> {
        self.post_on(inner, peer, rail, 0, |line, remote| {
            // SAFETY: an outgoing line, aligned and free, and ours under the lock.
            unsafe { line.cast::<u64>().write(value) };
            let write = Write {
                local: line as u64,
                remote: remote + offset as u64,
                length: 8,
            };
            ([write], cells::flag(value))
        })
    }

    /// Writes what `fill` puts into an outgoing line, over the first rail. It is given the line's address and that of the
    /// peer's memory, and says what to write and its flag.
    fn post_words<const N: usize>(
        &self,
        inner: &mut Inner,
        peer: Rank,
        fill: impl FnOnce(u64, u64) -> ([Write; N], u32),
    ) -> Result<(), String> {
        self.post_on(inner, peer, 0, 0, |line, remote| fill(line as u64, remote))
    }

    fn post_on<const N: usize>(
        &self,
        inner: &mut Inner,
        peer: Rank,
        rail: usize,
        message: u64,
        fill: impl FnOnce(*mut u8, u64) -> ([Write; N], u32),
    ) -> Result<(), String> {
        let Inner { links, devices, .. } = inner;
        let link = links[peer.index()]
            .as_mut()
            .ok_or("there is no rail to this rank")?;
        let rail = link.rails.get_mut(rail).ok_or("there is no such rail")?;
        if !rail.has_line() {
            return Err(format!("{}: too many puts are under way", rail.near));
        }
        let offset = self.memory.extent().outgoing(peer, rail.near.rail, rail.next());
        let line = self.memory.at(offset, cells::LINE);
        let (writes, flag) = fill(line, rail.poster.remote.start);
        rail.post(peer, &writes, flag, message)
            .map_err(|reason| format!("{}: {reason}", rail.near))?;
        devices[rail.device].outstanding += 1;
        Ok(())
    }

    /// Waits until `ready`, taking completions meanwhile.
    fn until(
        &self,
        inner: &mut Inner,
        peer: Rank,
        give_up: &dyn Fn() -> bool,
        ready: impl Fn(&Inner) -> bool,
    ) -> Result<(), WireError> {
        let mut turns = 0u32;
        loop {
            if let Some(reason) = self.losses.reason(peer) {
                return Err(Self::broke(peer, reason));
            }
            if ready(inner) {
                return Ok(());
            }
            turns = turns.wrapping_add(1);
            if !self.reap(inner) && turns.is_multiple_of(CLOCK_EVERY) {
                if give_up() {
                    return Err(WireError::GivenUp { peer });
                }
                self.check_liveness(inner);
                std::thread::yield_now();
            }
        }
    }

    /// Where a payload can be read by the devices: where it is, or copied into a bounce slot.
    fn reachable(
        &self,
        inner: &mut Inner,
        peer: Rank,
        payload: &[u8],
        give_up: &dyn Fn() -> bool,
    ) -> Result<u64, WireError> {
        if self.memory.holds(payload) {
            return Ok(payload.as_ptr() as u64);
        }
        let bounces = self.memory.extent().bounces();
        if bounces == 0 {
            return Err(Self::broke(
                peer,
                "the payload lies outside the registered memory",
            ));
        }
        let slot = inner.next_bounce;
        inner.next_bounce = (slot + 1) % bounces;
        if let Some((holder, message)) = inner.bounces[slot] {
            self.until(inner, holder, give_up, |inner| {
                inner.link(holder).is_none_or(|link| link.settled() >= message)
            })?;
        }
        let at = self.memory.at(self.memory.extent().bounce(slot), payload.len());
        // SAFETY: a bounce slot is as long as a slot, which no payload exceeds; no request reads it now.
        unsafe { crate::region::copy(payload.as_ptr(), at, payload.len()) };
        inner.bounces[slot] = Some((peer, inner.link(peer).map_or(0, |link| link.sent) + 1));
        Ok(at as u64)
    }

    fn put_remote(&self, parcel: &Parcel<'_>, give_up: &dyn Fn() -> bool) -> Result<(), WireError> {
        let Parcel {
            peer,
            seq,
            header,
            payload,
        } = *parcel;
        let mut inner = lock(&self.inner);
        let inner = &mut *inner;
        if payload.len() > self.region.layout().slot() || header.len as usize != payload.len() {
            return Err(Self::broke(
                peer,
                format!("a payload of {} bytes does not fit", payload.len()),
            ));
        }
        self.until(inner, peer, give_up, |inner| {
            inner.link(peer).is_none_or(Link::has_room)
        })?;
        let (bay, flag, head) = (Bay::of(self.me, seq), cells::flag(seq), header.encode());
        let rails = inner.link(peer).map_or(0, |link| link.rails.len());
        let message = inner.link(peer).map_or(0, |link| link.sent) + 1;
        let landing = |rail: usize, line: *mut u8, bytes: usize, remote: u64| Write {
            local: line as u64,
            remote: remote + self.memory.extent().landing(bay, rail) as u64,
            length: bytes as u32,
        };
        let posted = if payload.len() <= SMALL {
            self.post_on(inner, peer, 0, message, |line, remote| {
                // SAFETY: an outgoing line, aligned and free, and ours under the lock; header and payload fit.
                let bytes = unsafe { cells::pack(line, &head, payload, flag) };
                ([landing(0, line, bytes, remote)], flag)
            })
        } else {
            let from = self.reachable(inner, peer, payload, give_up)?;
            let to = self.region.layout().receive(bay) as u64;
            (0..rails).try_for_each(|rail| {
                let stripe = partition::part(payload.len(), rails, rail);
                if stripe.is_empty() {
                    return Ok(());
                }
                self.post_on(inner, peer, rail, message, |line, remote| {
                    let head: &[u8] = if rail == 0 { &head } else { &[] };
                    // SAFETY: as above.
                    let bytes = unsafe { cells::pack(line, head, &[], flag) };
                    let stripe = Write {
                        local: from + stripe.start as u64,
                        remote: remote + to + stripe.start as u64,
                        length: stripe.len() as u32,
                    };
                    ([stripe, landing(rail, line, bytes, remote)], flag)
                })
            })
        };
        posted.map_err(|reason| {
            self.losses.lose(peer, reason.clone());
            Self::broke(peer, reason)
        })?;
        if let Some(link) = inner.links[peer.index()].as_mut() {
            link.sent = message;
        }
        Ok(())
    }

    /// Publishes the messages that have come whole; whether there were any.
    fn arrivals(&self, inner: &mut Inner) -> bool {
        let mut moved = false;
        for (peer, link) in inner.links_mut() {
            while self.arrival(peer, link) {
                link.expected += 1;
                moved = true;
            }
        }
        moved
    }

    /// Publishes the next message of a peer, if it has come whole.
    fn arrival(&self, peer: Rank, link: &Link) -> bool {
        let (seq, rails) = (link.expected, link.rails.len());
        let (bay, flag) = (Bay::of(peer, seq), cells::flag(seq));
        let line = |rail: usize| {
            self.memory
                .at(self.memory.extent().landing(bay, rail), cells::LINE)
        };
        let first = line(0);
        let head = cells::cells(HEADER);
        // SAFETY: a landing line; the peer writes it only for this message until it is consumed.
        if unsafe { !cells::carry(first, 0..head, flag) } {
            return false;
        }
        let mut raw = [0; HEADER];
        // SAFETY: as above, and these cells have come.
        unsafe { cells::read(first, 0, raw.as_mut_ptr(), HEADER) };
        let header = Header::decode(&raw);
        let len = header.len as usize;
        if len > self.region.layout().slot() {
            self.losses.lose(
                peer,
                format!("message {seq} claims {len} bytes, more than a slot"),
            );
            return false;
        }
        let small = len <= SMALL;
        let count = if small { cells::cells(HEADER + len) } else { head };
        // SAFETY: as above.
        unsafe {
            if !cells::carry(first, head..count, flag) {
                return false;
            }
            let parts = 1..if small { 1 } else { rails };
            let parts = parts.filter(|rail| !partition::part(len, rails, *rail).is_empty());
            if !parts.clone().all(|rail| cells::carry(line(rail), 0..1, flag)) {
                return false;
            }
            // What is delivered was written by the peer for this bay, whose one writer this thread stands for.
            if small {
                cells::read(first, HEADER, self.region.payload(bay, len), len);
            }
            self.region.publish(bay, seq, &header);
            // Whoever waits for the message has it by now.
            cells::clear(first, count);
            parts.for_each(|rail| cells::clear(line(rail), 1));
        }
        true
    }

    fn has_said_bye(&self, peer: Rank) -> bool {
        let at = self.memory.at(self.memory.extent().bye(peer), 8);
        // SAFETY: within the memory, aligned to 8; the peer writes it whole, once.
        let word = unsafe { std::sync::atomic::AtomicU64::from_ptr(at.cast()) };
        word.load(Ordering::Acquire) != 0
    }
}

impl Wire for VerbsWire {
    fn kind(&self) -> WireKind {
        WireKind::Verbs
    }

    fn put(&self, parcel: &Parcel<'_>, give_up: &dyn Fn() -> bool) -> Result<(), WireError> {
        if let Some(region) = &self.neighbours[parcel.peer.index()] {
            let bay = Bay::of(self.me, parcel.seq);
            // SAFETY: this rank is the one writer of its bays at the peer; the caller sends message `seq` only when the
            // protocol says that its slot is free, and payloads are at most a slot.
            unsafe { region.deliver(bay, parcel.seq, &parcel.header, parcel.payload) };
            return Ok(());
        }
        self.put_remote(parcel, give_up)
    }

    fn answer(&self, peer: Rank, consumed: u64, give_up: &dyn Fn() -> bool) -> Result<(), WireError> {
        let word = Word::Acked { peer: self.me };
        if let Some(region) = &self.neighbours[peer.index()] {
            region.store(word, consumed);
            return Ok(());
        }
        let mut inner = lock(&self.inner);
        self.until(&mut inner, peer, give_up, |inner| {
            inner.link(peer).is_none_or(Link::has_room)
        })?;
        let offset = self.region.layout().word(word);
        let posted = self.post_word(&mut inner, peer, 0, offset, consumed);
        posted.map_err(|reason| Self::broke(peer, reason))
    }

    fn settled(&self, peer: Rank) -> u64 {
        let inner = lock(&self.inner);
        inner.link(peer).map_or(u64::MAX, Link::settled)
    }

    fn progress(&self) -> bool {
        let Ok(mut inner) = self.inner.try_lock() else {
            return false;
        };
        let mut moved = self.arrivals(&mut inner);
        let turn = self.turns.fetch_add(1, Ordering::Relaxed);
        if turn.is_multiple_of(REAP_EVERY) && inner.devices.iter().any(|device| device.outstanding > 0) {
            moved |= self.reap(&mut inner);
        }
        if turn.is_multiple_of(CLOCK_EVERY) && !self.halted.load(Ordering::Relaxed) {
            self.check_liveness(&mut inner);
        }
        moved
    }

    fn lost(&self, peer: Rank) -> Option<String> {
        self.losses.reason(peer)
    }

    fn halt(&self, culprit: Rank, reason: &str) {
        self.halt_now(culprit, reason);
    }

    fn close(&self, most: Duration) {
        if !self.halted.load(Ordering::Acquire) {
            self.close_now(most);
        }
    }
}

impl Drop for VerbsWire {
    fn drop(&mut self) {
        self.watch = None;
        if !self.halted.load(Ordering::Acquire) {
            return;
        }
        // A peer's device, or this one's, may still be writing: what is registered stays so until the process ends.
        let nothing = Inner {
            links: Vec::new(),
            devices: Vec::new(),
            bounces: Vec::new(),
            next_bounce: 0,
        };
        std::mem::forget(std::mem::replace(&mut *lock(&self.inner), nothing));
        std::mem::forget(Arc::clone(self.memory.mapping()));
    }
}

const _: () = assert!(LINE_CELLS * CELL <= MAX_WRITE as usize);
