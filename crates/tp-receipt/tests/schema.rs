//! Records of schema 1 and 2: what the first version of this program wrote is verified and taken up, and passed checks lose
//! nothing by the shorter form.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use support::*;
use tp_receipt::event::{Check, Event, Kind, Outcome};
use tp_receipt::receipt::Verdict;
use tp_receipt::record::Record;
use tp_receipt::store::{Options, Store};
use tp_receipt::verify::{self, verify};

fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/schema-1")
        .join(name)
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let (from, to) = (
            entry.as_ref().unwrap().path(),
            to.join(entry.unwrap().file_name()),
        );
        if from.is_dir() {
            copy(&from, &to);
        } else {
            fs::copy(&from, &to).unwrap();
        }
    }
}

#[test]
fn a_receipt_of_schema_1_is_whole() {
    let report = verify(&kept("sealed"), &verify::Options::default());
    assert_eq!(report.broken, vec![], "{}", report.text());
    assert_eq!(report.verdict, Verdict::Passed);
    assert_eq!(report.receipt.unwrap().totals.checks_passed, 10);
}

/// It goes on in the form of today, and `verify` counts both.
#[test]
fn a_run_that_was_cut_off_in_schema_1_is_taken_up() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    copy(&kept("cut-off"), &dir);
    let report = verify(&dir, &verify::Options::default());
    assert_eq!((report.broken, report.verdict), (vec![], Verdict::Incomplete));
    let mut store = Store::resume(&dir, &plan(), redactor(), Options::default(), &at(20))
        .unwrap()
        .store;
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    let again = key("none", "suite-host", store.next_attempt("none", "suite-host"));
    good_step(&mut store, &again, &shape, 21);
    let receipt = store.finish(end(30)).unwrap();
    assert_eq!(receipt.verdict, Verdict::Passed, "{:?}", receipt.reasons);
    let attempts = &receipt.step("none", "suite-host").unwrap().attempts;
    assert_eq!(
        attempts[0].ranks, attempts[1].ranks,
        "counted alike in both forms"
    );
    let report = verify(&dir, &verify::Options::default());
    assert_eq!((report.broken, report.verdict), (vec![], Verdict::Passed));
}

/// Every check of the record in the order of its rank: name, group, outcome, time.
fn checks(dir: &Path) -> BTreeMap<u32, Vec<(String, String, Outcome, f64)>> {
    let mut named: Vec<(String, String)> = Vec::new();
    let mut out: BTreeMap<u32, Vec<_>> = BTreeMap::new();
    for line in fs::read_to_string(dir.join("events.jsonl")).unwrap().lines() {
        match Record::parse(line).unwrap() {
            Record::Step(_) => named.clear(),
            Record::CheckNames(names) => {
                assert_eq!(names.first as usize, named.len());
                named.extend(names.names.into_iter().map(|name| (name, names.group.clone())));
            }
            Record::Passed(passed) => {
                let numbers = passed.checks.iter().flat_map(|(first, last)| *first..=*last);
                for (number, t) in numbers.zip(&passed.times) {
                    let (name, group) = named[number as usize].clone();
                    out.entry(passed.rank)
                        .or_default()
                        .push((name, group, Outcome::Passed, *t));
                }
            }
            Record::Event(said) => {
                if let (Kind::Check(check), Some(rank)) = (said.event.kind, said.event.rank) {
                    out.entry(rank)
                        .or_default()
                        .push((check.name, check.group, check.outcome, said.event.t));
                }
            }
            _ => {}
        }
    }
    out
}

fn said(rank: u32, t: f64, name: &str, group: &str, outcome: Outcome) -> Event {
    let reason = (outcome != Outcome::Passed).then(|| "for a reason".to_owned());
    let check = Check {
        name: name.into(),
        outcome,
        group: group.into(),
        reason,
    };
    Event::new(t, Some(rank), Kind::Check(check))
}

/// Ranks that speak in turns, in other orders than each other, with names of two groups, failures between and times of
/// every kind: what stands in the record is what they said, and a kill after a flush loses none of it.
#[test]
fn nothing_of_a_check_is_lost() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        ranks: 3,
        arms: vec!["none"],
        ..Shape::default()
    };
    let mut store = create(&dir, &shape);
    let mut expected: BTreeMap<u32, Vec<(String, String, Outcome, f64)>> = BTreeMap::new();
    store
        .step_begin(step_start(&key("none", "suite-host", 1), 3, 1))
        .unwrap();
    for n in 0..600u32 {
        let rank = (n / 2 + n % 5) % 3;
        let which = if rank == 1 { 200 - n / 3 } else { n / 3 };
        // Two groups; some names stand in both.
        let (name, group) = match which % 7 {
            3 => (
                format!("both {}", which % 2),
                if n % 2 == 0 { "core" } else { "graph" },
            ),
            0 => (format!("graph {which} B"), "graph"),
            _ => (format!("host all_reduce {which} B"), "core"),
        };
        let outcome = match n % 50 {
            17 => Outcome::Failed,
            33 => Outcome::Skipped,
            _ => Outcome::Passed,
        };
        let t = f64::from(n) / 7.0 + 1e-9;
        store.event(&said(rank, t, &name, group, outcome)).unwrap();
        expected
            .entry(rank)
            .or_default()
            .push((name, group.to_owned(), outcome, t));
    }
    store.flush().unwrap();
    assert_eq!(checks(&dir), expected);
    drop(store);
    let report = verify(&dir, &verify::Options::default());
    assert_eq!((report.broken, report.verdict), (vec![], Verdict::Incomplete));
    let receipt = report.receipt.unwrap();
    let attempt = &receipt.step("none", "suite-host").unwrap().attempts[0];
    for rank in &attempt.ranks {
        let of = |outcome| expected[&rank.rank].iter().filter(|c| c.2 == outcome).count() as u64;
        let counted = [rank.passed, rank.failed, rank.skipped];
        assert_eq!(
            counted,
            [Outcome::Passed, Outcome::Failed, Outcome::Skipped].map(of)
        );
        let core = expected[&rank.rank].iter().filter(|c| c.1 == "core").count() as u64;
        assert_eq!(rank.groups["core"].iter().sum::<u64>(), core);
    }
}

/// A name is redacted once for all ranks, and a host's name in it does not stay.
#[test]
fn names_of_checks_are_redacted() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let mut store = create(&dir, &Shape::default());
    store
        .step_begin(step_start(&key("none", "suite-host", 1), 2, 1))
        .unwrap();
    for rank in 0..2 {
        let name = format!("ping {} at 10.1.2.3", host(0));
        store
            .event(&said(rank, 0.5, &name, "core", Outcome::Passed))
            .unwrap();
    }
    store.flush().unwrap();
    let record = fs::read_to_string(dir.join("events.jsonl")).unwrap();
    assert!(
        record.contains("ping host-") && !record.contains("10.1.2.3"),
        "{record}"
    );
    assert_eq!(record.matches("ping ").count(), 1, "{record}");
}

/// Lines that no program of ours writes break the receipt instead of counting for something.
#[test]
fn checks_without_a_name_and_names_out_of_order_are_broken() {
    let root = tempfile::tempdir().unwrap();
    let key = r#""arm":"none","step":"suite-host","attempt":1"#;
    let lines = [
        (
            format!(r#"{{"record":"passed",{key},"rank":0,"checks":[[0,5]],"times":[1,1,1,1,1,1]}}"#),
            "and 0 have a name",
        ),
        (
            format!(r#"{{"record":"check_names",{key},"first":4,"group":"core","names":["x"]}}"#),
            "go on with number 4",
        ),
        (
            r#"{"record":"passed","arm":"none","step":"never","attempt":1,"rank":0,"checks":[],"times":[]}"#
                .to_owned(),
            "never began",
        ),
    ];
    for (n, (line, expected)) in lines.iter().enumerate() {
        let dir = root.path().join(n.to_string());
        let mut store = create(&dir, &Shape::default());
        store
            .step_begin(step_start(&support::key("none", "suite-host", 1), 2, 1))
            .unwrap();
        drop(store);
        let path = dir.join("events.jsonl");
        let text = fs::read_to_string(&path).unwrap() + line + "\n";
        fs::write(&path, text).unwrap();
        let report = verify(&dir, &verify::Options::default());
        let said = report.broken.iter().any(|b| b.what.contains(expected));
        assert!(said, "{expected}: {}", report.text());
    }
}
