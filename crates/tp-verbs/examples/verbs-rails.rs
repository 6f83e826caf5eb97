//! Real RDMA between two ends with two rails each, both in this process: `scripts/verbs-test` runs it against the kernel's
//! Soft-RoCE driver. The devices are named by A_DEV0, B_DEV0, A_DEV1 and B_DEV1; GID 1 of each is used.
//!
//!   verbs-rails           transfers, failures, events
//!   verbs-rails memlock   expects that registering memory is refused, and that the error says why

use std::error::Error;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tp_verbs::post::{Chain, Flag, Poster, Put, Write, stripe};
use tp_verbs::{
    Capacity, Completion, CompletionQueue, Context, EventKind, Far, GidType, MemoryRegion, Mtu, Near, Pages,
    Path, PortNum, PortState, ProtectionDomain, QueuePair, Search, State, Verbs,
};

type Outcome = Result<(), Box<dyn Error>>;

const PORT: PortNum = PortNum(1);
const GID_INDEX: u8 = 1;
/// Bytes of one slot, and where flags and payload lie in a region.
const SLOT: u64 = 256 << 10;
const PAYLOAD: u64 = 4096;
const PATIENCE: Duration = Duration::from_secs(20);

/// One end of one rail.
struct End {
    context: Arc<Context>,
    pages: Arc<Pages>,
    region: MemoryRegion,
    completions: Arc<CompletionQueue>,
    pair: QueuePair,
}

impl End {
    fn open(verbs: &Arc<Verbs>, device: &str) -> Result<Self, Box<dyn Error>> {
        let context = Context::open(verbs, device)?;
        let domain = ProtectionDomain::new(&context)?;
        let pages = Arc::new(Pages::new((PAYLOAD + SLOT) as usize)?);
        let region = MemoryRegion::register(&domain, &pages)?;
        let completions = CompletionQueue::new(&context, 256)?;
        let pair = QueuePair::new(
            &domain,
            &completions,
            Capacity {
                sends: 256,
                inline: 256,
            },
        )?;
        Ok(Self {
            context,
            pages,
            region,
            completions,
            pair,
        })
    }

    fn near(&self) -> Result<Near, Box<dyn Error>> {
        let gid = self.context.gid(PORT, u32::from(GID_INDEX))?;
        Ok(Near {
            port: PORT,
            gid_index: GID_INDEX,
            gid,
            first_packet: 0x1234,
        })
    }

    fn connect(&self, peer: &Self) -> Outcome {
        let mtu = |end: &Self| end.context.port(PORT).map(|port| port.active_mtu);
        let mtu = mtu(self)?.min(mtu(peer)?).ok_or("a port has no known MTU")?;
        let far = Far {
            queue_pair: peer.pair.number(),
            gid: peer.near()?.gid,
            lid: 0,
            first_packet: 0x1234,
        };
        // One second and six repeats: an emulated peer is slow, and seven would mean for ever.
        let path = Path {
            timeout: 18,
            retries: 6,
            ..Path::new(mtu)
        };
        self.pair.connect(&self.near()?, &far, &path)?;
        Ok(())
    }

    fn poster(&self, peer: &Self) -> Poster {
        Poster {
            local: self.region.local(),
            remote: peer.region.remote(),
            max_inline: self.pair.capacity().inline,
        }
    }

    fn post(&self, chain: &Chain) -> Outcome {
        // SAFETY: the chain's windows are regions that both ends hold until its completion is read.
        unsafe { self.pair.post(chain) }?;
        Ok(())
    }

    fn fill(&self, length: u64, seed: u32) {
        for at in 0..length {
            // SAFETY: inside the pages; nothing is in flight that reads them.
            unsafe {
                self.pages
                    .as_ptr()
                    .add((PAYLOAD + at) as usize)
                    .write(byte(at, seed))
            };
        }
    }

    /// The flag word of the region.
    fn flag(&self) -> &AtomicU32 {
        // SAFETY: aligned and inside the pages; the device writes it whole.
        unsafe { &*self.pages.as_ptr().cast::<AtomicU32>() }
    }

    fn holds(&self, range: std::ops::Range<u64>, seed: u32) -> bool {
        // SAFETY: inside the pages; the flag that was seen was written after these bytes.
        let at = |at: u64| unsafe { self.pages.as_ptr().add((PAYLOAD + at) as usize).read_volatile() };
        range
            .into_iter()
            .all(|position| at(position) == byte(position, seed))
    }

    /// Waits for the next completion.
    fn completion(&self) -> Result<Completion, Box<dyn Error>> {
        let started = Instant::now();
        let mut found = None;
        while started.elapsed() < PATIENCE {
            self.completions
                .poll(|completion| found = found.take().or(Some(completion)))?;
            if let Some(completion) = found.take() {
                return Ok(completion);
            }
            std::thread::yield_now();
        }
        Err("no completion came".into())
    }

    fn wait_for_flag(&self, value: u32) -> Outcome {
        let started = Instant::now();
        while self.flag().load(Ordering::Acquire) != value {
            if started.elapsed() > PATIENCE {
                return Err(format!(
                    "flag {value} did not come, it is {}",
                    self.flag().load(Ordering::Relaxed)
                )
                .into());
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// The byte at a position of the payload with this seed.
fn byte(position: u64, seed: u32) -> u8 {
    let mixed = (position ^ u64::from(seed) << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

fn main() -> ExitCode {
    let mode = std::env::args().nth(1).unwrap_or_default();
    let outcome = match mode.as_str() {
        "" => rails(),
        "memlock" => memlock(),
        other => Err(format!("unknown mode {other}").into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs-rails: {error}");
            ExitCode::FAILURE
        }
    }
}

fn name(variable: &str) -> Result<String, Box<dyn Error>> {
    std::env::var(variable).map_err(|_| format!("{variable} names no device").into())
}

fn pair(verbs: &Arc<Verbs>, rail: u32) -> Result<(End, End), Box<dyn Error>> {
    let a = End::open(verbs, &name(&format!("A_DEV{rail}"))?)?;
    let b = End::open(verbs, &name(&format!("B_DEV{rail}"))?)?;
    a.connect(&b)?;
    b.connect(&a)?;
    Ok((a, b))
}

fn rails() -> Outcome {
    let verbs = Arc::new(Verbs::load(&Search::from_env())?);
    println!(
        "library {}; devices {}",
        verbs.path().display(),
        Context::names(&verbs)?.join(", ")
    );
    ports(&verbs)?;
    let rails = [pair(&verbs, 0)?, pair(&verbs, 1)?];
    gathers(&rails)?;
    small_puts(&rails[0])?;
    drop(rails);
    wrong_key(&verbs)?;
    halt(&verbs)?;
    wrong_gid(&verbs)?;
    repeated(&verbs)?;
    events(&verbs)?;
    Ok(())
}

fn ports(verbs: &Arc<Verbs>) -> Outcome {
    for variable in ["A_DEV0", "B_DEV0", "A_DEV1", "B_DEV1"] {
        let context = Context::open(verbs, &name(variable)?)?;
        let port = context.port(PORT)?;
        let gid = context.gid(PORT, 1)?;
        println!(
            "{}: {port:?}, GID 1 {gid} {:?}",
            context.name(),
            context.gid_type(PORT, 1)
        );
        let right = port.state == PortState::Active
            && port.ethernet
            && port.active_mtu.map(Mtu::bytes) == Some(4096)
            && gid.ipv4().is_some()
            && context.gid_type(PORT, 1) == Some(GidType::RoceV2);
        if !right {
            return Err("the port is not as the guest sets it up".into());
        }
    }
    println!("passed: ports and GIDs are read");
    Ok(())
}

/// Payloads of all sizes, striped over both rails, each with its flag behind it.
fn gathers(rails: &[(End, End); 2]) -> Outcome {
    let started = Instant::now();
    let sizes = [16, 32, 48, 4096, 4112, 65_536, 65_552, SLOT];
    let mut operations = 0;
    for sequence in 1..=200u32 {
        let bytes = sizes[sequence as usize % sizes.len()];
        for (rail, (from, to)) in rails.iter().enumerate() {
            from.fill(bytes, sequence);
            let part = stripe(bytes, rail as u64, rails.len() as u64);
            let poster = from.poster(to);
            let write = Write {
                local: poster.local.start + PAYLOAD + part.start,
                remote: poster.remote.start + PAYLOAD + part.start,
                length: u32::try_from(part.end - part.start)?,
            };
            let writes: &[Write] = if part.is_empty() { &[] } else { &[write] };
            let flags = [Flag {
                remote: poster.remote.start,
                value: sequence,
            }];
            let put = Put {
                id: u64::from(sequence),
                local_key: poster.local.key,
                remote_key: poster.remote.key,
                writes,
                flags: &flags,
                flags_inside: None,
            };
            from.post(&poster.chain(&put)?)?;
        }
        for (rail, (from, to)) in rails.iter().enumerate() {
            to.wait_for_flag(sequence)?;
            if !to.holds(stripe(bytes, rail as u64, rails.len() as u64), sequence) {
                return Err(format!(
                    "operation {sequence} of {bytes} bytes: rail {rail} brought other bytes"
                )
                .into());
            }
            let completion = from.completion()?;
            completion.result?;
            operations += 1;
        }
    }
    println!(
        "passed: {operations} writes over two rails, flags behind them, bit-exact, {:?}",
        started.elapsed()
    );
    Ok(())
}

/// Payloads that carry their flag as their last word, in one request.
fn small_puts((from, to): &(End, End)) -> Outcome {
    let poster = from.poster(to);
    for value in 1001..=1100u32 {
        // The flag is the region's first word, so the payload ends just before it wraps: one word of payload, one flag.
        // SAFETY: inside the pages, aligned; nothing is in flight.
        unsafe { from.pages.as_ptr().cast::<u32>().write(value) };
        let writes = [Write {
            local: poster.local.start,
            remote: poster.remote.start,
            length: 4,
        }];
        let put = Put {
            id: u64::from(value),
            local_key: poster.local.key,
            remote_key: poster.remote.key,
            writes: &writes,
            flags: &[],
            flags_inside: Some(value),
        };
        let chain = poster.chain(&put)?;
        if chain.requests().len() != 1 {
            return Err("a small put is one request".into());
        }
        from.post(&chain)?;
        to.wait_for_flag(value)?;
        from.completion()?.result?;
    }
    println!("passed: 100 small puts with their flag inside, one request each");
    Ok(())
}

/// One 4 KiB write with a flag.
fn one_write(poster: &Poster, id: u64) -> Result<Chain, Box<dyn Error>> {
    let writes = [Write {
        local: poster.local.start + PAYLOAD,
        remote: poster.remote.start + PAYLOAD,
        length: 4096,
    }];
    let flags = [Flag {
        remote: poster.remote.start,
        value: 1,
    }];
    let put = Put {
        id,
        local_key: poster.local.key,
        remote_key: poster.remote.key,
        writes: &writes,
        flags: &flags,
        flags_inside: None,
    };
    Ok(poster.chain(&put)?)
}

/// A peer that registered anew: the old key fails, names its cause, and leaves the queue pair in error.
fn wrong_key(verbs: &Arc<Verbs>) -> Outcome {
    let (from, to) = pair(verbs, 0)?;
    let mut poster = from.poster(&to);
    poster.remote.key ^= 0x5500;
    from.post(&one_write(&poster, 1)?)?;
    let failure = from
        .completion()?
        .result
        .err()
        .ok_or("a wrong key was accepted")?;
    println!("wrong key: {failure}");
    if failure.status != 10 && !failure.is_flush() {
        return Err("expected a remote access error".into());
    }
    if from.pair.state()? != State::Error {
        return Err("the queue pair is not in error".into());
    }
    println!("passed: a wrong remote key is refused by the peer and ends the queue pair");
    Ok(())
}

/// Halting: everything posted completes, at once, one way or the other.
fn halt(verbs: &Arc<Verbs>) -> Outcome {
    let (from, to) = pair(verbs, 1)?;
    // The peer goes first, so that nothing is acknowledged any more.
    to.pair.fail()?;
    let poster = from.poster(&to);
    for id in 0..32 {
        from.post(&one_write(&poster, id)?)?;
    }
    std::thread::sleep(Duration::from_millis(50));
    let started = Instant::now();
    from.pair.fail()?;
    let mut flushed = 0;
    let mut ended = 0;
    // A request that failed completes even where it asked for no completion, so there may be more than the 32.
    while ended < 32 && started.elapsed() < PATIENCE {
        from.completions.poll(|completion| {
            if completion.result.as_ref().is_err_and(tp_verbs::Failure::is_flush) {
                flushed += 1;
            }
            ended += 1;
        })?;
    }
    if ended < 32 || flushed == 0 || from.pair.state()? != State::Error {
        return Err(format!("{ended} of 32 ended, {flushed} flushed").into());
    }
    println!(
        "passed: halt and drain, {ended} ended ({flushed} flushed) in {:?}",
        started.elapsed()
    );
    Ok(())
}

/// An empty entry of the GID table is told as such, by reading and by connecting.
fn wrong_gid(verbs: &Arc<Verbs>) -> Outcome {
    let (from, to) = (
        End::open(verbs, &name("A_DEV0")?)?,
        End::open(verbs, &name("B_DEV0")?)?,
    );
    let error = from.context.gid(PORT, 200).err().ok_or("GID 200 is not empty")?;
    println!("empty GID, read: {error}");
    let near = Near {
        gid_index: 200,
        ..from.near()?
    };
    let mtu = Mtu::from_code(3).ok_or("an MTU of 1024")?;
    let far = Far {
        queue_pair: to.pair.number(),
        gid: to.near()?.gid,
        lid: 0,
        first_packet: 0,
    };
    let error = from
        .pair
        .connect(&near, &far, &Path::new(mtu))
        .err()
        .ok_or("connected with an empty GID")?;
    println!("empty GID, connect: {error}");
    let text = error.to_string();
    let device = from.context.name();
    for part in [
        device,
        "port 1",
        "GID 200",
        "peer ::ffff:192.0.2.2",
        "ibv_modify_qp",
        "errno",
    ] {
        if !text.contains(part) {
            return Err(format!("the error does not name {part}").into());
        }
    }
    println!("passed: an empty GID is refused with device, port, GID, peer, call and number");
    Ok(())
}

/// Making and freeing everything again and again leaves nothing, or the device would run out.
fn repeated(verbs: &Arc<Verbs>) -> Outcome {
    let descriptors = || std::fs::read_dir("/proc/self/fd").map(Iterator::count);
    let before = descriptors()?;
    for _ in 0..50 {
        let (from, to) = pair(verbs, 0)?;
        from.post(&one_write(&from.poster(&to), 1)?)?;
        from.completion()?.result?;
    }
    let after = descriptors()?;
    if after != before {
        return Err(format!("{before} descriptors before, {after} after").into());
    }
    println!("passed: 50 sessions, no descriptor left");
    Ok(())
}

fn ip(arguments: &[&str]) -> Outcome {
    let status = Command::new("ip").args(arguments).status()?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("ip {}: {status}", arguments.join(" ")).into())
    }
}

fn await_event(context: &Context, wanted: EventKind) -> Outcome {
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
        if let Some(event) = context.next_event()? {
            println!("event: {:?} ({})", event.kind, event.text);
            if event.kind == wanted {
                return Ok(());
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("{wanted:?} did not come").into())
}

/// The address that a GID stands for goes away, and the link goes down. Last, since the rail is of no use after it.
fn events(verbs: &Arc<Verbs>) -> Outcome {
    let context = Context::open(verbs, &name("A_DEV1")?)?;
    ip(&["addr", "del", "198.51.100.1/32", "dev", "a1"])?;
    await_event(&context, EventKind::GidChange(PORT))?;
    ip(&["link", "set", "a1", "down"])?;
    await_event(&context, EventKind::PortError(PORT))?;
    println!("passed: a lost address and a lost link are events of the device");
    Ok(())
}

/// Run with too low a limit of locked memory and without the right to pass it.
fn memlock() -> Outcome {
    let verbs = Arc::new(Verbs::load(&Search::from_env())?);
    let error = End::open(&verbs, &name("A_DEV0")?)
        .err()
        .ok_or("memory was registered in spite of the limit")?;
    println!("memlock: {error}");
    let text = error.to_string();
    if text.contains("ulimit -l") && text.contains("errno 12") {
        println!("passed: too little locked memory is named as such");
        Ok(())
    } else {
        Err("the error does not name the limit".into())
    }
}
