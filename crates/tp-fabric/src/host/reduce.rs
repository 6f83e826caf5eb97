//! The reductions on host memory.

use super::turn::{Payload, Ranks, Turn};
use crate::collective::Failure;
use crate::oracle::ordered;
use crate::region::layout::MAX_WORLD;
use crate::region::{self, partition};
use crate::types::{DType, Rank, ReduceOp};

/// The operands of one combination, in rank order.
struct Operands([*const u8; MAX_WORLD as usize]);

/// What is combined, and how.
#[derive(Clone, Copy)]
pub(super) struct Reduction {
    pub(super) dtype: DType,
    pub(super) op: ReduceOp,
}

impl Turn<'_> {
    /// Every rank combines everything itself (`one_shot`), or each its part, which it then gives to all.
    ///
    /// # Safety
    /// `send` is readable and `recv` writable for `bytes` whole elements; equal, or apart.
    pub(super) unsafe fn all_reduce(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        how: Reduction,
        one_shot: bool,
    ) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            if one_shot {
                self.all_reduce_at_once(send, recv, bytes, how)
            } else {
                self.all_reduce_in_parts(send, recv, bytes, how)
            }
        }
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    unsafe fn all_reduce_at_once(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        how: Reduction,
    ) -> Result<(), Failure> {
        let slot = self.slot();
        let rounds = bytes.div_ceil(slot).max(1);
        let piece = |round: usize| (round * slot, (bytes - round * slot).min(slot));
        // SAFETY: every piece lies within `bytes`. In place, a piece of `recv` is written only after the same piece of
        // `send` was sent and combined.
        unsafe {
            self.pipelined(
                rounds,
                |turn, round| {
                    let (at, len) = piece(round);
                    turn.post(turn.peers(), round as u32, Payload::Same(send.add(at), len))
                },
                |turn, round| {
                    let (at, len) = piece(round);
                    turn.combine(round as u32, send.add(at), recv.add(at), len, how)?;
                    Ok(turn.peers())
                },
            )
        }
    }

    /// # Safety
    /// As [`all_reduce`](Self::all_reduce).
    unsafe fn all_reduce_in_parts(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        how: Reduction,
    ) -> Result<(), Failure> {
        let (slot, world, me) = (self.slot(), self.world(), self.me());
        for round in 0..bytes.div_ceil(slot).max(1) {
            let at = round * slot;
            let len = (bytes - at).min(slot);
            let part = |rank: Rank| partition::part(len, world.size(), rank.index());
            let mine = part(me);
            let (scatter, gather) = (2 * round as u32, 2 * round as u32 + 1);
            // SAFETY: every part lies within this piece, the piece within `bytes`. In place, the own part of `recv` is
            // written after all parts of `send` were sent, the others' after the own part was combined.
            unsafe {
                let (send, recv) = (send.add(at), recv.add(at));
                let theirs = |peer: Rank| (send.add(part(peer).start), part(peer).len());
                self.post(self.peers(), scatter, Payload::Each(&theirs))?;
                self.combine(
                    scatter,
                    send.add(mine.start),
                    recv.add(mine.start),
                    mine.len(),
                    how,
                )?;
                self.post(
                    self.peers(),
                    gather,
                    Payload::Same(recv.add(mine.start), mine.len()),
                )?;
                self.copy_all(gather, |peer| {
                    Some((recv.add(part(peer).start), part(peer).len()))
                })?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// `send` is readable for `world * bytes`, `recv` writable for `bytes` whole elements; `recv` is this rank's block of
    /// `send`, or apart.
    pub(super) unsafe fn reduce_scatter(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        how: Reduction,
    ) -> Result<(), Failure> {
        let share = partition::share(self.slot(), self.world().size());
        let rounds = bytes.div_ceil(share).max(1);
        let me = self.me();
        let piece = |round: usize| (round * share, (bytes - round * share).min(share));
        // SAFETY: every piece lies within its rank's block. In place, a piece of the own block is written after it was
        // combined, and no other rank needs it.
        unsafe {
            self.pipelined(
                rounds,
                |turn, round| {
                    let (at, len) = piece(round);
                    let theirs = |peer: Rank| (send.add(peer.index() * bytes + at), len);
                    turn.post(turn.peers(), round as u32, Payload::Each(&theirs))
                },
                |turn, round| {
                    let (at, len) = piece(round);
                    turn.combine(
                        round as u32,
                        send.add(me.index() * bytes + at),
                        recv.add(at),
                        len,
                        how,
                    )?;
                    Ok(turn.peers())
                },
            )
        }
    }

    /// Takes part `part` from every peer and writes the combination with the own `mine` to `out`.
    ///
    /// # Safety
    /// `mine` is readable and `out` writable for `len` bytes, whole elements; equal, or apart.
    unsafe fn combine(
        &mut self,
        part: u32,
        mine: *const u8,
        out: *mut u8,
        len: usize,
        how: Reduction,
    ) -> Result<(), Failure> {
        let mut operands = Operands([mine; MAX_WORLD as usize]);
        for source in self.peers().iter() {
            operands.0[source.index()] = self.take(source, part, len, self.peers())?;
        }
        let sources = &operands.0[..self.world().size()];
        // SAFETY: every source has `len` bytes: the own by the caller's promise, the others' because `take` checked. That
        // the reduction is defined was checked before anything was sent.
        let done = unsafe { ordered::reduce(sources, out, len / how.dtype.size(), how.dtype, how.op) };
        done.map_err(|e| Failure::Wire {
            call: self.call,
            rank: self.me(),
            reason: e.to_string(),
        })?;
        for source in self.peers().iter() {
            self.consume(source);
        }
        Ok(())
    }

    /// Takes part `part` from every peer for which `into` names a place, and copies it there.
    ///
    /// # Safety
    /// Every place is writable for its length.
    pub(super) unsafe fn copy_all(
        &mut self,
        part: u32,
        into: impl Fn(Rank) -> Option<(*mut u8, usize)>,
    ) -> Result<Ranks, Failure> {
        let wanted = self.peers().iter().filter(|peer| into(*peer).is_some());
        let wanted = wanted.fold(Ranks::none(), Ranks::with);
        let mut pending = wanted;
        for source in wanted.iter() {
            let Some((at, len)) = into(source) else { continue };
            let from = self.take(source, part, len, pending)?;
            // SAFETY: `take` gave `len` readable bytes of a receive slot, apart from the caller's `len` writable ones.
            unsafe { region::copy(from, at, len) };
            self.consume(source);
            pending = pending.without(source);
        }
        Ok(wanted)
    }
}
