//! One rank's communicator: opened with a deadline, used by one thread, aborted from any.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::sys::{
    NCCL_CONFIG_UNDEF_INT, ncclComm, ncclComm_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t,
    ncclUniqueId,
};
use crate::{CallError, Nccl, call};

/// What NCCL's header puts into every configuration.
const CONFIG_MAGIC: u32 = 0xcafe_beef;
/// How long an abort waits for a call of another thread to leave NCCL before it pulls the communicator away from it.
const ABORT_PATIENCE: Duration = Duration::from_millis(200);

/// What a group's ranks share to find each other; made by one of them. The maker's process answers the others at a port
/// that NCCL opens.
pub type Id = [u8; 128];

/// Makes an [`Id`].
///
/// # Errors
/// NCCL's own, such as no usable network interface.
pub fn unique_id(nccl: &Nccl) -> Result<Id, CallError> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: the pointer is to a live struct.
    unsafe { call!(nccl, ncclGetUniqueId(&raw mut id)) }?;
    Ok(id.internal.map(|c| c as u8))
}

/// Why there is no communicator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// NCCL refused.
    #[error(transparent)]
    Call(#[from] CallError),
    /// The thread that opens could not be started or prepared.
    #[error("failed to open an NCCL communicator: {0}")]
    Thread(String),
    /// Not all ranks came in time.
    #[error(
        "failed to open an NCCL communicator: ncclCommInitRankConfig did not end within {} s; is every rank's \
         NCCL_SOCKET_IFNAME reachable?", waited.as_secs()
    )]
    Deadline {
        /// The deadline.
        waited: Duration,
    },
}

/// A communicator. Its calls are enqueued on CUDA streams; addresses are of device memory.
#[derive(Debug)]
pub struct Communicator {
    nccl: Arc<Nccl>,
    comm: AtomicPtr<ncclComm>,
    /// Held while a thread is inside NCCL.
    inside: Mutex<()>,
    aborted: AtomicBool,
}

/// A handle that goes from the thread that opens to the one that asked.
struct Handed(ncclComm_t);
// SAFETY: a communicator may be used by any thread, by one at a time.
unsafe impl Send for Handed {}

impl Communicator {
    /// Joins the ranks of `id`. All of them call it; `prepare` runs first on the thread that opens, to make the GPU's context
    /// current there. A dead peer cannot hang the caller: after `deadline` it gets an error, and the thread is left alone.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        nccl: &Arc<Nccl>,
        world: u32,
        rank: u32,
        id: Id,
        deadline: Duration,
        prepare: impl FnOnce() -> Result<(), String> + Send + 'static,
    ) -> Result<Self, OpenError> {
        let (give, take) = sync_channel(1);
        let library = Arc::clone(nccl);
        let work = move || {
            let opened = prepare()
                .map_err(OpenError::Thread)
                .and_then(|()| init(&library, world, rank, id));
            // Nobody takes it after the deadline; the process is about to end then.
            let _ = give.send(opened.map(Handed));
        };
        std::thread::Builder::new()
            .name("nccl-init".to_owned())
            .spawn(work)
            .map_err(|error| OpenError::Thread(error.to_string()))?;
        let comm = match take.recv_timeout(deadline) {
            Ok(opened) => opened?.0,
            Err(RecvTimeoutError::Timeout) => return Err(OpenError::Deadline { waited: deadline }),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(OpenError::Thread("the thread that opens it panicked".to_owned()));
            }
        };
        Ok(Self {
            nccl: Arc::clone(nccl),
            comm: AtomicPtr::new(comm),
            inside: Mutex::new(()),
            aborted: AtomicBool::new(false),
        })
    }

    /// The library.
    pub fn nccl(&self) -> &Nccl {
        &self.nccl
    }

    /// Calls of this communicator, one after the other, without another thread's abort between them.
    ///
    /// # Errors
    /// What `act` gives; [`CallError::Aborted`] after an abort.
    pub fn with<R>(&self, act: impl FnOnce(&Calls<'_>) -> Result<R, CallError>) -> Result<R, CallError> {
        let _inside = self.enter();
        let comm = self.comm.load(Ordering::Acquire);
        if comm.is_null() || self.aborted.load(Ordering::Acquire) {
            return Err(CallError::Aborted);
        }
        act(&Calls {
            nccl: &self.nccl,
            comm,
        })
    }

    /// As [`with`](Self::with), as one group: sends and receives in it go at once.
    ///
    /// # Errors
    /// As [`with`](Self::with); the group is ended in any case.
    pub fn group(&self, act: impl FnOnce(&Calls<'_>) -> Result<(), CallError>) -> Result<(), CallError> {
        self.with(|calls| {
            // SAFETY: no arguments.
            unsafe { call!(calls.nccl, ncclGroupStart()) }?;
            let acted = act(calls);
            // SAFETY: no arguments; the group was started just now.
            let ended = unsafe { call!(calls.nccl, ncclGroupEnd()) };
            acted.and(ended.map(drop))
        })
    }

    /// What NCCL's own threads have met since: a lost peer, a broken network.
    ///
    /// # Errors
    /// [`CallError::Failed`] with NCCL's words.
    pub fn async_error(&self) -> Result<(), CallError> {
        self.with(|calls| {
            let mut result = ncclResult_t::ncclSuccess;
            // SAFETY: the communicator is open, the pointer is to a live value.
            unsafe { call!(calls.nccl, ncclCommGetAsyncError(calls.comm, &raw mut result)) }?;
            calls.nccl.checked("ncclCommGetAsyncError", result).map(drop)
        })
    }

    /// Ends pending and later calls. Any thread. May take as long as NCCL's kernels need to see it.
    pub fn abort(&self) {
        if self.aborted.swap(true, Ordering::AcqRel) {
            return;
        }
        let until = Instant::now() + ABORT_PATIENCE;
        let mut inside = self.inside.try_lock();
        while inside.is_err() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
            inside = self.inside.try_lock();
        }
        let comm = self.comm.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if !comm.is_null() {
            // SAFETY: the communicator is open, and this was its last handle.
            let _ = unsafe { call!(self.nccl, ncclCommAbort(comm)) };
        }
    }

    fn enter(&self) -> MutexGuard<'_, ()> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends it in good order: every rank calls it, with nothing under way any more.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn close(&self) -> Result<(), CallError> {
        let _inside = self.enter();
        let comm = self.comm.swap(std::ptr::null_mut(), Ordering::AcqRel);
        if comm.is_null() {
            return Ok(());
        }
        // SAFETY: the communicator is open, and this was its last handle.
        unsafe { call!(self.nccl, ncclCommDestroy(comm)) }.map(drop)
    }
}

/// The calls of an open communicator. Counts are elements.
///
/// # Safety
/// For every `unsafe` call: the addresses are valid on this rank's GPU for the stated lengths until the work on `stream`,
/// a stream of its context, has ended.
#[derive(Debug)]
pub struct Calls<'a> {
    nccl: &'a Nccl,
    comm: ncclComm_t,
}

/// An address as NCCL takes it.
fn at(address: u64) -> *mut c_void {
    address as *mut c_void
}

#[expect(clippy::missing_safety_doc, reason = "the type states it once")]
#[expect(clippy::missing_errors_doc, reason = "NCCL's own, each")]
impl Calls<'_> {
    /// NCCL's own all-reduce.
    pub unsafe fn all_reduce(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        dtype: ncclDataType_t,
        op: ncclRedOp_t,
        stream: u64,
    ) -> Result<(), CallError> {
        let (send, recv, stream) = (at(send), at(recv), at(stream).cast());
        // SAFETY: the caller's word.
        unsafe {
            call!(
                self.nccl,
                ncclAllReduce(send, recv, count, dtype, op, self.comm, stream)
            )
        }
        .map(drop)
    }

    /// NCCL's own reduce-scatter; `count` of one block.
    pub unsafe fn reduce_scatter(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        dtype: ncclDataType_t,
        op: ncclRedOp_t,
        stream: u64,
    ) -> Result<(), CallError> {
        let (send, recv, stream) = (at(send), at(recv), at(stream).cast());
        // SAFETY: the caller's word.
        unsafe {
            call!(
                self.nccl,
                ncclReduceScatter(send, recv, count, dtype, op, self.comm, stream)
            )
        }
        .map(drop)
    }

    /// `bytes` of every rank, rank 0's first.
    pub unsafe fn all_gather(
        &self,
        send: u64,
        recv: u64,
        bytes: usize,
        stream: u64,
    ) -> Result<(), CallError> {
        let (send, recv, stream) = (at(send), at(recv), at(stream).cast());
        let dtype = ncclDataType_t::ncclUint8;
        // SAFETY: the caller's word.
        unsafe {
            call!(
                self.nccl,
                ncclAllGather(send, recv, bytes, dtype, self.comm, stream)
            )
        }
        .map(drop)
    }

    /// `bytes` of `root`.
    pub unsafe fn broadcast(
        &self,
        send: u64,
        recv: u64,
        bytes: usize,
        root: u32,
        stream: u64,
    ) -> Result<(), CallError> {
        let (send, recv, stream) = (at(send), at(recv), at(stream).cast());
        let (dtype, root) = (ncclDataType_t::ncclUint8, root as i32);
        // SAFETY: the caller's word.
        unsafe {
            call!(
                self.nccl,
                ncclBroadcast(send, recv, bytes, dtype, root, self.comm, stream)
            )
        }
        .map(drop)
    }

    /// `bytes` to `peer`, which receives them.
    pub unsafe fn send(&self, send: u64, bytes: usize, peer: u32, stream: u64) -> Result<(), CallError> {
        let (send, peer, stream) = (at(send), peer as i32, at(stream).cast());
        // SAFETY: the caller's word.
        unsafe {
            call!(
                self.nccl,
                ncclSend(send, bytes, ncclDataType_t::ncclUint8, peer, self.comm, stream)
            )
        }
        .map(drop)
    }

    /// `bytes` from `peer`, which sends them.
    pub unsafe fn recv(&self, recv: u64, bytes: usize, peer: u32, stream: u64) -> Result<(), CallError> {
        let (recv, peer, stream) = (at(recv), peer as i32, at(stream).cast());
        // SAFETY: the caller's word.
        unsafe {
            call!(
                self.nccl,
                ncclRecv(recv, bytes, ncclDataType_t::ncclUint8, peer, self.comm, stream)
            )
        }
        .map(drop)
    }
}

/// The configuration of NCCL's own initializer for the header that the bindings are of: everything undefined.
fn config() -> ncclConfig_t {
    const INT: i32 = NCCL_CONFIG_UNDEF_INT;
    ncclConfig_t {
        size: size_of::<ncclConfig_t>(),
        magic: CONFIG_MAGIC,
        version: crate::sys::NCCL_VERSION_CODE,
        blocking: 1,
        cgaClusterSize: INT,
        minCTAs: INT,
        maxCTAs: INT,
        netName: std::ptr::null(),
        splitShare: INT,
        trafficClass: INT,
        commName: std::ptr::null(),
        collnetEnable: INT,
        CTAPolicy: INT,
        shrinkShare: INT,
        nvlsCTAs: INT,
        nChannelsPerNetPeer: INT,
        nvlinkCentricSched: INT,
    }
}

fn init(nccl: &Nccl, world: u32, rank: u32, id: Id) -> Result<ncclComm_t, OpenError> {
    let (mut comm, mut config) = (std::ptr::null_mut(), config());
    let id = ncclUniqueId {
        internal: id.map(|b| b as std::ffi::c_char),
    };
    let (world, rank) = (world as i32, rank as i32);
    // SAFETY: the pointers are to live values; NCCL copies the configuration.
    unsafe {
        call!(
            nccl,
            ncclCommInitRankConfig(&raw mut comm, world, id, rank, &raw mut config)
        )
    }?;
    if comm.is_null() {
        return Err(OpenError::Thread("NCCL gave no communicator".to_owned()));
    }
    Ok(comm)
}
