//! The clock on the wall is set back while ranks run: nothing measures time by it.
//!
//! By libfaketime (Debian package `faketime`), which answers a process's questions for the time; skipped where it is not
//! installed. The monotonic clock goes on, as it does when a clock is really set.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_support;

use control_support::{Process, Scene, play_if_rank, skipped};
use nix::sys::signal::Signal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn rank_process() {
    play_if_rank();
}

fn library() -> Option<PathBuf> {
    let roots = ["/usr/lib", "/usr/local/lib", "/lib"].map(Path::new);
    let below = |root: &Path| {
        let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
        let nested = entries.map(|entry| entry.path().join("faketime/libfaketime.so.1"));
        nested
            .chain([root.join("faketime/libfaketime.so.1")])
            .find(|path| path.is_file())
    };
    let found = roots.into_iter().find_map(below);
    if found.is_none() {
        skipped("ranks whose clock is set back: libfaketime is not installed (apt-get install faketime)");
    }
    found
}

/// Two ranks whose clock a file shifts.
struct Clocked {
    ranks: Vec<Process>,
    shift: PathBuf,
    _directory: tempfile::TempDir,
    scene: Scene,
    _litter: Litter,
}

/// What the library leaves in shared memory when its process is killed, by the processes' ids.
struct Litter(Vec<i32>);

impl Drop for Litter {
    fn drop(&mut self) {
        for pid in &self.0 {
            for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
                let _ = std::fs::remove_file(Path::new("/dev/shm").join(name));
            }
        }
    }
}

fn start(scripts: [&str; 2]) -> Option<Clocked> {
    let library = library()?;
    let scene = Scene::new();
    let directory = tempfile::tempdir().unwrap();
    let shift = directory.path().join("shift");
    std::fs::write(&shift, "+0\n").unwrap();
    let variables = [
        ("LD_PRELOAD", library.to_str().unwrap()),
        ("FAKETIME_TIMESTAMP_FILE", shift.to_str().unwrap()),
        ("FAKETIME_NO_CACHE", "1"),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ("DONT_FAKE_MONOTONIC", "1"),
        ("TF_TP_HEARTBEAT_S", "0.05"),
        ("TF_TP_HEARTBEAT_LIMIT_S", "0.5"),
    ];
    let ranks = scene.start_all(&variables, &scripts);
    let litter = Litter(ranks.iter().map(|rank| rank.pid).collect());
    Some(Clocked {
        ranks,
        shift,
        _directory: directory,
        scene,
        _litter: litter,
    })
}

impl Clocked {
    /// The seconds that the next line of a rank gives.
    fn wall(&mut self, rank: usize) -> i64 {
        let line = self.ranks[rank].line("wall=", LIMIT);
        line["wall=".len()..].parse().unwrap()
    }

    /// Sets the clock back by a day once both ranks have told the time, and sees that they tell another.
    fn set_back(&mut self) {
        let before = [0, 1].map(|rank| self.wall(rank));
        std::fs::write(&self.shift, "-86400\n").unwrap();
        for (rank, before) in before.into_iter().enumerate() {
            let after = self.wall(rank);
            assert!(after < before - 80_000, "rank {rank}: {before}, then {after}");
        }
    }
}

#[test]
fn ranks_whose_clock_is_set_back_go_on_and_stop_cleanly() {
    // Three heartbeat limits pass after the jump.
    let script = "group barrier:x wall sleep:400 wall sleep:1500 barrier:y close";
    let Some(mut clocked) = start([script; 2]) else {
        return;
    };
    clocked.set_back();
    for rank in clocked.ranks {
        rank.end(LIMIT).code_is(0).says(&["passed y", "closed"]);
    }
    drop(clocked.scene);
}

#[test]
fn a_death_and_a_stop_after_the_clock_was_set_back_are_noticed() {
    for signal in [Signal::SIGKILL, Signal::SIGSTOP] {
        let script = "group barrier:x wall sleep:400 wall hang";
        let Some(mut clocked) = start([script; 2]) else {
            return;
        };
        clocked.set_back();
        clocked.ranks[0].signal(signal);
        let at = Instant::now();
        let end = clocked.ranks.pop().unwrap().end(LIMIT);
        end.code_is(70).says(&["rank 0 on "]);
        let after = end.at.saturating_duration_since(at);
        assert!(after < Duration::from_secs(3), "{signal}: {after:?}");
        let zero = clocked.ranks.pop().unwrap();
        zero.signal(Signal::SIGKILL);
        zero.end(LIMIT);
        drop(clocked.scene);
    }
}
