//! Names and texts that would move a cursor, begin a line or turn a direction are shown and not obeyed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::fs;
use support::*;
use tp_receipt::event::Kind;
use tp_receipt::receipt::{NotRun, Receipt, Verdict};
use tp_receipt::render;
use tp_receipt::verify::{self, verify};

/// What a text for people may hold beside what stands for itself.
fn assert_visible(what: &str, text: &str) {
    let hidden = |c: &char| {
        (c.is_control() && *c != '\n') || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    assert_eq!(text.chars().find(hidden), None, "{what}: {text:?}");
}

#[test]
fn a_file_name_forges_no_line_of_the_report() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    good_run(&dir, &Shape::default());
    let forged = "a\nwhole: 9 files compared; the run was PASSED";
    for name in [forged, "b\x1b[2Jc", "d\u{202e}e", "f\u{2066}g", "h\u{9b}i"] {
        fs::write(dir.join(name), "").unwrap();
    }
    let report = verify(&dir, &verify::Options::default());
    assert_eq!(report.broken.len(), 5);
    let text = report.text();
    assert_visible("verify", &text);
    assert!(!text.lines().any(|line| line.starts_with("whole: ")), "{text}");
    for shown in [
        "a\\x0awhole: 9",
        "b\\x1b[2Jc",
        "d\\u{202e}e",
        "f\\u{2066}g",
        "h\\u{9b}i",
    ] {
        assert!(text.contains(shown), "{shown}: {text}");
    }
    assert!(
        report.broken.iter().any(|b| b.file == forged),
        "the name itself is kept"
    );
}

const BAD: &str = "x\x1b]0;t\x07 y\u{202e}z\u{2069}\n| PASSED |\n";

/// A receipt with such a text wherever one can be.
fn hostile() -> Receipt {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let (shape, mut store) = after_hca(&dir);
    let step = key("none", "suite-host", 1);
    store.step_begin(step_start(&step, shape.ranks, 3)).unwrap();
    for mut event in good_events(&step, &shape) {
        match &mut event.kind {
            Kind::Setting(setting) => setting.value = BAD.into(),
            Kind::Check(check) => check.reason = check.reason.as_ref().map(|_| BAD.into()),
            _ => {}
        }
        store.event(&event).unwrap();
    }
    let mut ended = step_end(&step, 4);
    ended.errors.push(BAD.into());
    store.step_end(ended).unwrap();
    let left_out = NotRun {
        step: BAD.into(),
        reason: BAD.into(),
        ..NotRun::default()
    };
    store.not_run(left_out).unwrap();
    let mut receipt = store.finish(end(9)).unwrap();
    assert_eq!(verify(&dir, &verify::Options::default()).broken, vec![]);
    let failure = &mut receipt.failures[0];
    failure.log_tails.insert(BAD.into(), vec![BAD.into()]);
    receipt.arms[0].name = BAD.into();
    receipt.arms[0].steps[0].verdict = Verdict::Other(BAD.into());
    receipt.verdict = Verdict::Other(BAD.into());
    receipt
}

#[test]
fn what_people_read_of_a_receipt_holds_no_hidden_character() {
    let receipt = hostile();
    let other = Receipt {
        cluster: Some(BAD.into()),
        ..Receipt::default()
    };
    let page = render::markdown(&receipt);
    assert_visible("Markdown", &page);
    assert!(!page.lines().any(|line| line.starts_with("| PASSED")), "{page}");
    assert!(page.contains("x\\\\x1b\\]0"), "it is shown: {page}");
    assert_visible("terminal", &render::terminal(&receipt, false));
    assert_visible("diff", &tp_receipt::diff::diff(&other, &receipt).text());
    assert_visible("page", &render::html(&receipt));
    let shown = render::visible_receipt(&receipt);
    assert_visible("show", &shown.headline());
    assert!(!shown.headline().contains('\n'));
    let good = Receipt::default();
    assert_eq!(*render::visible_receipt(&good), good);
}
