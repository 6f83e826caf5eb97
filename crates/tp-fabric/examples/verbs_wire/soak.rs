//! Many operations and many sessions, and a count of what the process and the kernel hold before and after.

use crate::{Outcome, PATIENCE, device, on_both, open};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tp_fabric::collective::Call;
use tp_fabric::local::LocalMeeting;
use tp_fabric::meeting::Meeting;
use tp_fabric::region::protocol::Inbound;
use tp_fabric::region::{Bay, Header, Region};
use tp_fabric::types::{Rank, World};
use tp_fabric::wire::verbs::VerbsWire;
use tp_fabric::wire::{Parcel, Wire};
use tp_verbs::{Search, Verbs};

/// Growth of resident memory that is no leak, KiB: the allocator's own ups and downs.
const SLACK_KIB: usize = 4096;

/// What is held.
#[derive(Debug, PartialEq)]
struct Held {
    descriptors: usize,
    threads: usize,
    /// Queue pairs, completion queues, regions and domains, as the kernel counts them.
    objects: Vec<String>,
}

impl Held {
    fn now() -> Outcome<Self> {
        let count = |folder: &str| std::fs::read_dir(folder).map(Iterator::count);
        Ok(Self {
            descriptors: count("/proc/self/fd")?,
            threads: count("/proc/self/task")?,
            objects: objects()?,
        })
    }

    /// What is held once no more than so many threads are left: one on its way out leaves the kernel's list after its
    /// work was waited for.
    fn settled(threads: usize) -> Outcome<Self> {
        let began = Instant::now();
        loop {
            let now = Self::now()?;
            if now.threads <= threads || began.elapsed() > Duration::from_secs(5) {
                return Ok(now);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// `rdma resource show` of every device.
fn objects() -> Outcome<Vec<String>> {
    let shown = Command::new("rdma").args(["resource", "show"]).output()?;
    let text = String::from_utf8_lossy(&shown.stdout).into_owned();
    Ok(text.lines().map(str::to_owned).collect())
}

fn resident_kib() -> Outcome<usize> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let word = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no VmRSS")?;
    Ok(word.parse()?)
}

/// One session first, so that what is made once is there; then everything, and the same is held.
pub fn run(operations: usize, sessions: usize) -> Outcome {
    let _library = Arc::new(Verbs::load(&Search::from_env())?);
    device('A', 0)?;
    let alone = Held::now()?.threads;
    session(1, 2)?;
    let before = Held::settled(alone)?;
    let began = Instant::now();
    for _ in 0..sessions {
        session(10, 2)?;
    }
    let opened = began.elapsed();
    let began = Instant::now();
    let grown = session(operations, 2)?;
    let after = Held::settled(alone)?;
    if before != after {
        return Err(format!("before: {before:?}; after: {after:?}").into());
    }
    if grown > SLACK_KIB {
        return Err(format!("resident memory grew by {grown} KiB during {operations} operations").into());
    }
    println!(
        "passed: {sessions} sessions in {:.1} s and {operations} operations in {:.1} s leave nothing: {} descriptors, {} threads, \
         resident memory +{grown} KiB; {}",
        opened.as_secs_f64(),
        began.elapsed().as_secs_f64(),
        after.descriptors,
        after.threads,
        after.objects.join("; ")
    );
    Ok(())
}

/// Both ranks send each other `operations` messages of all kinds; by how much the process grew meanwhile, KiB.
fn session(operations: usize, rails: usize) -> Outcome<usize> {
    let grown = AtomicUsize::new(0);
    on_both(|mut meeting: LocalMeeting, library| {
        let (region, wire) = open(&mut meeting, library, rails)?;
        let me = meeting.rank();
        let mut inbound = Inbound::default();
        let start = operations / 10;
        let mut first = 0;
        for round in 0..operations {
            if me == Rank(0) && round == start {
                first = resident_kib()?;
            }
            exchange(&wire, &region, &mut inbound, me, round)?;
        }
        if me == Rank(0) {
            grown.store(resident_kib()?.saturating_sub(first), Ordering::Relaxed);
        }
        wire.close(PATIENCE);
        Ok(())
    })?;
    Ok(grown.into_inner())
}

/// One message each way. Most are small; each hundredth is striped.
fn exchange(wire: &VerbsWire, region: &Region, inbound: &mut Inbound, me: Rank, round: usize) -> Outcome {
    let peer = World(2).peers(me).next().ok_or("no peer")?;
    let (seq, bytes) = (
        round as u64 + 1,
        if round % 100 == 99 {
            20_000
        } else {
            8 + round % 300
        },
    );
    let payload: Vec<u8> = (0..bytes).map(|at| (at ^ round ^ me.index()) as u8).collect();
    let header = Header {
        call: [0; Call::ENCODED],
        part: 0,
        len: bytes as u32,
        answer: round as u64,
    };
    wire.put(
        &Parcel {
            peer,
            seq,
            header,
            payload: &payload,
        },
        &|| false,
    )?;
    let began = Instant::now();
    while !inbound.arrived(region, peer)? {
        if !wire.progress() && began.elapsed() > PATIENCE {
            return Err(format!("message {seq} did not come: {:?}", wire.lost(peer)).into());
        }
        std::hint::spin_loop();
    }
    // SAFETY: the message has arrived and is not consumed.
    let got = unsafe { std::slice::from_raw_parts(region.payload(Bay::of(peer, seq), bytes), bytes) };
    if !got
        .iter()
        .enumerate()
        .all(|(at, byte)| *byte == (at ^ round ^ peer.index()) as u8)
    {
        return Err(format!("message {seq} of {bytes} bytes brought other bytes").into());
    }
    inbound.consume();
    Ok(())
}
