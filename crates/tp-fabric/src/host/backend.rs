//! [`HostBackend`]: each call's arguments are checked, then it takes its turn.

use super::config::Delivery;
use super::reduce::Reduction;
use super::shared::Shared;
use super::turn::{Ranks, Streams, Turn};
use crate::collective::Checked;
use crate::collective::{
    AbortHandle, Call, CallKind, CollectiveError, Collectives, Failure, MemoryKind, Stream,
};
use crate::proxy::Proxy;
use crate::region::partition;
use crate::types::{BackendKind, DType, Rank, ReduceOp, WireKind, World};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// How long [`Collectives::close`] waits for ranks that have not called it.
const CLOSE_WAIT: Duration = Duration::from_secs(1);

/// The host backend. One thread at a time is in a call; another one is refused.
#[derive(Debug)]
pub struct HostBackend {
    shared: Arc<Shared>,
    wire: Option<WireKind>,
    delivery: Delivery,
    one_shot_max: usize,
    streams: Mutex<Streams>,
    proxy: Mutex<Option<Proxy>>,
}

impl HostBackend {
    pub(super) fn new(
        shared: Arc<Shared>,
        wire: Option<WireKind>,
        delivery: Delivery,
        one_shot_max: usize,
        proxy: Option<Proxy>,
    ) -> Self {
        let streams = Mutex::new(Streams::new(shared.region().layout().world()));
        Self {
            shared,
            wire,
            delivery,
            one_shot_max,
            streams,
            proxy: Mutex::new(proxy),
        }
    }

    fn checked(&self, call: Call) -> Checked {
        Checked {
            call,
            me: self.rank(),
            world: self.world(),
        }
    }

    /// Runs a call, if nobody else is in one and nothing has failed.
    fn run(
        &self,
        call: Call,
        stream: Stream,
        act: impl FnOnce(&mut Turn<'_>) -> Result<(), Failure>,
    ) -> Result<(), CollectiveError> {
        let mut streams = match self.streams.try_lock() {
            Ok(streams) => streams,
            Err(TryLockError::WouldBlock) => return Err(CollectiveError::Busy { call }),
            Err(TryLockError::Poisoned(_)) => {
                // A call that panicked may have left the streams between two states.
                let reason = "a call of this transport panicked".to_owned();
                return Err(CollectiveError::Poisoned(
                    self.shared.fail(Failure::Aborted { reason }),
                ));
            }
        };
        let bound = *streams.bound.get_or_insert(stream.as_raw());
        if bound != stream.as_raw() {
            return Err(CollectiveError::SecondStream {
                call,
                given: stream.as_raw(),
                bound,
            });
        }
        if let Some(first) = self.shared.failure() {
            return Err(CollectiveError::Poisoned(first));
        }
        self.shared.enter(call);
        let mut turn = Turn {
            shared: &self.shared,
            streams: &mut streams,
            call,
            delivery: self.delivery,
        };
        act(&mut turn).map_err(|failure| CollectiveError::Failed(self.shared.fail(failure)))
    }

    fn reduction(kind: CallKind, dtype: DType, op: ReduceOp) -> Call {
        Call {
            op: Some(op),
            ..Call::new(kind, dtype, 0)
        }
    }
}

/// A rank that leaves without [`Collectives::close`] still hands over what it has posted: a peer may wait for it.
impl Drop for HostBackend {
    fn drop(&mut self) {
        // Failed or closed already: nothing is owed any more.
        let _ = self.close();
    }
}

/// The call with its bytes, once they are known to be sound.
fn sized(checked: Checked, count: usize) -> Result<(Checked, usize), CollectiveError> {
    let bytes = checked.bytes(count)?;
    checked.parts(bytes, partition::PACK * 4)?;
    Ok((
        Checked {
            call: Call {
                bytes: bytes as u64,
                ..checked.call
            },
            ..checked
        },
        bytes,
    ))
}

impl Collectives for HostBackend {
    fn rank(&self) -> Rank {
        self.shared.rank()
    }

    fn world(&self) -> World {
        self.shared.region().layout().world()
    }

    fn backend(&self) -> BackendKind {
        BackendKind::Host
    }

    fn wire(&self) -> Option<WireKind> {
        self.wire
    }

    fn memory(&self) -> MemoryKind {
        MemoryKind::Host
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
        let (checked, bytes) = sized(
            self.checked(Self::reduction(CallKind::AllReduce, dtype, op)),
            count,
        )?;
        checked.defined()?;
        checked.buffers((send, bytes), (recv, bytes), send.addr(), recv.addr())?;
        // With two ranks either way sends the same bytes, and at once is one step less.
        let one_shot = self.world().size() <= 2 || bytes <= self.one_shot_max;
        // SAFETY: the caller's promise; overlap was checked.
        self.run(checked.call, stream, |turn| unsafe {
            turn.all_reduce(send, recv, bytes, Reduction { dtype, op }, one_shot)
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
        let call = Self::reduction(CallKind::ReduceScatter, dtype, op);
        let (checked, bytes) = sized(self.checked(call), recv_count)?;
        checked.defined()?;
        let all = bytes * self.world().size();
        let own = send.addr().wrapping_add(self.rank().index() * bytes);
        checked.buffers((send, all), (recv, bytes), own, recv.addr())?;
        // SAFETY: the caller's promise; overlap was checked.
        self.run(checked.call, stream, |turn| unsafe {
            turn.reduce_scatter(send, recv, bytes, Reduction { dtype, op })
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
        let (checked, bytes) = sized(self.checked(Call::new(CallKind::AllGather, dtype, 0)), send_count)?;
        let all = bytes * self.world().size();
        let own = recv.addr().wrapping_add(self.rank().index() * bytes);
        checked.buffers((send, bytes), (recv, all), own, send.addr())?;
        // SAFETY: the caller's promise; overlap was checked.
        self.run(checked.call, stream, |turn| unsafe {
            turn.all_gather(send, recv, bytes, |_| bytes)
        })
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
        let bytes = Checked {
            call: Call::new(CallKind::AllGatherV, DType::U8, stride),
            ..self.checked(Call::barrier())
        };
        sized(bytes, stride)?;
        let checked = self.checked(Call::new(CallKind::AllGatherV, dtype, stride));
        if lens.is_null() {
            let reason = "the list of lengths is null".to_owned();
            return Err(CollectiveError::Invalid {
                call: checked.call,
                reason,
            });
        }
        let len_of = |rank: Rank| {
            // SAFETY: the caller's promise: `world` values, unaligned.
            let len = unsafe { lens.add(rank.index()).read_unaligned() };
            usize::try_from(len).unwrap_or(0).min(stride)
        };
        let lens: Vec<usize> = self.world().ranks().map(len_of).collect();
        let own = recv.addr().wrapping_add(self.rank().index() * stride);
        let all = stride * self.world().size();
        checked.buffers((send, lens[self.rank().index()]), (recv, all), own, send.addr())?;
        // SAFETY: the caller's promise; overlap was checked.
        self.run(checked.call, stream, |turn| unsafe {
            turn.all_gather(send, recv, stride, |r| lens[r.index()])
        })
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
        let call = Call {
            root: Some(root),
            ..Call::new(CallKind::Broadcast, dtype, 0)
        };
        let (checked, bytes) = sized(self.checked(call), count)?;
        checked.rank("root", root)?;
        let read = if root == self.rank() { bytes } else { 0 };
        checked.buffers((send, read), (recv, bytes), send.addr(), recv.addr())?;
        // SAFETY: the caller's promise; overlap was checked.
        self.run(checked.call, stream, |turn| unsafe {
            turn.broadcast(send, recv, bytes, root)
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
        let (checked, bytes) = sized(self.checked(Call::new(CallKind::Exchange, dtype, 0)), count)?;
        checked.peer(peer)?;
        checked.buffers((send, bytes), (recv, bytes), send.addr(), recv.addr())?;
        // SAFETY: the caller's promise; overlap was checked.
        self.run(checked.call, stream, |turn| unsafe {
            turn.exchange(send, recv, bytes, peer)
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
        let (checked, bytes) = sized(self.checked(Call::new(CallKind::SendRecv, dtype, 0)), count)?;
        checked.peer(peer)?;
        checked.buffers((send, bytes), (std::ptr::dangling_mut(), 0), 0, 0)?;
        // SAFETY: the caller's promise.
        self.run(checked.call, stream, |turn| unsafe {
            turn.stream_out(send, bytes, Ranks::one(peer))
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
        let (checked, bytes) = sized(self.checked(Call::new(CallKind::SendRecv, dtype, 0)), count)?;
        checked.peer(peer)?;
        checked.buffers((std::ptr::dangling(), 0), (recv, bytes), 0, 0)?;
        // SAFETY: the caller's promise.
        self.run(checked.call, stream, |turn| unsafe {
            turn.stream_in(recv, bytes, peer)
        })
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        // A barrier belongs to whatever stream the transport serves.
        let bound = self.streams.try_lock().ok().and_then(|streams| streams.bound);
        self.run(
            Call::barrier(),
            Stream::from_raw(bound.unwrap_or(Stream::HOST.as_raw())),
            |turn| turn.barrier(),
        )
    }

    fn check(&self) -> Result<(), CollectiveError> {
        self.shared
            .failure()
            .map_or(Ok(()), |failure| Err(CollectiveError::Failed(failure)))
    }

    fn abort_handle(&self) -> AbortHandle {
        let shared = Arc::downgrade(&self.shared);
        AbortHandle::new(move |reason| {
            if let Some(shared) = shared.upgrade() {
                shared.fail(Failure::Aborted {
                    reason: reason.to_owned(),
                });
            }
        })
    }

    fn close(&self) -> Result<(), CollectiveError> {
        let call = Call::barrier();
        let Ok(streams) = self.streams.try_lock() else {
            return Err(CollectiveError::Busy { call });
        };
        match self.shared.failure() {
            None => {}
            Some(Failure::Closed) => return Ok(()),
            Some(failure) => return Err(CollectiveError::Poisoned(failure)),
        }
        let mut proxy = super::shared::lock(&self.proxy);
        let until = Instant::now() + CLOSE_WAIT;
        while proxy.is_some() && !streams.ringer.idle(self.shared.region()) && Instant::now() < until {
            std::thread::yield_now();
        }
        *proxy = None;
        self.shared.fail(Failure::Closed);
        self.shared.wire().close(CLOSE_WAIT);
        Ok(())
    }
}
