//! What a small path is asked for, and the collectives in terms of it.

use super::args::Mode;
use super::control::FailureRecord;
use super::error::GpuError;
use super::layout::PACK;
use crate::collective::{Call, CallKind, Failure};
use crate::types::{DType, Rank, ReduceOp, WireKind, World};
use cudarc::driver::sys::CUstream;

/// Who takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// All ranks.
    All,
    /// This rank and another.
    Pair(Rank),
}

/// The other rank of a trade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pairing {
    /// Who.
    pub peer: Rank,
    /// The one of the two that sends; `None`: both do.
    pub only: Option<Rank>,
}

/// One collective as the exchange kernels carry it out. Addresses are the GPU's.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// What ranks must agree on.
    pub call: Call,
    /// Who takes part.
    pub who: Who,
    /// What becomes of the bytes that arrive.
    pub mode: Mode,
    /// What travels; to rank `r` from `send + r * send_stride`.
    pub send: u64,
    /// This rank's own operand.
    pub own: u64,
    /// The result.
    pub recv: u64,
    /// Payload from each sender to each reader.
    pub bytes: u64,
    /// 0: every reader gets the same bytes.
    pub send_stride: u64,
    /// Distance of two ranks' blocks in a gather's result.
    pub recv_stride: u64,
    /// The combination, of reductions.
    pub reduction: Option<(DType, ReduceOp)>,
    /// The one rank that sends; `None`: all do.
    pub root: Option<Rank>,
}

impl Transfer {
    fn new(call: Call, mode: Mode, send: u64, recv: u64, bytes: u64) -> Self {
        Self {
            call,
            who: Who::All,
            mode,
            send,
            own: send,
            recv,
            bytes,
            send_stride: 0,
            recv_stride: 0,
            reduction: None,
            root: None,
        }
    }

    fn reduction(kind: CallKind, send: u64, recv: u64, bytes: u64, dtype: DType, op: ReduceOp) -> Self {
        let call = Call {
            op: Some(op),
            ..Call::new(kind, dtype, bytes as usize)
        };
        Self {
            reduction: Some((dtype, op)),
            ..Self::new(call, Mode::Reduce, send, recv, bytes)
        }
    }
}

/// A way for small payloads: the exchange kernels over shared inboxes or over a wire.
///
/// # Safety
/// For every `unsafe` call: the addresses are valid on this rank's GPU for the stated lengths until the call's work on
/// `stream`, a stream of its context, has ended. Lengths are bytes, whole elements.
pub trait SmallPath: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks, 2 to 8.
    fn world(&self) -> World;

    /// The wire, where there is one.
    fn wire(&self) -> Option<WireKind>;

    /// A few words for people.
    fn describe(&self) -> String;

    /// Smallest all-reduce of more than two ranks that goes as reduce-scatter and all-gather, bytes.
    fn two_shot_min(&self) -> u64;

    /// Carries out an all-reduce in two shots by kernels of its own, where the path has any. `false`: it has none.
    ///
    /// # Safety
    /// See the trait.
    ///
    /// # Errors
    /// A failing launch.
    unsafe fn in_one_launch(&self, reduction: &Transfer, stream: CUstream) -> Result<bool, GpuError> {
        let _ = (reduction, stream);
        Ok(false)
    }

    /// The first failure that a kernel of this rank has recorded.
    fn record(&self) -> Option<FailureRecord>;

    /// The first failure that was noticed beside the kernels: of the wire or the proxy.
    fn cause(&self) -> Option<Failure> {
        None
    }

    /// Ends the waits of pending and later kernels of this rank. Any thread; does not block.
    fn abort(&self, reason: &str);

    /// Ends in good order; nothing is under way any more.
    fn close(&self) {}

    /// Enqueues one transfer, in as many launches as its payload needs.
    ///
    /// # Safety
    /// See the trait.
    ///
    /// # Errors
    /// A failing launch.
    unsafe fn run(&self, transfer: &Transfer, stream: CUstream) -> Result<(), GpuError>;

    /// `recv` becomes the combination of every rank's `send`, in rank order; in place where they are one.
    ///
    /// # Safety
    /// See the trait.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    unsafe fn all_reduce(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        dtype: DType,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let world = u64::from(self.world().0);
        let two_shot = world > 2 && bytes >= self.two_shot_min();
        let reduction = Transfer::reduction(CallKind::AllReduce, send, recv, bytes, dtype, op);
        // SAFETY: the caller's word.
        if two_shot && unsafe { self.in_one_launch(&reduction, stream)? } {
            return Ok(());
        }
        // Shards of whole packs keep the buffers' alignment.
        let shard = if two_shot {
            bytes / (world * PACK) * PACK
        } else {
            0
        };
        let whole = world * shard;
        if whole > 0 {
            let own = recv + u64::from(self.rank().0) * shard;
            // SAFETY: parts of the caller's buffers.
            unsafe {
                self.reduce_scatter(send, own, shard, dtype, op, stream)?;
                self.all_gather(own, recv, shard, dtype, stream)?;
            }
        }
        if whole == bytes {
            return Ok(());
        }
        let (send, recv, rest) = (send + whole, recv + whole, bytes - whole);
        // SAFETY: as above.
        unsafe {
            self.run(
                &Transfer::reduction(CallKind::AllReduce, send, recv, rest, dtype, op),
                stream,
            )
        }
    }

    /// This rank gets block number `rank`, of `bytes`, of the combination; `send` holds `world` blocks.
    ///
    /// # Safety
    /// See the trait.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    unsafe fn reduce_scatter(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        dtype: DType,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let transfer = Transfer {
            own: send + u64::from(self.rank().0) * bytes,
            send_stride: bytes,
            ..Transfer::reduction(CallKind::ReduceScatter, send, recv, bytes, dtype, op)
        };
        // SAFETY: the caller's word.
        unsafe { self.run(&transfer, stream) }
    }

    /// Every rank's `bytes`, rank 0's first; in place where `send == recv + rank * bytes`.
    ///
    /// # Safety
    /// See the trait.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    unsafe fn all_gather(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        dtype: DType,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let call = Call::new(CallKind::AllGather, dtype, bytes as usize);
        let transfer = Transfer {
            recv_stride: bytes,
            ..Transfer::new(call, Mode::Gather, send, recv, bytes)
        };
        // SAFETY: the caller's word.
        unsafe { self.run(&transfer, stream) }
    }

    /// `root`'s bytes, on every rank; `send` is read on `root` alone.
    ///
    /// # Safety
    /// See the trait.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    unsafe fn broadcast(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        dtype: DType,
        root: Rank,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let call = Call {
            root: Some(root),
            ..Call::new(CallKind::Broadcast, dtype, bytes as usize)
        };
        let from = if root == self.rank() { send } else { recv };
        let transfer = Transfer {
            root: Some(root),
            ..Transfer::new(call, Mode::Gather, from, recv, bytes)
        };
        // SAFETY: the caller's word; a rank that sends nothing has its result as operand.
        unsafe { self.run(&transfer, stream) }
    }

    /// Trades `bytes` with a peer, which does the same.
    ///
    /// # Safety
    /// See the trait.
    ///
    /// # Errors
    /// As [`run`](Self::run).
    unsafe fn trade(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        dtype: DType,
        with: Pairing,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let Pairing { peer, only: root } = with;
        let kind = if root.is_some() {
            CallKind::SendRecv
        } else {
            CallKind::Exchange
        };
        let call = Call::new(kind, dtype, bytes as usize);
        let transfer = Transfer {
            who: Who::Pair(peer),
            root,
            ..Transfer::new(call, Mode::Exchange, send, recv, bytes)
        };
        // SAFETY: the caller's word.
        unsafe { self.run(&transfer, stream) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Records what it is asked for.
    struct Recorder(Mutex<Vec<Transfer>>);

    impl SmallPath for Recorder {
        fn rank(&self) -> Rank {
            Rank(1)
        }
        fn world(&self) -> World {
            World(3)
        }
        fn wire(&self) -> Option<WireKind> {
            None
        }
        fn describe(&self) -> String {
            String::new()
        }
        fn two_shot_min(&self) -> u64 {
            4096
        }
        fn record(&self) -> Option<FailureRecord> {
            None
        }
        fn abort(&self, _: &str) {}
        unsafe fn run(&self, transfer: &Transfer, _: CUstream) -> Result<(), GpuError> {
            self.0.lock().unwrap().push(*transfer);
            Ok(())
        }
    }

    const SEND: u64 = 0x1000_0000;
    const RECV: u64 = 0x2000_0000;

    fn asked(call: impl Fn(&Recorder)) -> Vec<Transfer> {
        let path = Recorder(Mutex::new(Vec::new()));
        call(&path);
        path.0.into_inner().unwrap()
    }

    fn all_reduce(bytes: u64) -> Vec<Transfer> {
        // SAFETY: the recorder touches no address.
        asked(|path| unsafe {
            path.all_reduce(
                SEND,
                RECV,
                bytes,
                DType::Bf16,
                ReduceOp::Sum,
                std::ptr::null_mut(),
            )
            .unwrap();
        })
    }

    #[test]
    fn a_small_all_reduce_is_one_transfer() {
        let [one] = all_reduce(4094)[..] else {
            panic!("one transfer")
        };
        assert_eq!(
            (one.mode, one.send, one.recv, one.bytes),
            (Mode::Reduce, SEND, RECV, 4094)
        );
        assert_eq!((one.send_stride, one.root), (0, None));
    }

    #[test]
    fn a_large_one_reduces_shards_gathers_them_and_carries_the_rest_on_its_own() {
        let bytes = 10_000;
        let [scatter, gather, rest] = all_reduce(bytes)[..] else {
            panic!("three transfers")
        };
        // 10,000 / 48 whole packs for each of three ranks.
        let shard = 208 * 16;
        assert_eq!(
            (scatter.send, scatter.send_stride, scatter.bytes),
            (SEND, shard, shard)
        );
        assert_eq!((scatter.own, scatter.recv), (SEND + shard, RECV + shard));
        assert_eq!(
            (gather.send, gather.recv, gather.recv_stride),
            (RECV + shard, RECV, shard)
        );
        assert_eq!(
            (rest.send, rest.recv, rest.bytes),
            (SEND + 3 * shard, RECV + 3 * shard, bytes - 3 * shard)
        );
        assert_eq!(3 * shard + rest.bytes, bytes);
    }

    #[test]
    fn a_rank_that_sends_nothing_has_its_result_as_operand() {
        let of = |root| {
            // SAFETY: the recorder touches no address.
            asked(|path| unsafe {
                path.broadcast(0, RECV, 64, DType::U8, root, std::ptr::null_mut())
                    .unwrap();
            })[0]
        };
        assert_eq!(
            (of(Rank(0)).send, of(Rank(0)).own, of(Rank(0)).root),
            (RECV, RECV, Some(Rank(0)))
        );
        assert_eq!(of(Rank(1)).send, 0, "the root sends what it was given");
    }
}
