//! [`Posted`]: the exchange by post, the device side of a wire. Kernels stage in page-locked host memory and ring a
//! doorbell; the proxy thread hands the messages to the wire.

use super::args::{MAX_MEMBERS, POSTED_STATE, PostedArgs, element, nanoseconds, operation};
use super::control::{FIELDS, FailureRecord};
use super::device::Device;
use super::error::GpuError;
use super::layout::PACK;
use super::memory::{DeviceBytes, LockedRegion};
use super::transfer::{SmallPath, Transfer, Who};
use crate::collective::Failure;
use crate::host::{Shared, Way, lock};
use crate::meeting::Meeting;
use crate::oracle;
use crate::proxy::Proxy;
use crate::region::{Bay, Layout, Region, Word, Words};
use crate::types::{DType, Rank, ReduceOp, WireKind, World};
use cudarc::driver::sys::CUstream;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Bytes that one block carries before another one is worth its arrival.
const BLOCK_BYTES: u64 = 16 << 10;
/// From this all-reduce on, bytes, more than two ranks go in two steps.
const TWO_SHOT_MIN: u64 = 64 << 10;
/// How long a close waits for the proxy and for ranks that have not closed.
const CLOSE_WAIT: Duration = Duration::from_secs(1);
/// Bytes from the abort word to the failure record.
const RECORD: usize = 128;

/// The small path of ranks that a wire connects; 2 to 8.
#[derive(Debug)]
pub struct Posted {
    device: Arc<Device>,
    rank: Rank,
    world: World,
    shared: Arc<Shared>,
    proxy: Mutex<Option<Proxy>>,
    region: LockedRegion,
    state: DeviceBytes,
    wire: Option<WireKind>,
    most_blocks: u32,
}

/// What a transport by post is opened with, beside the way.
#[derive(Clone, Copy, Debug)]
pub struct PostedConfig {
    /// Bound of every wait inside a kernel.
    pub wait: Duration,
    /// Largest grid, 1 to 16.
    pub blocks: u32,
}

impl Posted {
    /// Joins the ranks that `way` connects; all call it at once.
    pub(crate) fn open(
        device: Arc<Device>,
        meeting: &mut dyn Meeting,
        way: Way,
        config: PostedConfig,
    ) -> Result<Self, GpuError> {
        let (rank, world) = (meeting.rank(), meeting.world());
        if !(2..=MAX_MEMBERS as u32).contains(&world.0) {
            return Err(GpuError::Config(format!(
                "refused the exchange by post: it serves 2 to {MAX_MEMBERS} ranks, not {world}"
            )));
        }
        let Way {
            opened,
            kind,
            neighbours,
        } = way;
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let region = opened.region.clone();
        let shared = Shared::new(
            rank,
            opened.region,
            opened.wire,
            config.wait,
            neighbours * 2 > processors,
        );
        let shared = Arc::new(shared);
        let own = LockedRegion::new(&device, region)
            .and_then(|region| Ok((region, DeviceBytes::new(&device, POSTED_STATE)?)))
            .and_then(|(region, state)| {
                let proxy = Proxy::start_for_gpu(Arc::clone(&shared)).map_err(|source| GpuError::Io {
                    what: "start the proxy".to_owned(),
                    source,
                })?;
                Ok((region, state, proxy))
            });
        meeting.verdict(
            "set up the exchange by post",
            own.as_ref().map(drop).map_err(ToString::to_string),
        )?;
        let (region, state, proxy) = own?;
        Ok(Self {
            device,
            rank,
            world,
            shared,
            proxy: Mutex::new(Some(proxy)),
            region,
            state,
            wire: kind,
            most_blocks: config.blocks.clamp(1, 16),
        })
    }

    fn layout(&self) -> &Layout {
        self.region.region().layout()
    }

    /// Most payload of one launch, bytes.
    fn most(&self, transfer: &Transfer) -> u64 {
        let slot = self.layout().slot() as u64;
        match transfer.send_stride {
            0 => slot,
            // The parts of all readers lie side by side in the staging slot.
            _ => slot / u64::from(self.world.0) / PACK * PACK,
        }
    }

    fn args(&self, transfer: &Transfer, done: u64, bytes: u64, part: u32) -> PostedArgs {
        let layout = self.layout();
        let offset = |word| layout.word(word) as u32;
        let everyone = (1u32 << self.world.0) - 1;
        let members = match transfer.who {
            Who::All => everyone,
            Who::Pair(peer) => 1 << self.rank.0 | 1 << peer.0,
        };
        let call = transfer.call.encode();
        let word = |at: usize| {
            call[at..at + 8]
                .iter()
                .rev()
                .fold(0, |word, byte| word << 8 | u64::from(*byte))
        };
        let (dtype, op) = transfer.reduction.unwrap_or((DType::U8, ReduceOp::Max));
        PostedArgs {
            send: transfer.send + done,
            own: transfer.own + done,
            recv: transfer.recv + done,
            bytes,
            send_stride: transfer.send_stride,
            recv_stride: transfer.recv_stride,
            region: self.region.device_address(),
            state: self.state.address(),
            wait_ns: nanoseconds(self.shared.wait()),
            call: [word(0), word(8)],
            lines: layout.line(Bay {
                source: Rank(0),
                slot: 0,
            }) as u32,
            posts: layout.post(0, Rank(0)) as u32,
            staging: layout.staging(0) as u32,
            inbox: layout.receive(Bay {
                source: Rank(0),
                slot: 0,
            }) as u32,
            slot: layout.slot() as u32,
            doorbell: offset(Word::Doorbell),
            completed: offset(Word::Completed),
            control: offset(Word::Abort),
            post_mask: offset(Word::Mask { entry: 0 }),
            consumed: offset(Word::Consumed { source: Rank(0) }),
            world: self.world.0,
            me: self.rank.0,
            peers: members & !(1 << self.rank.0),
            senders: transfer.root.map_or(members, |root| 1 << root.0),
            mode: transfer.mode as u32,
            element: element(dtype),
            op: operation(op),
            part,
        }
    }

    fn grid(&self, bytes: u64) -> u32 {
        let blocks = bytes.div_ceil(BLOCK_BYTES).max(1).next_power_of_two();
        blocks.min(u64::from(self.most_blocks)) as u32
    }
}

/// The words of the record that a kernel leaves behind the abort word.
fn record_words(region: &Region) -> &[AtomicU32] {
    let at = region.layout().word(Word::Abort) + RECORD;
    debug_assert!(at + 4 * FIELDS <= region.layout().word(Word::Mask { entry: 0 }));
    // SAFETY: within the control words, aligned, and only ever accessed as words while the region is mapped.
    unsafe { std::slice::from_raw_parts(region.base().as_ptr().add(at).cast(), FIELDS) }
}

impl SmallPath for Posted {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> World {
        self.world
    }

    fn wire(&self) -> Option<WireKind> {
        self.wire
    }

    fn describe(&self) -> String {
        format!("a proxy over {}", self.wire.map_or("no wire", WireKind::name))
    }

    fn two_shot_min(&self) -> u64 {
        TWO_SHOT_MIN
    }

    fn record(&self) -> Option<FailureRecord> {
        let ranks: Vec<Rank> = self.world.ranks().collect();
        FailureRecord::read(record_words(self.region.region()), &ranks)
    }

    fn cause(&self) -> Option<Failure> {
        self.shared.failure()
    }

    fn abort(&self, reason: &str) {
        self.shared.fail(Failure::Aborted {
            reason: reason.to_owned(),
        });
    }

    fn close(&self) {
        let mut proxy = lock(&self.proxy);
        let until = Instant::now() + CLOSE_WAIT;
        let region = self.region.region();
        let idle = || region.load(Word::Completed) == region.load(Word::Doorbell);
        while proxy.is_some() && !idle() && !self.shared.has_failed() && Instant::now() < until {
            std::thread::yield_now();
        }
        *proxy = None;
        if !self.shared.has_failed() {
            self.shared.fail(Failure::Closed);
            self.shared.wire().close(CLOSE_WAIT);
        }
    }

    unsafe fn run(&self, transfer: &Transfer, stream: CUstream) -> Result<(), GpuError> {
        if let Some((dtype, op)) = transfer
            .reduction
            .filter(|(dtype, op)| !oracle::defined(*dtype, *op))
        {
            return Err(GpuError::Config(format!(
                "refused: {op} over {dtype} is not defined"
            )));
        }
        let most = self.most(transfer);
        let (mut done, mut part) = (0, 0u32);
        while done < transfer.bytes {
            let bytes = (transfer.bytes - done).min(most);
            let args = self.args(transfer, done, bytes, part);
            // SAFETY: the region and the state live as long as `self`; the buffers by the caller's word.
            unsafe { self.device.launch_posted(self.grid(bytes), &args, stream)? };
            (done, part) = (done + bytes, part.wrapping_add(1));
        }
        Ok(())
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        self.close();
    }
}
