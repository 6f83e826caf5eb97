//! One line an event of the run, for logs and pipes.

use super::{Reporter, StepReport, counted, excerpt, failures, matrix};
use crate::plan::Plan;
use console::{Style, style};
use std::io::Write;
use std::path::Path;
use tp_receipt::receipt::{NotRun, Receipt, Verdict};
use tp_receipt::record::Record;

/// Writes lines.
pub struct Plain<W: Write> {
    out: W,
}

impl Plain<std::io::Stderr> {
    /// To standard error.
    pub fn stderr() -> Self {
        Self {
            out: std::io::stderr(),
        }
    }
}

impl<W: Write> Plain<W> {
    fn line(&mut self, line: impl AsRef<str>) {
        let _ = writeln!(self.out, "{}", line.as_ref());
    }
}

impl<W: Write> Reporter for Plain<W> {
    fn begin(&mut self, plan: &Plan, out: &Path) {
        self.line(opening(plan, out));
        for left_out in &plan.not_run {
            self.line(format!("not run: {}: {}", left_out.what, left_out.reason));
        }
    }

    fn record(&mut self, record: &Record) {
        match record {
            Record::Step(start) => {
                let ranks: Vec<_> = start
                    .ranks
                    .iter()
                    .map(|r| format!("{}@{}", r.rank, r.host))
                    .collect();
                let shown = if ranks.len() > 8 {
                    format!("{} ranks", ranks.len())
                } else {
                    ranks.join(" ")
                };
                self.line(format!("start  {} [{}] on {shown}", start.key, start.scope));
            }
            Record::NotRun(row) if row.planned => {
                self.line(format!("not run: {}/{}: {}", row.arm, row.step, row.reason));
            }
            _ => {}
        }
    }

    fn step_ended(&mut self, report: &StepReport) {
        for line in ended(report) {
            self.line(line);
        }
    }

    fn tick(&mut self) {}

    fn end(&mut self, receipt: &Receipt, out: &Path) {
        for line in closing(receipt, out) {
            self.line(line);
        }
    }
}

pub(super) fn opening(plan: &Plan, out: &Path) -> String {
    format!(
        "{}: {} by {}, {}, {}; plan {}; receipt in {}",
        plan.cluster,
        counted(plan.world as usize, "rank"),
        plan.launcher,
        counted(plan.arms.len(), "arm"),
        counted(plan.step_count(), "step"),
        &plan.sha256()[..12],
        out.display()
    )
}

pub(super) fn colour(verdict: &Verdict) -> Style {
    let style = Style::new().for_stderr().bold();
    match verdict {
        Verdict::Passed => style.green(),
        Verdict::Failed => style.red(),
        _ => style.yellow(),
    }
}

/// The lines about an attempt that has ended.
pub(super) fn ended(report: &StepReport) -> Vec<String> {
    let word = colour(&report.verdict).apply_to(format!("{:<10}", report.verdict));
    let mut lines = vec![format!("{word} {}  {}", report.key, report.figures)];
    let problems = excerpt::problems(&report.problems);
    lines.extend(problems.iter().map(|problem| format!("    {problem}")));
    for cause in &report.causes {
        lines.push(format!("    likely cause ({}): {}", cause.code, cause.cause));
        lines.push(format!("    what to do: {}", cause.remedy));
    }
    let ranks: Vec<u32> = report.tails.iter().map(|(rank, ..)| *rank).collect();
    let (shown, left) = excerpt::ranks(&report.problems, &ranks);
    let tails = shown
        .iter()
        .filter_map(|rank| report.tails.iter().find(|(r, ..)| r == rank));
    for (rank, path, tail) in tails {
        lines.push(format!("    --- rank {rank}, last lines of {}", path.display()));
        lines.extend(
            tail.iter()
                .map(|line| format!("    {}", style(line).for_stderr().dim())),
        );
    }
    let folder = report.tails.first().and_then(|(_, path, _)| path.parent());
    let folder = folder.map(|folder| folder.display().to_string());
    lines.extend(excerpt::others(left, &folder.unwrap_or_default()).map(|line| format!("    {line}")));
    lines
}

/// The lines at the end of the run: failures again, the matrix, the verdict, where the receipt is.
pub(super) fn closing(receipt: &Receipt, out: &Path) -> Vec<String> {
    let mut lines = vec![String::new()];
    lines.extend(failures(receipt));
    lines.extend(matrix(receipt));
    for left_out in &receipt.not_run {
        lines.push(not_run(left_out));
    }
    lines.push(String::new());
    lines.push(format!(
        "{}",
        colour(&receipt.verdict).apply_to(receipt.headline())
    ));
    if !receipt.verdict.passed() {
        lines.extend(receipt.reasons.iter().map(|reason| format!("  {reason}")));
    }
    lines.push(format!("receipt: {}", out.display()));
    lines
}

/// The line about what was left out; some of it belongs to no arm.
pub fn not_run(left_out: &NotRun) -> String {
    let arm = if left_out.arm.is_empty() {
        String::new()
    } else {
        format!("{}/", left_out.arm)
    };
    format!("not run: {arm}{}: {}", left_out.step, left_out.reason)
}
