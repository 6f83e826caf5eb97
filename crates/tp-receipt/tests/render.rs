//! What people and other programs are shown.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::*;
use tp_receipt::diff::diff;
use tp_receipt::receipt::{Receipt, SettingRow, Verdict};
use tp_receipt::render;

fn failed_run(dir: &std::path::Path) -> Receipt {
    let shape = Shape {
        arms: vec!["none", "roce"],
        failfast: false,
        ..Shape::default()
    };
    let mut store = create(dir, &shape);
    good_step(&mut store, &key("none", "hca", 1), &shape, 1);
    bad_step(&mut store, &key("none", "suite-host", 1), &shape, 3);
    good_step(&mut store, &key("none", "suite-host", 2), &shape, 5);
    good_step(&mut store, &key("none", "bench-host", 1), &shape, 7);
    bad_step(&mut store, &key("roce", "suite-host", 1), &shape, 9);
    store.finish(end(12)).unwrap()
}

#[test]
fn a_failure_is_shown_everywhere_with_its_cause_and_log() {
    let root = tempfile::tempdir().unwrap();
    let receipt = failed_run(&out_dir(&root));
    assert_eq!(receipt.verdict, Verdict::Failed);
    assert_eq!(
        receipt.step("none", "suite-host").unwrap().verdict,
        Verdict::Flaky
    );
    assert_eq!(receipt.failures.len(), 2);
    let (md, term) = (render::markdown(&receipt), render::terminal(&receipt, false));
    let (html, junit) = (render::html(&receipt), render::junit(&receipt));
    for (text, place) in [
        (&md, "md"),
        (&term, "terminal"),
        (&html, "html"),
        (&junit, "junit"),
    ] {
        assert!(text.contains("FAILED"), "{place}");
        assert!(
            text.contains("the peer cannot be reached over this port"),
            "{place}"
        );
        assert!(text.contains("look at the cable of rocep1s0f0"), "{place}");
        assert!(
            text.contains("bench-host") && text.contains("of the plan not run"),
            "{place}: {text}"
        );
    }
    for text in [&md, &html, &term] {
        assert!(
            text.contains("ibv_modify_qp failed: errno 110") || text.contains("ibv\\_modify"),
            "{text}"
        );
        assert!(text.contains("FLAKY"));
    }
    let statement: serde_json::Value =
        serde_json::from_str(&render::intoto(&receipt, &receipt.to_json())).unwrap();
    assert_eq!(statement["predicate"]["result"], "FAILED");
    assert_eq!(statement["predicate"]["warnedTests"][0], "none/suite-host");
    assert!(
        statement["predicate"]["failedTests"]
            .as_array()
            .unwrap()
            .contains(&"roce/suite-host".into())
    );
    let color = render::terminal(&receipt, true);
    assert!(color.contains("\x1b[1;31m"));
    assert!(!term.contains('\x1b'));
}

/// Text of a log or an inventory must not become markup.
#[test]
fn everything_is_escaped() {
    let root = tempfile::tempdir().unwrap();
    let mut receipt = failed_run(&out_dir(&root));
    let evil = "<script>alert('x')</script> & | `c` **b** \u{1b}[31m ]]> \"q\"";
    receipt.cluster = Some(evil.into());
    receipt.arms[0].name = evil.into();
    receipt.failures[0].problems.push(evil.into());
    receipt.failures[0].causes[0].evidence = evil.into();
    receipt.failures[0]
        .log_tails
        .insert("0".into(), vec![evil.into(), "```".into()]);
    receipt.hosts[0].versions.insert(evil.into(), evil.into());
    receipt.not_run[0].reason = evil.into();
    receipt.latencies[0].op = evil.into();
    receipt.picks[0].ports[0].device = evil.into();
    let html = render::html(&receipt);
    assert!(!html.contains("<script") && !html.contains('\u{1b}'));
    assert!(html.contains("&lt;script&gt;"));
    let junit = render::junit(&receipt);
    assert!(!junit.contains("<script") && !junit.contains('\u{1b}'));
    let md = render::markdown(&receipt);
    for line in md.lines().filter(|l| l.starts_with('|') || l.starts_with('#')) {
        assert!(!line.contains("<script>") || line.contains('`'), "{line}");
    }
    assert!(
        md.contains("\n````text\n"),
        "the fence is longer than any in the log"
    );
    assert!(!render::terminal(&receipt, false).contains('\u{1b}'));
}

/// What is different at every step for no reason of the run is not a row; arms stand in the plan's order; the plan that
/// was executed and the file have each their hash.
#[test]
fn the_pages_say_what_matters_in_the_order_of_the_plan() {
    let root = tempfile::tempdir().unwrap();
    let mut receipt = good_run(&out_dir(&root), &Shape::default());
    receipt.started = "2026-03-01T12:00:00.123456789Z".into();
    receipt.executed_plan_sha256 = Some("e".repeat(64));
    receipt.arms.reverse();
    let row = |name: &str| SettingRow {
        name: name.into(),
        value: "5".into(),
        source: "orchestrator".into(),
        ..SettingRow::default()
    };
    receipt
        .settings
        .extend([row("TF_TP_PORT"), row("TF_TP_SESSION"), row("TF_TP_SLOT_BYTES")]);
    let (md, html) = (render::markdown(&receipt), render::html(&receipt));
    for page in [&md, &html] {
        assert!(page.contains("SLOT") && !page.contains("TF_TP_PORT") && !page.contains("TF_TP_SESSION"));
        assert!(page.contains("2026-03-01T12:00:00Z") && !page.contains(".123456789"));
        assert!(page.contains("plan as executed") && page.contains(&"e".repeat(64)));
        assert!(page.contains("file plan.json") && page.contains(&receipt.plan_sha256));
    }
    assert!(receipt.to_json().contains("TF_TP_PORT"));
    let head = md.lines().find(|l| l.starts_with("| operation")).unwrap();
    let at = |arm: &str| head.find(&format!(", {arm} |")).unwrap();
    assert!(at("roce") < at("nccl") && at("nccl") < at("none"), "{head}");
    assert!(html.contains("class=\"wide many\"") && html.contains("scrolls sideways"));
}

#[test]
fn the_page_needs_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let receipt = good_run(&out_dir(&root), &Shape::default());
    let html = render::html(&receipt);
    for word in ["http://", "https://", "src=", "@import", "url(", "<script"] {
        assert!(!html.contains(word), "{word}");
    }
    assert!(html.contains("prefers-color-scheme: dark") && html.contains("width=device-width"));
    assert!(
        html.contains("class=\"rail\"") && html.contains("<polyline") && html.contains("class=\"floor\"")
    );
    for tag in [
        "section", "table", "tr", "td", "details", "svg", "figure", "div", "ul", "li", "pre",
    ] {
        let opened = html.matches(&format!("<{tag}>")).count() + html.matches(&format!("<{tag} ")).count();
        assert_eq!(opened, html.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

/// Case 127: operations of one graph are divided, and what cannot be an exchange is marked and never compared.
#[test]
fn a_figure_that_cannot_be_a_latency_is_marked() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let shape = Shape {
        arms: vec!["none"],
        failfast: false,
        ..Shape::default()
    };
    let mut store = create(&dir, &shape);
    good_step(&mut store, &key("none", "hca", 1), &shape, 1);
    good_step(&mut store, &key("none", "suite-host", 1), &shape, 3);
    let bench = key("none", "bench-host", 1);
    store.step_begin(step_start(&bench, 2, 5)).unwrap();
    let figure = |median_us: f64, bytes: u64, sync: &str| {
        let latency = tp_receipt::event::Latency {
            backend: "nccl".into(),
            wire: None,
            op: "all_reduce".into(),
            bytes,
            mode: "graph".into(),
            median_us,
            p10_us: median_us,
            p90_us: median_us,
            samples: 100,
            ops_per_graph: 20,
        };
        let mut event = event(0, tp_receipt::event::Kind::Latency(latency));
        event.extra.insert("sync".into(), sync.into());
        event
    };
    for figure in [
        figure(0.02, 64, "stream"),
        figure(9.0, 4096, "stream"),
        figure(5.0, 1 << 30, "launch"),
    ] {
        store.event(&figure).unwrap();
    }
    for rank in 0..2 {
        let ends = [
            hello(rank, 2),
            summary(rank, 0, 0, 0),
            exit(rank, Some(0), None, 5),
        ];
        ends.iter().for_each(|e| store.event(e).unwrap());
    }
    store.step_end(step_end(&bench, 6)).unwrap();
    let receipt = store.finish(end(9)).unwrap();
    let odd: Vec<bool> = receipt
        .latencies
        .iter()
        .map(|l| l.implausible.is_some())
        .collect();
    assert_eq!(odd, [true, false, true]);
    assert_eq!(
        (
            receipt.latencies[1].ops_per_graph,
            &receipt.latencies[1].extra["sync"]
        ),
        (20, &"stream".into())
    );
    let (md, html) = (render::markdown(&receipt), render::html(&receipt));
    assert!(
        md.contains("0.02 (0.02 to 0.02) ?") && md.contains("graph of 20"),
        "{md}"
    );
    assert_eq!(html.matches("(cannot be a latency)").count(), 2);
    assert_eq!(diff(&receipt, &receipt).compared, 1);
}

/// Case 28: all ways equally slow is a throttle; where one of them is faster it is none.
#[test]
fn rails_and_wires_that_are_equally_slow_are_diagnosed() {
    let bench = |several: f64, one: f64, tcp: f64| {
        let shape = Shape {
            arms: vec!["none"],
            failfast: false,
            ..Shape::default()
        };
        let root = tempfile::tempdir().unwrap();
        let mut store = create(&out_dir(&root), &shape);
        let step = key("none", "bench-roce", 1);
        store.step_begin(step_start(&step, 2, 1)).unwrap();
        for (wire, rails, us) in [("verbs", 2, several), ("verbs", 1, one), ("tcp", 0, tcp)] {
            let latency = tp_receipt::event::Latency {
                backend: "roce".into(),
                wire: Some(wire.into()),
                op: "all_reduce".into(),
                bytes: 16 << 20,
                mode: "eager".into(),
                median_us: us,
                p10_us: us,
                p90_us: us,
                samples: 50,
                ops_per_graph: 1,
            };
            let mut event = event(0, tp_receipt::event::Kind::Latency(latency));
            event.extra.insert("rails".into(), rails.into());
            store.event(&event).unwrap();
        }
        let warnings = store.receipt().warnings;
        warnings
            .into_iter()
            .filter(|w| w.code == "throttled")
            .collect::<Vec<_>>()
    };
    let said = bench(10_300.0, 10_200.0, 10_400.0);
    assert!(
        said.len() == 1 && said[0].text.contains("firmware or driver throttles"),
        "{said:?}"
    );
    assert_eq!(bench(5_200.0, 10_200.0, 10_400.0), vec![], "two rails are faster");
    assert_eq!(
        bench(10_300.0, 10_200.0, 40_000.0),
        vec![],
        "TCP is slower, as it should be"
    );
}

/// Case 125: asked for JSON, an empty result is JSON too, with empty lists.
#[test]
fn an_empty_receipt_is_a_document_with_empty_lists() {
    let text = Receipt::default().to_json();
    let value: serde_json::Value = serde_json::from_str(&text).unwrap();
    for list in ["arms", "latencies", "picks", "failures", "not_run", "hosts"] {
        assert_eq!(value[list], serde_json::json!([]), "{list}");
    }
    assert_eq!(value["verdict"], "INCOMPLETE");
    assert!(render::html(&Receipt::default()).contains("INCOMPLETE"));
    assert!(render::junit(&Receipt::default()).contains("<error"));
}

/// Fields of a later version survive a read and a write at every level.
#[test]
fn unknown_fields_survive_at_every_level() {
    let root = tempfile::tempdir().unwrap();
    let receipt = failed_run(&out_dir(&root));
    let mut value: serde_json::Value = serde_json::from_str(&receipt.to_json()).unwrap();
    let mut levels = 0;
    plant(&mut value, &mut levels, "");
    assert!(levels > 50, "{levels}");
    let read = Receipt::from_json(&value.to_string()).unwrap();
    let again: serde_json::Value = serde_json::from_str(&read.to_json()).unwrap();
    assert_eq!(again, value);
}

/// Adds a field to every object that is a structure of ours; maps of free names get one by being maps.
fn plant(value: &mut serde_json::Value, levels: &mut u32, under: &str) {
    match value {
        serde_json::Value::Array(items) => items.iter_mut().for_each(|i| plant(i, levels, under)),
        serde_json::Value::Object(map) => {
            map.iter_mut().for_each(|(name, item)| plant(item, levels, name));
            if !["versions", "groups", "log_tails", "settings"].contains(&under) || map.contains_key("name") {
                *levels += 1;
                map.insert("later".into(), serde_json::json!({ "n": [1, null, "x"] }));
            }
        }
        _ => {}
    }
}

#[test]
fn words_of_a_later_version_are_kept_and_never_passed() {
    let mut value: serde_json::Value = serde_json::from_str(&Receipt::default().to_json()).unwrap();
    value["verdict"] = "SPLENDID".into();
    value["scope"] = serde_json::json!(["host", "moon"]);
    let receipt = Receipt::from_json(&value.to_string()).unwrap();
    assert_eq!(receipt.verdict, Verdict::Other("SPLENDID".into()));
    assert_eq!(receipt.verdict.exit_code(), 1);
    assert_eq!(receipt.headline(), "SPLENDID (host, moon)");
    assert_eq!(
        serde_json::from_str::<serde_json::Value>(&receipt.to_json()).unwrap(),
        value
    );
}

/// Case 128: figures under another library version are not compared in silence.
#[test]
fn diff_shows_provenance_first_and_calls_no_version_a_regression() {
    let root = tempfile::tempdir().unwrap();
    let a = good_run(&out_dir(&root), &Shape::default());
    let same = diff(&a, &a);
    assert_eq!(same.exit_code(Some(0.0)), 0);
    assert!(same.provenance.is_empty() && same.outcomes.is_empty() && same.latencies.is_empty());
    assert!(same.compared > 0);

    let mut slow = a.clone();
    for row in slow
        .latencies
        .iter_mut()
        .filter(|l| l.wire.as_deref() == Some("shm"))
    {
        for us in [&mut row.median_us, &mut row.p10_us, &mut row.p90_us] {
            *us *= 3.0;
        }
    }
    let moved = diff(&a, &slow);
    assert_eq!(moved.latencies.len(), 9);
    assert_eq!(moved.exit_code(None), 0);
    assert_eq!(moved.exit_code(Some(10.0)), 1);
    assert_eq!(moved.exit_code(Some(250.0)), 0);
    assert!(
        moved.text().contains("slower: all_reduce 16 B"),
        "{}",
        moved.text()
    );
    // Within the spread of both it is noise.
    let mut noise = a.clone();
    noise.latencies.iter_mut().for_each(|l| l.median_us *= 1.2);
    assert!(diff(&a, &noise).latencies.is_empty());

    let mut other = slow.clone();
    other.hosts[0].versions.insert("nccl".into(), "2.30.7".into());
    let refused = diff(&a, &other);
    assert_eq!(refused.exit_code(Some(10.0)), 2);
    assert!(refused.regressions(10.0).is_empty());
    let text = refused.text();
    assert!(
        text.starts_with("environment: nccl is not given in A, 2.30.7 in B\n"),
        "{text}"
    );
    assert!(
        text.contains("different: all_reduce") && !text.contains("slower:"),
        "{text}"
    );

    let mut newer = slow.clone();
    newer.source.revision = Some("fedcba".into());
    newer
        .hosts
        .iter_mut()
        .for_each(|h| h.binary_sha256 = vec!["ab".repeat(32)]);
    let judged = diff(&a, &newer);
    assert!(judged.comparable());
    assert_eq!(judged.exit_code(Some(10.0)), 1);

    let bad = failed_run(&root.path().join("bad"));
    let worse = diff(&a, &bad);
    assert_eq!(worse.exit_code(Some(1e9)), 1);
    assert!(
        worse.text().contains("WORSE: the run: PASSED in A, FAILED in B"),
        "{}",
        worse.text()
    );
}
