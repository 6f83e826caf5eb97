//! [`Mailbox`]: the collectives of one host's GPUs through shared inboxes.

use super::args::{ALL_SEND, ExchangeArgs, MAX_MEMBERS, Mode, element, operation};
use super::config::MailboxConfig;
use super::control::{Control, FailureRecord};
use super::device::{Device, Fast};
use super::error::GpuError;
use super::lanes::{Group, Lanes, Shapes};
use super::layout::PACK;
use super::memory::DeviceBytes;
use super::route::{Protocol, Route};
use crate::meeting::Meeting;
use crate::oracle;
use crate::types::{DType, Rank, ReduceOp, World};
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The collectives of 2 to 8 ranks of one host. Calls are enqueued on one stream and may be captured into graphs: the
/// count of operations lies in device memory.
///
/// Counts are elements; addresses are the GPU's and need no alignment. A count of 0 does nothing.
#[derive(Debug)]
pub struct Mailbox {
    device: Arc<Device>,
    rank: Rank,
    world: World,
    config: MailboxConfig,
    lanes: Lanes,
    state: DeviceBytes,
    control: Control,
    stream: AtomicU64,
}

/// Where the poison lies in the state; the counters follow at this distance.
const COUNTERS: u64 = 256;

impl Mailbox {
    /// Joins the ranks; all call it at once with the same configuration.
    ///
    /// # Errors
    /// A world that is not 2 to 8, a configuration that differs or cannot work, memory that cannot be had or shared.
    pub fn open(
        device: Arc<Device>,
        meeting: &mut dyn Meeting,
        config: MailboxConfig,
    ) -> Result<Self, GpuError> {
        let (rank, world) = (meeting.rank(), meeting.world());
        if !(2..=MAX_MEMBERS as u32).contains(&world.0) {
            return Err(GpuError::Config(format!(
                "refused the mailbox: it serves 2 to {MAX_MEMBERS} ranks, not {world}"
            )));
        }
        config.check()?;
        let theirs = meeting.all_gather("mailbox settings", config.agreed().as_bytes())?;
        for (other, text) in world.ranks().zip(&theirs) {
            if let Some(difference) = config.differs(&String::from_utf8_lossy(text)) {
                return Err(GpuError::Config(format!(
                    "refused the mailbox: rank {other} differs: {difference}"
                )));
            }
        }
        let shapes = Shapes {
            same: config.shape,
            side: config.side,
        };
        let own = DeviceBytes::new(
            &device,
            (COUNTERS + 8 * config.counters() * (2 + u64::from(world.0))) as usize,
        )
        .and_then(|state| Ok((state, Control::new(&device)?)));
        meeting.verdict(
            "set up the mailbox",
            own.as_ref().map(drop).map_err(ToString::to_string),
        )?;
        let (state, control) = own?;
        let lanes = Lanes::open(&device, meeting, config.inbox, &shapes)?;
        debug_assert!(lanes.counters as u64 <= 2 + u64::from(world.0));
        Ok(Self {
            device,
            rank,
            world,
            config,
            lanes,
            state,
            control,
            stream: AtomicU64::new(0),
        })
    }

    /// This rank.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// Number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// What the ranks agreed on.
    pub fn config(&self) -> &MailboxConfig {
        &self.config
    }

    /// `recv[i]` becomes the combination of every rank's `send[i]`, in rank order; in place where `send == recv`.
    ///
    /// # Safety
    /// Both addresses are valid for `count` elements on this GPU until the call's work on `stream` has ended.
    ///
    /// # Errors
    /// A reduction that the oracle does not define, a second stream, or a failing launch.
    pub unsafe fn all_reduce(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<(), GpuError> {
        let bytes = (count * dtype.size()) as u64;
        let two_shot = self.world.0 > 2 && bytes >= self.config.tuning.two_shot_min;
        let shares = u64::from(self.world.0) * PACK;
        let whole = if two_shot { bytes / shares * shares } else { 0 };
        let shard = whole / u64::from(self.world.0);
        if whole > 0 {
            let own = recv + u64::from(self.rank.0) * shard;
            let part = (shard as usize) / dtype.size();
            // SAFETY: parts of the caller's buffers.
            unsafe { self.reduce_scatter(send, own, part, dtype, op, stream)? };
            // SAFETY: as above.
            unsafe { self.all_gather(own, recv, part, dtype, stream)? };
        }
        let call = Call {
            mode: Mode::Reduce,
            reduction: Some((dtype, op)),
            ..Call::default()
        };
        // SAFETY: the caller's word.
        unsafe {
            self.run(
                self.all_of(bytes),
                &Call {
                    send: send + whole,
                    own: send + whole,
                    recv: recv + whole,
                    bytes: bytes - whole,
                    ..call
                },
                stream,
            )
        }
    }

    /// This rank gets the `rank`-th block of `recv_count` elements of the combination; `send` holds `world` blocks.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce), for the stated lengths.
    ///
    /// # Errors
    /// As [`all_reduce`](Self::all_reduce).
    pub unsafe fn reduce_scatter(
        &self,
        send: u64,
        recv: u64,
        recv_count: usize,
        dtype: DType,
        op: ReduceOp,
        stream: &CudaStream,
    ) -> Result<(), GpuError> {
        let bytes = (recv_count * dtype.size()) as u64;
        let own = send + u64::from(self.rank.0) * bytes;
        let reduction = Some((dtype, op));
        let call = Call {
            mode: Mode::Reduce,
            send,
            own,
            recv,
            bytes,
            send_stride: bytes,
            reduction,
            ..Call::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.run(&self.lanes.each, &call, stream) }
    }

    /// Every rank's `send_count` elements, rank 0's first; in place where `send == recv + rank * send_count` elements.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce), for the stated lengths.
    ///
    /// # Errors
    /// A second stream, or a failing launch.
    pub unsafe fn all_gather(
        &self,
        send: u64,
        recv: u64,
        send_count: usize,
        dtype: DType,
        stream: &CudaStream,
    ) -> Result<(), GpuError> {
        let bytes = (send_count * dtype.size()) as u64;
        let call = Call {
            mode: Mode::Gather,
            send,
            own: send,
            recv,
            bytes,
            recv_stride: bytes,
            ..Call::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.run(self.all_of(bytes), &call, stream) }
    }

    /// Trades `count` elements with `peer`; only the two call it.
    ///
    /// # Safety
    /// As [`all_reduce`](Self::all_reduce), for the stated lengths; `send` and `recv` do not overlap.
    ///
    /// # Errors
    /// A peer that is this rank or none, a second stream, or a failing launch.
    pub unsafe fn exchange(
        &self,
        send: u64,
        recv: u64,
        count: usize,
        dtype: DType,
        peer: Rank,
        stream: &CudaStream,
    ) -> Result<(), GpuError> {
        let bytes = (count * dtype.size()) as u64;
        let call = Call {
            mode: Mode::Exchange,
            send,
            own: send,
            recv,
            bytes,
            ..Call::default()
        };
        // SAFETY: the caller's word.
        unsafe { self.run(self.pair(peer)?, &call, stream) }
    }

    /// The lanes by which all get the same `bytes`.
    fn all_of(&self, bytes: u64) -> &Group {
        if self.world.0 > 2 && bytes <= self.config.copies_max {
            &self.lanes.each
        } else {
            &self.lanes.same
        }
    }

    fn pair(&self, peer: Rank) -> Result<&Group, GpuError> {
        if peer == self.rank || peer.0 >= self.world.0 {
            return Err(GpuError::Config(format!(
                "refused an exchange of rank {} with rank {peer} of {}",
                self.rank, self.world
            )));
        }
        Ok(self.lanes.pairs[peer.index()]
            .as_ref()
            .unwrap_or(&self.lanes.same))
    }

    /// The first failure that a kernel of this rank has recorded.
    pub fn failure(&self) -> Option<FailureRecord> {
        self.control.record(&self.lanes.same.ranks)
    }

    /// Ends the waits of pending and later kernels of this rank. Any thread.
    pub fn abort(&self) {
        self.control.abort();
    }

    /// Whether [`abort`](Self::abort) was called.
    pub fn aborted(&self) -> bool {
        self.control.aborted()
    }

    /// Launches a call, in as many parts as its payload needs.
    ///
    /// # Safety
    /// The call's addresses are valid for its lengths.
    unsafe fn run(&self, group: &Group, call: &Call, stream: &CudaStream) -> Result<(), GpuError> {
        if let Some((dtype, op)) = call.reduction.filter(|(dtype, op)| !oracle::defined(*dtype, *op)) {
            return Err(GpuError::Config(format!(
                "refused: {op} over {dtype} is not defined"
            )));
        }
        let handle = stream.cu_stream();
        self.bind_stream(handle)?;
        let tuning = match call.send_stride {
            0 => self.config.tuning,
            _ => self.config.tuning.scattering(),
        };
        let mut done = 0;
        while done < call.bytes {
            let route = tuning.route(&group.shape, group.ranks.len(), call.bytes - done);
            let args = self.args(group, call, done, &route);
            // SAFETY: the lanes, state and control live as long as `self`; the buffers by the caller's word.
            unsafe {
                self.device
                    .launch(&route, call.fast(done, route.bytes), &args, handle)?
            };
            done += route.bytes;
        }
        Ok(())
    }

    /// One transport serves one order of operations: two streams would race for the lanes.
    fn bind_stream(&self, stream: sys::CUstream) -> Result<(), GpuError> {
        let given = stream as u64;
        match self
            .stream
            .compare_exchange(0, given, Ordering::AcqRel, Ordering::Acquire)
        {
            Err(bound) if bound != given => Err(GpuError::Config(format!(
                "refused a call on stream {given:#x}: this mailbox serves stream {bound:#x}; open another for a second stream"
            ))),
            _ => Ok(()),
        }
    }

    fn args(&self, group: &Group, call: &Call, done: u64, route: &Route) -> ExchangeArgs {
        let (lane_offset, half_bytes, counter) = match route.protocol {
            Protocol::Lines => (0, group.shape.line_half(), 0),
            Protocol::Chunks => (
                group.shape.chunk_offset(),
                group.shape.slot_bytes,
                self.config.line_counters(),
            ),
        };
        let at = |lane: u64| if lane == 0 { 0 } else { lane + lane_offset };
        let sequence =
            self.state.address() + COUNTERS + 8 * (group.counters as u64 * self.config.counters() + counter);
        let (dtype, op) = call.reduction.unwrap_or((DType::U8, ReduceOp::Max));
        // Shares of whole 128-byte lines, so that no two blocks write into one.
        let share = route
            .bytes
            .div_ceil(PACK)
            .div_ceil(u64::from(route.grid))
            .next_multiple_of(8);
        ExchangeArgs {
            send: call.send + done,
            own: call.own + done,
            recv: call.recv + done,
            bytes: route.bytes,
            send_stride: call.send_stride,
            recv_stride: call.recv_stride,
            out: group.out.map(at),
            input: group.input.map(at),
            sequence,
            poison: self.state.address(),
            control: self.control.device_address(),
            wait_ns: u64::try_from(self.config.wait.as_nanos()).unwrap_or(u64::MAX),
            half_bytes,
            members: group.ranks.len() as u32,
            me: group.me as u32,
            outs: group.outs as u32,
            mode: call.mode as u32,
            element: element(dtype),
            op: operation(op),
            root: ALL_SEND,
            rounds: route.rounds,
            share,
            region_bytes: group.shape.slot_bytes / u64::from(group.shape.chunk_blocks),
        }
    }
}

/// One call, before it is cut into launches.
#[derive(Clone, Copy, Debug)]
struct Call {
    mode: Mode,
    send: u64,
    own: u64,
    recv: u64,
    bytes: u64,
    send_stride: u64,
    recv_stride: u64,
    reduction: Option<(DType, ReduceOp)>,
}

impl Call {
    /// The short kernel that may carry the part at `done`, if one may.
    fn fast(&self, done: u64, bytes: u64) -> Option<Fast> {
        let odd = (self.own + done) | (self.recv + done) | bytes | self.recv_stride;
        if self.send != self.own || self.send_stride != 0 || !odd.is_multiple_of(PACK) {
            return None;
        }
        match (self.mode, self.reduction) {
            (Mode::Gather, _) => Some(Fast::Gather),
            (Mode::Reduce, Some((DType::F32, ReduceOp::Sum))) => Some(Fast::SumF32),
            (Mode::Reduce, Some((DType::Bf16, ReduceOp::Sum))) => Some(Fast::SumBf16),
            (Mode::Reduce, Some((DType::F16, ReduceOp::Sum))) => Some(Fast::SumF16),
            _ => None,
        }
    }
}

impl Default for Call {
    fn default() -> Self {
        Self {
            mode: Mode::Gather,
            send: 0,
            own: 0,
            recv: 0,
            bytes: 0,
            send_stride: 0,
            recv_stride: 0,
            reduction: None,
        }
    }
}
