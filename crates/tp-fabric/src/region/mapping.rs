//! Memory that regions lie in: anonymous for one process, or a shared file.

use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

/// A mapping, unmapped when dropped. Zeroed when new, aligned to a page.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is plain memory without an owner thread; who reads and writes what when is its users' protocol.
unsafe impl Send for Mapping {}
// SAFETY: as above; `Mapping` itself only hands out its address.
unsafe impl Sync for Mapping {}

impl Mapping {
    const PROT: ProtFlags = ProtFlags::PROT_READ.union(ProtFlags::PROT_WRITE);

    /// Private memory of this process.
    pub fn anonymous(len: usize) -> io::Result<Self> {
        let size = nonzero(len)?;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap_anonymous(None, size, Self::PROT, MapFlags::MAP_PRIVATE) }?;
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    /// The first `len` bytes of a file, shared with everybody who maps it. The file must be at least that long.
    pub fn shared(file: impl AsFd, len: usize) -> io::Result<Self> {
        let size = nonzero(len)?;
        // SAFETY: as above. That the file is long enough is the caller's check; who writes it follows the protocol.
        let base = unsafe { mmap(None, size, Self::PROT, MapFlags::MAP_SHARED, file, 0) }?;
        Ok(Self {
            base: base.cast(),
            len,
        })
    }

    /// The first byte.
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes; never so.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and regions keep the mapping alive while they use it.
        let _ = unsafe { munmap(self.base.cast(), self.len) };
    }
}

fn nonzero(len: usize) -> io::Result<NonZeroUsize> {
    NonZeroUsize::new(len).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}
