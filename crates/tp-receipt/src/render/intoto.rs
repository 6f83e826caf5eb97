//! `receipt.intoto.json`: an in-toto Statement with the test-result predicate, for supply-chain tools.

use super::view;
use crate::receipt::{Receipt, Verdict};
use crate::store::files::sha256;
use serde_json::{Value, json};

/// The statement's type.
pub const STATEMENT: &str = "https://in-toto.io/Statement/v1";
/// The predicate's type.
pub const PREDICATE: &str = "https://in-toto.io/attestation/test-result/v0.1";

/// The receipt as a Statement. Its subjects are the runner that was tested and `receipt.json` itself, whose text is
/// `document`. The predicate knows no INCOMPLETE and no FLAKY: everything but PASSED is FAILED there.
pub fn intoto(receipt: &Receipt, document: &str) -> String {
    let mut subjects = vec![json!({
        "name": "receipt.json",
        "digest": { "sha256": sha256(document.as_bytes()) },
    })];
    for binary in view::binaries(receipt) {
        subjects.push(json!({ "name": "tf-tp-test", "digest": { "sha256": binary } }));
    }
    let tests = |of: &dyn Fn(&Verdict) -> bool| -> Vec<Value> {
        let steps = receipt
            .arms
            .iter()
            .flat_map(|arm| arm.steps.iter().map(move |step| (arm, step)));
        let chosen = steps.filter(|(_, step)| of(&step.verdict));
        chosen
            .map(|(arm, step)| format!("{}/{}", arm.name, step.name).into())
            .collect()
    };
    let missing = receipt
        .not_run
        .iter()
        .filter(|n| n.planned)
        .map(|n| format!("{}/{}", n.arm, n.step).into());
    let failed: Vec<Value> = tests(&|v| !matches!(v, Verdict::Passed | Verdict::Flaky))
        .into_iter()
        .chain(missing)
        .collect();
    let mut configuration = vec![json!({
        "name": "plan.json",
        "digest": { "sha256": receipt.plan_sha256 },
    })];
    if let Some(revision) = &receipt.source.revision {
        configuration.push(json!({ "name": "source", "digest": { "gitCommit": revision } }));
    }
    let statement = json!({
        "_type": STATEMENT,
        "subject": subjects,
        "predicateType": PREDICATE,
        "predicate": {
            "result": if receipt.verdict.passed() { "PASSED" } else { "FAILED" },
            "configuration": configuration,
            "passedTests": tests(&|v| *v == Verdict::Passed),
            "warnedTests": tests(&|v| *v == Verdict::Flaky),
            "failedTests": failed,
        },
    });
    let mut text = serde_json::to_string_pretty(&statement).unwrap_or_default();
    text.push('\n');
    text
}
