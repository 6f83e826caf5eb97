//! The tables at the end of a run: the matrix of arms and steps, and the failures once more.

use super::excerpt;
use super::plain::colour;
use tp_receipt::receipt::{Receipt, Step, Verdict};
use tp_receipt::record::StepKey;

/// The matrix, steps down, arms across, with the figures of each cell.
pub fn matrix(receipt: &Receipt) -> Vec<String> {
    let mut names: Vec<(&str, String)> = Vec::new();
    for step in receipt.arms.iter().flat_map(|arm| &arm.steps) {
        if !names.iter().any(|(name, _)| *name == step.name) {
            names.push((&step.name, format!("{} [{}]", step.name, step.scope)));
        }
    }
    if names.is_empty() {
        return Vec::new();
    }
    let mut rows = vec![
        std::iter::once("step".to_owned())
            .chain(receipt.arms.iter().map(|a| a.name.clone()))
            .collect(),
    ];
    for (name, shown) in &names {
        let mut row = vec![shown.clone()];
        for arm in &receipt.arms {
            let step = arm.steps.iter().find(|step| step.name == *name);
            row.push(step.map_or_else(|| "–".to_owned(), |step| cell(receipt, &arm.name, step)));
        }
        rows.push(row);
    }
    aligned(&rows)
}

/// One cell: the verdict and the figures of the last attempt.
fn cell(receipt: &Receipt, arm: &str, step: &Step) -> String {
    let word = match step.verdict {
        Verdict::Passed => "ok",
        ref other => other.as_str(),
    };
    let figures = of_step(receipt, arm, step);
    if figures.is_empty() {
        word.to_owned()
    } else {
        format!("{word} {figures}")
    }
}

/// Checks passed, failed and skipped over all ranks, the time, and for fail-fast steps the slowest survivor.
pub fn figures(receipt: &Receipt, key: &StepKey) -> String {
    receipt
        .step(&key.arm, &key.step)
        .map(|step| of_step(receipt, &key.arm, step))
        .unwrap_or_default()
}

fn of_step(receipt: &Receipt, arm: &str, step: &Step) -> String {
    let last = step.attempts.iter().rev().find(|a| a.ended.is_some());
    let of_attempt = |f: &&tp_receipt::receipt::FailFast| {
        f.arm == arm && f.step == step.name && last.is_some_and(|a| a.attempt == f.attempt)
    };
    if let Some(failfast) = receipt.failfast.iter().find(of_attempt) {
        let slowest = failfast
            .survivors
            .iter()
            .filter_map(|s| s.after_ms)
            .fold(None, |max: Option<f64>, ms| Some(max.map_or(ms, |m| m.max(ms))));
        return slowest.map_or_else(String::new, |ms| format!("all left within {ms:.1} ms"));
    }
    let sum = |of: fn(&tp_receipt::receipt::RankResult) -> u64| step.ranks.iter().map(of).sum::<u64>();
    let mut parts = Vec::new();
    for (count, word) in [
        (sum(|r| r.passed), "passed"),
        (sum(|r| r.failed), "failed"),
        (sum(|r| r.skipped), "skipped"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {word}"));
        }
    }
    if let Some(ms) = last.and_then(|a| a.took_ms) {
        parts.push(format!("{:.1} s", ms / 1e3));
    }
    parts.join(", ")
}

fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| console::measure_text_width(cell))
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<_> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| console::pad_str(cell, *width, console::Alignment::Left, None));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Every failure once more, with its causes.
pub fn failures(receipt: &Receipt) -> Vec<String> {
    let mut lines = Vec::new();
    for failure in &receipt.failures {
        let attempt = if failure.attempt > 1 {
            format!(" (attempt {})", failure.attempt)
        } else {
            String::new()
        };
        let word = colour(&failure.verdict).apply_to(failure.verdict.to_string());
        lines.push(format!("{word} {}/{}{attempt}", failure.arm, failure.step));
        let problems = excerpt::problems(&failure.problems);
        lines.extend(problems.iter().map(|problem| format!("    {problem}")));
        for cause in &failure.causes {
            lines.push(format!("    likely cause ({}): {}", cause.code, cause.cause));
            lines.push(format!("    what to do: {}", cause.remedy));
        }
        let folder = format!("logs/{}/{}", failure.arm, failure.step);
        let ranks: Vec<u32> = failure
            .log_tails
            .keys()
            .filter_map(|rank| rank.parse().ok())
            .collect();
        let (shown, left) = excerpt::ranks(&failure.problems, &ranks);
        for rank in shown {
            lines.push(format!(
                "    --- rank {rank}, last lines of {folder}/rank-{rank}.log"
            ));
            let tail = failure.log_tails.get(&rank.to_string());
            lines.extend(tail.into_iter().flatten().map(|line| format!("    {line}")));
        }
        lines.extend(excerpt::others(left, &folder).map(|line| format!("    {line}")));
    }
    if !lines.is_empty() {
        lines.push(String::new());
    }
    lines
}
