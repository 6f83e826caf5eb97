//! The host backend: collectives on host memory, over any wire, without a GPU.

mod config;

pub use config::{Delivery, HostConfig, OpenError};

use crate::collective::{AbortHandle, Call, CallKind, CollectiveError, Collectives, MemoryKind, Stream};
use crate::meeting::Meeting;
use crate::types::{BackendKind, DType, Rank, ReduceOp, WireKind, World};

/// Opens the host backend on all ranks. Collective over `meeting`; either every rank gets a backend or every rank gets
/// an error.
pub fn open(meeting: &mut dyn Meeting, cfg: &HostConfig) -> Result<HostBackend, OpenError> {
    let _ = cfg;
    Ok(HostBackend {
        rank: meeting.rank(),
        world: meeting.world(),
    })
}

/// The host backend.
#[derive(Debug)]
pub struct HostBackend {
    rank: Rank,
    world: World,
}

impl HostBackend {
    /// Ends the transport in good order: what was sent is delivered, then nothing more is taken. Call it on every rank
    /// when all are done; dropping the backend instead closes at once.
    pub fn close(self) -> Result<(), CollectiveError> {
        Ok(())
    }
}

fn unfinished(kind: CallKind) -> Result<(), CollectiveError> {
    let call = Call::new(kind, DType::U8, 0);
    Err(CollectiveError::Unsupported {
        call,
        reason: "being written".to_owned(),
    })
}

impl Collectives for HostBackend {
    fn rank(&self) -> Rank {
        self.rank
    }
    fn world(&self) -> World {
        self.world
    }
    fn backend(&self) -> BackendKind {
        BackendKind::Host
    }
    fn wire(&self) -> Option<WireKind> {
        None
    }
    fn memory(&self) -> MemoryKind {
        MemoryKind::Host
    }
    unsafe fn all_reduce(
        &self,
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: DType,
        _: ReduceOp,
        _: Stream,
    ) -> Result<(), CollectiveError> {
        unfinished(CallKind::AllReduce)
    }
    unsafe fn reduce_scatter(
        &self,
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: DType,
        _: ReduceOp,
        _: Stream,
    ) -> Result<(), CollectiveError> {
        unfinished(CallKind::ReduceScatter)
    }
    unsafe fn all_gather(
        &self,
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: DType,
        _: Stream,
    ) -> Result<(), CollectiveError> {
        unfinished(CallKind::AllGather)
    }
    unsafe fn all_gather_v(
        &self,
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: *const i32,
        _: DType,
        _: Stream,
    ) -> Result<(), CollectiveError> {
        unfinished(CallKind::AllGatherV)
    }
    unsafe fn broadcast(
        &self,
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: DType,
        _: Rank,
        _: Stream,
    ) -> Result<(), CollectiveError> {
        unfinished(CallKind::Broadcast)
    }
    unsafe fn exchange(
        &self,
        _: *const u8,
        _: *mut u8,
        _: usize,
        _: DType,
        _: Rank,
        _: Stream,
    ) -> Result<(), CollectiveError> {
        unfinished(CallKind::Exchange)
    }
    unsafe fn send(
        &self,
        _: *const u8,
        _: usize,
        _: DType,
        _: Rank,
        _: Stream,
    ) -> Result<(), CollectiveError> {
        unfinished(CallKind::SendRecv)
    }
    unsafe fn recv(&self, _: *mut u8, _: usize, _: DType, _: Rank, _: Stream) -> Result<(), CollectiveError> {
        unfinished(CallKind::SendRecv)
    }
    fn barrier(&self) -> Result<(), CollectiveError> {
        unfinished(CallKind::Barrier)
    }
    fn check(&self) -> Result<(), CollectiveError> {
        Ok(())
    }
    fn abort_handle(&self) -> AbortHandle {
        AbortHandle::new(|_| {})
    }
}
