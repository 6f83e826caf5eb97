//! The calls that move bytes as they are.

use super::turn::{Payload, Ranks, Turn};
use crate::collective::Failure;
use crate::region;
use crate::types::Rank;

impl Turn<'_> {
    /// Every rank's first `len_of(rank)` bytes, at `recv + rank * stride`.
    ///
    /// # Safety
    /// `send` is readable for this rank's length, `recv` writable for every rank's at its place; `send` is this rank's
    /// place in `recv`, or apart from all that is written.
    pub(super) unsafe fn all_gather(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        stride: usize,
        len_of: impl Fn(Rank) -> usize,
    ) -> Result<(), Failure> {
        let (slot, me) = (self.slot(), self.me());
        let rounds = |rank: Rank| len_of(rank).div_ceil(slot).max(1);
        let most = self.world().ranks().map(&rounds).max().unwrap_or(1);
        let piece = |rank: Rank, round: usize| {
            (round < rounds(rank)).then(|| (round * slot, (len_of(rank) - round * slot).min(slot)))
        };
        // SAFETY: every piece lies within its rank's length.
        unsafe {
            let own = recv.add(me.index() * stride);
            if !std::ptr::eq(own, send) && self.world().size() == 1 {
                region::copy(send, own, len_of(me));
            }
            let mut own_copied = std::ptr::eq(own, send) || self.world().size() == 1;
            self.pipelined(
                most,
                |turn, round| match piece(me, round) {
                    Some((at, len)) => {
                        turn.post(turn.peers(), round as u32, Payload::Same(send.add(at), len))
                    }
                    None => Ok(()),
                },
                |turn, round| {
                    if !own_copied {
                        // After the first message is out, before the first is awaited.
                        region::copy(send, own, len_of(me));
                        own_copied = true;
                    }
                    turn.copy_all(round as u32, |peer| {
                        piece(peer, round).map(|(at, len)| (recv.add(peer.index() * stride + at), len))
                    })
                },
            )
        }
    }

    /// Runs `send` one round ahead of `take`, which says whose messages it took. With more than one round those are
    /// answered explicitly, since a peer sends its next message before it takes this rank's.
    pub(super) fn pipelined(
        &mut self,
        rounds: usize,
        mut send: impl FnMut(&mut Self, usize) -> Result<(), Failure>,
        mut take: impl FnMut(&mut Self, usize) -> Result<Ranks, Failure>,
    ) -> Result<(), Failure> {
        send(self, 0)?;
        for round in 0..rounds {
            if round + 1 < rounds {
                send(self, round + 1)?;
            }
            let taken = take(self, round)?;
            if rounds > 1 {
                self.answer(taken)?;
            }
        }
        Ok(())
    }

    /// # Safety
    /// On `root`, `send` is readable for `bytes`; `recv` is writable for `bytes`; equal, or apart.
    pub(super) unsafe fn broadcast(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        root: Rank,
    ) -> Result<(), Failure> {
        // SAFETY: the caller's promise.
        unsafe {
            if self.me() != root {
                return self.stream_in(recv, bytes, root);
            }
            self.stream_out(send, bytes, self.peers())?;
            if !std::ptr::eq(send, recv) {
                region::copy(send, recv, bytes);
            }
        }
        Ok(())
    }

    /// Sends `bytes` to each of `to`, piece by piece. The receivers answer each piece.
    ///
    /// # Safety
    /// `send` is readable for `bytes`.
    pub(super) unsafe fn stream_out(
        &mut self,
        send: *const u8,
        bytes: usize,
        to: Ranks,
    ) -> Result<(), Failure> {
        let slot = self.slot();
        for round in 0..bytes.div_ceil(slot).max(1) {
            let at = round * slot;
            // SAFETY: the piece lies within `bytes`.
            unsafe {
                self.post(
                    to,
                    round as u32,
                    Payload::Same(send.add(at), (bytes - at).min(slot)),
                )?
            };
        }
        Ok(())
    }

    /// Takes `bytes` from `source`, piece by piece, and answers each.
    ///
    /// # Safety
    /// `recv` is writable for `bytes`.
    pub(super) unsafe fn stream_in(
        &mut self,
        recv: *mut u8,
        bytes: usize,
        source: Rank,
    ) -> Result<(), Failure> {
        let slot = self.slot();
        for round in 0..bytes.div_ceil(slot).max(1) {
            let at = round * slot;
            let len = (bytes - at).min(slot);
            let from = self.take(source, round as u32, len, Ranks::one(source))?;
            // SAFETY: `take` gave `len` readable bytes of a receive slot; the piece lies within `bytes`.
            unsafe { region::copy(from, recv.add(at), len) };
            self.consume(source);
            self.answer(Ranks::one(source))?;
        }
        Ok(())
    }

    /// # Safety
    /// `send` is readable and `recv` writable for `bytes`; equal, or apart.
    pub(super) unsafe fn exchange(
        &mut self,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        peer: Rank,
    ) -> Result<(), Failure> {
        let slot = self.slot();
        let only = Ranks::one(peer);
        let piece = |round: usize| (round * slot, (bytes - round * slot).min(slot));
        // SAFETY: every piece lies within `bytes`. In place, a piece is written after it was sent: the wire, or the
        // staging slot, has its bytes when `post` returns.
        unsafe {
            self.pipelined(
                bytes.div_ceil(slot).max(1),
                |turn, round| {
                    let (at, len) = piece(round);
                    turn.post(only, round as u32, Payload::Same(send.add(at), len))
                },
                |turn, round| {
                    let (at, len) = piece(round);
                    let from = turn.take(peer, round as u32, len, only)?;
                    region::copy(from, recv.add(at), len);
                    turn.consume(peer);
                    Ok(only)
                },
            )
        }
    }

    /// One empty message to and from every peer.
    pub(super) fn barrier(&mut self) -> Result<(), Failure> {
        // SAFETY: nothing is read or written.
        unsafe {
            self.post(self.peers(), 0, Payload::Same(std::ptr::dangling(), 0))?;
            self.copy_all(0, |_| Some((std::ptr::dangling_mut(), 0)))?;
        }
        Ok(())
    }
}
