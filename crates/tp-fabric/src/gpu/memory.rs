//! Memory that kernels of several processes reach: page-locked host memory, shared host memory, device memory over IPC.

use super::device::Device;
use super::error::{Doing, GpuError};
use crate::meeting::Meeting;
use crate::region::Region;
use crate::region::layout::PAGE;
use crate::types::Rank;
use cudarc::driver::{CudaContext, result, sys};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{File, OpenOptions};
use std::num::NonZeroUsize;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

/// Page-locked host memory of this process, mapped by its GPU, zeroed.
#[derive(Debug)]
pub(crate) struct PinnedBytes {
    context: Arc<CudaContext>,
    host: NonNull<AtomicU32>,
    device: u64,
    bytes: usize,
}

// SAFETY: the memory is plain words, reached only as atomics.
unsafe impl Send for PinnedBytes {}
// SAFETY: as above.
unsafe impl Sync for PinnedBytes {}

impl PinnedBytes {
    /// `bytes` is a multiple of 4.
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, GpuError> {
        device.bind()?;
        let what = format!("page-lock {bytes} bytes of host memory");
        // SAFETY: a fresh allocation, freed in `drop`.
        let raw = unsafe {
            result::malloc_host(
                bytes,
                sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP,
            )
        }
        .doing(&what)?;
        // SAFETY: the allocation is `bytes` long.
        unsafe { std::ptr::write_bytes(raw.cast::<u8>(), 0, bytes) };
        let host = NonNull::new(raw.cast())
            .ok_or_else(|| GpuError::Config(format!("failed to {what}: no address")))?;
        let mut this = Self {
            context: Arc::clone(device.context()),
            host,
            device: 0,
            bytes,
        };
        // SAFETY: `raw` is mapped for devices.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut this.device, raw, 0) }
            .result()
            .doing("map host memory")?;
        Ok(this)
    }

    pub(crate) fn device_address(&self) -> u64 {
        self.device
    }

    pub(crate) fn words(&self) -> &[AtomicU32] {
        // SAFETY: the allocation lives as long as `self`, is zeroed, and kernels write it only by whole words.
        unsafe { std::slice::from_raw_parts(self.host.as_ptr(), self.bytes / 4) }
    }
}

impl Drop for PinnedBytes {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: allocated by `new`, and nobody uses it any more.
        self.context
            .record_err(unsafe { result::free_host(self.host.as_ptr().cast()) });
    }
}

/// One piece of host memory that all ranks of a host map and page-lock, zeroed.
#[derive(Debug)]
pub(crate) struct SharedHost {
    context: Arc<CudaContext>,
    host: NonNull<std::ffi::c_void>,
    bytes: NonZeroUsize,
    registered: bool,
    device: u64,
}

// SAFETY: the host side never reads or writes the memory; only addresses are handed out.
unsafe impl Send for SharedHost {}
// SAFETY: as above.
unsafe impl Sync for SharedHost {}

impl SharedHost {
    /// Rank 0 makes a file in `/dev/shm`, all map it, and its name is gone again before this returns.
    pub(crate) fn open(device: &Device, meeting: &mut dyn Meeting, bytes: usize) -> Result<Self, GpuError> {
        let first = meeting.rank() == Rank(0);
        let made = if first { Some(make_file(bytes)) } else { None };
        let name = match &made {
            Some(Ok((path, _))) => path.to_string_lossy().into_owned(),
            _ => String::new(),
        };
        let name = meeting.broadcast("inbox name", name.as_bytes())?;
        let path = PathBuf::from(String::from_utf8_lossy(&name).into_owned());
        let mine = match made {
            Some(made) => made.and_then(|(_, file)| Self::map(device, &file, bytes)),
            None if name.is_empty() => Err(GpuError::Config("rank 0 has no shared memory".to_owned())),
            None => open_file(&path).and_then(|file| Self::map(device, &file, bytes)),
        };
        let verdict = meeting.verdict(
            "map the shared inboxes",
            mine.as_ref().map(drop).map_err(ToString::to_string),
        );
        if first && !name.is_empty() {
            std::fs::remove_file(&path).doing(&format!("remove {}", path.display()))?;
        }
        let shared = mine?;
        verdict?;
        Ok(shared)
    }

    fn map(device: &Device, file: &File, bytes: usize) -> Result<Self, GpuError> {
        device.bind()?;
        let length =
            NonZeroUsize::new(bytes).ok_or_else(|| GpuError::Config("an inbox of 0 bytes".to_owned()))?;
        // SAFETY: a new mapping at an address of the system's choice.
        let host = unsafe {
            mmap(
                None,
                length,
                ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
                MapFlags::MAP_SHARED,
                file,
                0,
            )
        }
        .map_err(std::io::Error::from)
        .doing("map shared memory")?;
        let mut this = Self {
            context: Arc::clone(device.context()),
            host,
            bytes: length,
            registered: false,
            device: 0,
        };
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the mapping is `bytes` long and stays until `drop`, which unregisters it first.
        unsafe { sys::cuMemHostRegister_v2(host.as_ptr(), bytes, flags) }
            .result()
            .doing(&format!(
                "page-lock {bytes} bytes of shared memory (is `ulimit -l` large enough?)"
            ))?;
        this.registered = true;
        // SAFETY: the memory was registered as mapped just now.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut this.device, host.as_ptr(), 0) }
            .result()
            .doing("map shared memory on the GPU")?;
        Ok(this)
    }

    pub(crate) fn device_address(&self) -> u64 {
        self.device
    }
}

impl Drop for SharedHost {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        if self.registered {
            // SAFETY: registered by `map`, once.
            self.context
                .record_err(unsafe { sys::cuMemHostUnregister(self.host.as_ptr()) }.result());
        }
        // SAFETY: mapped by `map` with this length; nobody has an address of it any more.
        if let Err(error) = unsafe { munmap(self.host, self.bytes.get()) } {
            tracing::warn!("failed to unmap the shared inboxes: {error}");
        }
    }
}

/// A rank's region, page-locked and mapped by its GPU for as long as this lives; it keeps the region mapped.
#[derive(Debug)]
pub(crate) struct LockedRegion {
    context: Arc<CudaContext>,
    region: Region,
    device: u64,
}

impl LockedRegion {
    pub(crate) fn new(device: &Device, region: Region) -> Result<Self, GpuError> {
        device.bind()?;
        let (base, bytes) = (
            region.base().as_ptr().cast(),
            region.layout().total().next_multiple_of(PAGE),
        );
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the region begins on a page of a mapping that reaches to the end of its last page, and stays mapped
        // until `drop`, which unregisters it first.
        unsafe { sys::cuMemHostRegister_v2(base, bytes, flags) }
            .result()
            .doing(&format!(
                "page-lock the region of {bytes} bytes (is `ulimit -l` large enough?)"
            ))?;
        let mut this = Self {
            context: Arc::clone(device.context()),
            region,
            device: 0,
        };
        // SAFETY: the memory was registered as mapped just now.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut this.device, base, 0) }
            .result()
            .doing("map the region on the GPU")?;
        Ok(this)
    }

    pub(crate) fn device_address(&self) -> u64 {
        self.device
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }
}

impl Drop for LockedRegion {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        let base = self.region.base().as_ptr().cast();
        // SAFETY: registered by `new`; kernels that use it have ended.
        self.context
            .record_err(unsafe { sys::cuMemHostUnregister(base) }.result());
    }
}

fn make_file(bytes: usize) -> Result<(PathBuf, File), GpuError> {
    let mut tag = [0; 8];
    getrandom::fill(&mut tag)
        .map_err(|e| std::io::Error::other(e.to_string()))
        .doing("draw a name for shared memory")?;
    let path = Path::new("/dev/shm").join(format!("tp-inbox-{}-{}", std::process::id(), hex::encode(tag)));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)
        .doing(&format!("create {}", path.display()))?;
    if let Err(error) = file.set_len(bytes as u64) {
        std::fs::remove_file(&path).doing(&format!("remove {}", path.display()))?;
        return Err(error).doing(&format!("grow {} to {bytes} bytes", path.display()));
    }
    Ok((path, file))
}

fn open_file(path: &Path) -> Result<File, GpuError> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .doing(&format!("open {}", path.display()))
}

/// Device memory, zeroed; allocated so that other processes can open it.
#[derive(Debug)]
pub(crate) struct DeviceBytes {
    context: Arc<CudaContext>,
    address: u64,
}

impl DeviceBytes {
    pub(crate) fn new(device: &Device, bytes: usize) -> Result<Self, GpuError> {
        device.bind()?;
        // SAFETY: a fresh allocation, freed in `drop`. Stream-ordered memory could not be exported.
        let address =
            unsafe { result::malloc_sync(bytes) }.doing(&format!("allocate {bytes} bytes on the GPU"))?;
        let this = Self {
            context: Arc::clone(device.context()),
            address,
        };
        // SAFETY: the allocation is `bytes` long.
        unsafe { result::memset_d8_sync(address, 0, bytes) }.doing("clear GPU memory")?;
        // The fill may still be under way when the call returns.
        this.context.synchronize().doing("clear GPU memory")?;
        Ok(this)
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    /// The 64 bytes by which another process opens it.
    pub(crate) fn handle(&self) -> Result<[u8; 64], GpuError> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: the address begins an allocation of this process.
        unsafe { sys::cuIpcGetMemHandle(&mut handle, self.address) }
            .result()
            .doing("export GPU memory (CUDA IPC)")?;
        Ok(handle.reserved.map(|c| c as u8))
    }
}

impl Drop for DeviceBytes {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: allocated by `new`; kernels that use it have ended.
        self.context
            .record_err(unsafe { result::free_sync(self.address) });
    }
}

/// Device memory of another process.
#[derive(Debug)]
pub(crate) struct PeerBytes {
    context: Arc<CudaContext>,
    address: u64,
}

impl PeerBytes {
    pub(crate) fn open(device: &Device, handle: &[u8; 64]) -> Result<Self, GpuError> {
        device.bind()?;
        let handle = sys::CUipcMemHandle {
            reserved: handle.map(|b| b as std::ffi::c_char),
        };
        let mut address = 0;
        let flags = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
        // SAFETY: the handle is 64 bytes from a rank's `cuIpcGetMemHandle`; a wrong one is an error, not a fault.
        unsafe { sys::cuIpcOpenMemHandle_v2(&mut address, handle, flags) }
            .result()
            .doing("open another rank's GPU memory (CUDA IPC)")?;
        Ok(Self {
            context: Arc::clone(device.context()),
            address,
        })
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }
}

impl Drop for PeerBytes {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: opened by `open`; kernels that use it have ended.
        self.context
            .record_err(unsafe { sys::cuIpcCloseMemHandle(self.address) }.result());
    }
}
