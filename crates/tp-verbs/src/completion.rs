//! Completion queues.

use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::cause;
use crate::device::{Context, last_errno};
use crate::error::Error;
use crate::library::text;
use crate::sys::*;

/// How one signaled request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The number that the request was posted with.
    pub id: u64,
    /// The queue pair's number.
    pub queue_pair: u32,
    /// Success, or why not.
    pub result: Result<(), Failure>,
}

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The status of the verbs.
    pub status: u32,
    /// The library's words for it.
    pub text: String,
    /// The driver's own code; 0 where it has none.
    pub vendor: u32,
}

impl Failure {
    /// Whether the request was only flushed, since its queue pair had failed before.
    pub fn is_flush(&self) -> bool {
        self.status == ibv_wc_status::IBV_WC_WR_FLUSH_ERR.0
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {}", self.text, self.status)?;
        if self.vendor != 0 {
            write!(f, ", vendor error {:#x}", self.vendor)?;
        }
        write!(f, ")")?;
        match cause::of_status(ibv_wc_status(self.status)) {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Failure {}

/// Completions taken at one call at most.
const BATCH: usize = 32;

/// Where the ends of requests are read.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(crate) context: Arc<Context>,
    pub(crate) raw: NonNull<ibv_cq>,
}

// SAFETY: libibverbs allows calls on one object from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue of at least `entries`; it must hold every completion that may be outstanding.
    ///
    /// # Errors
    /// The device has no such queue.
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>, Error> {
        let entries = c_int::try_from(entries).unwrap_or(c_int::MAX);
        let none = std::ptr::null_mut();
        // SAFETY: the context is open; there is no event channel and no user pointer.
        let raw = unsafe {
            (context.verbs.functions().ibv_create_cq)(context.raw.as_ptr(), entries, none, none.cast(), 0)
        };
        let errno = last_errno();
        let raw = NonNull::new(raw).ok_or_else(|| {
            context.error(
                "make a completion queue",
                "ibv_create_cq",
                context.place(),
                Some(errno),
            )
        })?;
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            raw,
        }))
    }

    /// Takes what has completed, 32 at most, and gives each to `each`; returns how many. Never waits.
    ///
    /// # Errors
    /// The queue is broken: the device is gone, or more completed than it holds.
    pub fn poll(&self, mut each: impl FnMut(Completion)) -> Result<usize, Error> {
        // Not cleared: a look that finds nothing, which most do, is to cost nothing.
        let mut entries = [const { MaybeUninit::<ibv_wc>::uninit() }; BATCH];
        // SAFETY: the queue is live, and so is the context that its head points to.
        let operation = unsafe { (*self.raw.as_ref().context).ops.poll_cq };
        let Some(poll) = operation else {
            return Err(self.broken(libc::EOPNOTSUPP));
        };
        // SAFETY: the array has as many entries as are asked for.
        let count = unsafe { poll(self.raw.as_ptr(), BATCH as c_int, entries.as_mut_ptr().cast()) };
        let Ok(count) = usize::try_from(count) else {
            return Err(self.broken(libc::EIO));
        };
        for entry in entries.iter().take(count) {
            // SAFETY: the provider filled as many entries as it counted. Of a failed request it may leave all but number, status,
            // queue pair and vendor code as they were; no other field is read.
            each(unsafe { self.completion(entry.as_ptr()) });
        }
        Ok(count)
    }

    /// What an entry says.
    ///
    /// # Safety
    /// The provider filled the entry's number, status, queue pair and, where the status is no success, its vendor code.
    unsafe fn completion(&self, entry: *const ibv_wc) -> Completion {
        // SAFETY: the caller's promise; fields are read one by one, since the others may hold nothing.
        let (id, queue_pair, status) = unsafe { ((*entry).wr_id, (*entry).qp_num, (*entry).status) };
        let result = if status == ibv_wc_status::IBV_WC_SUCCESS {
            Ok(())
        } else {
            // SAFETY: as above.
            let vendor = unsafe { (*entry).vendor_err };
            // SAFETY: the function takes any status and returns a static string.
            let text = unsafe { text((self.context.verbs.functions().ibv_wc_status_str)(status)) };
            Err(Failure {
                status: status.0,
                text,
                vendor,
            })
        };
        Completion {
            id,
            queue_pair,
            result,
        }
    }

    fn broken(&self, errno: i32) -> Error {
        self.context.error(
            "read completions",
            "ibv_poll_cq",
            self.context.place(),
            Some(errno),
        )
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: queue pairs that use the queue hold it, so none is left.
        unsafe { (self.context.verbs.functions().ibv_destroy_cq)(self.raw.as_ptr()) };
    }
}
