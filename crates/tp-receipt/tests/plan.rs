//! `plan.json` against the record: a step that was taken out of everything else still stands in the plan.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::path::Path;
use support::*;
use tp_receipt::receipt::{Receipt, Verdict};
use tp_receipt::record::RunStart;
use tp_receipt::store::{Options, Store};
use tp_receipt::verify::{self, verify};

fn shape() -> Shape {
    Shape {
        arms: vec!["none"],
        ..Shape::default()
    }
}

/// The plan of the shape's run in the form that `tp-orchestrate plan` prints.
fn full_plan() -> Value {
    let step = |name: &String| {
        let expect = if name.starts_with("failfast-") {
            json!({ "kind": "fail_fast", "inject": "kill", "victim": 1, "within_ms": 3000 })
        } else {
            json!({ "kind": "all_pass" })
        };
        let command = |rank: u32| json!({ "rank": rank, "host": host(rank), "argv": [], "settings": {} });
        json!({
            "name": name,
            "scope": if name == "hca" { "model" } else { "host" },
            "limit_ms": 60_000,
            "expect": expect,
            "commands": [command(0), command(1)],
        })
    };
    let steps: Vec<Value> = shape().steps().iter().map(step).collect();
    json!({ "schema": 1, "world": 2, "arms": [{ "name": "none", "steps": steps }], "not_run": [] })
}

/// Runs these steps to their good end and seals.
fn sealed(dir: &Path, start: RunStart, plan: &Value, steps: &[String]) -> Receipt {
    let mut store = Store::create(dir, start, plan, redactor(), Options::default()).unwrap();
    for (n, name) in (0..).zip(steps) {
        good_step(&mut store, &key("none", name, 1), &shape(), 1 + 2 * n);
    }
    let receipt = store.finish(end(90)).unwrap();
    assert_eq!(receipt.verdict, Verdict::Passed, "{:?}", receipt.reasons);
    receipt
}

fn broken(dir: &Path) -> Vec<String> {
    let report = verify(dir, &verify::Options::default());
    report.broken.iter().map(ToString::to_string).collect()
}

/// What is left is what a run of the other steps would have left: only the plan tells.
#[test]
fn a_step_that_is_gone_from_all_but_the_plan_breaks_it() {
    for gone in shape().steps() {
        let root = tempfile::tempdir().unwrap();
        let dir = out_dir(&root);
        let mut start = shape().start();
        start.planned.retain(|p| p.step != gone);
        let mut steps = shape().steps();
        steps.retain(|step| *step != gone);
        sealed(&dir, start, &full_plan(), &steps);
        let said = format!("plan.json: it lists none/{gone}, and the record did not plan it");
        assert_eq!(broken(&dir), [said]);
    }
}

#[test]
fn a_plan_that_expects_otherwise_than_the_record_breaks_it() {
    type Change = fn(&mut Vec<Value>);
    let cases: [(&str, Change); 7] = [
        ("it does not list none/hca, which the record planned", |s| {
            s.remove(0);
        }),
        ("it lists a step twice", |s| s.push(s[0].clone())),
        (
            "by it rank 1 of none/failfast-host-kill-1 is to end with exit 0, by the record with signal 9",
            |s| s[3]["expect"] = json!({ "kind": "all_pass" }),
        ),
        (
            "by it rank 0 of none/suite-host is to end with exit 70, by the record with exit 0",
            |s| s[1]["expect"] = json!({ "kind": "fail_fast", "inject": "fatal", "victim": 0 }),
        ),
        (
            "its limit for those who survive in none/failfast-host-kill-1 is 2000 ms, the record's 3000 ms",
            |s| s[3]["expect"]["within_ms"] = json!(2000),
        ),
        ("its scope of none/suite-host is gpu, the record's host", |s| {
            s[1]["scope"] = json!("gpu");
        }),
        ("its ranks of none/hca are {0}, the record's {0, 1}", |s| {
            s[0]["commands"].as_array_mut().unwrap().truncate(1);
        }),
    ];
    for (said, change) in cases {
        let root = tempfile::tempdir().unwrap();
        let dir = out_dir(&root);
        let mut plan = full_plan();
        change(plan["arms"][0]["steps"].as_array_mut().unwrap());
        sealed(&dir, shape().start(), &plan, &shape().steps());
        let broken = broken(&dir);
        assert!(
            broken.contains(&format!("plan.json: {said}")),
            "{said}: {broken:?}"
        );
    }
}

/// What an earlier or later version leaves out or adds is not compared.
#[test]
fn plans_that_say_less_or_more_are_whole() {
    type Change = fn(&mut Value);
    let cases: [Change; 6] = [
        |_| {},
        |p| drop(p.as_object_mut().unwrap().remove("arms")),
        |p| p["arms"][0]["steps"][3]["expect"] = json!({ "kind": "of_later", "what": 1 }),
        |p| drop(p["arms"][0]["steps"][1].as_object_mut().unwrap().remove("expect")),
        |p| {
            drop(
                p["arms"][0]["steps"][1]
                    .as_object_mut()
                    .unwrap()
                    .remove("commands"),
            )
        },
        |p| *p = json!({ "schema": 2, "arms": { "none": 1 } }),
    ];
    for (n, change) in cases.into_iter().enumerate() {
        let root = tempfile::tempdir().unwrap();
        let dir = out_dir(&root);
        let mut plan = full_plan();
        change(&mut plan);
        sealed(&dir, shape().start(), &plan, &shape().steps());
        assert_eq!(broken(&dir), [""; 0], "{n}");
    }
}

#[test]
fn a_run_that_was_taken_up_again_has_the_plan_it_began_with() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let mut store = Store::create(
        &dir,
        shape().start(),
        &full_plan(),
        redactor(),
        Options::default(),
    )
    .unwrap();
    good_step(&mut store, &key("none", "hca", 1), &shape(), 1);
    let cut = key("none", "suite-host", 1);
    store.step_begin(step_start(&cut, 2, 3)).unwrap();
    drop(store);
    assert_eq!(broken(&dir), [""; 0]);
    let mut store = Store::resume(&dir, &full_plan(), redactor(), Options::default(), &at(20))
        .unwrap()
        .store;
    for (n, name) in (0..).zip(shape().steps().iter().skip(1)) {
        let step = key("none", name, store.next_attempt("none", name));
        good_step(&mut store, &step, &shape(), 21 + 2 * n);
    }
    assert_eq!(store.finish(end(90)).unwrap().verdict, Verdict::Passed);
    assert_eq!(broken(&dir), [""; 0]);
}
