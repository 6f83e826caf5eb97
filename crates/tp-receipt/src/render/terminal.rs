//! A receipt on a terminal.

use super::visible::is_hidden;
use super::{sheet, view};
use crate::receipt::{Receipt, Verdict};
use std::fmt::Write;

/// The receipt in a screen or two; with `color`, the verdicts stand out.
pub fn terminal(receipt: &Receipt, color: bool) -> String {
    let paint = Paint(color);
    let mut out = format!("{}\n", paint.verdict(&receipt.verdict, &receipt.headline()));
    for reason in &receipt.reasons {
        let _ = writeln!(out, "  {}", plain(reason));
    }
    let totals = &receipt.totals;
    let _ = writeln!(
        out,
        "  {} checks passed, {} failed, {} skipped; {}; source {}",
        totals.checks_passed,
        totals.checks_failed,
        totals.checks_skipped,
        view::plural(receipt.world.into(), "rank"),
        plain(&view::source(receipt)),
    );
    matrix(receipt, paint, &mut out);
    failfast(receipt, &mut out);
    failures(receipt, paint, &mut out);
    if !receipt.not_run.is_empty() {
        out.push_str("\nnot run\n");
        for row in &receipt.not_run {
            let arm = if row.arm.is_empty() { "every arm" } else { &row.arm };
            let _ = writeln!(
                out,
                "  {} / {}: {}",
                plain(arm),
                plain(&row.step),
                plain(&row.reason)
            );
        }
    }
    for (arms, steps, row) in sheet::alike(&receipt.skipped) {
        let _ = writeln!(
            out,
            "  {} / {}: {} of {}{} skipped: {}",
            plain(&arms.join(", ")),
            plain(&steps.join(", ")),
            view::plural(row.count, "check"),
            plain(&row.group),
            sheet::each(&arms, &steps),
            plain(&row.reason)
        );
    }
    for row in &receipt.set_aside {
        let _ = writeln!(out, "  set aside: {} ({})", plain(&row.file), plain(&row.why));
    }
    out
}

#[derive(Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn verdict(self, verdict: &Verdict, text: &str) -> String {
        let text = plain(text);
        if !self.0 {
            return text;
        }
        let code = match verdict {
            Verdict::Passed => "1;32",
            Verdict::Failed => "1;31",
            _ => "1;33",
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }
}

/// Text without anything that moves a cursor, sets a colour or turns the direction.
fn plain(text: &str) -> String {
    text.chars().map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}

fn matrix(receipt: &Receipt, paint: Paint, out: &mut String) {
    let names = view::step_names(receipt);
    let wide = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).max(4);
    let cell = receipt
        .arms
        .iter()
        .map(|a| a.name.chars().count())
        .max()
        .unwrap_or(0)
        .max(10);
    let _ = write!(out, "\n{:wide$}  {:8}", "step", "scope");
    for arm in &receipt.arms {
        let _ = write!(out, "  {:cell$}", plain(&arm.name));
    }
    out.push('\n');
    for name in names {
        let steps: Vec<_> = receipt
            .arms
            .iter()
            .map(|arm| receipt.step(&arm.name, name))
            .collect();
        let scope = steps.iter().flatten().next().map_or("", |s| s.scope.as_str());
        let _ = write!(out, "{:wide$}  {:8}", plain(name), plain(scope));
        for step in steps {
            match step {
                None => {
                    let _ = write!(out, "  {:cell$}", "not run");
                }
                Some(step) => {
                    let word = step.verdict.as_str();
                    let padding = cell.saturating_sub(word.chars().count());
                    let _ = write!(out, "  {}{:padding$}", paint.verdict(&step.verdict, word), "");
                }
            }
        }
        out.push('\n');
    }
}

fn failfast(receipt: &Receipt, out: &mut String) {
    let after: Vec<f64> = receipt
        .failfast
        .iter()
        .flat_map(|f| &f.survivors)
        .filter_map(|s| s.after_ms)
        .collect();
    let Some(worst) = after.iter().copied().reduce(f64::max) else {
        return;
    };
    let _ = writeln!(
        out,
        "\n{} on purpose; the last survivor left {worst:.1} ms after its injection",
        view::plural(receipt.failfast.len() as u64, "failure")
    );
}

fn failures(receipt: &Receipt, paint: Paint, out: &mut String) {
    for failure in &receipt.failures {
        let place = format!("{} / {}", failure.arm, failure.step);
        let attempt = if failure.attempt > 1 {
            format!(" attempt {}", failure.attempt)
        } else {
            String::new()
        };
        let word = paint.verdict(&failure.verdict, failure.verdict.as_str());
        let _ = writeln!(out, "\n{word} {}{attempt}", plain(&place));
        for problem in &failure.problems {
            let _ = writeln!(out, "  {}", plain(problem));
        }
        for cause in &failure.causes {
            let _ = writeln!(out, "  cause: {}", plain(&cause.cause));
            let _ = writeln!(out, "  do:    {}", plain(&cause.remedy));
        }
        for (rank, lines) in &failure.log_tails {
            let _ = writeln!(out, "  end of the log of rank {}:", plain(rank));
            for line in lines {
                let _ = writeln!(out, "    {}", plain(line));
            }
        }
    }
}
