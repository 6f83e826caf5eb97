//! [`Mailbox`]: the collectives of one host's GPUs through shared inboxes.

use super::args::{ALL_SEND, ExchangeArgs, MAX_MEMBERS, Mode, TwoShotArgs, element, nanoseconds, operation};
use super::config::MailboxConfig;
use super::control::{Control, FailureRecord};
use super::device::{Device, Fast};
use super::error::GpuError;
use super::lanes::{Group, Lanes, Shapes};
use super::layout::{InboxKind, PACK};
use super::memory::DeviceBytes;
use super::route::{Protocol, Route};
use super::transfer::{SmallPath, Transfer, Who};
use crate::meeting::Meeting;
use crate::oracle;
use crate::types::{DType, Rank, ReduceOp, WireKind, World};
use cudarc::driver::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The small path of 2 to 8 ranks of one host ([`SmallPath`]). Its calls go on one stream, in one order, and may be captured
/// into graphs: the count of operations lies in device memory. Addresses need no alignment; 0 bytes do nothing.
#[derive(Debug)]
pub struct Mailbox {
    device: Arc<Device>,
    rank: Rank,
    world: World,
    config: MailboxConfig,
    lanes: Lanes,
    state: DeviceBytes,
    control: Control,
    /// The peer of the transfer that was enqueued last, plus 1; 0: it was of all ranks. A record counts members.
    last_pair: AtomicU32,
}

/// Sets of counters, at most.
fn groups(world: World) -> u64 {
    2 + u64::from(world.0)
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
            two_shot: config.two_shot,
            one_copy: config.one_copy,
        };
        let own = DeviceBytes::new(
            &device,
            (COUNTERS + 8 * config.all_counters(groups(world))) as usize,
        )
        .and_then(|state| Ok((state, Control::new(&device)?)));
        meeting.verdict(
            "set up the mailbox",
            own.as_ref().map(drop).map_err(ToString::to_string),
        )?;
        let (state, control) = own?;
        let lanes = Lanes::open(&device, meeting, config.inbox, &shapes)?;
        debug_assert!(lanes.counters as u64 <= groups(world));
        Ok(Self {
            device,
            rank,
            world,
            config,
            lanes,
            state,
            control,
            last_pair: AtomicU32::new(0),
        })
    }

    /// What the ranks agreed on.
    pub fn config(&self) -> &MailboxConfig {
        &self.config
    }

    /// The lanes by which all get the same `bytes`.
    fn all_of(&self, bytes: u64) -> &Group {
        if self.world.0 > 2 && bytes <= self.config.copies_max {
            &self.lanes.each
        } else {
            &self.lanes.same
        }
    }

    fn group(&self, transfer: &Transfer) -> Result<&Group, GpuError> {
        match transfer.who {
            Who::Pair(peer) if peer == self.rank || peer.0 >= self.world.0 => Err(GpuError::Config(format!(
                "refused an exchange of rank {} with rank {peer} of {}",
                self.rank, self.world
            ))),
            Who::Pair(peer) => Ok(self.lanes.pairs[peer.index()]
                .as_ref()
                .unwrap_or(&self.lanes.same)),
            Who::All if transfer.send_stride != 0 => Ok(&self.lanes.each),
            Who::All => Ok(self.all_of(transfer.bytes)),
        }
    }

    fn args(&self, group: &Group, call: &Transfer, done: u64, route: &Route) -> ExchangeArgs {
        let (lane_offset, half_bytes, counter) = match route.protocol {
            Protocol::Lines => (0, group.shape.line_half(), 0),
            Protocol::Dense => (
                group.shape.dense_offset(),
                group.shape.dense_half(),
                self.config.line_counters(),
            ),
            Protocol::Chunks => (
                group.shape.chunk_offset(),
                group.shape.slot_bytes,
                2 * self.config.line_counters(),
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
            wait_ns: nanoseconds(self.config.wait),
            half_bytes,
            members: group.ranks.len() as u32,
            me: group.me as u32,
            outs: group.outs as u32,
            mode: call.mode as u32,
            element: element(dtype),
            op: operation(op),
            root: call.root.map_or(ALL_SEND, |root| place_of(group, root)),
            rounds: route.rounds,
            share,
            region_bytes: group.shape.slot_bytes / u64::from(group.shape.chunk_blocks),
        }
    }
}

impl Mailbox {
    fn two_shot_args(&self, call: &Transfer, done: u64, bytes: u64) -> TwoShotArgs {
        let (shape, tuning) = (&self.config.two_shot, &self.config.tuning.two_shot);
        let members = self.world.size();
        let cut = tuning.cut(shape, members, bytes.div_ceil(PACK));
        let pace = tuning.pace_of(bytes);
        let row_pace = tuning.row_pace(shape, members, self.config.ranks_a_gpu, pace);
        let lanes = &self.lanes.two_shot;
        let (dtype, op) = call.reduction.unwrap_or((DType::U8, ReduceOp::Max));
        let shard = |rank: usize| cut.shard_of(rank, bytes.div_ceil(PACK));
        let (own_first, own_packs) = shard(self.rank.index());
        let mut args = TwoShotArgs {
            send: call.send + done,
            recv: call.recv + done,
            bytes,
            scatter_in: lanes.scatter_in,
            flags_out: lanes.flags_out,
            flags_in: lanes.flags_in,
            scatter_out: [0; MAX_MEMBERS - 1],
            gather_in: [0; MAX_MEMBERS - 1],
            gather_out: [0; MAX_MEMBERS - 1],
            first: [0; MAX_MEMBERS - 1],
            packs: [0; MAX_MEMBERS - 1],
            own_first,
            own_packs,
            sequence: self.state.address() + COUNTERS + 8 * groups(self.world) * self.config.counters(),
            poison: self.state.address(),
            control: self.control.device_address(),
            wait_ns: nanoseconds(self.config.wait),
            members: members as u32,
            me: self.rank.0,
            element: element(dtype),
            op: operation(op),
            shard: cut.shard,
            share: cut.share,
            chunk: cut.chunk,
            region: shape.region_bytes as u32,
            senders: tuning.senders,
            pace: row_pace,
            stagger: row_pace / (tuning.senders * shape.blocks).max(1),
            chunks: cut.chunks,
            send_turn: cut.send_turn,
            work_turn: cut.work_turn,
            poll: pace.poll,
            unused: 0,
        };
        for place in 0..members - 1 {
            let rank = (self.rank.index() + 1 + place) % members;
            args.scatter_out[place] = lanes.scatter_out[rank];
            args.gather_in[place] = lanes.gather_in[rank];
            (args.first[place], args.packs[place]) = shard(rank);
        }
        let places = args.gather_out.iter_mut();
        for (place, lane) in places.zip(lanes.gather_out.iter().filter(|lane| **lane != 0)) {
            *place = *lane;
        }
        args
    }
}

/// A rank's place among a group's members; one that is no member sends nothing.
fn place_of(group: &Group, rank: Rank) -> u32 {
    let place = group.ranks.iter().position(|member| *member == rank);
    place.map_or(ALL_SEND, |place| place as u32)
}

impl SmallPath for Mailbox {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> World {
        self.world
    }

    fn wire(&self) -> Option<WireKind> {
        None
    }

    fn describe(&self) -> String {
        match self.config.inbox {
            InboxKind::PinnedHost => "inboxes in page-locked host memory".to_owned(),
            InboxKind::Device => "inboxes in device memory".to_owned(),
        }
    }

    fn two_shot_min(&self) -> u64 {
        self.config.tuning.two_shot.min
    }

    unsafe fn in_one_launch(&self, reduction: &Transfer, stream: sys::CUstream) -> Result<bool, GpuError> {
        defined(reduction)?;
        self.last_pair.store(0, Ordering::Relaxed);
        let most = self.config.two_shot.capacity(self.world.size());
        let mut done = 0;
        while done < reduction.bytes {
            let bytes = (reduction.bytes - done).min(most);
            let args = self.two_shot_args(reduction, done, bytes);
            // SAFETY: the lanes, state and control live as long as `self`; the buffers by the caller's word.
            unsafe {
                self.device
                    .launch_two_shot(self.config.two_shot.blocks, fast(reduction), &args, stream)?
            };
            done += bytes;
        }
        Ok(true)
    }

    fn record(&self) -> Option<FailureRecord> {
        let pair = self.last_pair.load(Ordering::Relaxed).checked_sub(1);
        let group = pair.and_then(|peer| self.lanes.pairs[peer as usize].as_ref());
        self.control.record(&group.unwrap_or(&self.lanes.same).ranks)
    }

    fn abort(&self, _: &str) {
        self.control.abort();
    }

    unsafe fn run(&self, transfer: &Transfer, stream: sys::CUstream) -> Result<(), GpuError> {
        defined(transfer)?;
        let group = self.group(transfer)?;
        let pair = match transfer.who {
            Who::All => 0,
            Who::Pair(peer) => peer.0 + 1,
        };
        self.last_pair.store(pair, Ordering::Relaxed);
        let tuning = match transfer.send_stride {
            0 => self.config.tuning,
            _ => self.config.tuning.scattering(),
        };
        let fast = fast(transfer);
        let mut done = 0;
        while done < transfer.bytes {
            let left = transfer.bytes - done;
            let plain = fast.is_some() && (left | transfer.recv_stride).is_multiple_of(PACK);
            let route = tuning.route(&group.shape, group.ranks.len(), left, plain);
            let args = self.args(group, transfer, done, &route);
            // SAFETY: the lanes, state and control live as long as `self`; the buffers by the caller's word.
            unsafe { self.device.launch(&route, fast, &args, stream)? };
            done += route.bytes;
        }
        Ok(())
    }
}

fn defined(transfer: &Transfer) -> Result<(), GpuError> {
    match transfer.reduction {
        Some((dtype, op)) if !oracle::defined(dtype, op) => Err(GpuError::Config(format!(
            "refused: {op} over {dtype} is not defined"
        ))),
        _ => Ok(()),
    }
}

/// The short kernels that are for such a call, if there are. All ranks answer alike.
fn fast(transfer: &Transfer) -> Option<Fast> {
    let same = transfer.send == transfer.own && transfer.send_stride == 0 && transfer.root.is_none();
    if !same {
        return None;
    }
    match (transfer.mode, transfer.reduction) {
        (Mode::Gather, _) => Some(Fast::Gather),
        (Mode::Reduce, Some((DType::F32, ReduceOp::Sum))) => Some(Fast::SumF32),
        (Mode::Reduce, Some((DType::Bf16, ReduceOp::Sum))) => Some(Fast::SumBf16),
        (Mode::Reduce, Some((DType::F16, ReduceOp::Sum))) => Some(Fast::SumF16),
        _ => None,
    }
}
