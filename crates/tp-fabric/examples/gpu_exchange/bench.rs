//! Latencies: eager calls and captured graphs, by CUDA events, medians and spread.

use crate::Depth;
use crate::checks::{Buffer, driver, only};
use crate::rank::Scene;
use cudarc::driver::{CudaEvent, CudaGraph, CudaStream, sys};
use std::sync::Arc;
use tp_fabric::gpu::{GpuError, InboxKind, Mailbox, SmallPath};
use tp_fabric::types::{DType, ReduceOp};

/// Graphs that are timed.
const REPLAYS: usize = 21;
const EAGER: usize = 101;
/// No exchange is faster than an empty kernel in a graph; a figure below it is a fault of the measurement.
const FLOOR_US: f64 = 0.5;

/// Operations of one graph.
fn graph_operations(bytes: usize) -> usize {
    if bytes >= 1 << 20 { 20 } else { 100 }
}

/// Median, 10th and 90th percentile, in µs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) median: f64,
    p10: f64,
    p90: f64,
}

impl Figures {
    fn of(mut samples: Vec<f64>) -> Result<Self, GpuError> {
        samples.sort_by(f64::total_cmp);
        let at = |share: usize| samples[(samples.len() - 1) * share / 100];
        let this = Self {
            median: at(50),
            p10: at(10),
            p90: at(90),
        };
        if this.median < FLOOR_US {
            return Err(GpuError::Config(format!(
                "refused a median of {:.3} µs: impossible",
                this.median
            )));
        }
        Ok(this)
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Operation {
    AllReduce,
    AllGather,
}

impl Operation {
    fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
        }
    }
}

pub(crate) struct Table<'a> {
    mailbox: &'a Mailbox,
    stream: Arc<CudaStream>,
    send: Buffer,
    recv: Buffer,
    begin: CudaEvent,
    end: CudaEvent,
}

impl<'a> Table<'a> {
    pub(crate) fn new(scene: &Scene, mailbox: &'a Mailbox) -> Result<Self, GpuError> {
        let timed = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
        let event = || {
            scene
                .device
                .context()
                .new_event(timed)
                .map_err(|e| driver("create an event", e))
        };
        let most = 4 << 20;
        let recv = Buffer::new(most * scene.meeting.world().size())?;
        let send = Buffer::new(most)?;
        let words: Vec<u8> = (0..most).map(|i| (i * 31 % 127) as u8).collect();
        send.write(0, &words)?;
        Ok(Self {
            mailbox,
            stream: scene.device.stream()?,
            send,
            recv,
            begin: event()?,
            end: event()?,
        })
    }

    fn call(&self, operation: Operation, bytes: usize) -> Result<(), GpuError> {
        let (send, recv, bytes) = (self.send.at(0), self.recv.at(0), bytes as u64);
        // SAFETY: the buffers hold the largest size, and every caller waits for the stream before they go.
        unsafe {
            match operation {
                Operation::AllReduce => self.mailbox.all_reduce(
                    send,
                    recv,
                    bytes,
                    DType::Bf16,
                    ReduceOp::Sum,
                    self.stream.cu_stream(),
                ),
                Operation::AllGather => {
                    self.mailbox
                        .all_gather(send, recv, bytes, DType::Bf16, self.stream.cu_stream())
                }
            }
        }
    }

    /// Microseconds that `work` takes on the stream.
    fn time(&self, work: impl FnOnce() -> Result<(), GpuError>) -> Result<f64, GpuError> {
        let record = |event: &CudaEvent| {
            event
                .record(&self.stream)
                .map_err(|e| driver("record an event", e))
        };
        record(&self.begin)?;
        work()?;
        record(&self.end)?;
        let ms = self
            .begin
            .elapsed_ms(&self.end)
            .map_err(|e| driver("read events", e))?;
        if let Some(record) = self.mailbox.record() {
            return Err(GpuError::Config(format!("an exchange failed: {record:?}")));
        }
        Ok(f64::from(ms) * 1000.0)
    }

    /// Each timed graph follows another one in the stream, so that the ranks are in step when it begins and the time of
    /// the host's launch does not count.
    pub(crate) fn graph(
        &self,
        scene: &mut Scene,
        operation: Operation,
        bytes: usize,
    ) -> Result<Figures, GpuError> {
        let graph = self.capture(operation, bytes)?;
        let launch = || graph.launch().map_err(|e| driver("launch a graph", e));
        self.time(launch)?;
        scene.meeting.barrier("before graphs")?;
        let mut samples = Vec::new();
        for _ in 0..REPLAYS {
            launch()?;
            samples.push(self.time(launch)? / graph_operations(bytes) as f64);
        }
        Figures::of(samples)
    }

    fn capture(&self, operation: Operation, bytes: usize) -> Result<CudaGraph, GpuError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream
            .begin_capture(mode)
            .map_err(|e| driver("begin a capture", e))?;
        for _ in 0..graph_operations(bytes) {
            self.call(operation, bytes)?;
        }
        let graph = self
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .map_err(|e| driver("end a capture", e))?;
        let graph = graph.ok_or_else(|| GpuError::Config("an empty capture".to_owned()))?;
        graph.upload().map_err(|e| driver("upload a graph", e))?;
        Ok(graph)
    }

    /// Calls one by one, `batch` between two events.
    fn eager(&self, scene: &mut Scene, operation: Operation, bytes: usize) -> Result<Figures, GpuError> {
        let batch = 10;
        for _ in 0..10 {
            self.call(operation, bytes)?;
        }
        self.stream.synchronize().map_err(|e| driver("synchronize", e))?;
        scene.meeting.barrier("before eager calls")?;
        let mut samples = Vec::new();
        for _ in 0..EAGER / batch {
            let took = self.time(|| (0..batch).try_for_each(|_| self.call(operation, bytes)))?;
            samples.push(took / batch as f64);
        }
        Figures::of(samples)
    }
}

fn sizes(depth: Depth) -> Vec<usize> {
    match depth {
        Depth::Full => (3..=22).map(|log| 1 << log).collect(),
        _ => vec![8, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20],
    }
}

pub(crate) fn run(scene: &mut Scene, kind: InboxKind, depth: Depth) -> Result<(), GpuError> {
    let mut rows = Vec::new();
    for protocol in ["as routed", "lines", "dense", "chunks"] {
        let mailbox = scene.mailbox(kind, |tuning| only(tuning, protocol))?;
        let table = Table::new(scene, &mailbox)?;
        // Memory of one process is taken while none of its kernels waits for another rank.
        scene.meeting.barrier("buffers")?;
        for operation in [Operation::AllReduce, Operation::AllGather] {
            if operation == Operation::AllGather && protocol != "as routed" {
                continue;
            }
            for bytes in sizes(depth) {
                if protocol == "lines" && bytes as u64 > mailbox.config().shape.line_capacity() {
                    continue;
                }
                let graph = table.graph(scene, operation, bytes)?;
                let eager = table.eager(scene, operation, bytes)?;
                rows.push((protocol, operation, bytes, graph, eager));
            }
        }
        scene.meeting.barrier("end of a table")?;
    }
    if scene.first() {
        print_rows(kind, scene.meeting.world().0, &rows);
    }
    Ok(())
}

fn print_rows(kind: InboxKind, world: u32, rows: &[(&str, Operation, usize, Figures, Figures)]) {
    for (protocol, operation, bytes, graph, eager) in rows {
        for (mode, figures, operations) in [("graph", graph, graph_operations(*bytes)), ("eager", eager, 10)]
        {
            println!(
                "{{\"backend\":\"mailbox\",\"inbox\":\"{kind}\",\"world\":{world},\"protocol\":\"{protocol}\",\"op\":\"{}\",\
                 \"dtype\":\"bf16\",\"bytes\":{bytes},\"mode\":\"{mode}\",\"median_us\":{:.3},\"p10_us\":{:.3},\
                 \"p90_us\":{:.3},\"operations\":{operations}}}",
                operation.name(),
                figures.median,
                figures.p10,
                figures.p90
            );
        }
    }
    println!(
        "| {kind}, world {world} | bytes | graph µs | p10 | p90 | eager µs |\n|---|---|---|---|---|---|"
    );
    for (protocol, operation, bytes, graph, eager) in rows {
        println!(
            "| {} {protocol} | {bytes} | {:.2} | {:.2} | {:.2} | {:.2} |",
            operation.name(),
            graph.median,
            graph.p10,
            graph.p90,
            eager.median
        );
    }
}
