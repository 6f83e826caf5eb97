//! The writer killed at any moment: by chance all over a run, and at every single call that changes the disk.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use support::*;
use tp_receipt::receipt::{Receipt, Verdict};
use tp_receipt::store::{Options, Store};
use tp_receipt::verify::{self, verify};

/// Where the process that is killed writes.
const CHILD: &str = "TP_RECEIPT_KILLED_WRITER";
/// A host that becomes known only when the run ends, so that the scan finds it in a log, the record and the plan.
const LATE: &str = "late-name-77";

fn small() -> Shape {
    Shape {
        arms: vec!["none"],
        ..Shape::default()
    }
}

/// Not a test of its own: the process that is killed.
#[test]
fn killed_writer() {
    if let Some(dir) = std::env::var_os(CHILD) {
        begin_and_end(Path::new(&dir));
    }
}

fn begin_and_end(dir: &Path) -> Receipt {
    let mut start = small().start();
    start.cluster = Some(format!("cluster of {LATE}"));
    let store = Store::create(dir, start, &plan(), redactor(), Options::default()).unwrap();
    to_the_end(store, 0)
}

/// Runs what is still to be run.
fn to_the_end(mut store: Store, resumed: u32) -> Receipt {
    let shape = small();
    let mut second = 1 + resumed * 100;
    let before = store.receipt();
    for arm in &shape.arms {
        for step in shape.steps() {
            if before.step(arm, &step).is_some_and(|s| s.verdict.passed()) {
                continue;
            }
            let attempt = store.next_attempt(arm, &step);
            let key = key(arm, &step, attempt);
            store.step_begin(step_start(&key, shape.ranks, second)).unwrap();
            for event in good_events(&key, &shape) {
                store.event(&event).unwrap();
            }
            store.log(0, b"nothing of note\n").unwrap();
            store.log(1, format!("connected to {LATE}\n").as_bytes()).unwrap();
            store.step_end(step_end(&key, second + 1)).unwrap();
            second += 2;
        }
    }
    store.redactor().host(LATE);
    store.finish(end(second)).unwrap()
}

/// What a killed writer left is nothing at all, or a whole receipt, and can be brought to its end. Gives whether it was
/// cut off.
fn is_sound(dir: &Path, when: &str) -> bool {
    if !dir.exists() {
        assert_eq!(begin_and_end(dir).verdict, Verdict::Passed, "{when}");
        return false;
    }
    let report = verify(dir, &verify::Options::default());
    assert_eq!(report.broken, vec![], "{when}: {}", report.text());
    if report.verdict == Verdict::Passed {
        return false;
    }
    assert_eq!(report.verdict, Verdict::Incomplete, "{when}");
    let resume = Store::resume(dir, &plan(), redactor(), Options::default(), &at(90));
    let receipt = to_the_end(resume.unwrap_or_else(|e| panic!("{when}: {e}")).store, 1);
    assert_eq!(receipt.verdict, Verdict::Passed, "{when}: {:?}", receipt.reasons);
    let report = verify(dir, &verify::Options::default());
    assert_eq!(
        (&report.broken, &report.verdict),
        (&vec![], &Verdict::Passed),
        "{when}"
    );
    let record = fs::read_to_string(dir.join("events.jsonl")).unwrap();
    // The log is there only where the kill came between its creation and its first line.
    let log = fs::read_to_string(dir.join("logs/none/hca/rank-1.log")).unwrap_or_default();
    assert!(!record.contains(LATE), "{when}: the record has the name");
    assert_eq!(log, "", "{when}");
    true
}

fn writer(dir: &Path, mut command: Command) -> Command {
    command
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "killed_writer"])
        .env(CHILD, dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// 20 kills; `TP_KILLS=200` for the long test.
#[test]
fn killed_at_any_moment_it_is_consistent_and_can_go_on() {
    let kills: u32 = std::env::var("TP_KILLS")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(20);
    let root = tempfile::tempdir().unwrap();
    let spawn = |dir: &Path| writer(dir, Command::new("env")).spawn().unwrap();
    let begun = Instant::now();
    assert!(spawn(&root.path().join("whole")).wait().unwrap().success());
    let whole = begun.elapsed();
    let mut cut = 0;
    for n in 0..kills {
        let dir = root.path().join(format!("run-{n}"));
        let mut child = spawn(&dir);
        // Moments all over the run, its begin and its end included.
        std::thread::sleep(whole.mul_f64(f64::from(n) * 1.1 / f64::from(kills)));
        let _ = child.kill();
        child.wait().unwrap();
        cut += u32::from(is_sound(&dir, &format!("kill {n}")));
    }
    eprintln!("{cut} of {kills} kills came within the run of {whole:?}");
    assert!(cut > 0, "no kill came within the run ({whole:?})");
}

/// Before every rename, removal and truncation of a run one after the other; with `TP_LONG` also before every new
/// directory and every wait for the disk.
#[test]
fn killed_before_any_change_of_the_disk_it_is_consistent_and_can_go_on() {
    let traced = Command::new("strace")
        .args(["-f", "-o", "/dev/null", "true"])
        .output();
    if !traced.is_ok_and(|out| out.status.success()) {
        // Past the test harness, which keeps what a passing test says to itself.
        let said = "SKIPPED: kills before every change of the disk: no strace that may trace here\n";
        std::io::stderr().write_all(said.as_bytes()).unwrap();
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let calls = ["rename", "unlink", "ftruncate", "mkdir", "fsync", "fdatasync"];
    let long = std::env::var_os("TP_LONG").is_some();
    for call in &calls[..if long { 6 } else { 3 }] {
        let mut cut = 0;
        for n in 1.. {
            let dir = root.path().join(format!("{call}-{n}"));
            let mut strace = Command::new("strace");
            let inject = format!("inject={call}:signal=SIGKILL:when={n}");
            strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &inject]);
            let status = writer(&dir, strace).status().unwrap();
            if status.success() {
                break;
            }
            assert!(
                status.signal() == Some(9) || status.code() == Some(137),
                "{call} {n}: {status}"
            );
            cut += u32::from(is_sound(&dir, &format!("before {call} {n}")));
        }
        eprintln!("{call}: cut off {cut} times");
    }
}
