//! Checks of captured graphs: a chain of collectives, replayed with fresh inputs and an eager call in between.

use super::check::Wrong;
use super::pairs::partner;
use super::table::{GRAPH_REPLAYS, GRAPH_SIZES};
use std::cell::RefCell;
use std::sync::Arc;
use tp_fabric::collective::{CollectiveError, Collectives};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::gpu::{Device, DeviceBuffer, GpuError, Graph, Work};
use tp_fabric::oracle;
use tp_fabric::types::{DType, ReduceOp};

/// Bytes of the eager call between replays.
const BETWEEN: usize = 4096;
/// Base of the seeds: "graph" in ASCII.
const SEED: u64 = 0x67_7261_7068;

/// What the checks of all sizes share.
pub struct Graphs<'a> {
    on: &'a dyn Collectives,
    work: &'a Work,
    device: &'a Arc<Device>,
}

/// One size: its buffers and the captured chain. The graph goes before what it uses.
struct Chain {
    graph: Graph,
    bytes: usize,
    input: RefCell<DeviceBuffer>,
    gathered: DeviceBuffer,
    /// What the end of the chain wrote.
    result: DeviceBuffer,
    _others: [DeviceBuffer; 2],
}

/// Why a chain could not be captured.
enum Failed {
    Gpu(GpuError),
    Call(CollectiveError),
}

impl From<GpuError> for Failed {
    fn from(error: GpuError) -> Self {
        Self::Gpu(error)
    }
}

impl From<CollectiveError> for Failed {
    fn from(error: CollectiveError) -> Self {
        Self::Call(error)
    }
}

impl From<Failed> for Wrong {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Gpu(error) => Self::Transport(error.to_string()),
            Failed::Call(error) => error.into(),
        }
    }
}

fn driver(error: GpuError) -> Wrong {
    Wrong::Transport(error.to_string())
}

impl<'a> Graphs<'a> {
    /// Checks on this backend, whose memory is this GPU's.
    pub fn new(on: &'a dyn Collectives, device: &'a Arc<Device>, work: &'a Work) -> Self {
        Self { on, work, device }
    }

    /// Runs every check in the order of their names and reports each. `Err`: the transport is broken.
    pub fn run(&self, report: &mut dyn FnMut(Result<(), String>)) -> Result<(), String> {
        for bytes in GRAPH_SIZES {
            let chain = match self.chain(bytes) {
                Ok(chain) => chain,
                Err(Wrong::Answer(why) | Wrong::Transport(why)) => return Err(format!("capture: {why}")),
            };
            for replay in 0..GRAPH_REPLAYS {
                let seed = SEED ^ (bytes as u64) << 8 ^ replay as u64;
                for outcome in [
                    self.replayed(&chain, seed),
                    self.between(seed).map(|one| vec![one]),
                ] {
                    match outcome {
                        Ok(checks) => checks.into_iter().for_each(&mut *report),
                        Err(Wrong::Answer(why) | Wrong::Transport(why)) => return Err(why),
                    }
                }
            }
        }
        Ok(())
    }

    /// sum(bf16) → gather → sum(as f32) → exchange.
    fn chain(&self, bytes: usize) -> Result<Chain, Wrong> {
        let whole = bytes * self.on.world().size();
        let new = |bytes| DeviceBuffer::new(self.device, bytes).map_err(driver);
        let (input, sum, gathered) = (new(bytes)?, new(bytes)?, new(whole)?);
        let (second, result) = (new(whole)?, new(whole)?);
        let (on, stream) = (self.on, self.work.stream());
        let peer = partner(on.world(), 0, on.rank());
        let at = |buffer: &DeviceBuffer| buffer.address() as *mut u8;
        let capture = || -> Result<(), Failed> {
            let (halves, words) = (bytes / 2, whole / 4);
            // SAFETY: the buffers hold the stated lengths and outlive the graph.
            unsafe {
                on.all_reduce(at(&input), at(&sum), halves, DType::Bf16, ReduceOp::Sum, stream)?;
                on.all_gather(at(&sum), at(&gathered), halves, DType::Bf16, stream)?;
                on.all_reduce(
                    at(&gathered),
                    at(&second),
                    words,
                    DType::F32,
                    ReduceOp::Sum,
                    stream,
                )?;
                if let Some(peer) = peer {
                    on.exchange(at(&second), at(&result), words, DType::F32, peer, stream)?;
                }
            }
            Ok(())
        };
        let graph = self.work.capture(capture).map_err(Wrong::from)?;
        // With an odd world one rank has nobody to trade with: its own sum is looked at instead.
        let (result, other) = if peer.is_some() {
            (result, second)
        } else {
            (second, result)
        };
        Ok(Chain {
            graph,
            bytes,
            input: RefCell::new(input),
            gathered,
            result,
            _others: [sum, other],
        })
    }

    /// A replay with fresh inputs: the gather in the middle, and the end of the chain.
    fn replayed(&self, chain: &Chain, seed: u64) -> Result<Vec<Result<(), String>>, Wrong> {
        let world = self.on.world();
        let inputs: Vec<Vec<u8>> = world
            .ranks()
            .map(|rank| fill::bytes(chain.bytes, DType::Bf16, seed, rank, Pattern::Uniform))
            .collect();
        let gathered = sum(&inputs, DType::Bf16)?.repeat(world.size());
        let end = sum(&vec![gathered.clone(); world.size()], DType::F32)?;
        chain.put(&inputs[self.on.rank().index()])?;
        self.work.replay(&chain.graph).map_err(driver)?;
        self.on.synchronize(self.work.stream())?;
        let read = |buffer: &DeviceBuffer| buffer.read(0, buffer.len()).map_err(driver);
        Ok(vec![
            same(&read(&chain.gathered)?, &gathered),
            same(&read(&chain.result)?, &end),
        ])
    }

    /// An eager call on the stream of the replays.
    fn between(&self, seed: u64) -> Result<Result<(), String>, Wrong> {
        let inputs: Vec<Vec<u8>> = self
            .on
            .world()
            .ranks()
            .map(|rank| fill::bytes(BETWEEN, DType::F32, !seed, rank, Pattern::Uniform))
            .collect();
        let new = |bytes| DeviceBuffer::new(self.device, bytes).map_err(driver);
        let (mut send, recv) = (new(BETWEEN)?, new(BETWEEN)?);
        send.write(0, &inputs[self.on.rank().index()]).map_err(driver)?;
        let (from, to) = (send.address() as *const u8, recv.address() as *mut u8);
        // SAFETY: both buffers hold the bytes, and the stream is waited for.
        unsafe {
            self.on.all_reduce(
                from,
                to,
                BETWEEN / 4,
                DType::F32,
                ReduceOp::Sum,
                self.work.stream(),
            )?
        };
        self.on.synchronize(self.work.stream())?;
        Ok(same(
            &recv.read(0, BETWEEN).map_err(driver)?,
            &sum(&inputs, DType::F32)?,
        ))
    }
}

impl Chain {
    fn put(&self, data: &[u8]) -> Result<(), Wrong> {
        self.input.borrow_mut().write(0, data).map_err(driver)
    }
}

fn sum(inputs: &[Vec<u8>], dtype: DType) -> Result<Vec<u8>, Wrong> {
    let views: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    oracle::reduce(&views, dtype, ReduceOp::Sum).map_err(|error| Wrong::Answer(format!("no oracle: {error}")))
}

fn same(got: &[u8], wanted: &[u8]) -> Result<(), String> {
    match got.iter().zip(wanted).position(|(g, w)| g != w) {
        None => Ok(()),
        Some(at) => Err(format!(
            "first differing byte at offset {at}: got {:02x}, expected {:02x}",
            got[at], wanted[at]
        )),
    }
}
