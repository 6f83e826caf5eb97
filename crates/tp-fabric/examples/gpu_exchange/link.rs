//! What the link to host memory and the device memory carry, by the copy engines: what exchanges are held against.

use crate::checks::{Buffer, driver};
use crate::rank::Scene;
use cudarc::driver::{CudaStream, result, sys};
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Instant;
use tp_fabric::gpu::GpuError;

const BYTES: usize = 64 << 20;
const TIMES: usize = 20;

/// Page-locked host memory.
struct Host(*mut c_void);

impl Host {
    fn new() -> Result<Self, GpuError> {
        // SAFETY: a fresh allocation, freed in `drop`.
        let raw = unsafe { result::malloc_host(BYTES, sys::CU_MEMHOSTALLOC_PORTABLE) };
        Ok(Self(raw.map_err(|e| driver("page-lock host memory", e))?))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; the copies have ended.
        if let Err(error) = unsafe { result::free_host(self.0) } {
            eprintln!("gpu_exchange: failed to free host memory: {error:?}");
        }
    }
}

/// One copy that is repeated on its stream.
struct Copy {
    stream: Arc<CudaStream>,
    from: u64,
    to: u64,
}

/// Prints one JSON line a kind of copy. Host and device addresses are unified, so one call makes them all.
pub(crate) fn run(scene: &Scene) -> Result<(), GpuError> {
    let (host, device) = (Host::new()?, Buffer::new(BYTES)?);
    let (other_host, other_device) = (Host::new()?, Buffer::new(BYTES)?);
    let copy = |from: u64, to: u64| {
        Ok::<_, GpuError>(Copy {
            stream: scene.device.stream()?,
            from,
            to,
        })
    };
    let write = copy(device.at(0), host.0 as u64)?;
    let read = copy(other_host.0 as u64, other_device.at(0))?;
    let inside = copy(device.at(0), other_device.at(0))?;
    for (name, copies, factor) in [
        ("link_write", &[&write][..], 1.0),
        ("link_read", &[&read][..], 1.0),
        ("link_both", &[&write, &read][..], 1.0),
        // Read and written.
        ("device_memory", &[&inside][..], 2.0),
    ] {
        let seconds = time(copies)?;
        let rate = factor * (BYTES * TIMES) as f64 / seconds / 1e9;
        println!("{{\"link\":\"{name}\",\"gb_s_each_way\":{rate:.1}}}");
    }
    Ok(())
}

/// Seconds that all copies take together.
fn time(copies: &[&Copy]) -> Result<f64, GpuError> {
    let all = |times: usize| {
        for _ in 0..times {
            for copy in copies {
                // SAFETY: both sides hold `BYTES`, and the streams are waited for below.
                unsafe { sys::cuMemcpyAsync(copy.to, copy.from, BYTES, copy.stream.cu_stream()) }
                    .result()
                    .map_err(|e| driver("copy", e))?;
            }
        }
        for copy in copies {
            copy.stream.synchronize().map_err(|e| driver("synchronize", e))?;
        }
        Ok::<_, GpuError>(())
    };
    all(1)?;
    let began = Instant::now();
    all(TIMES)?;
    Ok(began.elapsed().as_secs_f64())
}
