//! Bit-exactness against the oracle: every operation, protocol and alignment, eagerly and replayed.

use crate::Depth;
use crate::rank::Scene;
use crate::wrap;
use cudarc::driver::{CudaStream, result, sys};
use std::sync::Arc;
use tp_fabric::fill::{self, Pattern};
use tp_fabric::gpu::{GpuError, InboxKind, Mailbox, Pairing, SmallPath, Tuning};
use tp_fabric::oracle;
use tp_fabric::types::{DType, Rank, ReduceOp, World};

/// Device memory of this process, `bytes` long, with room before it so that it can start at any alignment.
pub(crate) struct Buffer {
    address: u64,
    bytes: usize,
}

impl Buffer {
    pub(crate) fn new(bytes: usize) -> Result<Self, GpuError> {
        // SAFETY: a fresh allocation, freed in `drop`.
        let address =
            unsafe { result::malloc_sync(bytes + 256) }.map_err(|e| driver("allocate a buffer", e))?;
        Ok(Self { address, bytes })
    }

    pub(crate) fn at(&self, offset: usize) -> u64 {
        self.address + offset as u64
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), GpuError> {
        assert!(offset + bytes.len() <= self.bytes + 256);
        // SAFETY: inside the allocation.
        unsafe { result::memcpy_htod_sync(self.at(offset), bytes) }
            .map_err(|e| driver("write a buffer", e))?;
        // From pageable memory the call returns before the last bytes have landed, and streams do not wait for it.
        result::ctx::synchronize().map_err(|e| driver("write a buffer", e))
    }

    pub(crate) fn read(&self, offset: usize, bytes: usize) -> Result<Vec<u8>, GpuError> {
        assert!(offset + bytes <= self.bytes + 256);
        let mut out = vec![0; bytes];
        // SAFETY: inside the allocation.
        unsafe { result::memcpy_dtoh_sync(&mut out, self.at(offset)) }
            .map_err(|e| driver("read a buffer", e))?;
        Ok(out)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated by `new`; the work on it has ended.
        if let Err(error) = unsafe { result::free_sync(self.address) } {
            eprintln!("gpu_exchange: failed to free a buffer: {error:?}");
        }
    }
}

pub(crate) fn driver(what: &str, error: cudarc::driver::DriverError) -> GpuError {
    GpuError::Driver {
        what: what.to_owned(),
        name: format!("{:?}", error.0),
        text: String::new(),
    }
}

const MOST: usize = 4 << 20;

/// What the checks of one mailbox use.
struct Bench<'a> {
    scene: &'a mut Scene,
    mailbox: &'a Mailbox,
    stream: Arc<CudaStream>,
    send: Buffer,
    recv: Buffer,
    label: String,
    seed: u64,
}

const PROTOCOLS: [&str; 6] = [
    "as routed",
    "lines",
    "dense",
    "dense tiles",
    "chunks",
    "two shots",
];

/// A protocol's name, if it is one.
pub(crate) fn protocol(name: &str) -> Result<String, String> {
    match PROTOCOLS.contains(&name) {
        true => Ok(name.to_owned()),
        false => Err(format!("`{name}` is none of {}", PROTOCOLS.join(", "))),
    }
}

pub(crate) fn run(
    scene: &mut Scene,
    kind: InboxKind,
    depth: Depth,
    protocol: Option<&str>,
) -> Result<(), GpuError> {
    for name in PROTOCOLS {
        if protocol.is_some_and(|wanted| wanted != name) {
            continue;
        }
        let mailbox = scene.mailbox(kind, |tuning| only(tuning, name))?;
        let stream = scene.device.stream()?;
        let world = scene.meeting.world().size();
        let label = format!("{kind} {name}");
        let (before, failed) = (scene.passed, scene.failed);
        let mut bench = Bench {
            scene,
            mailbox: &mailbox,
            stream,
            send: Buffer::new(MOST * world)?,
            recv: Buffer::new(MOST * world)?,
            label,
            seed: 0,
        };
        bench.eager(depth)?;
        bench.replayed(depth)?;
        let label = bench.label.clone();
        if scene.first() {
            println!(
                "checks {label}: {} passed, {} failed",
                scene.passed - before,
                scene.failed - failed
            );
        }
        scene.meeting.barrier("end of checks")?;
    }
    match protocol {
        None => wrap::run(scene, kind),
        Some(_) => Ok(()),
    }
}

/// One protocol for all that it can carry; what it cannot goes as it is routed.
pub(crate) fn only(tuning: &mut Tuning, protocol: &str) {
    if protocol == "as routed" {
        return;
    }
    let dense = protocol.starts_with("dense");
    (tuning.dense_min, tuning.dense_max) = if dense { (0, u64::MAX) } else { (u64::MAX, 0) };
    match protocol {
        "lines" => tuning.lines_max = u64::MAX,
        "two shots" => tuning.two_shot.min = 0,
        "dense tiles" => tuning.dense.two_tiles_min = 0,
        "chunks" => (tuning.lines_max, tuning.two_shot.min) = (0, u64::MAX),
        _ => {}
    }
}

/// Where the buffers of a call begin.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Skew {
    /// Two buffers, at multiples of 256.
    None,
    /// One buffer, an element behind it.
    All,
    /// The same on ranks of odd number alone, whose kernels are others then.
    Odd,
}

impl Bench<'_> {
    fn eager(&mut self, depth: Depth) -> Result<(), GpuError> {
        let sizes: &[usize] = match depth {
            Depth::Full => &[
                6,
                8,
                1000,
                1536,
                1544,
                4096,
                12_296,
                65_536,
                262_144,
                262_160,
                1 << 20,
                4 << 20,
            ],
            _ => &[6, 8, 1000, 4096, 65_536, 262_160],
        };
        for bytes in sizes {
            for dtype in DType::ALL {
                // The slow reference bounds the large sizes.
                if *bytes > 300_000 && !matches!(dtype, DType::Bf16 | DType::F32) || *bytes < dtype.size() {
                    continue;
                }
                let bytes = bytes / dtype.size() * dtype.size();
                for op in ReduceOp::ALL.iter().filter(|op| oracle::defined(*dtype, **op)) {
                    let uniform = if bytes > 300_000 {
                        Pattern::Uniform
                    } else {
                        Pattern::Special
                    };
                    self.all_reduce(bytes, *dtype, *op, Skew::None, uniform)?;
                    if *op == ReduceOp::Sum {
                        self.all_reduce(bytes, *dtype, *op, Skew::All, uniform)?;
                        self.all_reduce(bytes, *dtype, *op, Skew::Odd, uniform)?;
                    }
                    if bytes <= 65_536 {
                        self.reduce_scatter(bytes, *dtype, *op)?;
                    }
                }
                for in_place in [false, true] {
                    self.all_gather(bytes, *dtype, in_place)?;
                }
                self.exchange(bytes, *dtype)?;
            }
        }
        Ok(())
    }

    fn world(&self) -> World {
        self.scene.meeting.world()
    }

    fn rank(&self) -> Rank {
        self.scene.meeting.rank()
    }

    fn fill(&self, rank: Rank, bytes: usize, dtype: DType, pattern: Pattern) -> Vec<u8> {
        fill::bytes(bytes, dtype, self.seed, rank, pattern)
    }

    /// Waits for the stream and compares; counts and tells.
    fn compare(&mut self, what: &str, offset: usize, wanted: &[u8]) -> Result<(), GpuError> {
        self.stream.synchronize().map_err(|e| driver("synchronize", e))?;
        if let Some(record) = self.mailbox.record() {
            return Err(GpuError::Config(format!("{}: {what}: {record:?}", self.label)));
        }
        let got = self.recv.read(offset, wanted.len())?;
        self.seed += 1;
        match got.iter().zip(wanted).position(|(g, w)| g != w) {
            None => self.scene.passed += 1,
            Some(at) => {
                self.scene.failed += 1;
                let end = (at + 16).min(wanted.len());
                println!(
                    "FAIL rank {} {} {what}: byte {at}: got {:02x?}, wanted {:02x?}",
                    self.rank(),
                    self.label,
                    &got[at..end],
                    &wanted[at..end]
                );
            }
        }
        Ok(())
    }

    fn all_reduce(
        &mut self,
        bytes: usize,
        dtype: DType,
        op: ReduceOp,
        skew: Skew,
        pattern: Pattern,
    ) -> Result<(), GpuError> {
        let inputs: Vec<Vec<u8>> = self
            .world()
            .ranks()
            .map(|r| self.fill(r, bytes, dtype, pattern))
            .collect();
        let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let wanted = oracle::reduce(&views, dtype, op).map_err(|e| GpuError::Config(e.to_string()))?;
        let skewed = skew == Skew::All || skew == Skew::Odd && self.rank().0 % 2 == 1;
        let offset = if skewed { dtype.size() } else { 0 };
        let target = if skewed { &self.recv } else { &self.send };
        target.write(offset, &inputs[self.rank().index()])?;
        let send = target.at(offset);
        // SAFETY: both buffers hold the bytes, and `compare` waits.
        unsafe {
            self.mailbox.all_reduce(
                send,
                self.recv.at(offset),
                bytes as u64,
                dtype,
                op,
                self.stream.cu_stream(),
            )?
        };
        let place = if skewed {
            "in place, skewed"
        } else {
            "out of place"
        };
        self.compare(
            &format!("all_reduce {op} {dtype} {bytes} B {place}"),
            offset,
            &wanted,
        )
    }

    fn reduce_scatter(&mut self, bytes: usize, dtype: DType, op: ReduceOp) -> Result<(), GpuError> {
        let world = self.world();
        let inputs: Vec<Vec<u8>> = world
            .ranks()
            .map(|r| self.fill(r, bytes * world.size(), dtype, Pattern::Special))
            .collect();
        let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
        let all = oracle::reduce(&views, dtype, op).map_err(|e| GpuError::Config(e.to_string()))?;
        let me = self.rank().index();
        self.send.write(0, &inputs[me])?;
        // SAFETY: both buffers hold the bytes, and `compare` waits.
        unsafe {
            self.mailbox.reduce_scatter(
                self.send.at(0),
                self.recv.at(0),
                bytes as u64,
                dtype,
                op,
                self.stream.cu_stream(),
            )?;
        };
        let wanted = &all[me * bytes..(me + 1) * bytes];
        self.compare(&format!("reduce_scatter {op} {dtype} {bytes} B"), 0, wanted)
    }

    fn all_gather(&mut self, bytes: usize, dtype: DType, in_place: bool) -> Result<(), GpuError> {
        let wanted: Vec<u8> = self
            .world()
            .ranks()
            .flat_map(|r| self.fill(r, bytes, dtype, Pattern::Special))
            .collect();
        let me = self.rank().index();
        let mine = &wanted[me * bytes..(me + 1) * bytes];
        let send = if in_place {
            self.recv.write(me * bytes, mine)?;
            self.recv.at(me * bytes)
        } else {
            self.send.write(0, mine)?;
            self.send.at(0)
        };
        // SAFETY: both buffers hold the bytes, and `compare` waits.
        unsafe {
            self.mailbox.all_gather(
                send,
                self.recv.at(0),
                bytes as u64,
                dtype,
                self.stream.cu_stream(),
            )?
        };
        let place = if in_place { "in place" } else { "out of place" };
        self.compare(&format!("all_gather {dtype} {bytes} B {place}"), 0, &wanted)
    }

    /// Pairs 0 with 1, 2 with 3; a rank without a partner sits out.
    fn exchange(&mut self, bytes: usize, dtype: DType) -> Result<(), GpuError> {
        let peer = Rank(self.rank().0 ^ 1);
        if peer.0 >= self.world().0 {
            self.seed += 1;
            return Ok(());
        }
        let wanted = self.fill(peer, bytes, dtype, Pattern::Special);
        self.send
            .write(0, &self.fill(self.rank(), bytes, dtype, Pattern::Special))?;
        // SAFETY: both buffers hold the bytes, and `compare` waits.
        unsafe {
            self.mailbox.trade(
                self.send.at(0),
                self.recv.at(0),
                bytes as u64,
                dtype,
                Pairing { peer, only: None },
                self.stream.cu_stream(),
            )?
        };
        self.compare(&format!("exchange {dtype} {bytes} B"), 0, &wanted)
    }

    /// A captured chain, sum, gather of the sums, sum again, replayed with fresh inputs and an eager call in between.
    fn replayed(&mut self, depth: Depth) -> Result<(), GpuError> {
        let sizes: &[usize] = if depth == Depth::Full {
            &[4096, 65_536, 1 << 20]
        } else {
            &[4096, 65_536]
        };
        let world = self.world();
        for bytes in sizes {
            let (length, sums) = (*bytes as u64, Buffer::new(*bytes)?);
            let capture = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
            self.stream
                .begin_capture(capture)
                .map_err(|e| driver("begin a capture", e))?;
            // SAFETY: the buffers outlive the graph, which is launched only below.
            unsafe {
                self.mailbox.all_reduce(
                    self.send.at(0),
                    sums.at(0),
                    length,
                    DType::Bf16,
                    ReduceOp::Sum,
                    self.stream.cu_stream(),
                )?;
                self.mailbox.all_gather(
                    sums.at(0),
                    self.recv.at(0),
                    length,
                    DType::Bf16,
                    self.stream.cu_stream(),
                )?;
                self.mailbox.all_reduce(
                    sums.at(0),
                    sums.at(0),
                    length,
                    DType::Bf16,
                    ReduceOp::Sum,
                    self.stream.cu_stream(),
                )?;
            }
            let graph = self
                .stream
                .end_capture(sys::CUgraphInstantiate_flags(0))
                .map_err(|e| driver("end a capture", e))?;
            let graph = graph.ok_or_else(|| GpuError::Config("an empty capture".to_owned()))?;
            for replay in 0..4 {
                let inputs: Vec<Vec<u8>> = world
                    .ranks()
                    .map(|r| self.fill(r, *bytes, DType::Bf16, Pattern::Special))
                    .collect();
                let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                let reduce = |views: &[&[u8]]| {
                    oracle::reduce(views, DType::Bf16, ReduceOp::Sum)
                        .map_err(|e| GpuError::Config(e.to_string()))
                };
                let once = reduce(&views)?;
                let twice = reduce(&vec![once.as_slice(); world.size()])?;
                self.send.write(0, &inputs[self.rank().index()])?;
                graph.launch().map_err(|e| driver("launch a graph", e))?;
                self.compare(
                    &format!("graph of {bytes} B, replay {replay}"),
                    0,
                    &once.repeat(world.size()),
                )?;
                self.stream.synchronize().map_err(|e| driver("synchronize", e))?;
                self.recv.write(0, &sums.read(0, *bytes)?)?;
                self.compare(
                    &format!("graph of {bytes} B, replay {replay}, second sum"),
                    0,
                    &twice,
                )?;
                self.all_reduce(4096, DType::Bf16, ReduceOp::Sum, Skew::None, Pattern::Special)?;
            }
        }
        Ok(())
    }
}
