//! Verification of receipts that are large, signed or forged; and what never reads as passed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::*;
use tp_receipt::event::{Event, Kind, Outcome};
use tp_receipt::receipt::{Deriver, Receipt, Verdict};
use tp_receipt::record::{Record, RunEnd, StepEvent};
use tp_receipt::verify::{self, signature, verify};

/// What this process and the kernel for it have worked so far, on all processors.
fn processor_time() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let of = |time: nix::sys::time::TimeVal| Duration::from_micros(time.num_microseconds() as u64);
    of(usage.user_time()) + of(usage.system_time())
}

/// 64 ranks, 3 arms, 20 steps, 200 checks a rank and step: three quarters of a million checks. A debug build, which is
/// many times slower, has a fifth of the checks.
#[test]
fn a_large_receipt_is_written_and_verified_quickly_and_its_page_is_small() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let checks = if cfg!(debug_assertions) { 40 } else { 200 };
    let shape = Shape {
        ranks: 64,
        suites: 18,
        checks,
        failfast: false,
        ..Shape::default()
    };
    assert_eq!(shape.steps().len(), 20);
    let (begun, worked) = (Instant::now(), processor_time());
    let receipt = good_run(&dir, &shape);
    let (written, writing) = (begun.elapsed(), processor_time() - worked);
    let (begun, worked) = (Instant::now(), processor_time());
    let report = verify(&dir, &verify::Options::default());
    let (verified, verifying) = (begun.elapsed(), processor_time() - worked);
    eprintln!(
        "written in {written:?}, {writing:?} of it work; verified in {verified:?}, {verifying:?} of work"
    );
    assert_eq!(report.broken, vec![]);
    assert_eq!(receipt.verdict, Verdict::Passed, "{:?}", receipt.reasons);
    assert_eq!(receipt.totals.checks_passed, 64 * 3 * 18 * u64::from(checks));
    let size = |name: &str| fs::metadata(dir.join(name)).unwrap().len();
    eprintln!(
        "page {} B, document {} B, record {} B",
        size("report.html"),
        size("receipt.json"),
        size("events.jsonl")
    );
    assert!(size("report.html") < 5_000_000);
    // Nor is it long: what has a row for each rank is folded, and what was skipped alike everywhere is said once.
    let page = fs::read_to_string(dir.join("report.html")).unwrap();
    assert!(
        page.contains("<details><summary>64 rows</summary>"),
        "hosts are folded"
    );
    let said = "none, nccl, roce</td><td><code>suite-host</code>, <code>suite-host-1</code>, <code>suite-host-2</code>, \
                <code>suite-host-3</code> and 14 more: 64 checks of core, each";
    assert!(page.contains(said), "skipped checks are put together");
    // The work, since others may have the processors. Other tests of this process may run at the same time.
    let limit = if cfg!(debug_assertions) { 60 } else { 6 };
    assert!(writing + verifying < Duration::from_secs(limit));
}

fn keygen(args: &[&str]) -> bool {
    Command::new("ssh-keygen")
        .args(args)
        .stdout(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

#[test]
fn a_signature_is_checked_when_there_is_one() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    good_run(
        &dir,
        &Shape {
            arms: vec!["none"],
            ..Shape::default()
        },
    );
    let key_of = |name: &str| root.path().join(name).to_str().unwrap().to_owned();
    let (mine, other) = (key_of("mine"), key_of("other"));
    for key in [&mine, &other] {
        assert!(
            keygen(&["-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key]),
            "ssh-keygen is needed here"
        );
    }
    let allowed = |key: &str| {
        let path = root.path().join(format!(
            "allowed-{}",
            Path::new(key).file_name().unwrap().to_str().unwrap()
        ));
        fs::write(
            &path,
            format!(
                "me@example.org {}",
                fs::read_to_string(format!("{key}.pub")).unwrap()
            ),
        )
        .unwrap();
        verify::Options {
            allowed_signers: Some(path),
            ..verify::Options::default()
        }
    };
    let unsigned = verify(&dir, &allowed(&mine));
    assert_eq!(
        unsigned.broken[0].to_string(),
        "SHA256SUMS.sig: it is missing, and a signature was asked for"
    );
    signature::sign(&dir, Path::new(&mine)).unwrap();
    for options in [verify::Options::default(), allowed(&mine)] {
        let report = verify(&dir, &options);
        assert_eq!(report.broken, vec![], "{}", report.text());
        assert!(
            report.notes.iter().any(|n| n.starts_with("signed")),
            "{:?}",
            report.notes
        );
    }
    let by_name = verify::Options {
        signer: Some("me@example.org".into()),
        ..allowed(&mine)
    };
    assert_eq!(verify(&dir, &by_name).exit_code(), 0);
    let wrong_name = verify::Options {
        signer: Some("you@example.org".into()),
        ..allowed(&mine)
    };
    assert_eq!(verify(&dir, &wrong_name).exit_code(), 1);
    let stranger = verify(&dir, &allowed(&other));
    assert_eq!(stranger.broken[0].file, "SHA256SUMS.sig");
    let path = dir.join("SHA256SUMS.sig");
    let good = fs::read(&path).unwrap();
    for at in (0..good.len()).step_by(11).chain([good.len() - 1, 28, 29]) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        fs::write(&path, &bad).unwrap();
        let report = verify(&dir, &verify::Options::default());
        assert!(
            report.broken.iter().any(|b| b.file == "SHA256SUMS.sig"),
            "byte {at}"
        );
    }
    fs::write(&path, good).unwrap();
}

#[test]
fn the_runner_binary_is_compared_when_it_is_given() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    good_run(
        &dir,
        &Shape {
            arms: vec!["none"],
            ..Shape::default()
        },
    );
    let binary = root.path().join("tf-tp-test");
    fs::write(&binary, "another program").unwrap();
    let options = verify::Options {
        binary: Some(binary.clone()),
        ..verify::Options::default()
    };
    let report = verify(&dir, &options);
    assert_eq!(report.exit_code(), 1);
    assert!(report.broken[0].what.contains(BINARY), "{:?}", report.broken);
    let gone = verify::Options {
        binary: Some(root.path().join("none")),
        ..verify::Options::default()
    };
    assert_eq!(verify(&dir, &gone).exit_code(), 2);
}

/// Writes a sealed receipt from records that no orchestrator of ours would write, to see what `verify` says of them.
fn sealed_with(dir: &Path, change: impl Fn(&mut Event)) -> verify::Report {
    let shape = Shape {
        arms: vec!["none"],
        failfast: false,
        ..Shape::default()
    };
    let mut store = create(dir, &shape);
    for (n, name) in shape.steps().into_iter().enumerate() {
        let step = key("none", &name, 1);
        store
            .step_begin(step_start(&step, shape.ranks, 1 + n as u32))
            .unwrap();
        for mut event in good_events(&step, &shape) {
            change(&mut event);
            store.event(&event).unwrap();
        }
        store.step_end(step_end(&step, 1 + n as u32)).unwrap();
    }
    let receipt = store.finish(end(9)).unwrap();
    assert_ne!(receipt.verdict, Verdict::Passed);
    verify(dir, &verify::Options::default())
}

#[test]
fn ranks_that_differ_in_what_must_be_equal_break_it() {
    let root = tempfile::tempdir().unwrap();
    type Change = fn(&mut tp_receipt::event::Hello);
    let cases: [(&str, Change); 4] = [
        ("session", |h| h.session = "other".into()),
        ("runner binary", |h| h.binary_sha256 = "cd".repeat(32)),
        ("world", |h| h.world = 3),
        ("kernel image", |h| h.image_sha256 = Some("ef".repeat(32))),
    ];
    for (n, (what, change)) in cases.into_iter().enumerate() {
        let report = sealed_with(&root.path().join(n.to_string()), |event| {
            if let (Some(1), Kind::Hello(hello)) = (event.rank, &mut event.kind) {
                change(hello);
            }
        });
        assert_eq!(report.exit_code(), 1);
        let expected = format!("the ranks differ in {what}");
        assert!(
            report
                .broken
                .iter()
                .any(|b| b.file == "events.jsonl" && b.what.contains(&expected)),
            "{what}"
        );
    }
}

#[test]
fn times_out_of_order_break_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        arms: vec!["none"],
        failfast: false,
        ..Shape::default()
    };
    let mut store = create(&dir, &shape);
    good_step(&mut store, &key("none", "hca", 1), &shape, 50);
    good_step(&mut store, &key("none", "suite-host", 1), &shape, 20);
    store.finish(end(90)).unwrap();
    let report = verify(&dir, &verify::Options::default());
    assert!(
        report.broken[0]
            .what
            .contains("the begin of none/suite-host is at"),
        "{}",
        report.text()
    );
}

// ---- nothing but a good run is PASSED ----

fn records(shape: &Shape) -> Vec<Record> {
    let mut out = vec![Record::Run(shape.start())];
    let mut second = 1;
    for arm in &shape.arms {
        for name in shape.steps() {
            let key = key(arm, &name, 1);
            out.push(Record::Step(step_start(&key, shape.ranks, second)));
            let events = good_events(&key, shape);
            out.extend(events.into_iter().map(|event| {
                Record::Event(StepEvent {
                    key: Some(key.clone()),
                    event,
                })
            }));
            out.push(Record::StepEnd(step_end(&key, second + 1)));
            second += 2;
        }
    }
    out.push(Record::RunEnd(RunEnd {
        ended: at(second),
        ..RunEnd::default()
    }));
    out
}

fn essential(record: &Record) -> bool {
    let Record::Event(StepEvent { event, .. }) = record else {
        return true;
    };
    matches!(
        event.kind,
        Kind::Hello(_) | Kind::Summary(_) | Kind::Exit(_) | Kind::Inject(_) | Kind::Check(_)
    ) && !matches!((&event.kind, event.rank), (Kind::Hello(_), Some(1)))
}

/// A way in which one record can say that something was not as it should be; `None` where this record has none.
fn harm(record: &Record, how: u8) -> Option<Record> {
    let mut record = record.clone();
    match &mut record {
        Record::Event(StepEvent { event, .. }) => match &mut event.kind {
            Kind::Check(check) if check.outcome == Outcome::Passed => check.outcome = Outcome::Failed,
            Kind::Summary(summary) => match how % 3 {
                0 => summary.failed += 1,
                1 => summary.passed += 1,
                _ => summary.skipped += 1,
            },
            Kind::Exit(exit) => match how % 3 {
                0 => {
                    *exit = tp_receipt::event::Exit {
                        code: Some(1),
                        ..exit.clone()
                    }
                }
                1 => (exit.code, exit.signal) = (None, Some(11)),
                _ => (exit.code, exit.signal) = (None, None),
            },
            Kind::Hello(hello) => match how % 3 {
                0 => hello.session.push('x'),
                1 => hello.world += 1,
                _ => hello.binary_sha256 = "00".repeat(32),
            },
            Kind::Inject(inject) => inject.monotonic_ns = u64::MAX,
            _ => return None,
        },
        Record::StepEnd(end) => match how % 2 {
            0 => end.errors.push("deadline passed".into()),
            _ => end.interrupted = true,
        },
        Record::RunEnd(end) => end.interrupted = Some("SIGINT".into()),
        _ => return None,
    }
    Some(record)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_host_or_step_that_is_not_right_is_never_passed(at in any::<prop::sample::Index>(), how: u8) {
        let shape = Shape { checks: 2, ..Shape::default() };
        let good = records(&shape);
        prop_assert_eq!(Receipt::derive(&good).verdict, Verdict::Passed);
        let which = at.index(good.len());
        if let Some(bad) = harm(&good[which], how) {
            let mut all = good.clone();
            all[which] = bad;
            if all != good {
                let receipt = Receipt::derive(&all);
                prop_assert_ne!(&receipt.verdict, &Verdict::Passed, "{:?} {:?}", all[which], receipt.failures);
                prop_assert_ne!(receipt.verdict.exit_code(), 0);
            }
        }
        // Nor is one from which something is missing: everything from here on, or what a rank must say.
        let receipt = Receipt::derive(&good[..which]);
        prop_assert_ne!(receipt.verdict, Verdict::Passed);
        if essential(&good[which]) {
            let mut all = good.clone();
            all.remove(which);
            prop_assert_ne!(Receipt::derive(&all).verdict, Verdict::Passed, "without {:?}", good[which]);
        }
    }
}

/// Case 118: what another tool says of the cluster's health is kept beside the verdict and is none.
#[test]
fn a_health_report_is_an_attachment_and_no_verdict() {
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    let good = records(&shape);
    let report = |health: &str, key: &tp_receipt::record::StepKey| {
        let line = format!(r#"{{"schema":1,"t":0.1,"rank":0,"event":"ras","health":"{health}"}}"#);
        Record::Event(StepEvent {
            key: Some(key.clone()),
            event: Event::parse(&line).unwrap(),
        })
    };
    for (health, stuck) in [("healthy", true), ("missing ranks", false)] {
        let mut all = Vec::new();
        for record in &good {
            let exit = matches!(record, Record::Event(e) if matches!(e.event.kind, Kind::Exit(_)));
            match record {
                Record::Event(e)
                    if exit && stuck && e.key.as_ref().is_some_and(|k| k.step == "suite-host") =>
                {
                    all.push(report(health, e.key.as_ref().unwrap()));
                }
                Record::Step(step) => all.extend([record.clone(), report(health, &step.key)]),
                other => all.push(other.clone()),
            }
        }
        let expected = if stuck { Verdict::Failed } else { Verdict::Passed };
        assert_eq!(Receipt::derive(&all).verdict, expected, "{health}");
        let line = all
            .iter()
            .map(Record::to_line)
            .find(|line| line.contains("\"ras\""));
        assert!(line.unwrap().contains(health), "the report is kept");
    }
}

#[test]
fn only_warnings_are_warnings() {
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    let mut all = records(&shape);
    let at = all
        .iter()
        .position(|record| matches!(record, Record::Step(_)))
        .unwrap();
    let Record::Step(step) = &all[at] else {
        unreachable!()
    };
    let key = step.key.clone();
    for (level, code) in [("info", "boot"), ("warn", "unprobed")] {
        let line = format!(
            r#"{{"schema":1,"t":0.1,"rank":0,"event":"log","level":"{level}","code":"{code}","text":"said"}}"#
        );
        let event = Event::parse(&line).unwrap();
        let key = Some(key.clone());
        all.insert(at + 1, Record::Event(StepEvent { key, event }));
    }
    let receipt = Receipt::derive(&all);
    let codes: Vec<&str> = receipt
        .warnings
        .iter()
        .map(|warning| warning.code.as_str())
        .collect();
    assert!(
        codes.contains(&"unprobed") && !codes.contains(&"boot"),
        "{codes:?}"
    );
}

#[test]
fn repeats_and_retries_are_all_recorded() {
    let shape = Shape {
        arms: vec!["none"],
        failfast: false,
        ..Shape::default()
    };
    let mut deriver = Deriver::default();
    let mut start = shape.start();
    start.planned.retain(|p| p.step == "suite-host");
    start.planned[0].repeat = 2;
    deriver.push(&Record::Run(start));
    let run = |deriver: &mut Deriver, attempt: u32| {
        let key = key("none", "suite-host", attempt);
        deriver.push(&Record::Step(step_start(&key, 2, attempt)));
        for event in good_events(&key, &shape) {
            deriver.push(&Record::Event(StepEvent {
                key: Some(key.clone()),
                event,
            }));
        }
        deriver.push(&Record::StepEnd(step_end(&key, attempt)));
        deriver.push(&Record::RunEnd(end(9)));
        deriver.receipt()
    };
    let once = run(&mut deriver, 1);
    assert_eq!(once.verdict, Verdict::Incomplete, "one of two repeats");
    let twice = run(&mut deriver, 2);
    assert_eq!(twice.verdict, Verdict::Passed, "{:?}", twice.reasons);
    assert_eq!(twice.step("none", "suite-host").unwrap().attempts.len(), 2);
}
