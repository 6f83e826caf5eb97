//! `bench`: how long the collectives take. Medians, never means; a figure that cannot be true is refused.

pub mod device;
pub mod rails;
pub mod row;
pub mod sizes;
pub mod stats;

use crate::sink::Sink;
use row::Row;
use serde_json::{Map, json};
use stats::Figures;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tp_fabric::collective::{CollectiveError, Collectives, HostSlices};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::gpu::Device;
use tp_fabric::types::{DType, Rank, ReduceOp, UnknownWord, World};
use tp_receipt::event::{Kind, Progress};

/// Calls before the timed ones.
const WARM_UP: u32 = 10;
/// Timed calls below [`LARGE`], and from there on.
const CALLS: (u32, u32) = (200, 50);
/// Bytes per rank from which fewer calls are timed.
const LARGE: usize = 1 << 20;
/// Element type of all measurements.
const DTYPE: DType = DType::Bf16;

/// An operation that can be measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// `all_reduce` with sum.
    AllReduce,
    /// `all_gather`.
    AllGather,
    /// `reduce_scatter` with sum; the bytes are one rank's block.
    ReduceScatter,
    /// `broadcast` from rank 0.
    Broadcast,
}

impl Op {
    const ALL: [Self; 4] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
    ];
    const WORDS: [&'static str; 4] = ["all_reduce", "all_gather", "reduce_scatter", "broadcast"];

    /// The word on the command line and in events.
    pub fn name(self) -> &'static str {
        Self::WORDS[self as usize]
    }

    fn parse(word: &str) -> Result<Self, UnknownWord> {
        let found = Self::ALL.into_iter().find(|op| op.name() == word);
        found.ok_or_else(|| UnknownWord {
            word: word.to_owned(),
            known: &Self::WORDS,
        })
    }

    /// Lengths of the two buffers for `bytes` a rank.
    fn buffers(self, bytes: usize, world: World) -> (usize, usize) {
        let whole = bytes.saturating_mul(world.size());
        match self {
            Self::AllReduce => (bytes, bytes),
            Self::AllGather => (bytes, whole),
            Self::ReduceScatter => (whole, bytes),
            Self::Broadcast => (0, bytes),
        }
    }
}

/// What is to be measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Operations, in order.
    pub ops: Vec<Op>,
    /// Bytes per rank, in order.
    pub sizes: Vec<usize>,
    /// Timed calls of each, where the caller wants another number than ours.
    pub calls: Option<u32>,
}

impl Plan {
    /// What every rank must have been told alike.
    pub fn words(&self) -> String {
        let ops: Vec<&str> = self.ops.iter().map(|op| op.name()).collect();
        let sizes: Vec<String> = self.sizes.iter().map(ToString::to_string).collect();
        let calls = self
            .calls
            .map_or(String::new(), |calls| format!(" --calls {calls}"));
        format!("bench --ops {} --sizes {}{calls}", ops.join(","), sizes.join(","))
    }

    /// The plan of the command line's texts. The error is one line about the first thing that is wrong.
    pub fn parse(ops: &str, sizes: &str, calls: Option<u32>) -> Result<Self, String> {
        let ops: Result<Vec<Op>, _> = ops.split(',').map(|word| Op::parse(word.trim())).collect();
        let ops = ops.map_err(|e| format!("--ops: {e}"))?;
        let sizes = sizes::parse_list(sizes).map_err(|e| format!("--sizes: {e}"))?;
        if let Some(odd) = sizes.iter().find(|bytes| !bytes.is_multiple_of(DTYPE.size())) {
            return Err(format!(
                "--sizes: {odd} B are not whole elements of {} ({} B each)",
                DTYPE,
                DTYPE.size()
            ));
        }
        Ok(Self { ops, sizes, calls })
    }

    /// The most memory that one rank needs for its buffers at once, bytes, and for which size.
    pub fn memory(&self, world: World) -> (u64, usize) {
        let pairs = self
            .ops
            .iter()
            .flat_map(|op| self.sizes.iter().map(move |bytes| (op, *bytes)));
        let needs = pairs.map(|(op, bytes)| {
            let (send, recv) = op.buffers(bytes, world);
            (send as u64 + recv as u64, bytes)
        });
        needs.max().unwrap_or((0, 0))
    }

    fn calls_of(&self, bytes: usize) -> u32 {
        self.calls
            .unwrap_or(if bytes < LARGE { CALLS.0 } else { CALLS.1 })
    }
}

/// How calls were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// One by one.
    Eager,
    /// Captured, many in a graph.
    Graph,
}

impl Mode {
    /// The word in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Eager => "eager",
            Self::Graph => "graph",
        }
    }
}

/// The figures of one way to make calls.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Which way.
    pub mode: Mode,
    /// Of one call, microseconds.
    pub times: Figures,
    /// Calls of each graph; 1 for eager ones.
    pub ops_per_graph: u32,
}

/// Measures everything of the plan; rank 0 reports. The error is what ended it.
pub fn run(
    on: &dyn Collectives,
    device: Option<&Arc<Device>>,
    plan: &Plan,
    sink: &Sink,
) -> Result<(), String> {
    let gpu = device
        .map(|device| device::Bench::new(on, device, plan))
        .transpose();
    let gpu = gpu.map_err(|error| error.to_string())?;
    // On a GPU all graphs come first: eager calls before them were seen to make them slower.
    let modes: &[Mode] = if gpu.is_some() {
        &[Mode::Graph, Mode::Eager]
    } else {
        &[Mode::Eager]
    };
    let sizes = |op: Op| plan.sizes.iter().map(move |bytes| (op, *bytes));
    let calls = modes.iter().flat_map(|mode| {
        plan.ops
            .iter()
            .flat_map(move |op| sizes(*op).map(move |call| (*mode, call)))
    });
    let total = (modes.len() * plan.ops.len() * plan.sizes.len()) as u64;
    for (done, (mode, (op, bytes))) in calls.enumerate() {
        sink.event(Kind::Progress(Progress {
            what: format!("bench {}", op.name()),
            done: done as u64,
            total,
        }));
        let calls = plan.calls_of(bytes);
        let measured = match &gpu {
            Some(gpu) => Some(
                gpu.measure(op, bytes, calls, mode)
                    .map_err(|error| error.to_string())?,
            ),
            None => on_host(on, op, bytes, calls).map_err(|error| error.to_string())?,
        };
        if let (Rank(0), Some(measured)) = (on.rank(), measured) {
            report(on, op.name(), op, bytes as u64, measured, sink);
        }
    }
    if let Some(gpu) = &gpu {
        let (bytes, measured) = gpu.window().map_err(|error| error.to_string())?;
        if on.rank() == Rank(0) {
            report(on, "decode_window", Op::AllGather, bytes as u64, measured, sink);
        }
    }
    Ok(())
}

fn on_host(
    on: &dyn Collectives,
    op: Op,
    bytes: usize,
    calls: u32,
) -> Result<Option<Measured>, CollectiveError> {
    let times = Figures::of(measure(on, op, bytes, calls)?);
    let measured = |times| Measured {
        mode: Mode::Eager,
        times,
        ops_per_graph: 1,
    };
    Ok(times.map(measured))
}

fn measure(on: &dyn Collectives, op: Op, bytes: usize, calls: u32) -> Result<Vec<Duration>, CollectiveError> {
    let (send, recv) = op.buffers(bytes, on.world());
    let send = fill::bytes(send, DTYPE, 0, on.rank(), Pattern::Uniform);
    let mut recv = vec![0; recv];
    for _ in 0..WARM_UP {
        call(on, op, &send, &mut recv)?;
    }
    on.barrier()?;
    let mut times = Vec::with_capacity(calls as usize);
    for _ in 0..calls {
        let began = Instant::now();
        call(on, op, &send, &mut recv)?;
        times.push(began.elapsed());
    }
    Ok(times)
}

fn call(on: &dyn Collectives, op: Op, send: &[u8], recv: &mut [u8]) -> Result<(), CollectiveError> {
    match op {
        Op::AllReduce => on.all_reduce_bytes(send, recv, DTYPE, ReduceOp::Sum),
        Op::AllGather => on.all_gather_bytes(send, recv, DTYPE),
        Op::ReduceScatter => on.reduce_scatter_bytes(send, recv, DTYPE, ReduceOp::Sum),
        Op::Broadcast => on.broadcast_bytes(recv, DTYPE, Rank(0)),
    }
}

fn report(on: &dyn Collectives, what: &str, op: Op, bytes: u64, measured: Measured, sink: &Sink) {
    let row = Row {
        backend: on.backend().name(),
        wire: on.wire().map(|wire| wire.name()),
        op: what,
        bytes,
        measured,
    };
    let mut extra = Map::new();
    extra.insert("dtype".to_owned(), json!(DTYPE.name()));
    extra.insert("route".to_owned(), json!(on.describe()));
    row.report(on, "bench", op.name(), extra, sink);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_refused_for_what_it_names_wrongly() {
        let plan = Plan::parse("all_reduce, broadcast", "4K,1M", None).unwrap();
        assert_eq!(plan.ops, [Op::AllReduce, Op::Broadcast]);
        assert!(
            Plan::parse("all_sum", "4K", None)
                .unwrap_err()
                .contains("`all_sum`")
        );
        assert!(
            Plan::parse("all_reduce", "4Q", None)
                .unwrap_err()
                .contains("`4Q`")
        );
        assert!(Plan::parse("all_reduce", "5", None).unwrap_err().contains("5 B"));
        assert!(Plan::parse("", "4K", None).is_err());
    }

    #[test]
    fn memory_is_that_of_the_largest_buffers() {
        let plan = Plan::parse("all_reduce,all_gather", "4K,1M", None).unwrap();
        assert_eq!(plan.memory(World(4)), (5 << 20, 1 << 20));
    }
}
