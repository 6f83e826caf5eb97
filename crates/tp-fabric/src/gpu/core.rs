//! What a GPU backend's calls, waits and aborts share: the paths, the first failure, and the wait for a stream that sees
//! both.

use super::device::Device;
use super::error::{Doing, GpuError};
use super::nccl::NcclPath;
use super::transfer::SmallPath;
use crate::collective::{Call, CollectiveError, Failure};
use crate::host::lock;
use crate::types::{Rank, World};
use cudarc::driver::sys;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How often a wait for a stream looks at NCCL's own errors.
const LOOK: Duration = Duration::from_millis(2);
/// How long a wait for a stream spins before it naps.
const SPIN: Duration = Duration::from_micros(200);
/// How long a stream may go on after an abort before a wait for it gives up: the driver's end of NCCL's kernels.
const ABORT_WAIT: Duration = Duration::from_secs(5);

/// What an abort needs, from whatever thread.
pub(super) struct Core {
    pub(super) device: Arc<Device>,
    pub(super) rank: Rank,
    pub(super) world: World,
    pub(super) wait: Duration,
    pub(super) small: Option<Box<dyn SmallPath>>,
    pub(super) nccl: Option<NcclPath>,
    /// The first stream that it was used with; 0: none yet.
    pub(super) stream: AtomicU64,
    /// Whether calls were put on it since it was last waited for: only then is it touched again, since its owner may end
    /// it after that.
    pub(super) busy: AtomicBool,
    pub(super) failed: AtomicBool,
    pub(super) failure: Mutex<Option<Failure>>,
    pub(super) call: Mutex<Call>,
    pub(super) closed: AtomicBool,
}

impl Core {
    pub(super) fn new(
        device: &Arc<Device>,
        rank: Rank,
        world: World,
        wait: Duration,
        small: Option<Box<dyn SmallPath>>,
        nccl: Option<NcclPath>,
    ) -> Self {
        Self {
            device: Arc::clone(device),
            rank,
            world,
            wait,
            small,
            nccl,
            stream: AtomicU64::new(0),
            busy: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            failure: Mutex::new(None),
            call: Mutex::new(Call::barrier()),
            closed: AtomicBool::new(false),
        }
    }

    /// Notes the call, unless one before has failed.
    pub(super) fn enter(&self, call: Call) -> Result<(), CollectiveError> {
        *lock(&self.call) = call;
        match self.first_failure() {
            Some(failure) => Err(CollectiveError::Poisoned(failure)),
            None => Ok(()),
        }
    }

    pub(super) fn failed_in(&self, call: Call, error: &GpuError) -> CollectiveError {
        let reason = error.to_string();
        CollectiveError::Failed(self.fail(Failure::Backend { call, reason }))
    }

    /// Keeps the first failure and ends everything that waits.
    pub(super) fn fail(&self, failure: Failure) -> Failure {
        let first = {
            let mut slot = lock(&self.failure);
            if let Some(first) = &*slot {
                return first.clone();
            }
            slot.insert(failure).clone()
        };
        self.failed.store(true, Ordering::Release);
        if first == Failure::Closed {
            return first;
        }
        if let Some(small) = &self.small {
            small.abort(&first.to_string());
        }
        if let Some(nccl) = &self.nccl {
            // NCCL waits for its kernels; whoever aborts must not.
            let comm = Arc::clone(nccl.comm());
            let spawned = std::thread::Builder::new()
                .name("nccl-abort".to_owned())
                .spawn(move || comm.abort());
            if let Err(error) = spawned {
                tracing::warn!("failed to abort NCCL: {error}");
            }
        }
        first
    }

    /// What was kept, or what a kernel or the wire has met since.
    pub(super) fn first_failure(&self) -> Option<Failure> {
        if self.failed.load(Ordering::Acquire) {
            return lock(&self.failure).clone();
        }
        let small = self.small.as_ref()?;
        if let Some(cause) = small.cause() {
            return Some(self.fail(cause));
        }
        let record = small.record()?;
        let call = *lock(&self.call);
        let failure = match (record.out_of_step, record.missing.first()) {
            (true, Some(rank)) => Failure::Desync {
                mine: call,
                rank: *rank,
                theirs: "another call".to_owned(),
            },
            _ if record.timed_out => Failure::Timeout {
                call,
                missing: record.missing,
                waited: record.waited,
            },
            _ => Failure::Aborted {
                reason: "a wait was ended".to_owned(),
            },
        };
        Some(self.fail(failure))
    }

    /// As [`first_failure`](Self::first_failure), and NCCL's own errors.
    pub(super) fn look(&self) -> Option<Failure> {
        self.first_failure().or_else(|| {
            let error = self.nccl.as_ref()?.comm().async_error().err()?;
            let (call, reason) = (*lock(&self.call), error.to_string());
            Some(self.fail(Failure::Backend { call, reason }))
        })
    }

    /// Waits for all work on a stream. The kernels' own waits are bounded, and an abort ends NCCL's; what a lost peer leaves
    /// NCCL waiting for is ended at the bound.
    pub(super) fn drain(&self, stream: u64) -> Result<(), CollectiveError> {
        let handle = stream as sys::CUstream;
        let began = Instant::now();
        let (mut looked, mut gone) = (began, None);
        self.device
            .bind()
            .map_err(|e| self.failed_in(*lock(&self.call), &e))?;
        loop {
            // SAFETY: the stream was given by the caller of an earlier call and lives while its work does.
            match unsafe { sys::cuStreamQuery(handle) } {
                sys::CUresult::CUDA_ERROR_NOT_READY => {}
                other => {
                    let ended = other.result().doing("wait for a stream");
                    return match (self.first_failure(), ended) {
                        (Some(failure), _) => Err(CollectiveError::Failed(failure)),
                        (None, Ok(())) => Ok(()),
                        (None, Err(error)) => Err(self.failed_in(*lock(&self.call), &error)),
                    };
                }
            }
            let now = Instant::now();
            if now - began < SPIN {
                std::hint::spin_loop();
                continue;
            }
            if now - looked >= LOOK {
                looked = now;
                if self.look().is_some() {
                    gone.get_or_insert(now);
                } else if now - began > self.wait + Duration::from_secs(1) {
                    let (call, reason) = (
                        *lock(&self.call),
                        format!("not done after {} s", self.wait.as_secs()),
                    );
                    self.fail(Failure::Backend { call, reason });
                }
            }
            if gone.is_some_and(|since| now - since > ABORT_WAIT) {
                let failure = self.first_failure().unwrap_or(Failure::Closed);
                return Err(CollectiveError::Failed(failure));
            }
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}
