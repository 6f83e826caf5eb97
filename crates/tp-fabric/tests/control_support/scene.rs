//! What a test's ranks share, and the promise that they leave nothing.

use super::Process;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::TcpListener;
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Marks the processes of a scene, and whatever they start.
const MARK: &str = "TP_FABRIC_TEST_SCENE";

/// A port of a test's own. When it is dropped after a test that went well, it asserts that its ranks have left no process, no
/// socket, no file of shared memory, and that the port is free. Declare it before the ranks.
pub struct Scene {
    pub port: u16,
    mark: String,
    /// Where the ranks have a network of their own, their sockets go with it.
    own_network: bool,
    shared: BTreeSet<OsString>,
    started: Mutex<Vec<i32>>,
}

impl Scene {
    /// A scene on this host's loopback.
    pub fn new() -> Self {
        Self::at(free_port(), false)
    }

    /// A scene in a network of its own, which is gone when the scene ends.
    pub fn elsewhere(port: u16) -> Self {
        Self::at(port, true)
    }

    fn at(port: u16, own_network: bool) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Self {
            port,
            mark: format!("{}-{number}", std::process::id()),
            own_network,
            shared: shared_files(),
            started: Mutex::default(),
        }
    }

    /// One rank.
    pub fn start(&self, rank: u32, world: u32, extra: &[(&str, &str)], script: &str) -> Process {
        self.start_by(
            Command::new(std::env::current_exe().unwrap()),
            rank,
            world,
            extra,
            script,
        )
    }

    /// One rank by a command to which its arguments are added.
    pub fn start_by(
        &self,
        mut command: Command,
        rank: u32,
        world: u32,
        extra: &[(&str, &str)],
        script: &str,
    ) -> Process {
        command.env(MARK, &self.mark);
        let process = Process::start_by(command, rank, world, self.port, extra, script);
        self.started.lock().unwrap().push(process.pid);
        process
    }

    /// One rank for each script.
    pub fn start_all(&self, extra: &[(&str, &str)], scripts: &[&str]) -> Vec<Process> {
        let world = u32::try_from(scripts.len()).unwrap();
        (0..world)
            .zip(scripts)
            .map(|(rank, script)| self.start(rank, world, extra, script))
            .collect()
    }

    /// What is left, in words.
    fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let mark = format!("{MARK}={}", self.mark);
        let started = self.started.lock().unwrap();
        for process in numbered("/proc") {
            let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
            let ours = environment
                .split(|byte| *byte == 0)
                .any(|entry| entry == mark.as_bytes());
            let unreaped = started.contains(&process)
                && std::fs::read_to_string(format!("/proc/{process}/stat"))
                    .is_ok_and(|stat| stat.contains(") Z "));
            if ours || unreaped {
                left.push(format!("process {process}"));
            }
        }
        left.extend(
            shared_files()
                .difference(&self.shared)
                .map(|name| format!("/dev/shm/{}", name.to_string_lossy())),
        );
        if !self.own_network {
            left.extend(sockets(self.port));
            if let Err(error) = TcpListener::bind(("127.0.0.1", self.port)) {
                left.push(format!("port {}: {error}", self.port));
            }
        }
        left
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        // Whatever other tests have in between goes away; what stays is ours.
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            let left = self.leftovers();
            if left.is_empty() {
                return;
            }
            assert!(Instant::now() < until, "the ranks have left {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// A port that was free a moment ago, outside of the range from which the system takes ports for outgoing connections.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id() * 131 + step * 7) % 22_000;
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn numbered(directory: &str) -> Vec<i32> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

fn shared_files() -> BTreeSet<OsString> {
    let entries = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("tf-tp-"))
        .collect()
}

/// The sockets of this network that have the port at either end. A closed connection's reservation (TIME_WAIT) is none.
fn sockets(port: u16) -> Vec<String> {
    const TIME_WAIT: &str = "06";
    let suffix = format!(":{port:04X}");
    let mut found = Vec::new();
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        for row in std::fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
            let columns: Vec<&str> = row.split_whitespace().collect();
            let [_, local, remote, state, ..] = columns[..] else {
                continue;
            };
            if (local.ends_with(&suffix) || remote.ends_with(&suffix)) && state != TIME_WAIT {
                found.push(format!("socket {local} {remote} in state {state}"));
            }
        }
    }
    found
}
