//! Memory that devices may read and write: pages of our own, protection domains, registered regions.

use std::ffi::c_int;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::device::{Context, last_errno};
use crate::error::Error;
use crate::os;
use crate::post::Window;
use crate::sys::*;

/// Keeps memory of somebody else out of forked children and free of huge pages, as [`Pages`] are, and reads the kernel's own
/// account of the mapping to see that it is so.
///
/// # Safety
/// The range is a mapping of the caller, in whole pages.
///
/// # Errors
/// The kernel refuses, or does not say that it was done.
pub unsafe fn protect(address: *mut u8, length: usize) -> io::Result<()> {
    // SAFETY: the caller's promise.
    unsafe { os::keep_from_children_and_huge_pages(address.cast(), length) }
}

/// Anonymous zeroed pages, private to this process: not copied by fork and free of huge pages, so that their physical
/// addresses stay what the device was told.
#[derive(Debug)]
pub struct Pages {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to the value, not to a thread; access to its bytes is through raw pointers.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    /// At least `length` bytes, rounded up to whole pages; `length` is at least 1.
    ///
    /// # Errors
    /// There is no such memory, or the kernel does not keep it out of forked children.
    pub fn new(length: usize) -> io::Result<Self> {
        let page = page_size();
        let length = length
            .max(1)
            .checked_next_multiple_of(page)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON;
        // SAFETY: a new mapping where the kernel likes; nothing is replaced.
        let address = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let Some(pointer) = NonNull::new(address.cast::<u8>()) else {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        };
        let pages = Self {
            address: pointer,
            length,
        };
        // SAFETY: the mapping made above, in whole pages.
        unsafe { os::keep_from_children_and_huge_pages(address, length) }?;
        Ok(pages)
    }

    /// The first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.address.as_ptr()
    }

    /// Bytes, in whole pages.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Never true: there is at least one page.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and regions that name it hold the value.
        unsafe { libc::munmap(self.address.as_ptr().cast(), self.length) };
    }
}

fn page_size() -> usize {
    // SAFETY: a question without arguments in memory.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// A protection domain: regions and queue pairs of one may be used together.
#[derive(Debug)]
pub struct ProtectionDomain {
    pub(crate) context: Arc<Context>,
    pub(crate) raw: NonNull<ibv_pd>,
}

// SAFETY: libibverbs allows calls on one object from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A new domain of the device.
    ///
    /// # Errors
    /// The device is out of domains, or gone.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>, Error> {
        // SAFETY: the context is open.
        let raw = unsafe { (context.verbs.functions().ibv_alloc_pd)(context.raw.as_ptr()) };
        let errno = last_errno();
        let raw = NonNull::new(raw).ok_or_else(|| {
            context.error(
                "make a protection domain",
                "ibv_alloc_pd",
                context.place(),
                Some(errno),
            )
        })?;
        Ok(Arc::new(Self {
            context: Arc::clone(context),
            raw,
        }))
    }

    /// The device.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: everything made from the domain holds it, so nothing of it is left.
        unsafe { (self.context.verbs.functions().ibv_dealloc_pd)(self.raw.as_ptr()) };
    }
}

/// Memory that a device may use. Peers may write it; no relaxed ordering, so that a flag never passes the data before it.
#[derive(Debug)]
pub struct MemoryRegion {
    domain: Arc<ProtectionDomain>,
    raw: NonNull<ibv_mr>,
    /// Dropped after the region: the device must not be told of memory that is gone.
    _pages: Option<Arc<Pages>>,
}

// SAFETY: libibverbs allows calls on one object from any thread.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Registers pages of our own.
    ///
    /// # Errors
    /// Mostly the limit of locked memory, which the error then names.
    pub fn register(domain: &Arc<ProtectionDomain>, pages: &Arc<Pages>) -> Result<Self, Error> {
        // SAFETY: the pages live as long as the region that holds them.
        let mut region = unsafe { Self::register_raw(domain, pages.as_ptr(), pages.len()) }?;
        region._pages = Some(Arc::clone(pages));
        Ok(region)
    }

    /// Registers memory of somebody else, such as page-locked memory of a GPU driver.
    ///
    /// # Safety
    /// The range stays mapped for as long as the region lives, and may be written by peers at any time.
    ///
    /// # Errors
    /// As [`MemoryRegion::register`].
    pub unsafe fn register_raw(
        domain: &Arc<ProtectionDomain>,
        address: *mut u8,
        length: usize,
    ) -> Result<Self, Error> {
        let context = &domain.context;
        let access = ibv_access_flags::IBV_ACCESS_LOCAL_WRITE | ibv_access_flags::IBV_ACCESS_REMOTE_WRITE;
        let access = c_int::try_from(access.0).unwrap_or(0);
        // SAFETY: the caller vouches for the range.
        let raw = unsafe {
            (context.verbs.functions().ibv_reg_mr)(domain.raw.as_ptr(), address.cast(), length, access)
        };
        let errno = last_errno();
        let raw = NonNull::new(raw)
            .ok_or_else(|| context.error("register memory", "ibv_reg_mr", context.place(), Some(errno)))?;
        Ok(Self {
            domain: Arc::clone(domain),
            raw,
            _pages: None,
        })
    }

    /// Its protection domain.
    pub fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// The range and the key for requests of this end.
    pub fn local(&self) -> Window {
        // SAFETY: the region is live; the library does not change these fields.
        unsafe {
            let raw = self.raw.as_ref();
            Window {
                start: raw.addr as u64,
                length: raw.length as u64,
                key: raw.lkey,
            }
        }
    }

    /// The range and the key that a peer needs to write here.
    pub fn remote(&self) -> Window {
        // SAFETY: as above.
        let key = unsafe { self.raw.as_ref().rkey };
        Window { key, ..self.local() }
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: the region is registered; requests that name it have been drained or their queue pair is destroyed.
        unsafe { (self.domain.context.verbs.functions().ibv_dereg_mr)(self.raw.as_ptr()) };
    }
}
