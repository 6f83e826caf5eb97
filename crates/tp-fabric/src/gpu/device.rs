//! A GPU: the driver found at run time, the context, the kernels.

use super::args::{ExchangeArgs, LineArgs, MAX_MEMBERS};
use super::error::{Doing, GpuError};
use super::route::{Protocol, Route};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, result, sys};
use cudarc::nvrtc::Ptx;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

/// CUDA 13.0, as the driver counts.
const NEEDED: i32 = 13_000;

/// A GPU with its primary context and the exchange kernels loaded.
pub struct Device {
    context: Arc<CudaContext>,
    kernels: Kernels,
}

/// The exchange kernels, each for up to 2, 4 and 8 members.
pub struct Kernels {
    lines: [CudaFunction; 3],
    /// In the order of [`Fast`]: one tile a warp, and several, for up to 2 and 4 members.
    fast: [[CudaFunction; 3]; 4],
    tiles: [[CudaFunction; 2]; 4],
    chunks: [CudaFunction; 3],
}

/// What the short kernels of lines are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fast {
    Gather = 0,
    SumF32 = 1,
    SumBf16 = 2,
    SumF16 = 3,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({})", self.context.ordinal())
    }
}

impl Device {
    /// Opens the GPU of this number and loads `image` (a fat binary or cubin) on it.
    ///
    /// # Errors
    /// No driver, one older than CUDA 13.0, no such GPU, or an image without code for it.
    pub fn open(ordinal: usize, image: &[u8]) -> Result<Self, GpuError> {
        // SAFETY: only tries to load the driver library.
        if !unsafe { sys::is_culib_present() } {
            return Err(GpuError::NoDriver);
        }
        let mut found = 0;
        // SAFETY: writes one integer; every driver has this call.
        unsafe { sys::cuDriverGetVersion(&mut found) }
            .result()
            .doing("ask the driver for its version")?;
        if found < NEEDED {
            return Err(GpuError::OldDriver { found });
        }
        let context = CudaContext::new(ordinal).doing(&format!("open GPU {ordinal}"))?;
        // SAFETY: this crate orders its streams itself; tracked events would be recorded into captures.
        unsafe { context.disable_event_tracking() };
        let kernels = Kernels::load(&context, image)?;
        Ok(Self { context, kernels })
    }

    /// The context.
    pub fn context(&self) -> &Arc<CudaContext> {
        &self.context
    }

    /// A new stream that does not wait for the default one.
    pub fn stream(&self) -> Result<Arc<CudaStream>, GpuError> {
        self.context.new_stream().doing("create a stream")
    }

    /// Name and number of multiprocessors, for people.
    pub fn describe(&self) -> Result<String, GpuError> {
        let name = self.context.name().doing("ask for the GPU's name")?;
        let (major, minor) = self
            .context
            .compute_capability()
            .doing("ask for the compute capability")?;
        Ok(format!("{name} (compute capability {major}.{minor})"))
    }

    /// How many blocks run at once for certain, one on each multiprocessor.
    pub fn multiprocessors(&self) -> Result<u32, GpuError> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        let count = self
            .context
            .attribute(attribute)
            .doing("ask for the number of multiprocessors")?;
        Ok(count.unsigned_abs())
    }

    /// Makes this thread's driver calls go to this GPU.
    pub(crate) fn bind(&self) -> Result<(), GpuError> {
        self.context
            .bind_to_thread()
            .doing("bind the context to this thread")
    }

    /// Enqueues one exchange; `fast` where its buffers start at multiples of 16 and hold whole packs.
    ///
    /// # Safety
    /// Every address in `args` is valid on this GPU for what `kernels/exchange.cuh` says of it until the launch has
    /// ended, and `stream` belongs to this context.
    pub(crate) unsafe fn launch(
        &self,
        route: &Route,
        fast: Option<Fast>,
        args: &ExchangeArgs,
        stream: sys::CUstream,
    ) -> Result<(), GpuError> {
        let set = match (route.protocol, fast) {
            (Protocol::Lines, None) => &self.kernels.lines[..],
            (Protocol::Lines, Some(fast)) if route.rounds > 1 => &self.kernels.tiles[fast as usize][..],
            (Protocol::Lines, Some(fast)) => &self.kernels.fast[fast as usize][..],
            (Protocol::Chunks, _) => &self.kernels.chunks[..],
        };
        let function = set[if args.members <= 2 {
            0
        } else if args.members <= 4 {
            1
        } else {
            2
        }]
        .cu_function();
        let short = LineArgs::of(args, route.pause);
        let parameter = match (route.protocol, fast) {
            (Protocol::Lines, Some(_)) => std::ptr::from_ref(&short).cast::<c_void>(),
            _ => std::ptr::from_ref(args).cast(),
        };
        let mut parameters = [parameter.cast_mut()];
        // SAFETY: the function takes exactly the struct that was chosen; the driver copies it before it returns.
        unsafe {
            result::launch_kernel(
                function,
                (route.grid, 1, 1),
                (route.threads, 1, 1),
                0,
                stream,
                &mut parameters,
            )
        }
        .doing("launch an exchange")
    }
}

impl Kernels {
    fn load(context: &Arc<CudaContext>, image: &[u8]) -> Result<Self, GpuError> {
        let module = match context.load_module(Ptx::from_binary(image.to_vec())) {
            Err(error) if error.0 == sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU => {
                let (major, minor) = context
                    .compute_capability()
                    .doing("ask for the compute capability")?;
                return Err(GpuError::NotServed { major, minor });
            }
            other => other.doing("load the kernel image")?,
        };
        let function = |protocol: &str, members: usize| {
            let name = format!("tp_exchange_{protocol}_{members}");
            module.load_function(&name).doing(&format!("find kernel {name}"))
        };
        let all = |protocol: &str| {
            Ok::<_, GpuError>([
                function(protocol, 2)?,
                function(protocol, 4)?,
                function(protocol, MAX_MEMBERS)?,
            ])
        };
        let two = |protocol: &str| Ok::<_, GpuError>([function(protocol, 2)?, function(protocol, 4)?]);
        Ok(Self {
            lines: all("lines")?,
            fast: [
                all("lines_gather")?,
                all("lines_f32")?,
                all("lines_bf16")?,
                all("lines_f16")?,
            ],
            tiles: [
                two("tiles_gather")?,
                two("tiles_f32")?,
                two("tiles_bf16")?,
                two("tiles_f16")?,
            ],
            chunks: all("chunks")?,
        })
    }
}
