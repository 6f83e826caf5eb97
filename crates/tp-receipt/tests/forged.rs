//! Receipts that somebody changed and whose sums were redone: what contradicts the record is found all the same.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::path::Path;
use support::*;
use tp_receipt::event::Kind;
use tp_receipt::receipt::Verdict;
use tp_receipt::store::sums::Sums;
use tp_receipt::verify::{self, Report, verify};

fn hash(path: &Path) -> String {
    hex::encode(Sha256::digest(fs::read(path).unwrap()))
}

/// Redoes `SHA256SUMS` for what is there now.
fn redo_sums(dir: &Path) {
    let path = dir.join("SHA256SUMS");
    let mut sums = Sums::parse(&fs::read_to_string(&path).unwrap()).unwrap();
    sums.files.retain(|name, _| dir.join(name).exists());
    for (name, known) in &mut sums.files {
        *known = hash(&dir.join(name));
    }
    fs::write(path, sums.render()).unwrap();
}

fn checked(dir: &Path) -> Report {
    verify(dir, &verify::Options::default())
}

/// A sealed run of one arm; with `failed`, a rank of one step ended with 1.
fn sealed(dir: &Path, failed: bool) {
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    let mut store = create(dir, &shape);
    for (n, name) in (0..).zip(shape.steps()) {
        let step = key("none", &name, 1);
        let start = step_start(&step, shape.ranks, 1 + 2 * n);
        store.step_begin(start).unwrap();
        for mut event in good_events(&step, &shape) {
            if let (Kind::Exit(exit), true) = (&mut event.kind, failed && name == "suite-host") {
                exit.code = Some(1);
            }
            store.event(&event).unwrap();
        }
        store.step_end(step_end(&step, 2 + 2 * n)).unwrap();
    }
    let receipt = store.finish(end(90)).unwrap();
    assert_eq!(receipt.verdict == Verdict::Passed, !failed);
    assert_eq!(checked(dir).broken, vec![]);
}

#[test]
fn a_statement_that_says_otherwise_than_the_record_breaks_it() {
    const NAME: &str = "receipt.intoto.json";
    type Change = fn(&mut Value);
    let cases: [(&str, bool, Change); 7] = [
        ("predicate.result", true, |s| {
            s["predicate"]["result"] = json!("PASSED")
        }),
        ("predicate.result", false, |s| {
            s["predicate"]["result"] = json!("FAILED")
        }),
        ("predicate.failedTests", true, |s| {
            s["predicate"]["failedTests"] = json!([])
        }),
        ("predicate.passedTests", false, |s| {
            s["predicate"]["passedTests"][0] = json!("none/another");
        }),
        ("subject[0].name", false, |s| {
            s["subject"][0]["name"] = json!("other.json")
        }),
        ("subject[1].digest", false, |s| {
            s["subject"][1]["digest"]["sha256"] = json!("00".repeat(32));
        }),
        ("`predicate` has `more`", false, |s| {
            s["predicate"]["more"] = json!(1)
        }),
    ];
    for (what, failed, change) in cases {
        let root = tempfile::tempdir().unwrap();
        let dir = out_dir(&root);
        sealed(&dir, failed);
        let path = dir.join(NAME);
        let mut statement = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        change(&mut statement);
        fs::write(&path, serde_json::to_string_pretty(&statement).unwrap() + "\n").unwrap();
        redo_sums(&dir);
        let report = checked(&dir);
        let found = |b: &verify::Broken| b.file == NAME && b.what.contains(what);
        assert!(report.broken.iter().any(found), "{what}: {}", report.text());
        assert_eq!(report.exit_code(), 1);
    }
}

/// Readers of JSON differ in which of two fields of one name they take.
#[test]
fn a_statement_with_two_results_or_none_at_all_breaks_it() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    sealed(&dir, true);
    let path = dir.join("receipt.intoto.json");
    let text = fs::read_to_string(&path).unwrap();
    let twice = text.replacen("\"result\"", "\"result\": \"PASSED\", \"result\"", 1);
    fs::write(&path, twice).unwrap();
    redo_sums(&dir);
    assert_eq!(
        checked(&dir).broken[0].to_string(),
        "receipt.intoto.json: it is not in the one form that we write"
    );
    fs::remove_file(&path).unwrap();
    redo_sums(&dir);
    let report = checked(&dir);
    assert_eq!(report.broken.len(), 1, "{}", report.text());
    assert_eq!(report.broken[0].file, "receipt.intoto.json");
}
