//! How long after a rank's death the others are gone: real processes on loopback, one clock.
//!
//! 20 runs of each kind, 500 with `TP_LONG=1`; the output of
//! `TP_LONG=1 cargo test -p tp-fabric --test control_detection -- --nocapture` has the figures that stand in
//! `docs/performance.md`. The bound that is asserted is the grace: figures depend on the machine.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_support;

use control_support::{Scene, play_if_rank};
use nix::sys::signal::Signal;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);
const GRACE: Duration = Duration::from_secs(1);

#[test]
fn rank_process() {
    play_if_rank();
}

/// One run: the time from the victim's end to each survivor's.
fn run(world: u32, victim: u32, kind: &str) -> Vec<Duration> {
    let scene = Scene::new();
    // Ready is whoever waits in a step that the victim does not reach.
    let (healthy, sick) = match kind {
        "fatal" => (
            "group barrier:x hang",
            "group barrier:x sleep:30 fatal:on-purpose",
        ),
        "kill" => ("group barrier:x hang", "group barrier:x hang"),
        _ => ("connect agree:x agree:y hang", "connect agree:x hang"),
    };
    let script = |rank| if rank == victim { sick } else { healthy };
    let mut ranks: Vec<_> = (0..world)
        .map(|rank| scene.start(rank, world, &[], script(rank)))
        .collect();
    if kind != "fatal" {
        let ready = if kind == "kill" { "passed" } else { "agreed" };
        for rank in &mut ranks {
            rank.line(ready, LIMIT);
        }
        std::thread::sleep(Duration::from_millis(20));
        ranks[victim as usize].signal(Signal::SIGKILL);
    }
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    let died = ends[victim as usize].at;
    let survivors = ends
        .iter()
        .enumerate()
        .filter(|(rank, _)| *rank != victim as usize);
    survivors
        .map(|(_, end)| {
            end.code_is(70).says(&[&format!("rank {victim}")]);
            end.at.saturating_duration_since(died)
        })
        .collect()
}

#[test]
fn no_survivor_outlives_the_grace() {
    let long = std::env::var_os("TP_LONG").is_some();
    let runs: u32 = if long { 500 } else { 20 };
    for kind in ["fatal", "kill", "boot"] {
        for world in [2, 4, 8] {
            let mut times: Vec<Duration> = (0..runs).flat_map(|n| run(world, n % world, kind)).collect();
            times.sort_unstable();
            let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize];
            let [median, p99, p999, worst] = [0.5, 0.99, 0.999, 1.0].map(at);
            println!(
                "{kind} world {world} runs {runs}: median {median:?}, p99 {p99:?}, p99.9 {p999:?}, worst {worst:?}"
            );
            assert!(worst < GRACE, "{kind} at world {world}: {worst:?}");
        }
    }
}
