//! A GPU: the driver found at run time, the context, the kernels.

use super::args::{ExchangeArgs, LineArgs, MAX_MEMBERS, PostedArgs, TwoShotArgs};
use super::error::{Doing, GpuError};
use super::layout::PACK;
use super::route::{Protocol, Route};
use super::two_shot;
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, result, sys};
use cudarc::nvrtc::Ptx;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use tp_kernels::OrderedSumArgs;

/// CUDA 13.0, as the driver counts.
const NEEDED: i32 = 13_000;

/// A GPU with its primary context and, where there is an image, the kernels loaded.
pub struct Device {
    context: Arc<CudaContext>,
    kernels: Option<Kernels>,
}

/// The exchange kernels, each for up to 2, 4 and 8 members.
pub struct Kernels {
    lines: [CudaFunction; 3],
    /// In the order of [`Fast`]: one tile a warp, and several, for up to 2 and 4 members.
    fast: [[CudaFunction; 3]; 4],
    tiles: [[CudaFunction; 2]; 4],
    /// The same by dense lines, and those for buffers that start anywhere.
    dense: [[CudaFunction; 2]; 4],
    dense_tiles: [[CudaFunction; 2]; 4],
    dense_anywhere: [[CudaFunction; 2]; 4],
    chunks: [CudaFunction; 3],
    posted: [CudaFunction; 3],
    /// For up to 4 and 8 members.
    two_shot: [CudaFunction; 2],
    /// The same for sums of f32, bf16 and f16 of whole packs.
    two_shot_sums: [[CudaFunction; 2]; 3],
    ordered_sum: CudaFunction,
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
    /// Opens the GPU of this number and loads `image` (a fat binary or cubin) on it. Without one, nothing that needs a
    /// kernel can be launched.
    ///
    /// # Errors
    /// No driver, one older than CUDA 13.0, no such GPU, or an image without code for it.
    pub fn open(ordinal: usize, image: Option<&[u8]>) -> Result<Self, GpuError> {
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
        let kernels = image.map(|image| Kernels::load(&context, image)).transpose()?;
        Ok(Self { context, kernels })
    }

    /// Whether kernels were loaded.
    pub fn has_kernels(&self) -> bool {
        self.kernels.is_some()
    }

    fn kernels(&self) -> Result<&Kernels, GpuError> {
        self.kernels
            .as_ref()
            .ok_or_else(|| GpuError::Config("this binary has no GPU kernels to launch".to_owned()))
    }

    /// The GPU's address on its host, such as `0000:3b:00.0`: the same GPU has the same one for every process.
    pub fn bus_id(&self) -> Result<String, GpuError> {
        let mut text = [0 as std::ffi::c_char; 32];
        // SAFETY: the buffer has the length that is given; the driver terminates the text.
        unsafe { sys::cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, self.context.cu_device()) }
            .result()
            .doing("ask for the GPU's PCI address")?;
        Ok(text
            .iter()
            .take_while(|c| **c != 0)
            .map(|c| *c as u8 as char)
            .collect())
    }

    /// Whether this GPU can map memory of the one at `bus_id` on this host; its own always.
    pub fn can_map(&self, bus_id: &str) -> Result<bool, GpuError> {
        if self.bus_id()? == bus_id {
            return Ok(true);
        }
        let name = std::ffi::CString::new(bus_id)
            .map_err(|_| GpuError::Config("a PCI address with a zero byte".to_owned()))?;
        let mut other = 0;
        // SAFETY: the text is terminated, the pointer is to a live value.
        if unsafe { sys::cuDeviceGetByPCIBusId(&mut other, name.as_ptr()) }
            .result()
            .is_err()
        {
            // Hidden from this process (CUDA_VISIBLE_DEVICES): it cannot be mapped either.
            return Ok(false);
        }
        let mut can = 0;
        // SAFETY: the pointer is to a live value, both devices exist.
        unsafe { sys::cuDeviceCanAccessPeer(&mut can, self.context.cu_device(), other) }
            .result()
            .doing("ask whether GPUs can map each other's memory")?;
        Ok(can != 0)
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

    /// Enqueues one exchange, by the short kernels for such a call, `fast`, where its buffers allow them. Dense lines have
    /// no others.
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
        let kernels = self.kernels()?;
        let aligned = (args.own | args.recv).is_multiple_of(PACK);
        let whole = aligned && (args.bytes | args.recv_stride).is_multiple_of(PACK);
        let (set, brief) = match (route.protocol, fast) {
            (Protocol::Lines, Some(fast)) if whole && route.rounds > 1 => {
                (&kernels.tiles[fast as usize][..], true)
            }
            (Protocol::Lines, Some(fast)) if whole => (&kernels.fast[fast as usize][..], true),
            (Protocol::Lines, _) => (&kernels.lines[..], false),
            (Protocol::Dense, Some(fast)) if !aligned => (&kernels.dense_anywhere[fast as usize][..], true),
            (Protocol::Dense, Some(fast)) if route.rounds > 1 => {
                (&kernels.dense_tiles[fast as usize][..], true)
            }
            (Protocol::Dense, Some(fast)) => (&kernels.dense[fast as usize][..], true),
            (Protocol::Dense, None) => {
                return Err(GpuError::Config(
                    "a call that dense lines do not carry".to_owned(),
                ));
            }
            (Protocol::Chunks, _) => (&kernels.chunks[..], false),
        };
        let function = set
            .get(capacity(args.members))
            .ok_or_else(|| GpuError::Config(format!("no kernel for {} members", args.members)))?;
        let short = LineArgs::of(args, route);
        let parameter = if brief {
            std::ptr::from_ref(&short).cast::<c_void>()
        } else {
            std::ptr::from_ref(args).cast()
        };
        // SAFETY: the function takes exactly the struct that was chosen.
        unsafe { launch(function, route.grid, route.threads, parameter, stream) }.doing("launch an exchange")
    }

    /// Enqueues one all-reduce in two shots, with blocks of [`two_shot::THREADS`].
    ///
    /// # Safety
    /// Every address in `args` is valid on this GPU for what `kernels/exchange_two_shot.cu` says of it until the launch has
    /// ended, and `stream` belongs to this context.
    pub(crate) unsafe fn launch_two_shot(
        &self,
        grid: u32,
        fast: Option<Fast>,
        args: &TwoShotArgs,
        stream: sys::CUstream,
    ) -> Result<(), GpuError> {
        let kernels = self.kernels()?;
        let whole = (args.send | args.recv | args.bytes).is_multiple_of(PACK);
        let set = match fast {
            Some(Fast::SumF32) if whole => &kernels.two_shot_sums[0],
            Some(Fast::SumBf16) if whole => &kernels.two_shot_sums[1],
            Some(Fast::SumF16) if whole => &kernels.two_shot_sums[2],
            _ => &kernels.two_shot,
        };
        let function = &set[usize::from(args.members > 4)];
        let parameter = std::ptr::from_ref(args).cast();
        // SAFETY: the kernel takes exactly this struct.
        unsafe { launch(function, grid, two_shot::THREADS, parameter, stream) }
            .doing("launch an all-reduce in two shots")
    }

    /// Enqueues one exchange by post, with blocks of [`POSTED_THREADS`].
    ///
    /// # Safety
    /// Every address in `args` is valid on this GPU for what `kernels/exchange_posted.cu` says of it until the launch has
    /// ended, and `stream` belongs to this context.
    pub(crate) unsafe fn launch_posted(
        &self,
        grid: u32,
        args: &PostedArgs,
        stream: sys::CUstream,
    ) -> Result<(), GpuError> {
        let function = &self.kernels()?.posted[capacity(args.world)];
        // SAFETY: the kernel takes exactly this struct.
        unsafe {
            launch(
                function,
                grid,
                POSTED_THREADS,
                std::ptr::from_ref(args).cast(),
                stream,
            )
        }
        .doing("launch an exchange by post")
    }

    /// Enqueues one ordered combination.
    ///
    /// # Safety
    /// As [`launch`](Self::launch), for `kernels/ordered_sum.cu`.
    pub(crate) unsafe fn launch_ordered_sum(
        &self,
        args: &OrderedSumArgs,
        stream: sys::CUstream,
    ) -> Result<(), GpuError> {
        let function = &self.kernels()?.ordered_sum;
        // A pack a thread, as far as the GPU has room for them at once.
        let packs = (args.count * 8).div_ceil(16 * u64::from(SUM_THREADS));
        let grid = packs.clamp(1, 528) as u32;
        // SAFETY: the kernel takes exactly this struct.
        unsafe {
            launch(
                function,
                grid,
                SUM_THREADS,
                std::ptr::from_ref(args).cast(),
                stream,
            )
        }
        .doing("launch an ordered sum")
    }
}

/// Threads of a block of the exchange by post.
pub(crate) const POSTED_THREADS: u32 = 512;
const SUM_THREADS: u32 = 256;

/// Which of the kernels for up to 2, 4 and 8 members.
fn capacity(members: u32) -> usize {
    match members {
        0..=2 => 0,
        3..=4 => 1,
        _ => 2,
    }
}

/// # Safety
/// `parameter` is the struct that the function takes; the driver copies it before this returns.
unsafe fn launch(
    function: &CudaFunction,
    grid: u32,
    threads: u32,
    parameter: *const c_void,
    stream: sys::CUstream,
) -> Result<(), cudarc::driver::DriverError> {
    let mut parameters = [parameter.cast_mut()];
    // SAFETY: the caller's word.
    unsafe {
        result::launch_kernel(
            function.cu_function(),
            (grid, 1, 1),
            (threads, 1, 1),
            0,
            stream,
            &mut parameters,
        )
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
        let many =
            |protocol: &str| Ok::<_, GpuError>([function(protocol, 4)?, function(protocol, MAX_MEMBERS)?]);
        let four = |form: &str| {
            let two = |kind: &str| {
                let name = format!("{form}_{kind}");
                Ok::<_, GpuError>([function(&name, 2)?, function(&name, 4)?])
            };
            Ok::<_, GpuError>([two("gather")?, two("f32")?, two("bf16")?, two("f16")?])
        };
        Ok(Self {
            lines: all("lines")?,
            fast: [
                all("lines_gather")?,
                all("lines_f32")?,
                all("lines_bf16")?,
                all("lines_f16")?,
            ],
            tiles: four("tiles")?,
            dense: four("dense")?,
            dense_tiles: four("dense_tiles")?,
            dense_anywhere: four("dense_anywhere")?,
            chunks: all("chunks")?,
            posted: all("posted")?,
            two_shot: many("two_shot")?,
            two_shot_sums: [
                many("two_shot_f32")?,
                many("two_shot_bf16")?,
                many("two_shot_f16")?,
            ],
            ordered_sum: module
                .load_function("tp_ordered_sum")
                .doing("find kernel tp_ordered_sum")?,
        })
    }
}
