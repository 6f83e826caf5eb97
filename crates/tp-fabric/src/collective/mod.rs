//! The collective interface: what a backend offers, whatever carries the bytes.
//!
//! [`Collectives`] is the raw form, pointers and a [`Stream`], that device backends and engines need. Host memory has a
//! safe form beside it, [`HostSlices`], which every backend whose [`Collectives::memory`] is host memory takes.
//!
//! All ranks make the same calls in the same order with the same count, element type and operation; ranks that do not
//! are told which call each was in ([`Failure::Desync`]). The result of a reduction is bit-equal to
//! [`oracle::reduce`](crate::oracle::reduce) on every rank.

mod call;
mod check;
mod error;
mod slices;

pub use call::{Call, CallKind};
pub(crate) use check::Checked;
pub use error::{CollectiveError, Failure};
pub use slices::{Element, HostSlices};

use crate::types::{BackendKind, DType, Rank, ReduceOp, WireKind, World};
use std::fmt;
use std::sync::Arc;

/// The order that a call joins: a CUDA stream's handle for a device backend, [`Stream::HOST`] for host memory.
///
/// One transport serves one order. The first stream that it is used with is its stream; another one is refused with
/// [`CollectiveError::SecondStream`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stream(u64);

impl Stream {
    /// The stream of a backend that works on host memory: calls return when their result is there.
    pub const HOST: Self = Self(0);

    /// A stream by its raw handle (`CUstream` as an integer).
    pub fn from_raw(handle: u64) -> Self {
        Self(handle)
    }

    /// The raw handle.
    pub fn as_raw(self) -> u64 {
        self.0
    }
}

/// Where the buffers of a backend's calls lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryKind {
    /// Ordinary host memory; the call returns when the result is there.
    Host,
    /// Device memory; the call is enqueued on its stream.
    Device,
}

/// What a backend offers.
///
/// Counts are elements of the given type, and addresses need no alignment. A count of 0 is allowed and still keeps the
/// ranks in step. Buffers overlap only where a call says so; any other overlap that the backend can see is refused with
/// [`CollectiveError::Invalid`]. After a call has failed for another reason than its own arguments
/// ([`CollectiveError::is_refusal`]), the backend is poisoned: it changes no buffer any more, and every later call
/// returns [`CollectiveError::Poisoned`] with the first cause.
///
/// # Safety
///
/// For every `unsafe` call: the pointers are valid for the whole of the stated lengths in the memory that
/// [`memory`](Self::memory) names, no other code writes what the call reads, and none touches what it writes, until the
/// call has come to its end (for host memory: until it returns).
pub trait Collectives: Send + Sync {
    /// This rank.
    fn rank(&self) -> Rank;

    /// Number of ranks.
    fn world(&self) -> World;

    /// What carries the calls out.
    fn backend(&self) -> BackendKind;

    /// How bytes get to the peers; `None` where there is no wire of ours (NCCL, a world of one).
    fn wire(&self) -> Option<WireKind>;

    /// One line for people: what carries small and large payloads, as far as that was chosen when it was opened.
    fn describe(&self) -> String {
        let wire = self.wire().map_or("no wire", WireKind::name);
        format!("{} over {wire}", self.backend())
    }

    /// Whether reductions have the oracle's bits also where operands are NaN.
    fn exact_specials(&self) -> bool {
        true
    }

    /// Where the buffers lie.
    fn memory(&self) -> MemoryKind;

    /// `recv[i]` becomes the combination of every rank's `send[i]`, in rank order. `count` elements each; in place where
    /// `send == recv`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn all_reduce(
        &self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// Rank `r` gets the `r`-th block of `recv_count` elements of the combination; `send` holds `world * recv_count`
    /// elements. In place where `recv == send + rank * recv_count` elements.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn reduce_scatter(
        &self,
        send: *const u8,
        recv: *mut u8,
        recv_count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// Every rank's `send_count` elements, rank 0's first; `recv` holds `world * send_count` elements. In place where
    /// `send == recv + rank * send_count` elements.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn all_gather(
        &self,
        send: *const u8,
        recv: *mut u8,
        send_count: usize,
        dtype: DType,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// Rank `r`'s first `lens[r]` **bytes** land at `recv + r * stride` bytes, on every rank; the bytes beyond are left
    /// alone by the host backend and are the transport's choice elsewhere. `lens` has `world` values in the backend's
    /// memory, equal on every rank, each clamped to `0..=stride`. In place where `send == recv + rank * stride`. A backend
    /// on device memory moves whole strides: `send` holds `stride` bytes there.
    ///
    /// # Safety
    /// See the trait; `lens` needs no alignment.
    unsafe fn all_gather_v(
        &self,
        send: *const u8,
        recv: *mut u8,
        stride: usize,
        lens: *const i32,
        dtype: DType,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// `count` elements of `root`, on every rank. `send` is read on `root` alone. In place where `send == recv`.
    ///
    /// # Safety
    /// See the trait; `send` may be null on ranks other than `root`.
    unsafe fn broadcast(
        &self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        root: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// Two ranks, each of which names the other, trade `count` elements. Other ranks do not call. In place where
    /// `send == recv`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn exchange(
        &self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        peer: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// Gives `count` elements to `peer`, which calls [`recv`](Self::recv). Returns when the buffer may be used again,
    /// which can be before the peer has them.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn send(
        &self,
        send: *const u8,
        count: usize,
        dtype: DType,
        peer: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// Takes `count` elements from `peer`, which calls [`send`](Self::send).
    ///
    /// # Safety
    /// See the trait.
    unsafe fn recv(
        &self,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        peer: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError>;

    /// Returns when every rank has called it and all earlier calls of this rank have come to their end. Blocks the host;
    /// never captured into a graph.
    fn barrier(&self) -> Result<(), CollectiveError>;

    /// Returns when all earlier calls on `stream` have come to their end. A backend on host memory has nothing to wait
    /// for. A device backend's stream may be destroyed after this, before that not.
    fn synchronize(&self, stream: Stream) -> Result<(), CollectiveError> {
        let _ = stream;
        self.check()
    }

    /// The first recorded failure, if there is one. Any thread, also during a call.
    fn check(&self) -> Result<(), CollectiveError>;

    /// A handle that ends pending and later calls, from any thread and after the backend is gone.
    fn abort_handle(&self) -> AbortHandle;

    /// Ends the transport in good order: what was sent is delivered, then nothing more is taken
    /// ([`Failure::Closed`]). Call it on every rank when all are done; it waits a second at most for ranks that have not
    /// called it. Dropping the backend instead closes at once.
    fn close(&self) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// Ends pending and later calls of this rank, and tells the peers. Any thread; does not block.
    fn abort(&self, reason: &str) {
        self.abort_handle().abort(reason);
    }
}

/// Ends pending and later calls of a backend, from any thread. Outlives the backend; then it does nothing.
#[derive(Clone)]
pub struct AbortHandle(Arc<dyn Fn(&str) + Send + Sync>);

impl AbortHandle {
    /// A handle that calls `f`, which must not block.
    pub fn new(f: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    /// Ends pending and later calls with [`Failure::Aborted`] and this reason. Does not block.
    pub fn abort(&self, reason: &str) {
        (self.0)(reason);
    }
}

impl fmt::Debug for AbortHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AbortHandle")
    }
}
