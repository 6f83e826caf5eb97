//! NCCL as a path: its moves as they are, its reductions where they have the oracle's bits, ordered ones elsewhere.

use super::args::{element, operation};
use super::device::Device;
use super::error::{Doing, GpuError};
use super::memory::DeviceBytes;
use crate::meeting::Meeting;
use crate::types::{DType, Rank, ReduceOp, World};
use cudarc::driver::result;
use cudarc::driver::sys::CUstream;
use std::sync::Arc;
use std::time::Duration;
use tp_kernels::OrderedSumArgs;
use tp_nccl::sys::{ncclDataType_t, ncclRedOp_t};
use tp_nccl::{Communicator, Nccl, Version};

/// Device memory for what the others contribute to an ordered reduction; larger calls go in parts.
const SCRATCH: u64 = 32 << 20;
/// Up to this payload all ranks' whole contributions are gathered; beyond, each rank reduces its block. Bytes. Two ranks
/// move the same bytes either way, and gather.
const ONE_STEP_MAX: u64 = 256 << 10;
/// Blocks of a reduction begin on multiples of this, bytes, so that the kernel reads whole packs.
const ALIGN: u64 = 256;

/// The path.
pub(crate) struct NcclPath {
    device: Arc<Device>,
    rank: Rank,
    world: World,
    comm: Arc<Communicator>,
    scratch: DeviceBytes,
    /// NCCL's own order for all reductions, whatever the bits.
    fast_order: bool,
}

impl NcclPath {
    /// Joins all ranks of the meeting; all call it at once, with a library of one version.
    pub(crate) fn open(
        device: &Arc<Device>,
        meeting: &mut dyn Meeting,
        nccl: &Arc<Nccl>,
        deadline: Duration,
        fast_order: bool,
    ) -> Result<Self, GpuError> {
        let (rank, world) = (meeting.rank(), meeting.world());
        same_version(meeting, nccl.version())?;
        let made = match rank {
            Rank(0) => {
                device.bind()?;
                tp_nccl::unique_id(nccl).map(|id| id.to_vec())
            }
            _ => Ok(Vec::new()),
        };
        meeting.verdict(
            "make NCCL's group id",
            made.as_ref().map(drop).map_err(ToString::to_string),
        )?;
        let id = meeting.broadcast("NCCL's group id", &made.unwrap_or_default())?;
        let id = <[u8; 128]>::try_from(id.as_slice()).map_err(|_| {
            GpuError::Config(format!(
                "rank 0 gave an NCCL group id of {} bytes, not 128",
                id.len()
            ))
        })?;
        let on = Arc::clone(device);
        let prepare = move || on.bind().map_err(|error| error.to_string());
        let own = Communicator::open(nccl, world.0, rank.0, id, deadline, prepare)
            .map_err(|error| GpuError::Config(error.to_string()))
            .and_then(|comm| Ok((comm, DeviceBytes::new(device, SCRATCH as usize)?)));
        meeting.verdict(
            "open NCCL's communicator",
            own.as_ref().map(drop).map_err(ToString::to_string),
        )?;
        let (comm, scratch) = own?;
        Ok(Self {
            device: Arc::clone(device),
            rank,
            world,
            comm: Arc::new(comm),
            scratch,
            fast_order,
        })
    }

    pub(crate) fn version(&self) -> Version {
        self.comm.nccl().version()
    }

    /// The communicator, for aborts and its asynchronous errors.
    pub(crate) fn comm(&self) -> &Arc<Communicator> {
        &self.comm
    }

    /// Whether float reductions have the oracle's bits also for NaN.
    pub(crate) fn ordered(&self) -> bool {
        self.device.has_kernels() && !self.fast_order
    }

    /// Whether NCCL's own reduction serves: integers have no order, and without kernels there is nothing else.
    fn own_reduction(&self, dtype: DType) -> bool {
        matches!(dtype, DType::U8 | DType::I32 | DType::I64) || !self.ordered()
    }

    /// # Safety
    /// As [`SmallPath`](super::transfer::SmallPath) has it, for all calls here.
    pub(crate) unsafe fn all_reduce(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        dtype: DType,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        if self.own_reduction(dtype) {
            let count = bytes as usize / dtype.size();
            return self
                .comm
                .with(|calls| {
                    // SAFETY: the caller's word.
                    unsafe {
                        calls.all_reduce(send, recv, count, data_type(dtype), red_op(op), stream as u64)
                    }
                })
                .map_err(told);
        }
        let world = u64::from(self.world.0);
        let one_step = if world == 2 { u64::MAX } else { ONE_STEP_MAX };
        let mut done = 0;
        while done < bytes {
            let left = bytes - done;
            let block = (left / world).min(SCRATCH / world) / ALIGN * ALIGN;
            let part = if left <= one_step || block == 0 {
                left.min(SCRATCH / world / ALIGN * ALIGN)
            } else {
                world * block
            };
            let (from, to) = (send + done, recv + done);
            // SAFETY: parts of the caller's buffers; the scratch holds `world` blocks.
            unsafe {
                if part == world * block && left > one_step {
                    let own = to + u64::from(self.rank.0) * block;
                    self.gather_blocks(from, block, block, stream)?;
                    self.combine(
                        from + u64::from(self.rank.0) * block,
                        own,
                        block,
                        dtype,
                        op,
                        stream,
                    )?;
                    self.all_gather(own, to, block, stream)?;
                } else {
                    self.all_gather(from, self.scratch.address(), part, stream)?;
                    self.combine(from, to, part, dtype, op, stream)?;
                }
            }
            done += part;
        }
        Ok(())
    }

    pub(crate) unsafe fn reduce_scatter(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        dtype: DType,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        if self.own_reduction(dtype) {
            let count = bytes as usize / dtype.size();
            return self
                .comm
                .with(|calls| {
                    // SAFETY: the caller's word.
                    unsafe {
                        calls.reduce_scatter(send, recv, count, data_type(dtype), red_op(op), stream as u64)
                    }
                })
                .map_err(told);
        }
        let most = SCRATCH / u64::from(self.world.0) / ALIGN * ALIGN;
        let own = send + u64::from(self.rank.0) * bytes;
        let mut done = 0;
        while done < bytes {
            let part = (bytes - done).min(most);
            // SAFETY: parts of the caller's buffers; the scratch holds `world` of the largest part.
            unsafe {
                self.gather_blocks(send + done, part, bytes, stream)?;
                self.combine(own + done, recv + done, part, dtype, op, stream)?;
            }
            done += part;
        }
        Ok(())
    }

    /// The others' contributions to this rank's block: rank r's at `scratch + r * part`. Its own goes to the others from
    /// `send + r * stride`.
    unsafe fn gather_blocks(
        &self,
        send: u64,
        part: u64,
        stride: u64,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let (scratch, stream) = (self.scratch.address(), stream as u64);
        self.comm
            .group(|calls| {
                for peer in self.world.peers(self.rank) {
                    let at = u64::from(peer.0);
                    // SAFETY: the caller's word, and the scratch holds a part for every rank.
                    unsafe {
                        calls.send(send + at * stride, part as usize, peer.0, stream)?;
                        calls.recv(scratch + at * part, part as usize, peer.0, stream)?;
                    }
                }
                Ok(())
            })
            .map_err(told)
    }

    /// Combines `own` with what lies in the scratch, parts of `bytes`.
    unsafe fn combine(
        &self,
        own: u64,
        out: u64,
        bytes: u64,
        dtype: DType,
        op: ReduceOp,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let args = OrderedSumArgs {
            own,
            received: self.scratch.address(),
            out,
            stride: bytes,
            count: bytes / dtype.size() as u64,
            members: self.world.0,
            me: self.rank.0,
            element: element(dtype),
            op: operation(op),
        };
        self.device.bind()?;
        // SAFETY: the caller's word.
        unsafe { self.device.launch_ordered_sum(&args, stream) }
    }

    pub(crate) unsafe fn all_gather(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        self.comm
            .with(|calls| unsafe { calls.all_gather(send, recv, bytes as usize, stream as u64) })
            .map_err(told)
    }

    pub(crate) unsafe fn broadcast(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        root: Rank,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        let from = if root == self.rank { send } else { recv };
        // SAFETY: the caller's word.
        self.comm
            .with(|calls| unsafe { calls.broadcast(from, recv, bytes as usize, root.0, stream as u64) })
            .map_err(told)
    }

    pub(crate) unsafe fn exchange(
        &self,
        send: u64,
        recv: u64,
        bytes: u64,
        peer: Rank,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        // What arrives must not overwrite what has not left yet.
        let in_place = send == recv;
        let mut done = 0;
        while done < bytes {
            let part = if in_place {
                (bytes - done).min(SCRATCH)
            } else {
                bytes
            };
            let to = if in_place { self.scratch.address() } else { recv };
            self.comm
                .group(|calls| {
                    // SAFETY: the caller's word, or the scratch's length.
                    unsafe {
                        calls.send(send + done, part as usize, peer.0, stream as u64)?;
                        calls.recv(to, part as usize, peer.0, stream as u64)
                    }
                })
                .map_err(told)?;
            if in_place {
                // SAFETY: both hold the part.
                unsafe { result::memcpy_dtod_async(recv + done, to, part as usize, stream) }
                    .doing("copy what an exchange brought")?;
            }
            done += part;
        }
        Ok(())
    }

    pub(crate) unsafe fn send(
        &self,
        send: u64,
        bytes: u64,
        peer: Rank,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        self.comm
            .with(|calls| unsafe { calls.send(send, bytes as usize, peer.0, stream as u64) })
            .map_err(told)
    }

    pub(crate) unsafe fn recv(
        &self,
        recv: u64,
        bytes: u64,
        peer: Rank,
        stream: CUstream,
    ) -> Result<(), GpuError> {
        // SAFETY: the caller's word.
        self.comm
            .with(|calls| unsafe { calls.recv(recv, bytes as usize, peer.0, stream as u64) })
            .map_err(told)
    }
}

/// Ranks with different libraries would meet in the middle of NCCL's own handshake.
fn same_version(meeting: &mut dyn Meeting, mine: Version) -> Result<(), GpuError> {
    let all = meeting.all_gather("NCCL's version", mine.to_string().as_bytes())?;
    for (rank, theirs) in meeting.world().ranks().zip(all) {
        let theirs = String::from_utf8_lossy(&theirs).into_owned();
        if theirs != mine.to_string() {
            return Err(GpuError::Config(format!(
                "refused NCCL: version {mine} on this rank, {theirs} on rank {rank}: install one version on all hosts"
            )));
        }
    }
    Ok(())
}

fn told(error: tp_nccl::CallError) -> GpuError {
    GpuError::Config(error.to_string())
}

fn data_type(dtype: DType) -> ncclDataType_t {
    match dtype {
        DType::U8 => ncclDataType_t::ncclUint8,
        DType::I32 => ncclDataType_t::ncclInt32,
        DType::I64 => ncclDataType_t::ncclInt64,
        DType::F16 => ncclDataType_t::ncclFloat16,
        DType::Bf16 => ncclDataType_t::ncclBfloat16,
        DType::F32 => ncclDataType_t::ncclFloat32,
        DType::F64 => ncclDataType_t::ncclFloat64,
    }
}

fn red_op(op: ReduceOp) -> ncclRedOp_t {
    match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
    }
}
