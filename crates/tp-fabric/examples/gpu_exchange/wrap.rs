//! Flags that come round: a tile that lies untouched while a block's sequence runs once through all its flags, then is
//! awaited while the peer is late. A rank that took the old lines for new ones would have the old operands' sum.

use crate::checks::{Buffer, driver};
use crate::rank::Scene;
use cudarc::driver::{CudaStream, sys};
use std::sync::Arc;
use std::time::Duration;
use tp_fabric::fill::{self, Pattern};
use tp_fabric::gpu::{GpuError, InboxKind, LineTuning, Mailbox, SmallPath};
use tp_fabric::oracle;
use tp_fabric::types::{DType, Rank, ReduceOp};

/// Two tiles of the first block's four, and all of them.
const SMALL: u64 = 4096;
const BIG: u64 = 56 << 10;
/// Operations until a flag of dense lines comes round.
const ROUND: usize = 1 << 16;
/// Operations of a graph.
const GRAPH: usize = 1023;
/// How late the peer is.
const LATE: Duration = Duration::from_millis(30);

struct Wrap<'a> {
    mailbox: &'a Mailbox,
    stream: Arc<CudaStream>,
    send: Buffer,
    recv: Buffer,
}

pub(crate) fn run(scene: &mut Scene, kind: InboxKind) -> Result<(), GpuError> {
    if scene.meeting.world().0 > 4 {
        return Ok(());
    }
    let mailbox = scene.mailbox(kind, |tuning| {
        (tuning.dense_min, tuning.dense_max) = (0, u64::MAX);
        tuning.dense = LineTuning::without_pause(4);
        tuning.two_shot.min = u64::MAX;
    })?;
    let wrap = Wrap {
        mailbox: &mailbox,
        stream: scene.device.stream()?,
        send: Buffer::new(BIG as usize)?,
        recv: Buffer::new(BIG as usize)?,
    };
    // One operation in each half, then all flags but those two, then the same two again.
    for seed in 0..2 {
        wrap.big(scene, seed, None)?;
    }
    let graph = wrap.graph()?;
    let small = ROUND - 2;
    for _ in 0..small / GRAPH {
        graph.launch().map_err(|e| driver("launch a graph", e))?;
    }
    for _ in 0..small % GRAPH {
        wrap.call(SMALL)?;
    }
    wrap.wait()?;
    for seed in 2..4 {
        wrap.big(scene, seed, Some(Rank(seed as u32 % 2)))?;
    }
    scene.meeting.barrier("end of the flags' round")?;
    if scene.first() {
        println!("flags of dense lines came round: {kind}");
    }
    Ok(())
}

impl Wrap<'_> {
    fn call(&self, bytes: u64) -> Result<(), GpuError> {
        let (send, recv, stream) = (self.send.at(0), self.recv.at(0), self.stream.cu_stream());
        // SAFETY: the buffers hold the largest size, and every caller waits for the stream before they go.
        unsafe {
            self.mailbox
                .all_reduce(send, recv, bytes, DType::Bf16, ReduceOp::Sum, stream)
        }
    }

    fn wait(&self) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(|e| driver("synchronize", e))?;
        match self.mailbox.record() {
            Some(record) => Err(GpuError::Config(format!("an exchange failed: {record:?}"))),
            None => Ok(()),
        }
    }

    fn graph(&self) -> Result<cudarc::driver::CudaGraph, GpuError> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream
            .begin_capture(mode)
            .map_err(|e| driver("begin a capture", e))?;
        let captured = (0..GRAPH).try_for_each(|_| self.call(SMALL));
        let graph = self
            .stream
            .end_capture(sys::CUgraphInstantiate_flags(0))
            .map_err(|e| driver("end a capture", e))?;
        captured?;
        graph.ok_or_else(|| GpuError::Config("an empty capture".to_owned()))
    }

    /// A sum of all tiles with operands of its own, with one rank late.
    fn big(&self, scene: &mut Scene, seed: u64, late: Option<Rank>) -> Result<(), GpuError> {
        let (bytes, rank) = (BIG as usize, scene.meeting.rank());
        let inputs: Vec<Vec<u8>> = scene
            .meeting
            .world()
            .ranks()
            .map(|r| fill::bytes(bytes, DType::Bf16, seed, r, Pattern::Special))
            .collect();
        let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let wanted = oracle::reduce(&views, DType::Bf16, ReduceOp::Sum)
            .map_err(|e| GpuError::Config(e.to_string()))?;
        self.send.write(0, &inputs[rank.index()])?;
        scene.meeting.barrier("before a sum of all tiles")?;
        if late == Some(rank) {
            std::thread::sleep(LATE);
        }
        self.call(BIG)?;
        self.wait()?;
        if self.recv.read(0, bytes)? == wanted {
            scene.passed += 1;
        } else {
            scene.failed += 1;
            println!("FAIL rank {rank}: a sum after the flags came round (seed {seed})");
        }
        Ok(())
    }
}
