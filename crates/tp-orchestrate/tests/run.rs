//! The real runner under the orchestrator: real processes on this machine.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{Scratch, TWO, processes_with, receipt, runner, text, twins};
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tp_receipt::receipt::{Receipt, Verdict};

fn run(scratch: &Scratch, extra: &[&str]) -> (Option<i32>, String) {
    let runner = runner().display().to_string();
    let mut arguments = vec!["run", "inventory.toml", "--runner", &runner, "--out", "out"];
    arguments.extend(extra);
    let output = scratch.output(&arguments);
    (output.status.code(), text(&output.stderr))
}

#[test]
fn three_arms_pick_the_same_rails_on_the_modelled_pair() {
    let scratch = Scratch::new(&twins());
    let (code, said) = run(&scratch, &["--steps", "hca"]);
    assert_eq!(code, Some(0), "{said}");
    let receipt = receipt(&scratch.path("out"));
    assert_eq!(receipt.headline(), "PASSED (model)");
    for arm in ["none", "nccl", "roce"] {
        let picks: Vec<_> = receipt.picks.iter().filter(|pick| pick.arm == arm).collect();
        assert_eq!(picks.len(), 2, "{arm}");
        for pick in picks {
            assert!(pick.model);
            let devices: Vec<_> = pick.rails.iter().map(|rail| rail.device.as_str()).collect();
            let cabled = [["rocep1s0f1", "roceP2p1s0f1"], ["mlx5_2", "mlx5_3"]];
            assert_eq!(devices, cabled[pick.rank as usize], "{arm}");
        }
    }
    let events = std::fs::read_to_string(scratch.path("out/events.jsonl")).unwrap();
    assert!(
        events.contains("$pick.r1.tf_tp_roce_hca"),
        "the resolution of a symbol is an event"
    );
}

#[test]
fn fail_fast_of_every_kind_on_real_processes() {
    let scratch = Scratch::new(TWO);
    let (code, said) = run(&scratch, &["--arms", "none", "--steps", "failfast-*-1"]);
    assert_eq!(code, Some(0), "{said}");
    let receipt = receipt(&scratch.path("out"));
    let kinds: Vec<_> = receipt
        .failfast
        .iter()
        .map(|f| (f.what.as_str(), f.victim_end.as_str()))
        .collect();
    assert_eq!(
        kinds,
        [("fatal", "70"), ("kill", "signal 9"), ("stall", "signal 9")]
    );
    for failfast in &receipt.failfast {
        let [survivor] = &failfast.survivors[..] else {
            panic!("one survivor")
        };
        assert_eq!(survivor.end, "70");
        assert!(
            survivor.named_victim,
            "{}: the survivor says who failed",
            failfast.what
        );
        assert!(survivor.after_ms.unwrap() <= failfast.limit_ms.unwrap());
    }
    assert!(said.contains("all left within"), "{said}");
}

#[test]
fn the_orchestrator_adds_little_to_a_step() {
    let scratch = Scratch::new(&twins());
    let (code, said) = run(&scratch, &["--arms", "none", "--steps", "hca", "--repeat", "5"]);
    assert_eq!(code, Some(0), "{said}");
    let receipt: Receipt = receipt(&scratch.path("out"));
    let attempts = &receipt.step("none", "hca").unwrap().attempts;
    let mut took: Vec<f64> = attempts.iter().filter_map(|a| a.took_ms).collect();
    took.sort_by(f64::total_cmp);
    // The step itself is two short processes; a second is generous even on a busy machine.
    assert!(took[took.len() / 2] < 1000.0, "{took:?}");
}

/// Steps that take as long as the heartbeat limit: time enough to interrupt one.
const SELECT: [&str; 4] = ["--arms", "none", "--steps", "failfast-host-stall-*"];

struct Running {
    child: Child,
    run_id: String,
}

/// Starts a long run and waits until both ranks of its step have introduced themselves.
fn running(scratch: &Scratch) -> Running {
    let runner = runner().display().to_string();
    let arguments = [
        "run",
        "inventory.toml",
        "--runner",
        &runner,
        "--out",
        "out",
        "--json",
        "--no-redact",
    ];
    let mut child = scratch
        .command(&[&arguments[..], &SELECT].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut run_id = String::new();
    let mut hellos = 0;
    while hellos < 2 {
        let line: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        if let Some(id) = line["run_id"].as_str() {
            run_id = id.to_owned();
        }
        hellos += usize::from(line["event"] == "hello");
    }
    // Whoever writes must not be stopped by a full pipe.
    std::thread::spawn(move || lines.for_each(drop));
    assert!(
        !processes_with(&run_id).is_empty(),
        "the ranks carry the run's name"
    );
    Running { child, run_id }
}

fn gone_within(run_id: &str, limit: Duration) {
    let end = Instant::now() + limit;
    loop {
        let left = processes_with(run_id);
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "still there: {left:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn signal(child: &Child, signal: nix::sys::signal::Signal) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(child.id() as i32), signal).unwrap();
}

fn is_incomplete(scratch: &Scratch) {
    let report = tp_receipt::verify::verify(&scratch.path("out"), &tp_receipt::verify::Options::default());
    assert!(report.broken.is_empty(), "{}", report.text());
    assert_eq!(report.verdict, Verdict::Incomplete, "{}", report.text());
}

#[test]
fn ctrl_c_and_sigterm_end_every_rank_and_leave_an_incomplete_receipt() {
    use nix::sys::signal::Signal;
    for (sent, code) in [(Signal::SIGINT, 130), (Signal::SIGTERM, 143)] {
        let scratch = Scratch::new(TWO);
        let mut run = running(&scratch);
        signal(&run.child, sent);
        assert_eq!(run.child.wait().unwrap().code(), Some(code));
        gone_within(&run.run_id, Duration::ZERO);
        is_incomplete(&scratch);
        assert_eq!(
            receipt(&scratch.path("out")).interrupted.as_deref(),
            Some(sent.as_str())
        );
    }
}

/// A terminal that takes nothing: a stopped pager, a full pipe.
#[test]
fn a_second_signal_ends_a_run_that_is_stuck_in_what_it_says() {
    use nix::sys::signal::Signal;
    let scratch = Scratch::new(TWO);
    let (taken, mut full) = std::io::pipe().unwrap();
    let pipe_holds = 64 << 10;
    full.write_all(&vec![b'x'; pipe_holds]).unwrap();
    let runner = runner().display().to_string();
    let arguments = ["run", "inventory.toml", "--runner", &runner, "--out", "out"];
    let mut child = scratch
        .command(&[&arguments[..], &SELECT].concat())
        .stdout(Stdio::null())
        .stderr(full)
        .spawn()
        .unwrap();
    let stack = format!("/proc/{}/wchan", child.id());
    let end = Instant::now() + Duration::from_secs(20);
    while !std::fs::read_to_string(&stack).is_ok_and(|place| place.contains("pipe")) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    for _ in 0..2 {
        signal(&child, Signal::SIGTERM);
        std::thread::sleep(Duration::from_millis(200));
    }
    let end = Instant::now() + Duration::from_secs(20);
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status,
            None if Instant::now() > end => {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("two signals did not end it");
            }
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    // Before a run has taken signals over, the first one ends it as it ends any process.
    let by_signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert!(status.code() == Some(143) || by_signal == Some(15), "{status}");
    drop(taken);
}

#[test]
fn after_sigkill_no_rank_is_left_and_the_run_can_be_taken_up_again() {
    let scratch = Scratch::new(TWO);
    let mut run = running(&scratch);
    signal(&run.child, nix::sys::signal::Signal::SIGKILL);
    run.child.wait().unwrap();
    gone_within(&run.run_id, Duration::from_secs(10));
    is_incomplete(&scratch);
    let runner = runner().display().to_string();
    let resume = ["run", "inventory.toml", "--runner", &runner, "--resume", "out"];
    let other = scratch.output(&[&resume[..], &["--arms", "none"]].concat());
    assert_eq!(
        other.status.code(),
        Some(2),
        "another plan is not the same run: {}",
        text(&other.stderr)
    );
    let output = scratch.output(&[&resume[..], &SELECT].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let receipt = receipt(&scratch.path("out"));
    assert_eq!(
        (&receipt.verdict, receipt.resumed),
        (&Verdict::Passed, 1),
        "{:?}",
        receipt.reasons
    );
    assert_eq!(receipt.totals.steps_passed, 2);
}
