//! Memory that kernels of several processes reach: page-locked host memory, shared host memory, device memory over IPC.

use super::device::Device;
use super::error::{Doing, GpuError};
use crate::host::{OpenError, lock};
use crate::meeting::Meeting;
use crate::region::layout::PAGE;
use crate::region::{Mapping, Region};
use crate::types::Rank;
use crate::wire::shm;
use cudarc::driver::{CudaContext, result, sys};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, OnceLock, Weak};

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

/// One piece of host memory that all ranks of a host map and page-lock, zeroed. Its file goes with the last rank that has
/// it, however that ends.
#[derive(Debug)]
pub(crate) struct SharedHost {
    context: Arc<CudaContext>,
    memory: Arc<Mapping>,
    device: u64,
}

impl SharedHost {
    /// At least `bytes`; all ranks call it at once.
    pub(crate) fn open(device: &Device, meeting: &mut dyn Meeting, bytes: usize) -> Result<Self, GpuError> {
        let all: Vec<Rank> = meeting.world().ranks().collect();
        let part = bytes.div_ceil(all.len()).next_multiple_of(PAGE);
        let shared = shm::share(meeting, &all, part, part).map_err(|error| match error {
            OpenError::Meeting(error) => GpuError::Meeting(error),
            other => GpuError::Config(other.to_string()),
        })?;
        let mine = match shared {
            Some((memory, _)) => Self::lock(device, memory),
            None => Err(GpuError::Config("nobody to share inboxes with".to_owned())),
        };
        let verdict = meeting.verdict(
            "page-lock the shared inboxes",
            mine.as_ref().map(drop).map_err(ToString::to_string),
        );
        let shared = mine?;
        verdict?;
        Ok(shared)
    }

    fn lock(device: &Device, memory: Arc<Mapping>) -> Result<Self, GpuError> {
        device.bind()?;
        let (base, bytes) = (memory.base().as_ptr().cast(), memory.len());
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the mapping is `bytes` long and stays until `drop`, which unregisters it first.
        unsafe { sys::cuMemHostRegister_v2(base, bytes, flags) }
            .result()
            .doing(&format!(
                "page-lock {bytes} bytes of shared memory (is `ulimit -l` large enough?)"
            ))?;
        let mut this = Self {
            context: Arc::clone(device.context()),
            memory,
            device: 0,
        };
        // SAFETY: the memory was registered as mapped just now.
        unsafe { sys::cuMemHostGetDevicePointer_v2(&mut this.device, base, 0) }
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
        let base = self.memory.base().as_ptr().cast();
        // SAFETY: registered by `lock`, once; kernels that use it have ended.
        self.context
            .record_err(unsafe { sys::cuMemHostUnregister(base) }.result());
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
    fn handle(&self) -> Result<[u8; 64], GpuError> {
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

/// What another rank needs to open a rank's device memory: CUDA's handle, and which process and address it is of.
pub(crate) const OFFER: usize = 64 + 16 + 8;

/// A number that no other process has.
fn this_process() -> Result<[u8; 16], GpuError> {
    static NUMBER: OnceLock<[u8; 16]> = OnceLock::new();
    if let Some(number) = NUMBER.get() {
        return Ok(*number);
    }
    let mut number = [0; 16];
    getrandom::fill(&mut number)
        .map_err(|e| std::io::Error::other(e.to_string()))
        .doing("draw a number for this process")?;
    Ok(*NUMBER.get_or_init(|| number))
}

/// The memory that ranks of this process have offered, by address.
static OFFERED: Mutex<BTreeMap<u64, Weak<DeviceBytes>>> = Mutex::new(BTreeMap::new());

/// Offers memory to the other ranks, of this process and others.
pub(crate) fn offer(memory: &Arc<DeviceBytes>) -> Result<[u8; OFFER], GpuError> {
    let mut out = [0; OFFER];
    out[..64].copy_from_slice(&memory.handle()?);
    out[64..80].copy_from_slice(&this_process()?);
    out[80..].copy_from_slice(&memory.address().to_le_bytes());
    let mut offered = lock(&OFFERED);
    offered.retain(|_, memory| memory.strong_count() > 0);
    offered.insert(memory.address(), Arc::downgrade(memory));
    Ok(out)
}

/// Device memory of another rank.
#[derive(Debug)]
pub(crate) enum PeerBytes {
    /// Of a thread of this process.
    Here(Arc<DeviceBytes>),
    /// Of another process.
    There(IpcBytes),
}

impl PeerBytes {
    pub(crate) fn open(device: &Device, offer: &[u8; OFFER]) -> Result<Self, GpuError> {
        let (mut handle, mut address) = ([0; 64], [0; 8]);
        handle.copy_from_slice(&offer[..64]);
        address.copy_from_slice(&offer[80..]);
        // CUDA opens no handle in the process that made it.
        if offer[64..80] != this_process()? {
            return Ok(Self::There(IpcBytes::open(device, &handle)?));
        }
        let found = lock(&OFFERED)
            .get(&u64::from_le_bytes(address))
            .and_then(Weak::upgrade);
        let memory = found.ok_or_else(|| GpuError::Config("another rank's inboxes are gone".to_owned()))?;
        reach(device, &memory.context)?;
        Ok(Self::Here(memory))
    }

    pub(crate) fn address(&self) -> u64 {
        match self {
            Self::Here(memory) => memory.address(),
            Self::There(memory) => memory.address,
        }
    }
}

/// Lets kernels of this GPU use the memory of another one's context in this process.
fn reach(device: &Device, other: &Arc<CudaContext>) -> Result<(), GpuError> {
    if device.context().cu_ctx() == other.cu_ctx() {
        return Ok(());
    }
    device.bind()?;
    // SAFETY: both contexts are alive.
    match unsafe { sys::cuCtxEnablePeerAccess(other.cu_ctx(), 0) } {
        sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
        other => other.result().doing("map another GPU's memory"),
    }
}

/// Device memory of another process.
#[derive(Debug)]
pub(crate) struct IpcBytes {
    context: Arc<CudaContext>,
    address: u64,
}

impl IpcBytes {
    fn open(device: &Device, handle: &[u8; 64]) -> Result<Self, GpuError> {
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
}

impl Drop for IpcBytes {
    fn drop(&mut self) {
        self.context.record_err(self.context.bind_to_thread());
        // SAFETY: opened by `open`; kernels that use it have ended.
        self.context
            .record_err(unsafe { sys::cuIpcCloseMemHandle(self.address) }.result());
    }
}
