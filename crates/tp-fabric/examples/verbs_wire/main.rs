//! The verbs wire on real devices: `scripts/verbs-test` and `scripts/bench verbs` run it in the Soft-RoCE guest. The devices are named by A_DEV0, B_DEV0, A_DEV1 and B_DEV1; GID 1 of each is used.
//!
//!   verbs_wire ping wire|bare BYTES ITERATIONS   half of a round trip between two processes, microseconds: over the wire, or
//!                                                the same requests bare
//!   verbs_wire soak OPERATIONS SESSIONS          two ranks in this process: gathers, sessions, and a count of what is left

mod bare;
mod ping;
mod soak;

use std::error::Error;
use std::net::TcpListener;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::thread;
use std::time::Duration;
use tp_fabric::bootstrap::{BootConfig, Bootstrap};
use tp_fabric::local::LocalMeeting;
use tp_fabric::meeting::Meeting;
use tp_fabric::region::{Layout, Region};
use tp_fabric::types::{Rank, World};
use tp_fabric::wire::verbs::{self, RailEnd, VerbsConfig, VerbsWire};
use tp_verbs::{Context, PortNum, Search, Verbs};

/// What every mode ends with.
pub type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The port and GID index of the guest's devices.
pub const PLACE: (PortNum, u8) = (PortNum(1), 1);
/// Tells the second process where the first one listens.
const MEET: &str = "VERBS_WIRE_MEET";
/// Longest wait for the other rank.
pub const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let number = |word: &str| word.parse::<usize>().map_err(|e| format!("`{word}`: {e}"));
    let outcome = match words[..] {
        ["ping", "wire", bytes, count] => number(bytes)
            .and_then(|bytes| Ok((bytes, number(count)?)))
            .map_err(Into::into)
            .and_then(|(bytes, count)| ping::wire(bytes, count)),
        ["ping", "bare", bytes, count] => number(bytes)
            .and_then(|bytes| Ok((bytes, number(count)?)))
            .map_err(Into::into)
            .and_then(|(bytes, count)| bare::ping(bytes, count)),
        ["soak", operations, sessions] => number(operations)
            .and_then(|operations| Ok((operations, number(sessions)?)))
            .map_err(Into::into)
            .and_then(|(operations, sessions)| soak::run(operations, sessions)),
        _ => Err("see the head of this program's source for its arguments".into()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("verbs_wire: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The device of an end (`A` or `B`) on a rail.
pub fn device(end: char, rail: usize) -> Outcome<String> {
    let name = format!("{end}_DEV{rail}");
    std::env::var(&name).map_err(|_| format!("{name} names no device").into())
}

/// Opens the wire between two ranks of this process over that many rails.
pub fn open(meeting: &mut dyn Meeting, library: &Arc<Verbs>, rails: usize) -> Outcome<(Region, VerbsWire)> {
    let me = meeting.rank();
    let (mine, theirs) = if me == Rank(0) { ('A', 'B') } else { ('B', 'A') };
    let peer = Rank(1 - me.0);
    let ends = (0..rails)
        .map(|rail| {
            let name = device(mine, rail)?;
            let gid = Context::open(library, &name)?.gid(PLACE.0, u32::from(PLACE.1))?;
            Ok(RailEnd {
                peer,
                rail,
                device: name,
                port: PLACE.0,
                gid_index: PLACE.1,
                gid,
                far: device(theirs, rail)?,
            })
        })
        .collect::<Outcome<Vec<_>>>()?;
    let mut all = vec![Vec::new(), Vec::new()];
    all[peer.index()] = ends;
    let config = VerbsConfig {
        verbs: Arc::clone(library),
        rails: all,
        most_rails: rails,
        neighbours: vec![me],
        traffic_class: 0,
        liveness: Duration::from_secs(20),
        bounce: true,
    };
    let layout = Layout::new(World(2), 256 << 10).ok_or("no layout")?;
    Ok(verbs::open(meeting, layout, &config)?)
}

/// Runs both ranks, each on a thread of its own.
pub fn on_both<T: Send>(act: impl Fn(LocalMeeting, &Arc<Verbs>) -> Outcome<T> + Sync) -> Outcome<Vec<T>> {
    let library = Arc::new(Verbs::load(&Search::from_env())?);
    let (act, library) = (&act, &library);
    thread::scope(|scope| {
        let ranks: Vec<_> = LocalMeeting::group(World(2), PATIENCE)
            .into_iter()
            .map(|meeting| scope.spawn(move || act(meeting, library)))
            .collect();
        ranks
            .into_iter()
            .map(|rank| rank.join().map_err(|_| "a rank panicked")?)
            .collect()
    })
}

/// The second process, which does not outlive this one's failure.
struct Other(Child);

impl Drop for Other {
    fn drop(&mut self) {
        // One that has ended cannot be killed, which is as well.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs rank 0 in this process and rank 1 in a second one of this program, as perftest's two ends are processes. The second
/// one, which comes here too, gets nothing.
pub fn apart<T>(act: impl Fn(&mut dyn Meeting, &Arc<Verbs>) -> Outcome<T>) -> Outcome<Option<T>> {
    let library = Arc::new(Verbs::load(&Search::from_env())?);
    let config = |rank, port, listener| BootConfig {
        rank: Rank(rank),
        world: World(2),
        master: "127.0.0.1".to_owned(),
        port,
        timeout: PATIENCE,
        secret: None,
        insecure: false,
        session: String::new(),
        host: "guest".to_owned(),
        listener,
    };
    if let Ok(port) = std::env::var(MEET) {
        act(&mut Bootstrap::connect(config(1, port.parse()?, None))?, &library)?;
        return Ok(None);
    }
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let port = listener.local_addr()?.port();
    let other = Command::new(std::env::current_exe()?)
        .args(std::env::args().skip(1))
        .env(MEET, port.to_string())
        .spawn()?;
    let mut other = Other(other);
    let mine = act(
        &mut Bootstrap::connect(config(0, port, Some(listener)))?,
        &library,
    )?;
    match other.0.wait()? {
        status if status.success() => Ok(Some(mine)),
        status => Err(format!("rank 1: {status}").into()),
    }
}

/// Median, and 10th and 90th percentile of half round trips, in microseconds.
pub fn report(what: &str, bytes: usize, mut halves: Vec<f64>) {
    halves.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| {
        halves
            .get((share * halves.len() as f64) as usize)
            .copied()
            .unwrap_or(f64::NAN)
    };
    println!(
        "{what} {bytes} B: p50 {:.2} us, p10 {:.2}, p90 {:.2}, {} round trips",
        at(0.5),
        at(0.1),
        at(0.9),
        halves.len()
    );
}
