//! Device memory that callers fill and read: what checks and measurements use.

use super::device::Device;
use super::error::{Doing, GpuError};
use super::memory::DeviceBytes;
use cudarc::driver::result;
use std::sync::Arc;

/// Device memory of a fixed length, zeroed. Reads and writes wait until their bytes have landed; work on streams that uses
/// it must have ended before.
#[derive(Debug)]
pub struct DeviceBuffer {
    device: Arc<Device>,
    memory: DeviceBytes,
    bytes: usize,
}

impl DeviceBuffer {
    /// `bytes` bytes, at least 1.
    ///
    /// # Errors
    /// The GPU's memory is full.
    pub fn new(device: &Arc<Device>, bytes: usize) -> Result<Self, GpuError> {
        Ok(Self {
            device: Arc::clone(device),
            memory: DeviceBytes::new(device, bytes.max(1))?,
            bytes,
        })
    }

    /// Its address, a multiple of 256.
    pub fn address(&self) -> u64 {
        self.memory.address()
    }

    /// Its bytes.
    pub fn len(&self) -> usize {
        self.bytes
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes == 0
    }

    fn within(&self, at: usize, bytes: usize) -> Result<u64, GpuError> {
        if at > self.bytes || bytes > self.bytes - at {
            return Err(GpuError::Config(format!(
                "refused {bytes} bytes at {at} of a buffer of {}",
                self.bytes
            )));
        }
        self.device.bind()?;
        Ok(self.address() + at as u64)
    }

    /// Puts `data` at `at`.
    ///
    /// # Errors
    /// It does not fit, or the copy fails.
    pub fn write(&mut self, at: usize, data: &[u8]) -> Result<(), GpuError> {
        let to = self.within(at, data.len())?;
        if data.is_empty() {
            return Ok(());
        }
        // SAFETY: inside the allocation, just checked.
        unsafe { result::memcpy_htod_sync(to, data) }.doing("write device memory")?;
        // From pageable memory the call returns before the last bytes have landed, and streams do not wait for it.
        self.device.context().synchronize().doing("write device memory")
    }

    /// Fills `bytes` at `at` with one value.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn fill(&mut self, at: usize, bytes: usize, value: u8) -> Result<(), GpuError> {
        let to = self.within(at, bytes)?;
        // SAFETY: inside the allocation, just checked.
        unsafe { result::memset_d8_sync(to, value, bytes) }.doing("fill device memory")?;
        self.device.context().synchronize().doing("fill device memory")
    }

    /// `bytes` bytes from `at`.
    ///
    /// # Errors
    /// As [`write`](Self::write).
    pub fn read(&self, at: usize, bytes: usize) -> Result<Vec<u8>, GpuError> {
        let from = self.within(at, bytes)?;
        let mut out = vec![0; bytes];
        if bytes > 0 {
            // SAFETY: inside the allocation, just checked.
            unsafe { result::memcpy_dtoh_sync(&mut out, from) }.doing("read device memory")?;
        }
        Ok(out)
    }
}
