//! Measurements on a GPU: eager calls and captured graphs, by the GPU's own events.

use super::stats::Figures;
use super::{DTYPE, Measured, Mode, Op, Plan};
use std::sync::Arc;
use tp_fabric::collective::{CollectiveError, Collectives};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::gpu::{Device, DeviceBuffer, GpuError, Graph, Work};
use tp_fabric::types::{Rank, ReduceOp};

/// Eager calls between two events.
const BATCH: u32 = 10;
/// Graphs that are timed.
const REPLAYS: u32 = 21;
/// Bytes per rank from which graphs hold fewer calls.
const LARGE: usize = 1 << 20;
/// Calls of a graph below [`LARGE`], and from there on.
const OPS: (u32, u32) = (100, 20);
/// The gathers of one decode step, and their bytes per rank.
const WINDOW: (u32, usize) = (86, 8192);

/// What one rank measures with.
pub struct Bench<'a> {
    on: &'a dyn Collectives,
    work: Work,
    send: DeviceBuffer,
    recv: DeviceBuffer,
}

/// Why a measurement ended.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// The driver.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// The transport.
    #[error(transparent)]
    Call(#[from] CollectiveError),
}

impl<'a> Bench<'a> {
    /// Buffers for the largest size of the plan.
    pub fn new(on: &'a dyn Collectives, device: &Arc<Device>, plan: &Plan) -> Result<Self, Failed> {
        let all = plan
            .ops
            .iter()
            .flat_map(|op| plan.sizes.iter().map(move |bytes| (op, *bytes)));
        let lengths = all.map(|(op, bytes)| op.buffers(bytes, on.world()));
        let window = (WINDOW.1, WINDOW.1 * on.world().size());
        let (send, recv) = lengths.fold(window, |most, one| (most.0.max(one.0), most.1.max(one.1)));
        let (mut send, recv) = (DeviceBuffer::new(device, send)?, DeviceBuffer::new(device, recv)?);
        let filled = fill::bytes(send.len(), DTYPE, 0, on.rank(), Pattern::Uniform);
        send.write(0, &filled)?;
        Ok(Self {
            on,
            work: Work::new(device)?,
            send,
            recv,
        })
    }

    /// The figures of one operation and size.
    pub fn measure(&self, op: Op, bytes: usize, calls: u32, mode: Mode) -> Result<Measured, Failed> {
        let ops = match mode {
            Mode::Eager => 1,
            Mode::Graph if bytes < LARGE => OPS.0,
            Mode::Graph => OPS.1,
        };
        let times = match mode {
            Mode::Eager => self.eager(op, bytes, calls)?,
            Mode::Graph => self.graph(op, bytes, ops)?,
        };
        Ok(Measured {
            mode,
            times,
            ops_per_graph: ops,
        })
    }

    /// The gathers of a decode step in one graph; the figures are of one gather.
    pub fn window(&self) -> Result<(usize, Measured), Failed> {
        let (ops, bytes) = WINDOW;
        let times = self.graph(Op::AllGather, bytes, ops)?;
        let measured = Measured {
            mode: Mode::Graph,
            times,
            ops_per_graph: ops,
        };
        Ok((bytes, measured))
    }

    fn call(&self, op: Op, bytes: usize) -> Result<(), CollectiveError> {
        let (send, recv) = (self.send.address() as *const u8, self.recv.address() as *mut u8);
        let (count, stream, sum) = (bytes / DTYPE.size(), self.work.stream(), ReduceOp::Sum);
        // SAFETY: the buffers hold the largest size, and every caller waits for the stream before they go.
        unsafe {
            match op {
                Op::AllReduce => self.on.all_reduce(send, recv, count, DTYPE, sum, stream),
                Op::AllGather => self.on.all_gather(send, recv, count, DTYPE, stream),
                Op::ReduceScatter => self.on.reduce_scatter(send, recv, count, DTYPE, sum, stream),
                Op::Broadcast => self.on.broadcast(recv, recv, count, DTYPE, Rank(0), stream),
            }
        }
    }

    /// Microseconds of each call, as the mean of a batch.
    fn eager(&self, op: Op, bytes: usize, calls: u32) -> Result<Figures, Failed> {
        for _ in 0..BATCH {
            self.call(op, bytes)?;
        }
        self.on.barrier()?;
        let mut times = Vec::new();
        for _ in 0..calls.div_ceil(BATCH) {
            self.work.begin()?;
            (0..BATCH).try_for_each(|_| self.call(op, bytes))?;
            self.work.end()?;
            self.on.synchronize(self.work.stream())?;
            times.push(self.work.elapsed_us()? / f64::from(BATCH));
        }
        figures(times)
    }

    /// Each timed graph follows another one in the stream, so that the ranks are in step when it begins and the time of
    /// the host's launch does not count.
    fn graph(&self, op: Op, bytes: usize, ops: u32) -> Result<Figures, Failed> {
        let graph: Graph = self.work.capture(|| {
            (0..ops)
                .try_for_each(|_| self.call(op, bytes))
                .map_err(Failed::from)
        })?;
        self.work.replay(&graph)?;
        self.on.synchronize(self.work.stream())?;
        self.on.barrier()?;
        let mut times = Vec::new();
        for _ in 0..REPLAYS {
            self.work.replay(&graph)?;
            self.work.begin()?;
            self.work.replay(&graph)?;
            self.work.end()?;
            self.on.synchronize(self.work.stream())?;
            times.push(self.work.elapsed_us()? / f64::from(ops));
        }
        figures(times)
    }
}

fn figures(times: Vec<f64>) -> Result<Figures, Failed> {
    Figures::of_us(times).ok_or_else(|| GpuError::Config("nothing was timed".to_owned()).into())
}
