//! One check: fills the buffers, makes the call, and compares every byte with the oracle.

use super::inputs::{Dealt, Inputs};
use super::memory::{ALIGN, Buffer, GUARD, Room, UNTOUCHED};
use super::pairs::{partner, rounds};
use super::table::{Case, Place, What};
use std::ops::Range;
use tp_fabric::collective::{CollectiveError, Collectives, Stream};
use tp_fabric::oracle;
use tp_fabric::types::{Rank, ReduceOp, World};

/// How a check went wrong.
#[derive(Debug)]
pub enum Wrong {
    /// The call came to its end with wrong bytes, or refused its arguments: the group goes on.
    Answer(String),
    /// The transport failed: nothing more can be done with it.
    Transport(String),
}

impl From<CollectiveError> for Wrong {
    fn from(error: CollectiveError) -> Self {
        if error.is_refusal() {
            Self::Answer(error.to_string())
        } else {
            Self::Transport(error.to_string())
        }
    }
}

/// A check being carried out.
pub struct Check<'a> {
    /// What is under test.
    pub on: &'a dyn Collectives,
    /// Which stream the calls join.
    pub stream: Stream,
    /// The check.
    pub case: &'a Case,
    /// The check's number: decides how the inputs are dealt out.
    pub number: usize,
    /// Where the buffers come from.
    pub room: &'a Room,
}

/// Where the data of a call lie: one buffer for both, or two.
struct Buffers {
    send: Option<Box<dyn Buffer>>,
    recv: Box<dyn Buffer>,
    /// What is read; in `send`, or in `recv` where there is no other.
    from: Range<usize>,
    /// What is written, in `recv`.
    to: Range<usize>,
}

impl Buffers {
    /// Two buffers with the data at these offsets, in elements.
    fn apart(room: &Room, send: (usize, usize), recv: (usize, usize), element: usize) -> Result<Self, Wrong> {
        let range = |(len, offset): (usize, usize)| {
            let begin = GUARD.next_multiple_of(ALIGN) + offset * element;
            begin..begin + len
        };
        let (from, to) = (range(send), range(recv));
        Ok(Self {
            send: Some(room.buffer(from.end + GUARD).map_err(Wrong::Transport)?),
            recv: room.buffer(to.end + GUARD).map_err(Wrong::Transport)?,
            from,
            to,
        })
    }

    /// One buffer of `len` bytes at an offset, with what is read and what is written as parts of it.
    fn shared(
        room: &Room,
        len: usize,
        offset: usize,
        from: Range<usize>,
        to: Range<usize>,
    ) -> Result<Self, Wrong> {
        let begin = GUARD.next_multiple_of(ALIGN) + offset;
        let shift = |r: Range<usize>| begin + r.start..begin + r.end;
        Ok(Self {
            send: None,
            recv: room.buffer(begin + len + GUARD).map_err(Wrong::Transport)?,
            from: shift(from),
            to: shift(to),
        })
    }

    fn put(&mut self, data: &[u8]) -> Result<(), Wrong> {
        let at = self.from.start;
        let buffer = self.send.as_mut().unwrap_or(&mut self.recv);
        buffer.write(at, data).map_err(Wrong::Transport)
    }

    /// Addresses of what is read and what is written.
    fn addresses(&mut self) -> (*const u8, *mut u8) {
        let to = self.recv.address();
        let from = self.send.as_mut().map_or(to, |b| b.address());
        (
            from.wrapping_add(self.from.start).cast_const(),
            to.wrapping_add(self.to.start),
        )
    }

    /// The parts of the receive buffer that hold nothing of the call.
    fn untouched(&self, len: usize) -> [Range<usize>; 2] {
        let (begin, end) = match &self.send {
            Some(_) => (self.to.start, self.to.end),
            None => (self.to.start.min(self.from.start), self.to.end.max(self.from.end)),
        };
        [0..begin, end..len]
    }

    /// Compares what was written with `expected`, and everything else with what was there before. `free` says which
    /// bytes of the written part the call may leave as it likes.
    fn compare(&self, sent: &[u8], expected: &[u8], free: &dyn Fn(usize) -> bool) -> Result<(), Wrong> {
        let got = self.recv.read().map_err(Wrong::Transport)?;
        let written = &got[self.to.clone()];
        let differs = |at: &usize| written[*at] != expected[*at] && !free(*at);
        // Slices compare at memory speed; where they differ is looked for only then.
        if let Some(at) = (written != expected)
            .then(|| (0..expected.len()).find(differs))
            .flatten()
        {
            let (is, wanted) = (window(written, at), window(expected, at));
            return Err(Wrong::Answer(format!(
                "first differing byte at offset {at}: got {is}, expected {wanted}"
            )));
        }
        for around in self.untouched(got.len()) {
            if let Some(at) = got[around.clone()].iter().position(|b| *b != UNTOUCHED) {
                let off = (around.start + at) as i64 - self.to.start as i64;
                return Err(Wrong::Answer(format!(
                    "wrote outside the buffer, {off} bytes from its start"
                )));
            }
        }
        let Some(send) = &self.send else { return Ok(()) };
        match send.read().map_err(Wrong::Transport)?[self.from.clone()] == *sent {
            true => Ok(()),
            false => Err(Wrong::Answer("changed the send buffer".to_owned())),
        }
    }
}

/// Up to 8 bytes from `at`, in hex.
fn window(bytes: &[u8], at: usize) -> String {
    bytes[at..].iter().take(8).map(|b| format!("{b:02x}")).collect()
}

impl Check<'_> {
    /// Carries the check out on this rank.
    pub fn run(&self, inputs: &mut Inputs) -> Result<(), Wrong> {
        let blocks = if matches!(self.case.what, What::ReduceScatter(_)) {
            self.world().size()
        } else {
            1
        };
        let given = inputs.deal(
            self.number,
            self.case.bytes * blocks,
            self.case.dtype,
            self.case.fill,
        );
        match self.case.what {
            What::AllReduce(op) => self.all_reduce(op, &given),
            What::ReduceScatter(op) => self.reduce_scatter(op, &given),
            What::AllGather => self.all_gather(&given),
            What::AllGatherV => self.all_gather_v(&given),
            What::Broadcast(root) => self.broadcast(root, &given),
            What::Exchange => self.exchange(&given),
            What::SendRecv => self.send_recv(&given),
        }
    }

    fn world(&self) -> World {
        self.on.world()
    }

    fn count(&self) -> usize {
        self.case.bytes / self.case.dtype.size()
    }

    /// Buffers of a call that reads and writes one block of the same length.
    fn block(&self) -> Result<Buffers, Wrong> {
        let room = self.room;
        let (bytes, element) = (self.case.bytes, self.case.dtype.size());
        match self.case.place {
            Place::Apart => Buffers::apart(room, (bytes, 0), (bytes, 0), element),
            Place::ApartOffset { send, recv } => Buffers::apart(room, (bytes, send), (bytes, recv), element),
            Place::InPlace => Buffers::shared(room, bytes, 0, 0..bytes, 0..bytes),
            Place::InPlaceOffset => Buffers::shared(room, bytes, element, 0..bytes, 0..bytes),
        }
    }

    /// Buffers of a call where one side is one block and the other all ranks'.
    fn blocks(&self, send: usize, recv: usize) -> Result<Buffers, Wrong> {
        let room = self.room;
        let (bytes, element) = (self.case.bytes, self.case.dtype.size());
        let mine = self.on.rank().index() * bytes..(self.on.rank().index() + 1) * bytes;
        let part = |len: usize| {
            if len == bytes && send != recv {
                mine.clone()
            } else {
                0..len
            }
        };
        let whole = send.max(recv);
        match self.case.place {
            Place::Apart => Buffers::apart(room, (send, 0), (recv, 0), element),
            Place::ApartOffset { send: s, recv: r } => Buffers::apart(room, (send, s), (recv, r), element),
            Place::InPlace => Buffers::shared(room, whole, 0, part(send), part(recv)),
            Place::InPlaceOffset => Buffers::shared(room, whole, element, part(send), part(recv)),
        }
    }

    fn expect(&self, given: &Dealt, op: ReduceOp) -> Result<Vec<u8>, Wrong> {
        oracle::reduce(&given.all(), self.case.dtype, op)
            .map_err(|e| Wrong::Answer(format!("no oracle: {e}")))
    }

    fn all_reduce(&self, op: ReduceOp, given: &Dealt) -> Result<(), Wrong> {
        let mine = given.of(self.on.rank());
        let mut at = self.block()?;
        at.put(mine)?;
        let (send, recv) = at.addresses();
        // SAFETY: both addresses lie `count` elements before the end of buffers that live until after the call, which
        // nobody else touches; they are the same or do not overlap.
        unsafe {
            self.on
                .all_reduce(send, recv, self.count(), self.case.dtype, op, self.stream)?
        };
        self.on.synchronize(self.stream)?;
        at.compare(mine, &self.expect(given, op)?, &|_| false)
    }

    fn reduce_scatter(&self, op: ReduceOp, given: &Dealt) -> Result<(), Wrong> {
        let (bytes, rank) = (self.case.bytes, self.on.rank());
        let mut at = self.blocks(bytes * self.world().size(), bytes)?;
        at.put(given.of(rank))?;
        let (send, recv) = at.addresses();
        // SAFETY: as in `all_reduce`; the send buffer has a block for every rank, in place the own one is written.
        unsafe {
            self.on
                .reduce_scatter(send, recv, self.count(), self.case.dtype, op, self.stream)?
        };
        self.on.synchronize(self.stream)?;
        let expected = self.expect(given, op)?;
        at.compare(
            given.of(rank),
            &expected[rank.index() * bytes..][..bytes],
            &|_| false,
        )
    }

    fn all_gather(&self, given: &Dealt) -> Result<(), Wrong> {
        let bytes = self.case.bytes;
        let mine = given.of(self.on.rank());
        let mut at = self.blocks(bytes, bytes * self.world().size())?;
        at.put(mine)?;
        let (send, recv) = at.addresses();
        // SAFETY: as in `all_reduce`; the receive buffer has a block for every rank, in place the own one is read.
        unsafe {
            self.on
                .all_gather(send, recv, self.count(), self.case.dtype, self.stream)?
        };
        self.on.synchronize(self.stream)?;
        at.compare(mine, &given.all().concat(), &|_| false)
    }

    /// How many bytes each rank gives to `all_gather_v`: everything, less and less, nothing.
    fn lengths(&self) -> Vec<i32> {
        let (stride, world) = (self.case.bytes, self.world().size());
        let of = |rank: usize| {
            if rank + 1 == world && world > 1 {
                0
            } else {
                stride - stride * rank / world
            }
        };
        (0..world)
            .map(|rank| i32::try_from(of(rank)).unwrap_or(i32::MAX))
            .collect()
    }

    fn all_gather_v(&self, given: &Dealt) -> Result<(), Wrong> {
        let (stride, lens) = (self.case.bytes, self.lengths());
        let len_of = |rank: usize| usize::try_from(lens[rank]).unwrap_or(0);
        let mine = given.of(self.on.rank());
        let mut at = self.blocks(stride, stride * self.world().size())?;
        at.put(mine)?;
        let (send, recv) = at.addresses();
        let bytes: Vec<u8> = lens.iter().flat_map(|len| len.to_ne_bytes()).collect();
        let mut told = self.room.buffer(bytes.len()).map_err(Wrong::Transport)?;
        told.write(0, &bytes).map_err(Wrong::Transport)?;
        let told = told.address().cast_const().cast();
        // SAFETY: as in `all_gather`; `told` has a value for every rank and lives until after the call.
        unsafe {
            self.on
                .all_gather_v(send, recv, stride, told, self.case.dtype, self.stream)?
        };
        self.on.synchronize(self.stream)?;
        // What lies beyond a rank's length is the transport's choice; in place the own block held all of its input.
        at.compare(mine, &given.all().concat(), &|at| {
            at % stride >= len_of(at / stride)
        })
    }

    fn broadcast(&self, root: Rank, given: &Dealt) -> Result<(), Wrong> {
        let mine = given.of(self.on.rank());
        let mut at = self.block()?;
        at.put(mine)?;
        let (send, recv) = at.addresses();
        // SAFETY: as in `all_reduce`.
        unsafe {
            self.on
                .broadcast(send, recv, self.count(), self.case.dtype, root, self.stream)?
        };
        self.on.synchronize(self.stream)?;
        at.compare(mine, given.of(root), &|_| false)
    }

    fn exchange(&self, given: &Dealt) -> Result<(), Wrong> {
        let mine = given.of(self.on.rank());
        for round in 0..rounds(self.world()) {
            let Some(peer) = partner(self.world(), round, self.on.rank()) else {
                continue;
            };
            let mut at = self.block()?;
            at.put(mine)?;
            let (send, recv) = at.addresses();
            // SAFETY: as in `all_reduce`.
            unsafe {
                self.on
                    .exchange(send, recv, self.count(), self.case.dtype, peer, self.stream)?
            };
            self.on.synchronize(self.stream)?;
            at.compare(mine, given.of(peer), &|_| false)
                .map_err(|wrong| match wrong {
                    Wrong::Answer(text) => Wrong::Answer(format!("with rank {peer}: {text}")),
                    other => other,
                })?;
        }
        Ok(())
    }

    fn send_recv(&self, given: &Dealt) -> Result<(), Wrong> {
        let (world, rank) = (self.world(), self.on.rank());
        let mut verdict = Ok(());
        // One rank after the other gives to the next, so that no two wait for each other.
        for from in world.ranks() {
            let to = Rank((from.0 + 1) % world.0);
            let mut at = self.block()?;
            let (count, dtype) = (self.count(), self.case.dtype);
            if rank == from {
                at.put(given.of(rank))?;
                let (send, _) = at.addresses();
                // SAFETY: the send buffer has `count` elements and lives until after the call.
                unsafe { self.on.send(send, count, dtype, to, self.stream)? };
                self.on.synchronize(self.stream)?;
            } else if rank == to {
                let (_, recv) = at.addresses();
                // SAFETY: the receive buffer has `count` elements, lives until after the call and is nobody else's.
                unsafe { self.on.recv(recv, count, dtype, from, self.stream)? };
                self.on.synchronize(self.stream)?;
                verdict = at.compare(&vec![UNTOUCHED; self.case.bytes], given.of(from), &|_| false);
            }
        }
        verdict
    }
}
