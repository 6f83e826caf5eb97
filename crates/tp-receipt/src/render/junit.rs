//! `junit.xml`: one suite an arm, one case a step and one a failed check, for the tools that read such files.

use super::view;
use crate::receipt::{Arm, Receipt, Step, Verdict};
use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestRerun, TestSuite};
use std::time::Duration;

/// The receipt as JUnit XML. A step that did not pass is a failure; one that was cut off an error; a step that was not
/// run is skipped, and an error when the plan had it.
pub fn junit(receipt: &Receipt) -> String {
    let mut report = Report::new(format!("tp-bringup {}", clean(&receipt.headline())));
    for arm in &receipt.arms {
        let mut suite = TestSuite::new(clean(&arm.name));
        for step in &arm.steps {
            suite.add_test_case(case(receipt, arm, step));
        }
        for row in receipt.not_run.iter().filter(|n| n.arm == arm.name) {
            suite.add_test_case(not_run(&row.step, &row.reason, row.planned));
        }
        report.add_test_suite(suite);
    }
    let mut rest = TestSuite::new("every arm");
    for row in receipt
        .not_run
        .iter()
        .filter(|n| !receipt.arms.iter().any(|a| a.name == n.arm))
    {
        rest.add_test_case(not_run(&row.step, &row.reason, row.planned));
    }
    if !receipt.verdict.passed() {
        // The whole must not read as passed where every single step did.
        let mut status = TestCaseStatus::non_success(NonSuccessKind::Error);
        status.set_message(clean(&receipt.reasons.join("; ")));
        rest.add_test_case(TestCase::new(
            format!("verdict: {}", clean(receipt.verdict.as_str())),
            status,
        ));
    }
    if !rest.test_cases.is_empty() {
        report.add_test_suite(rest);
    }
    // The writer fails only on characters that XML cannot hold, and those are gone.
    report
        .to_string()
        .unwrap_or_else(|e| format!("<!-- {} -->\n<testsuites/>\n", clean(&e.to_string())))
}

fn case(receipt: &Receipt, arm: &Arm, step: &Step) -> TestCase {
    let of_step = receipt
        .failures
        .iter()
        .filter(|f| f.arm == arm.name && f.step == step.name);
    let problems: Vec<String> = of_step.clone().flat_map(|f| f.problems.clone()).collect();
    let causes: Vec<String> = of_step
        .flat_map(|f| &f.causes)
        .map(|c| format!("cause: {} do: {}", c.cause, c.remedy))
        .collect();
    let mut status = match step.verdict {
        Verdict::Passed => TestCaseStatus::success(),
        Verdict::Incomplete => TestCaseStatus::non_success(NonSuccessKind::Error),
        _ => TestCaseStatus::non_success(NonSuccessKind::Failure),
    };
    if !step.verdict.passed() {
        status.set_message(clean(problems.first().map_or("", String::as_str)));
        status.set_type(clean(step.verdict.as_str()));
        let text: Vec<String> = problems.iter().chain(&causes).map(|line| clean(line)).collect();
        status.set_description(text.join("\n"));
        for attempt in step.attempts.iter().rev().skip(1).filter(|a| !a.verdict.passed()) {
            let mut rerun = TestRerun::new(NonSuccessKind::Failure);
            rerun.set_message(clean(&format!(
                "attempt {}: {}",
                attempt.attempt,
                attempt.problems.join("; ")
            )));
            status.add_rerun(rerun);
        }
    }
    let mut case = TestCase::new(clean(&step.name), status);
    case.set_classname(clean(&arm.name));
    let took: f64 = step
        .attempts
        .iter()
        .filter_map(|a| a.took_ms)
        .filter(|ms| ms.is_finite() && *ms >= 0.0)
        .sum();
    case.set_time(Duration::from_secs_f64((took / 1000.0).min(1e9)));
    let checks = view::checks(step);
    if !checks.is_empty() {
        case.set_system_out(clean(&checks));
    }
    case
}

fn not_run(step: &str, reason: &str, planned: bool) -> TestCase {
    let mut status = if planned {
        TestCaseStatus::non_success(NonSuccessKind::Error)
    } else {
        TestCaseStatus::skipped()
    };
    status.set_message(clean(&format!("not run: {reason}")));
    TestCase::new(clean(step), status)
}

/// Text that XML can hold.
fn clean(text: &str) -> String {
    let bad = |c: char| (c.is_control() && !matches!(c, '\n' | '\t')) || matches!(c, '\u{fffe}' | '\u{ffff}');
    text.chars()
        .map(|c| if bad(c) { '\u{fffd}' } else { c })
        .collect()
}
