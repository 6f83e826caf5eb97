//! The receipt directory: written, sealed, verified, cut off, taken up again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use proptest::prelude::*;
use std::fs;
use std::sync::LazyLock;
use support::*;
use tp_receipt::receipt::{Receipt, Verdict};
use tp_receipt::redact::Redactor;
use tp_receipt::store::{Options, Store, StoreError};
use tp_receipt::verify::{self, verify};

fn whole(dir: &std::path::Path) -> verify::Report {
    let report = verify(dir, &verify::Options::default());
    assert_eq!(report.broken, vec![], "{}", report.text());
    assert_eq!(report.exit_code(), 0);
    report
}

#[test]
fn a_good_run_is_passed_and_whole() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let receipt = good_run(&dir, &Shape::default());
    assert_eq!(
        receipt.verdict,
        Verdict::Passed,
        "{:?} {:?}",
        receipt.reasons,
        receipt.failures
    );
    assert_eq!(receipt.headline(), "PASSED (model, host)");
    assert_eq!(receipt.totals.steps_passed, 12);
    assert_eq!(receipt.totals.checks_passed, 30);
    assert_eq!(receipt.totals.checks_skipped, 6);
    let survivor = &receipt.failfast[0].survivors[0];
    assert_eq!(survivor.after_ms, Some(18.0));
    assert!(survivor.named_victim);
    let report = whole(&dir);
    assert_eq!(report.verdict, Verdict::Passed);
    assert_eq!(report.receipt.unwrap(), receipt);
    for file in [
        "receipt.json",
        "receipt.md",
        "report.html",
        "junit.xml",
        "events.jsonl",
        "receipt.intoto.json",
    ] {
        assert!(dir.join(file).is_file(), "{file}");
    }
    assert!(dir.join("logs/none/suite-host/rank-1.log").is_file());
}

#[test]
fn sha256sum_itself_agrees() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    good_run(&dir, &Shape::default());
    let out = std::process::Command::new("sha256sum")
        .args(["--check", "--strict", "--quiet", "SHA256SUMS"])
        .current_dir(&dir)
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// What a killed begin left is taken away by a later one; a begin that is under way is left alone, and so is what is not
/// ours.
#[test]
fn a_killed_begin_is_taken_away_later() {
    let root = tempfile::tempdir().unwrap();
    let old = std::time::SystemTime::now() - std::time::Duration::from_secs(3600);
    let left = |name: &str, file: &str| {
        let dir = root.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join(file), "x").unwrap();
        dir
    };
    let stale = left(".tp-receipt-0011.begin", "plan.json.tmp");
    let fresh = left(".tp-receipt-0022.begin", "plan.json.tmp");
    let foreign = left(".tp-receipt-0033.begin", "thesis.txt");
    for dir in [&stale, &foreign] {
        fs::File::open(dir).unwrap().set_modified(old).unwrap();
    }
    drop(create(&out_dir(&root), &Shape::default()));
    assert!(!stale.exists() && fresh.exists() && foreign.join("thesis.txt").exists());
}

/// Case 122: several runs never share a file.
#[test]
fn an_existing_directory_is_refused_and_left_alone() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("mine"), "x").unwrap();
    let made = Store::create(
        &dir,
        Shape::default().start(),
        &plan(),
        redactor(),
        Options::default(),
    );
    let error = made.err().unwrap();
    assert!(matches!(error, StoreError::Exists(_)));
    assert_eq!(error.exit_code(), 2);
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
    // Nor do two that begin at one moment.
    let twice = root.path().join("twice");
    let begin = || {
        let options = Options::default();
        Store::create(&twice, Shape::default().start(), &plan(), redactor(), options).is_ok()
    };
    let begun: Vec<bool> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..8).map(|_| scope.spawn(begin)).collect();
        all.into_iter().map(|t| t.join().unwrap()).collect()
    });
    assert_eq!(begun.iter().filter(|b| **b).count(), 1);
    whole(&twice);
    assert_eq!(
        fs::read_dir(root.path()).unwrap().count(),
        2,
        "no half begin is left"
    );
}

#[test]
fn a_place_that_cannot_hold_it_is_refused() {
    let made = Store::create(
        std::path::Path::new("/proc/receipt"),
        Shape::default().start(),
        &plan(),
        redactor(),
        Options::default(),
    );
    let error = made.err().unwrap();
    assert_eq!(error.exit_code(), 2, "{error}");
    assert!(error.to_string().contains("/proc/receipt"), "{error}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn any_changed_byte_is_found_and_its_file_named(
        which in any::<prop::sample::Index>(), at in any::<prop::sample::Index>(), change in 1u8..=255, how in 0..8,
    ) {
        static DONE: LazyLock<(tempfile::TempDir, Vec<String>)> = LazyLock::new(|| {
            let root = tempfile::tempdir().unwrap();
            good_run(&out_dir(&root), &Shape { arms: vec!["none"], ..Shape::default() });
            let sums = fs::read_to_string(out_dir(&root).join("SHA256SUMS")).unwrap();
            let listed = sums.lines().filter(|l| !l.starts_with('#'));
            let mut names: Vec<String> = listed.map(|l| l.split_once("  ").unwrap().1.to_owned()).collect();
            assert!(names.len() > 8);
            // As often as all others together, since it protects them.
            names.extend(vec!["SHA256SUMS".to_owned(); names.len()]);
            (root, names)
        });
        let dir = out_dir(&DONE.0);
        let name = which.get(&DONE.1);
        let path = dir.join(name);
        let good = fs::read(&path).unwrap();
        let at = at.index(good.len());
        let mut bad = good.clone();
        match how {
            0 => drop(bad.remove(at)),
            1 => bad.insert(at, change),
            _ => bad[at] ^= change,
        }
        fs::write(&path, &bad).unwrap();
        let report = verify(&dir, &verify::Options::default());
        fs::write(&path, &good).unwrap();
        prop_assert!(bad == good || report.exit_code() == 1, "{} byte {}", name, at);
        prop_assert!(bad == good || report.broken.iter().any(|b| b.file == *name), "{} byte {}: {}", name, at, report.text());
        prop_assert_eq!(verify(&dir, &verify::Options::default()).exit_code(), 0);
    }
}

#[test]
fn a_file_more_or_less_is_found_and_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    good_run(&dir, &Shape::default());
    fs::write(dir.join("extra.txt"), "x").unwrap();
    let report = verify(&dir, &verify::Options::default());
    assert_eq!(report.broken[0].file, "extra.txt");
    fs::remove_file(dir.join("extra.txt")).unwrap();
    for extra in ["more", "logs/none/later/attempt-2"] {
        fs::create_dir_all(dir.join(extra)).unwrap();
        let report = verify(&dir, &verify::Options::default());
        let said = format!("{extra}/: it is an empty directory, and nothing of a receipt");
        assert_eq!(report.broken[0].to_string(), said);
        fs::remove_dir(dir.join(extra)).unwrap();
    }
    fs::remove_dir(dir.join("logs/none/later")).unwrap();
    fs::remove_file(dir.join("receipt.md")).unwrap();
    let report = verify(&dir, &verify::Options::default());
    assert_eq!(report.broken[0].to_string(), "receipt.md: it is missing");
}

/// Somebody who can compute hashes cannot change what the record says.
#[test]
fn a_forged_verdict_with_right_hashes_is_found() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        arms: vec!["none"],
        failfast: false,
        ..Shape::default()
    };
    let mut store = create(&dir, &shape);
    good_step(&mut store, &key("none", "hca", 1), &shape, 1);
    bad_step(&mut store, &key("none", "suite-host", 1), &shape, 3);
    good_step(&mut store, &key("none", "bench-host", 1), &shape, 5);
    assert_eq!(store.finish(end(9)).unwrap().verdict, Verdict::Failed);
    let text = fs::read_to_string(dir.join("receipt.json")).unwrap();
    let forged = text.replacen("FAILED", "PASSED", 1);
    fs::write(dir.join("receipt.json"), &forged).unwrap();
    let sums = fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    let mut sums = tp_receipt::store::sums::Sums::parse(&sums).unwrap();
    let hash = std::process::Command::new("sha256sum")
        .arg(dir.join("receipt.json"))
        .output()
        .unwrap()
        .stdout;
    sums.files.insert(
        "receipt.json".into(),
        String::from_utf8(hash[..64].to_vec()).unwrap(),
    );
    fs::write(dir.join("SHA256SUMS"), sums.render()).unwrap();
    let report = verify(&dir, &verify::Options::default());
    let said: Vec<String> = report.broken.iter().map(ToString::to_string).collect();
    assert!(
        said.iter()
            .any(|s| s == "receipt.json: `verdict` is \"PASSED\"; the record gives \"FAILED\""),
        "{said:?}"
    );
    assert_eq!(report.verdict, Verdict::Failed);
}

#[test]
fn dropped_without_an_end_it_is_incomplete_consistent_and_can_go_on() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let (shape, mut store) = after_hca(&dir);
    let open = key("none", "suite-host", 1);
    store.step_begin(step_start(&open, 2, 3)).unwrap();
    store.event(&hello(0, 2)).unwrap();
    store.log(0, b"half a li").unwrap();
    store.flush().unwrap();
    drop(store);
    let mut events = fs::OpenOptions::new()
        .append(true)
        .open(dir.join("events.jsonl"))
        .unwrap();
    std::io::Write::write_all(&mut events, b"{\"schema\":1,\"t\":0.").unwrap();
    drop(events);
    fs::write(dir.join("receipt.json.tmp"), "{").unwrap();
    let report = whole(&dir);
    assert_eq!(report.verdict, Verdict::Incomplete);
    assert!(
        report.notes.iter().any(|n| n.contains("no whole line")),
        "{:?}",
        report.notes
    );

    let other = serde_json::json!({ "schema": 1, "hosts": [] });
    let refused = Store::resume(&dir, &other, redactor(), Options::default(), &at(10))
        .err()
        .unwrap();
    assert!(refused.to_string().contains("plan is another one"), "{refused}");
    let resumed = Store::resume(&dir, &plan(), redactor(), Options::default(), &at(10)).unwrap();
    assert_eq!(
        resumed.receipt.step("none", "hca").unwrap().verdict,
        Verdict::Passed
    );
    assert_eq!(
        resumed.receipt.step("none", "suite-host").unwrap().verdict,
        Verdict::Incomplete
    );
    let mut store = resumed.store;
    whole(&dir);
    assert_eq!(store.next_attempt("none", "suite-host"), 2);
    good_step(&mut store, &key("none", "suite-host", 2), &shape, 11);
    for (n, step) in ["bench-host", "failfast-host-kill-1"].into_iter().enumerate() {
        good_step(&mut store, &key("none", step, 1), &shape, 13 + 2 * n as u32);
    }
    let receipt = store.finish(end(20)).unwrap();
    assert_eq!(receipt.verdict, Verdict::Passed, "{:?}", receipt.reasons);
    assert_eq!(receipt.resumed, 1);
    assert_eq!(receipt.step("none", "suite-host").unwrap().attempts.len(), 2);
    let report = whole(&dir);
    assert_eq!(report.verdict, Verdict::Passed);
    let again = Store::resume(&dir, &plan(), redactor(), Options::default(), &at(30))
        .err()
        .unwrap();
    assert!(again.to_string().contains("the run has ended"), "{again}");
}

/// A verdict is not stated where what it rests on was changed.
#[test]
fn a_broken_receipt_is_given_no_verdict() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    good_run(&dir, &Shape::default());
    let sums = dir.join("SHA256SUMS");
    fs::write(&sums, fs::read_to_string(&sums).unwrap() + "x\n").unwrap();
    let report = verify(&dir, &verify::Options::default());
    assert_eq!(report.exit_code(), 1);
    assert_eq!(report.verdict, Verdict::Other("UNKNOWN".into()));
    let text = report.text();
    assert!(text.contains("BROKEN SHA256SUMS"), "{text}");
    assert!(text.contains("cannot be trusted"), "{text}");
    for word in ["PASSED", "INCOMPLETE", "the run was"] {
        assert!(!text.contains(word), "{text}");
    }
}

/// Two writers of one receipt would break it for good: the second is refused and changes nothing.
#[test]
fn a_receipt_has_one_writer() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    let take_up = || Store::resume(&dir, &plan(), redactor(), Options::default(), &at(10));
    let refused = |what: &str| {
        let before = fs::read(dir.join("events.jsonl")).unwrap();
        let error = take_up().err().unwrap();
        assert!(matches!(error, StoreError::InUse { .. }), "{what}: {error}");
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert!(text.contains("is in use by another run"), "{text}");
        if let StoreError::InUse {
            process: Some(process),
            ..
        } = error
        {
            assert_eq!(process, std::process::id(), "{text}");
        }
        assert_eq!(fs::read(dir.join("events.jsonl")).unwrap(), before, "{what}");
    };
    let mut store = create(&dir, &shape);
    good_step(&mut store, &key("none", "hca", 1), &shape, 1);
    refused("while the run is under way");
    drop(store);
    let mut store = take_up().unwrap().store;
    refused("while another one has taken it up");
    for (n, step) in shape.steps().iter().skip(1).enumerate() {
        good_step(&mut store, &key("none", step, 1), &shape, 13 + 2 * n as u32);
    }
    assert_eq!(store.finish(end(30)).unwrap().verdict, Verdict::Passed);
    whole(&dir);
    let ended = take_up().err().unwrap();
    assert!(ended.to_string().contains("the run has ended"), "{ended}");
}

/// The directory as it is after every single write of a run: what a kill at that moment would leave.
#[test]
fn every_moment_of_a_run_is_consistent() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    good_run(&dir, &shape);
    let sealed = fs::read_to_string(dir.join("SHA256SUMS")).unwrap();
    let receipt = Receipt::from_json(&fs::read_to_string(dir.join("receipt.json")).unwrap()).unwrap();
    assert!(sealed.contains("# was "));
    // Killed between the two last renames: the sums are the sealed ones, the document is the one before.
    let mut store = create(&root.path().join("twin"), &shape);
    let mut second = 1;
    for step in shape.steps() {
        good_step(&mut store, &key("none", &step, 1), &shape, second);
        second += 2;
    }
    drop(store);
    let twin = root.path().join("twin");
    let report = whole(&twin);
    assert_eq!(report.verdict, Verdict::Incomplete);
    let last = fs::read_to_string(twin.join("receipt.json")).unwrap();
    fs::rename(dir.join("receipt.json"), dir.join("receipt.json.tmp")).unwrap();
    fs::write(dir.join("receipt.json"), last).unwrap();
    let report = whole(&dir);
    assert_eq!(report.verdict, Verdict::Incomplete);
    assert_eq!(receipt.verdict, Verdict::Passed);
}

/// A receipt is there with its sums or not at all.
#[test]
fn a_begin_is_whole_and_lost_sums_are_not() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    drop(create(&dir, &Shape::default()));
    assert_eq!(whole(&dir).verdict, Verdict::Incomplete);
    let names = |dir: &std::path::Path| -> Vec<String> {
        let names = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name());
        names.map(|n| n.into_string().unwrap()).collect()
    };
    assert_eq!(names(root.path()), ["receipt"]);
    for file in ["receipt.json", "events.jsonl", "plan.json", "SHA256SUMS"] {
        let other = root.path().join("other");
        drop(create(&other, &Shape::default()));
        fs::remove_file(other.join(file)).unwrap();
        let report = verify(&other, &verify::Options::default());
        assert_eq!(report.exit_code(), 1, "{file}");
        let missing: Vec<_> = report.broken.iter().filter(|b| b.file == file).collect();
        assert_eq!(missing.len(), 1, "{file}: {}", report.text());
        let resumed = Store::resume(&other, &plan(), redactor(), Options::default(), &at(5));
        assert_eq!(resumed.err().unwrap().exit_code(), 2, "{file}");
        fs::remove_dir_all(other).unwrap();
    }
    let empty = root.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let report = verify(&empty, &verify::Options::default());
    assert_eq!((report.exit_code(), report.verdict.passed()), (2, false));

    let done = root.path().join("done");
    good_run(&done, &Shape::default());
    fs::remove_file(done.join("SHA256SUMS")).unwrap();
    let report = verify(&done, &verify::Options::default());
    assert_eq!(
        (report.exit_code(), report.broken[0].file.as_str()),
        (1, "SHA256SUMS")
    );

    let other = root.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("notes.txt"), "x").unwrap();
    assert_eq!(verify(&other, &verify::Options::default()).exit_code(), 2);
    assert_eq!(
        verify(&root.path().join("none"), &verify::Options::default()).exit_code(),
        2
    );
}

#[test]
fn odd_bytes_and_endless_logs_are_kept_as_far_as_possible_and_said() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        arms: vec!["none"],
        failfast: false,
        ..Shape::default()
    };
    let options = Options {
        log_bytes: 80_000,
        ..Options::default()
    };
    let mut store = Store::create(&dir, shape.start(), &plan(), Redactor::off(), options).unwrap();
    let step = key("none", "suite-host", 1);
    store.step_begin(step_start(&step, 2, 1)).unwrap();
    store.log(0, b"caf\xe9 \xff\n\x1b[2Jgone\n").unwrap();
    for n in 0..20_000 {
        store.log(1, format!("line {n} of many\n").as_bytes()).unwrap();
    }
    store.log(1, &vec![b'x'; 300_000]).unwrap();
    store.log(1, b"\nthe very last").unwrap();
    store.step_end(step_end(&step, 2)).unwrap();
    store.finish(end(3)).unwrap();
    let odd = fs::read_to_string(dir.join("logs/none/suite-host/rank-0.log")).unwrap();
    assert!(odd.starts_with("caf\\xe9 \\xff\n\\x1b[2Jgone\n"), "{odd}");
    assert!(odd.contains("2 bytes of this log were not UTF-8"), "{odd}");
    let long = fs::read_to_string(dir.join("logs/none/suite-host/rank-1.log")).unwrap();
    assert!(long.len() < 81_000, "{}", long.len());
    assert!(long.starts_with("line 0 of many\n"));
    assert!(long.contains("reached its limit of 80000 bytes"));
    assert!(long.contains("bytes were left out]"));
    assert!(
        long.trim_end().ends_with("the very last"),
        "{}",
        &long[long.len() - 100..]
    );
    whole(&dir);
}

/// A large document is not written anew for each quick step; what a kill leaves is whole, and nothing of it is lost.
#[test]
fn a_large_document_may_wait_and_the_record_does_not() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        ranks: 64,
        arms: vec!["none"],
        suites: 16,
        checks: 1,
        failfast: false,
    };
    let mut store = create(&dir, &shape);
    let steps = shape.steps();
    let document = || Receipt::from_json(&fs::read_to_string(dir.join("receipt.json")).unwrap()).unwrap();
    let ended = |receipt: &Receipt| receipt.totals.steps_passed;
    let mut behind = 0;
    for (n, step) in steps.iter().enumerate() {
        let key = key("none", step, 1);
        good_step(&mut store, &key, &shape, 1 + 2 * n as u32);
        assert_eq!(ended(&store.receipt()), n as u64 + 1);
        assert_eq!(ended(&store.step_alone(&key)), 1);
        behind += u32::from(ended(&document()) < n as u64 + 1);
    }
    // Nothing comes for a while, and the document has its turn.
    let begun = std::time::Instant::now();
    while ended(&document()) < steps.len() as u64 {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60));
        std::thread::sleep(std::time::Duration::from_millis(20));
        store.flush().unwrap();
    }
    good_step(&mut store, &key("none", "suite-host", 2), &shape, 90);
    drop(store);
    assert!(behind > 0, "a document of so many ranks waited at least once");
    let report = whole(&dir);
    assert_eq!(report.verdict, Verdict::Incomplete);
    let receipt = report.receipt.unwrap();
    assert_eq!(receipt.step("none", "suite-host").unwrap().attempts.len(), 2);
    let resumed = Store::resume(&dir, &plan(), redactor(), Options::default(), &at(95)).unwrap();
    assert_eq!(ended(&resumed.receipt), steps.len() as u64);
    assert_eq!(ended(&document()), steps.len() as u64);
}
