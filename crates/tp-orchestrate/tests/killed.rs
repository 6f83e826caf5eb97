//! `run` killed at any moment: what is there is whole, and `run --resume` brings it to its end.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{Scratch, TWO, receipt, text};
use std::process::Stdio;
use std::time::{Duration, Instant};
use tp_receipt::receipt::Verdict;
use tp_receipt::verify::{self, verify};

const RUN: &[&str] = &["run", "inventory.toml", "--runner", "./fake-runner"];
const SELECT: &[&str] = &["--arms", "none,roce", "--steps", "roce-host,suite-*"];

/// A part of a run's time, 0 to 1.1, so that its begin and its end come too: the fractional parts of multiples of the
/// golden ratio lie everywhere and never twice on one spot.
fn moment(n: u32) -> f64 {
    (f64::from(n) * 0.618_033_988_75).fract() * 1.1
}

fn killed_after(scratch: &Scratch, arguments: &[&str], after: Duration) {
    let mut command = scratch.command(&[RUN, SELECT, arguments].concat());
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(after);
    let _ = child.kill();
    child.wait().unwrap();
}

/// 10 kills; `TP_KILLS=200` for the long test. Every third one is followed by a kill of the run that took it up.
#[test]
fn killed_at_any_moment_a_run_can_be_taken_up_to_its_end() {
    let kills: u32 = std::env::var("TP_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(10);
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; echo 'a word' >&2; sleep 0.02; summary; ended 0");
    let begun = Instant::now();
    let output = scratch.output(&[RUN, SELECT, &["--out", "whole"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let whole = begun.elapsed();
    let (mut early, mut cut, mut late) = (0, 0, 0);
    for n in 0..kills {
        let name = format!("out-{n}");
        let dir = scratch.path(&name);
        killed_after(&scratch, &["--out", &name], whole.mul_f64(moment(n)));
        if n % 3 == 0 && dir.exists() {
            killed_after(&scratch, &["--resume", &name], whole.mul_f64(moment(n + 1)));
        }
        let mut how = "--resume";
        if dir.exists() {
            let report = verify(&dir, &verify::Options::default());
            assert_eq!(report.broken, vec![], "kill {n}: {}", report.text());
            if report.verdict == Verdict::Passed {
                late += 1;
                continue;
            }
            assert_eq!(report.verdict, Verdict::Incomplete, "kill {n}");
            cut += 1;
        } else {
            early += 1;
            how = "--out";
        }
        let output = scratch.output(&[RUN, SELECT, &[how, &name]].concat());
        assert_eq!(
            output.status.code(),
            Some(0),
            "kill {n}: {}",
            text(&output.stderr)
        );
        let report = verify(&dir, &verify::Options::default());
        assert_eq!(
            (report.broken, report.verdict),
            (vec![], Verdict::Passed),
            "kill {n}"
        );
        assert_eq!(
            receipt(&dir).totals.steps_passed,
            receipt(&scratch.path("whole")).totals.steps_passed
        );
    }
    eprintln!(
        "{kills} kills of a run of {whole:?}: {early} before the receipt was there, {cut} within it, {late} after it"
    );
    assert!(cut > 0, "no kill came within the run ({whole:?})");
}
