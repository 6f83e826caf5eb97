//! Latency of the host backend between two processes of this machine, over each wire.
//!
//!     cargo run --release -p tp-fabric --example host_latency [-- WORLD]
//!
//! Prints, for every wire and size, the median and the 90th percentile of an all-gather and of an all-reduce (bf16 sum),
//! in microseconds, as rank 0 sees them; then the ordered sum's throughput beside that of memcpy. Each rank is a process:
//! the example starts itself once a rank and passes the meeting's bytes between them.

use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command};
use std::time::{Duration, Instant};
use tp_fabric::collective::{Collectives, HostSlices};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::host::{self, Delivery, HostBackend, HostConfig};
use tp_fabric::meeting::{Meeting, MeetingError};
use tp_fabric::oracle::ordered;
use tp_fabric::types::{DType, Rank, ReduceOp, World};

type Outcome<T> = Result<T, Box<dyn Error>>;

const SIZES: [usize; 7] = [8, 64, 1024, 4096, 16_384, 65_536, 262_144];

fn main() -> Outcome<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [kind, rank, world, port] = &args[..] {
        return rank_process(kind, Rank(rank.parse()?), World(world.parse()?), port.parse()?);
    }
    let world = args.first().map_or(Ok(2), |text| text.parse())?;
    println!(
        "{:<14} {:>8} {:>24} {:>24}",
        "wire", "bytes", "all-gather p50 / p90 us", "all-reduce p50 / p90 us"
    );
    for kind in ["shm", "tcp", "shm-doorbell", "tcp-doorbell"] {
        on_processes(kind, world)?;
    }
    throughput();
    Ok(())
}

/// Starts the ranks, passes their meeting's bytes on until they are done, and waits for them.
fn on_processes(kind: &str, world: u32) -> Outcome<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let port = listener.local_addr()?.port().to_string();
    let start = |rank: u32| -> std::io::Result<Child> {
        let args = [kind.to_owned(), rank.to_string(), world.to_string(), port.clone()];
        Command::new(std::env::current_exe()?).args(args).spawn()
    };
    let mut children = (0..world).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut ranks = Vec::new();
    for _ in 0..world {
        let mut stream = listener.accept()?.0;
        ranks.push((read_blob(&mut stream)?, stream));
    }
    ranks.sort_by(|a, b| a.0.cmp(&b.0));
    while let Ok(blobs) = ranks
        .iter_mut()
        .map(|(_, stream)| read_blob(stream))
        .collect::<Result<Vec<_>, _>>()
    {
        for (_, stream) in &mut ranks {
            for blob in &blobs {
                write_blob(stream, blob)?;
            }
        }
    }
    for child in &mut children {
        if !child.wait()?.success() {
            return Err("a rank failed".into());
        }
    }
    Ok(())
}

fn rank_process(kind: &str, rank: Rank, world: World, port: u16) -> Outcome<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write_blob(&mut stream, &rank.0.to_be_bytes())?;
    let mut meeting = Through { rank, world, stream };
    let (wire, delivery) = match kind.split_once('-') {
        Some((wire, _)) => (wire, Delivery::Doorbell),
        None => (kind, Delivery::Direct),
    };
    let cfg = HostConfig {
        wire: Some(wire.parse()?),
        delivery,
        wait: Duration::from_secs(20),
        ..HostConfig::default()
    };
    let backend = host::open(&mut meeting, &cfg)?;
    for size in SIZES {
        let mine = fill::bytes(size, DType::Bf16, 1, rank, Pattern::Uniform);
        let mut all = vec![0; size * world.size()];
        let gather = percentiles(&backend, || {
            backend
                .all_gather_bytes(&mine, &mut all, DType::Bf16)
                .map_err(Into::into)
        })?;
        let mut sum = vec![0; size];
        let reduce = percentiles(&backend, || {
            backend
                .all_reduce_bytes(&mine, &mut sum, DType::Bf16, ReduceOp::Sum)
                .map_err(Into::into)
        })?;
        if rank == Rank(0) {
            println!(
                "{kind:<14} {size:>8} {:>14.2} / {:>7.2} {:>14.2} / {:>7.2}",
                gather.0, gather.1, reduce.0, reduce.1
            );
        }
    }
    backend.close()?;
    Ok(())
}

/// The median and the 90th percentile of 2,000 calls, microseconds.
fn percentiles(backend: &HostBackend, mut call: impl FnMut() -> Outcome<()>) -> Outcome<(f64, f64)> {
    for _ in 0..200 {
        call()?;
    }
    backend.barrier()?;
    let mut times = Vec::with_capacity(2000);
    for _ in 0..2000 {
        let begun = Instant::now();
        call()?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok((times[1000], times[1800]))
}

/// The ordered sum of two sources in cache, bytes of result a second, beside memcpy of as many bytes.
fn throughput() {
    const BYTES: usize = 64 << 10;
    let best = |mut run: Box<dyn FnMut()>| {
        let time = |run: &mut dyn FnMut()| {
            let begun = Instant::now();
            (0..200).for_each(|_| run());
            begun.elapsed().as_secs_f64() / 200.0
        };
        let fastest = (0..20).map(|_| time(&mut *run)).fold(f64::INFINITY, f64::min);
        BYTES as f64 / fastest / 1e9
    };
    let source = fill::bytes(BYTES, DType::U8, 1, Rank(0), Pattern::Uniform);
    let mut target = vec![0u8; BYTES];
    let copy = best(Box::new(move || {
        target.copy_from_slice(std::hint::black_box(&source));
        std::hint::black_box(&mut target);
    }));
    println!("memcpy of 64 KiB: {copy:.1} GB/s");
    for dtype in DType::ALL.iter().filter(|dtype| **dtype != DType::U8) {
        let [a, b] = [0, 1].map(|r| fill::bytes(BYTES, *dtype, 1, Rank(r), Pattern::Uniform));
        let mut out = vec![0u8; BYTES];
        let (dtype, count) = (*dtype, BYTES / dtype.size());
        let sum = best(Box::new(move || {
            let sources = [a.as_ptr(), b.as_ptr()];
            // SAFETY: all three buffers have `BYTES` bytes.
            let done = unsafe { ordered::reduce(&sources, out.as_mut_ptr(), count, dtype, ReduceOp::Sum) };
            std::hint::black_box((&mut out, done.is_ok()));
        }));
        println!(
            "ordered sum of two, {dtype}: {sum:.1} GB/s of result, {:.0} % of memcpy",
            sum / copy * 100.0
        );
    }
}

/// A meeting whose bytes the parent passes on.
struct Through {
    rank: Rank,
    world: World,
    stream: TcpStream,
}

impl Meeting for Through {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> World {
        self.world
    }

    fn all_gather(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError> {
        let mut trade = || {
            write_blob(&mut self.stream, mine)?;
            (0..self.world.0)
                .map(|_| read_blob(&mut self.stream))
                .collect::<std::io::Result<Vec<_>>>()
        };
        trade().map_err(|e| MeetingError::Lost {
            op: op.to_owned(),
            rank: Rank(0),
            reason: e.to_string(),
        })
    }
}

fn write_blob(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&(bytes.len() as u32).to_le_bytes())?;
    stream.write_all(bytes)
}

fn read_blob(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; u32::from_le_bytes(len).min(1 << 20) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}
