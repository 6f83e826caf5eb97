//! Real processes for the tests: ranks on loopback with clean environments, limits, and a look at what they leave.

#![allow(dead_code, reason = "each test binary uses its own part")]
#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

use std::collections::BTreeSet;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tp_receipt::event::{Event, Kind};

/// No command of the tests takes this long, on whatever machine.
pub const LIMIT: Duration = Duration::from_secs(400);

/// The runner with nothing of this process's environment but the way to programs.
pub fn runner(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tf-tp-test"));
    command
        .args(args)
        .env_clear()
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    if let Some(path) = std::env::var_os("PATH") {
        command.env("PATH", path);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// A port that nobody listens on, below the range that the system gives to outgoing connections.
pub fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let base = u16::try_from(std::process::id() % 1200).unwrap() * 10;
    loop {
        let port = 20_000 + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// A session name that no other test has, to find its processes by.
pub fn session() -> String {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    format!(
        "test-{}-{}",
        std::process::id(),
        NEXT.fetch_add(1, Ordering::Relaxed)
    )
}

/// A process whose output is collected as it comes.
pub struct Running {
    pub child: Child,
    out: JoinHandle<String>,
    err: JoinHandle<String>,
}

/// What became of a process.
#[derive(Debug)]
pub struct Ended {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
    pub took: Duration,
}

impl Ended {
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    /// The events of standard output; anything else there fails the test.
    pub fn events(&self) -> Vec<Event> {
        self.out
            .lines()
            .map(|line| Event::parse(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect()
    }

    /// The totals, which are the last thing that a rank says.
    pub fn summary(&self) -> (u64, u64, u64) {
        match self.events().last().map(|e| e.kind.clone()) {
            Some(Kind::Summary(s)) => (s.passed, s.failed, s.skipped),
            other => panic!("last event is {other:?}; {}", self.err),
        }
    }
}

pub fn start(mut command: Command) -> Running {
    let mut child = command.spawn().unwrap();
    let (out, err) = (collect(child.stdout.take()), collect(child.stderr.take()));
    Running { child, out, err }
}

fn collect(stream: Option<impl Read + Send + 'static>) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut stream) = stream {
            stream.read_to_end(&mut bytes).unwrap();
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Running {
    /// Waits for the end; a process that is not done within the limit is killed and fails the test.
    pub fn end(mut self, limit: Duration) -> Ended {
        let began = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break Some(status);
            }
            if began.elapsed() > limit {
                break None;
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let took = began.elapsed();
        if status.is_none() {
            self.child.kill().unwrap();
        }
        let last = self.child.wait().unwrap();
        let ended = Ended {
            status: last,
            out: self.out.join().unwrap(),
            err: self.err.join().unwrap(),
            took,
        };
        assert!(status.is_some(), "not done within {limit:?}: {ended:?}");
        ended
    }

    pub fn pid(&self) -> i32 {
        i32::try_from(self.child.id()).unwrap()
    }
}

/// Runs a command to its end.
pub fn run(args: &[&str]) -> Ended {
    start(runner(args)).end(LIMIT)
}

/// The arguments of a rank.
pub fn rank_args(rank: u32, world: u32, port: u16, session: &str, args: &[&str]) -> Vec<String> {
    let place = [
        ("--rank", rank.to_string()),
        ("--world", world.to_string()),
        ("--port", port.to_string()),
        ("--session", session.to_owned()),
    ];
    let place = place
        .into_iter()
        .flat_map(|(name, value)| [name.to_owned(), value]);
    args.iter().map(|a| (*a).to_owned()).chain(place).collect()
}

/// Starts all ranks of a world with a secret and these variables.
pub fn start_group(world: u32, args: &[&str], session: &str, vars: &[(&str, &str)]) -> Vec<Running> {
    let port = free_port();
    let of = |rank| {
        let args = rank_args(rank, world, port, session, args);
        let mut command = runner(&args.iter().map(String::as_str).collect::<Vec<_>>());
        command
            .env("TF_TP_SECRET", "0123456789abcdef0123456789abcdef")
            .envs(vars.iter().copied());
        start(command)
    };
    (0..world).map(of).collect()
}

/// Runs all ranks of a world to their ends, in rank order.
pub fn group(world: u32, args: &[&str], vars: &[(&str, &str)]) -> Vec<Ended> {
    let session = session();
    let running = start_group(world, args, &session, vars);
    let ended: Vec<Ended> = running.into_iter().map(|r| r.end(LIMIT)).collect();
    nothing_left(&session);
    ended
}

/// Whether a process lives (and is no zombie).
pub fn lives(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')')
        .is_some_and(|(_, rest)| !rest.trim_start().starts_with(['Z', 'X']))
}

/// Waits until the condition holds, at most for the limit.
pub fn eventually(limit: Duration, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < until, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Processes that have this text on their command lines.
pub fn processes_with(text: &str) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let has = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text) && lives(*pid)
    };
    pids.filter(|pid| *pid != i32::try_from(std::process::id()).unwrap())
        .filter(has)
        .collect()
}

/// Living processes that this one started.
pub fn children_of(parent: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let parent_of = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        stat.rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(1)?
            .parse::<i32>()
            .ok()
    };
    pids.filter(|pid| parent_of(pid) == Some(parent) && lives(*pid))
        .collect()
}

fn shm_files() -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else {
        return BTreeSet::new();
    };
    entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok())
        .filter(|n| n.starts_with("tf-tp-"))
        .collect()
}

/// No process of the session lives any more, and no shared-memory file that is there now stays.
pub fn nothing_left(session: &str) {
    eventually(Duration::from_secs(5), "processes left", || {
        processes_with(session).is_empty()
    });
    // Files of tests that run at the same time come and go; one that stays was left by somebody.
    let mut seen = shm_files();
    eventually(Duration::from_secs(20), "shared-memory files left", || {
        let now = shm_files();
        seen.retain(|name| now.contains(name));
        seen.is_empty()
    });
}
