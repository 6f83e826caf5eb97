//! [`GpuBackend`]: the collectives on device memory. Each call's arguments are checked, then it goes by the small path or by
//! NCCL, as its size, element type and operation alone decide, so that all ranks decide alike.

use super::core::Core;
use super::device::Device;
use super::error::GpuError;
use super::nccl::NcclPath;
use super::transfer::{Pairing, SmallPath};
use super::work::{Graph, Work};
use crate::collective::{
    AbortHandle, Call, CallKind, Checked, CollectiveError, Collectives, Failure, MemoryKind, Stream,
};
use crate::host::lock;
use crate::types::{BackendKind, DType, Rank, ReduceOp, WireKind, World};
use cudarc::driver::sys;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

/// The collectives of one GPU a rank (or one that ranks share). Calls are enqueued on one stream and may be captured.
pub struct GpuBackend {
    core: Arc<Core>,
    kind: BackendKind,
    /// Largest payload of the small path where NCCL is there too, bytes.
    route_max: u64,
    barrier: Mutex<Barrier>,
}

/// What barriers use: a stream of their own, since a call before must have ended anyway.
struct Barrier {
    /// The small path's exchange, captured by the first barrier: a process that launches kernels one by one has slower graphs
    /// from then on (docs/performance.md), which barriers must not bring about.
    graph: Option<Graph>,
    work: Work,
    word: super::DeviceBuffer,
}

/// Which way a call goes.
enum Path<'a> {
    Small(&'a dyn SmallPath),
    Nccl(&'a NcclPath),
}

impl GpuBackend {
    /// A backend of at least one path.
    pub(crate) fn new(
        device: &Arc<Device>,
        kind: BackendKind,
        rank: Rank,
        world: World,
        wait: Duration,
        paths: (Option<Box<dyn SmallPath>>, Option<NcclPath>),
        route_max: u64,
    ) -> Result<Self, GpuError> {
        let (small, nccl) = paths;
        if small.is_none() && nccl.is_none() {
            return Err(GpuError::Config("a GPU backend needs a path".to_owned()));
        }
        let barrier = Barrier {
            graph: None,
            work: Work::new(device)?,
            word: super::DeviceBuffer::new(device, 8 * world.size())?,
        };
        let core = Core::new(device, rank, world, wait, small, nccl);
        Ok(Self {
            core: Arc::new(core),
            kind,
            route_max,
            barrier: Mutex::new(barrier),
        })
    }

    /// The GPU.
    pub fn device(&self) -> &Arc<Device> {
        &self.core.device
    }

    /// The largest payload of the small path, bytes; `None`: it takes all, or there is none.
    pub fn route_max(&self) -> Option<u64> {
        (self.core.small.is_some() && self.core.nccl.is_some()).then_some(self.route_max)
    }

    /// The small path, for the comparison at load time.
    pub(crate) fn small(&self) -> Option<&dyn SmallPath> {
        self.core.small.as_deref()
    }

    /// NCCL's path, likewise.
    pub(crate) fn nccl(&self) -> Option<&NcclPath> {
        self.core.nccl.as_ref()
    }

    fn checked(&self, kind: CallKind, dtype: DType) -> Checked {
        Checked {
            call: Call::new(kind, dtype, 0),
            me: self.core.rank,
            world: self.core.world,
        }
    }

    fn path(&self, bytes: usize) -> Result<Path<'_>, GpuError> {
        let fits = bytes as u64 <= self.route_max;
        match (&self.core.small, &self.core.nccl) {
            (Some(small), nccl) if fits || nccl.is_none() => Ok(Path::Small(small.as_ref())),
            (_, Some(nccl)) => Ok(Path::Nccl(nccl)),
            _ => Err(GpuError::Config("no path".to_owned())),
        }
    }

    /// Enqueues a call, if the stream is ours and nothing has failed.
    fn enqueue(
        &self,
        call: Call,
        stream: Stream,
        act: impl FnOnce(Path<'_>, sys::CUstream) -> Result<(), GpuError>,
    ) -> Result<(), CollectiveError> {
        let given = stream.as_raw();
        let bound = &self.core.stream;
        if let Err(bound) = bound.compare_exchange(0, given, Ordering::AcqRel, Ordering::Acquire)
            && bound != given
        {
            return Err(CollectiveError::SecondStream { call, given, bound });
        }
        self.core.enter(call)?;
        self.core.busy.store(true, Ordering::Release);
        let work = || {
            self.core.device.bind()?;
            act(self.path(call.bytes as usize)?, given as sys::CUstream)
        };
        work().map_err(|error| self.core.failed_in(call, &error))
    }
}

/// The call with its bytes, once they are known to be sound.
fn sized(checked: Checked, count: usize) -> Result<(Checked, usize), CollectiveError> {
    let bytes = checked.bytes(count)?;
    let call = Call {
        bytes: bytes as u64,
        ..checked.call
    };
    Ok((Checked { call, ..checked }, bytes))
}

/// The call as a reduction, once it is known to be defined and its buffers to hold whole elements.
fn reduction(
    checked: Checked,
    count: usize,
    op: ReduceOp,
    buffers: [*const u8; 2],
) -> Result<(Checked, usize), CollectiveError> {
    let call = Call {
        op: Some(op),
        ..checked.call
    };
    let (checked, bytes) = sized(Checked { call, ..checked }, count)?;
    checked.defined()?;
    let odd = buffers
        .iter()
        .find(|at| !at.addr().is_multiple_of(call.dtype.size()));
    match odd {
        Some(at) if bytes > 0 => Err(CollectiveError::Invalid {
            call: checked.call,
            reason: format!(
                "the buffer at {:#x} does not begin at a whole {}",
                at.addr(),
                call.dtype
            ),
        }),
        _ => Ok((checked, bytes)),
    }
}

impl Collectives for GpuBackend {
    fn rank(&self) -> Rank {
        self.core.rank
    }

    fn world(&self) -> World {
        self.core.world
    }

    fn backend(&self) -> BackendKind {
        self.kind
    }

    fn wire(&self) -> Option<WireKind> {
        self.core.small.as_ref().and_then(|small| small.wire())
    }

    fn memory(&self) -> MemoryKind {
        MemoryKind::Device
    }

    fn describe(&self) -> String {
        let nccl = self.core.nccl.as_ref().map(|nccl| {
            let order = if nccl.ordered() {
                "sums in rank order"
            } else {
                "NCCL's own sums"
            };
            format!("NCCL {} ({order})", nccl.version())
        });
        match (&self.core.small, nccl) {
            (Some(small), Some(nccl)) => format!(
                "{}: {} to {} KiB, {nccl} beyond",
                self.kind,
                small.describe(),
                self.route_max >> 10
            ),
            (Some(small), None) => format!("{}: {} at all sizes", self.kind, small.describe()),
            (None, nccl) => format!("{}: {}", self.kind, nccl.unwrap_or_default()),
        }
    }

    fn exact_specials(&self) -> bool {
        self.core.nccl.as_ref().is_none_or(NcclPath::ordered)
    }

    unsafe fn all_reduce(
        &self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let checked = self.checked(CallKind::AllReduce, dtype);
        let (checked, bytes) = reduction(checked, count, op, [send, recv])?;
        checked.buffers((send, bytes), (recv, bytes), send.addr(), recv.addr())?;
        let (send, recv, bytes) = (send.addr() as u64, recv.addr() as u64, bytes as u64);
        // SAFETY: the caller's promise; overlap was checked.
        self.enqueue(checked.call, stream, |path, stream| unsafe {
            match path {
                Path::Small(small) => small.all_reduce(send, recv, bytes, dtype, op, stream),
                Path::Nccl(nccl) => nccl.all_reduce(send, recv, bytes, dtype, op, stream),
            }
        })
    }

    unsafe fn reduce_scatter(
        &self,
        send: *const u8,
        recv: *mut u8,
        recv_count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let checked = self.checked(CallKind::ReduceScatter, dtype);
        let (checked, bytes) = reduction(checked, recv_count, op, [send, recv])?;
        let own = send.addr().wrapping_add(self.rank().index() * bytes);
        let all = bytes * self.world().size();
        checked.buffers((send, all), (recv, bytes), own, recv.addr())?;
        let (send, recv, bytes) = (send.addr() as u64, recv.addr() as u64, bytes as u64);
        // SAFETY: the caller's promise; overlap was checked.
        self.enqueue(checked.call, stream, |path, stream| unsafe {
            match path {
                Path::Small(small) => small.reduce_scatter(send, recv, bytes, dtype, op, stream),
                Path::Nccl(nccl) => nccl.reduce_scatter(send, recv, bytes, dtype, op, stream),
            }
        })
    }

    unsafe fn all_gather(
        &self,
        send: *const u8,
        recv: *mut u8,
        send_count: usize,
        dtype: DType,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let (checked, bytes) = sized(self.checked(CallKind::AllGather, dtype), send_count)?;
        self.gather(checked, send, recv, bytes, stream)
    }

    unsafe fn all_gather_v(
        &self,
        send: *const u8,
        recv: *mut u8,
        stride: usize,
        lens: *const i32,
        dtype: DType,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let (bytes, _) = sized(self.checked(CallKind::AllGatherV, DType::U8), stride)?;
        let call = Call { dtype, ..bytes.call };
        if lens.is_null() {
            let reason = "the list of lengths is null".to_owned();
            return Err(CollectiveError::Invalid { call, reason });
        }
        self.gather(Checked { call, ..bytes }, send, recv, stride, stream)
    }

    unsafe fn broadcast(
        &self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        root: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let checked = self.checked(CallKind::Broadcast, dtype);
        let call = Call {
            root: Some(root),
            ..checked.call
        };
        let (checked, bytes) = sized(Checked { call, ..checked }, count)?;
        checked.rank("root", root)?;
        let read = if root == self.rank() { bytes } else { 0 };
        checked.buffers((send, read), (recv, bytes), send.addr(), recv.addr())?;
        let (send, recv, bytes) = (send.addr() as u64, recv.addr() as u64, bytes as u64);
        // SAFETY: the caller's promise; overlap was checked.
        self.enqueue(checked.call, stream, |path, stream| unsafe {
            match path {
                Path::Small(small) => small.broadcast(send, recv, bytes, dtype, root, stream),
                Path::Nccl(nccl) => nccl.broadcast(send, recv, bytes, root, stream),
            }
        })
    }

    unsafe fn exchange(
        &self,
        send: *const u8,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        peer: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let (checked, bytes) = sized(self.checked(CallKind::Exchange, dtype), count)?;
        checked.peer(peer)?;
        checked.buffers((send, bytes), (recv, bytes), send.addr(), recv.addr())?;
        let (send, recv, bytes) = (send.addr() as u64, recv.addr() as u64, bytes as u64);
        // SAFETY: the caller's promise; overlap was checked.
        self.enqueue(checked.call, stream, |path, stream| unsafe {
            match path {
                Path::Small(small) => {
                    small.trade(send, recv, bytes, dtype, Pairing { peer, only: None }, stream)
                }
                Path::Nccl(nccl) => nccl.exchange(send, recv, bytes, peer, stream),
            }
        })
    }

    unsafe fn send(
        &self,
        send: *const u8,
        count: usize,
        dtype: DType,
        peer: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let (checked, bytes) = sized(self.checked(CallKind::SendRecv, dtype), count)?;
        checked.peer(peer)?;
        checked.buffers((send, bytes), (std::ptr::dangling_mut(), 0), 0, 0)?;
        let (me, send, bytes) = (self.rank(), send.addr() as u64, bytes as u64);
        // SAFETY: the caller's promise; where this rank alone sends, nothing is written.
        self.enqueue(checked.call, stream, |path, stream| unsafe {
            match path {
                Path::Small(small) => {
                    small.trade(send, send, bytes, dtype, Pairing { peer, only: Some(me) }, stream)
                }
                Path::Nccl(nccl) => nccl.send(send, bytes, peer, stream),
            }
        })
    }

    unsafe fn recv(
        &self,
        recv: *mut u8,
        count: usize,
        dtype: DType,
        peer: Rank,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let (checked, bytes) = sized(self.checked(CallKind::SendRecv, dtype), count)?;
        checked.peer(peer)?;
        checked.buffers((std::ptr::dangling(), 0), (recv, bytes), 0, 0)?;
        let (recv, bytes) = (recv.addr() as u64, bytes as u64);
        // SAFETY: the caller's promise; where the peer alone sends, this rank's operand is not sent.
        self.enqueue(checked.call, stream, |path, stream| unsafe {
            match path {
                Path::Small(small) => small.trade(
                    recv,
                    recv,
                    bytes,
                    dtype,
                    Pairing {
                        peer,
                        only: Some(peer),
                    },
                    stream,
                ),
                Path::Nccl(nccl) => nccl.recv(recv, bytes, peer, stream),
            }
        })
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        let call = Call::barrier();
        self.core.enter(call)?;
        let bound = self.core.stream.load(Ordering::Acquire);
        if bound != 0 && self.core.busy.load(Ordering::Acquire) {
            self.synchronize(Stream::from_raw(bound))?;
        }
        let barrier = &mut *lock(&self.barrier);
        let stream = barrier.work.stream().as_raw();
        let mut enqueue = || {
            self.core.device.bind()?;
            let (at, bytes) = (barrier.word.address(), 8);
            let (own, stream) = (at + bytes * u64::from(self.rank().0), stream as sys::CUstream);
            match self.path(bytes as usize)? {
                Path::Small(small) => {
                    if barrier.graph.is_none() {
                        // SAFETY: the buffer holds 8 bytes for every rank, and every replay is waited for below.
                        let gather = || unsafe { small.all_gather(own, at, bytes, DType::U8, stream) };
                        barrier.graph = Some(barrier.work.capture(gather)?);
                    }
                    barrier
                        .graph
                        .as_ref()
                        .map_or(Ok(()), |graph| barrier.work.replay(graph))
                }
                // SAFETY: as above.
                Path::Nccl(nccl) => unsafe { nccl.all_gather(own, at, bytes, stream) },
            }
        };
        enqueue().map_err(|error| self.core.failed_in(call, &error))?;
        self.core.drain(stream)
    }

    fn synchronize(&self, stream: Stream) -> Result<(), CollectiveError> {
        self.core.drain(stream.as_raw())?;
        if stream.as_raw() == self.core.stream.load(Ordering::Acquire) {
            self.core.busy.store(false, Ordering::Release);
        }
        Ok(())
    }

    fn check(&self) -> Result<(), CollectiveError> {
        self.core
            .look()
            .map_or(Ok(()), |failure| Err(CollectiveError::Failed(failure)))
    }

    fn abort_handle(&self) -> AbortHandle {
        let core: Weak<Core> = Arc::downgrade(&self.core);
        AbortHandle::new(move |reason| {
            if let Some(core) = core.upgrade() {
                core.fail(Failure::Aborted {
                    reason: reason.to_owned(),
                });
            }
        })
    }

    fn close(&self) -> Result<(), CollectiveError> {
        if self.core.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if let Some(failure) = self.core.first_failure() {
            return Err(CollectiveError::Poisoned(failure));
        }
        self.core.fail(Failure::Closed);
        if let Some(small) = &self.core.small {
            small.close();
        }
        if let Some(nccl) = &self.core.nccl {
            nccl.comm().close().map_err(|error| {
                let reason = error.to_string();
                let call = Call::barrier();
                CollectiveError::Failed(Failure::Backend { call, reason })
            })?;
        }
        Ok(())
    }
}

impl GpuBackend {
    fn gather(
        &self,
        checked: Checked,
        send: *const u8,
        recv: *mut u8,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), CollectiveError> {
        let own = recv.addr().wrapping_add(self.rank().index() * bytes);
        let all = bytes * self.world().size();
        checked.buffers((send, bytes), (recv, all), own, send.addr())?;
        let dtype = checked.call.dtype;
        let (send, recv, bytes) = (send.addr() as u64, recv.addr() as u64, bytes as u64);
        // SAFETY: the promise of whoever called `all_gather` or `all_gather_v`; overlap was checked.
        self.enqueue(checked.call, stream, |path, stream| unsafe {
            match path {
                Path::Small(small) => small.all_gather(send, recv, bytes, dtype, stream),
                Path::Nccl(nccl) => nccl.all_gather(send, recv, bytes, stream),
            }
        })
    }
}

impl Drop for GpuBackend {
    fn drop(&mut self) {
        // Failed or closed already: nothing is owed any more.
        let _ = self.close();
    }
}
