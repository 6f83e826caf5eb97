//! `receipt.md`: the tables that people paste into a pull request.

mod picks;

use super::sheet::{self, Cell, Sheet};
use super::view::{self, Latencies, Series};
use super::visible::visible_receipt;
use crate::receipt::{FailFast, Failure, Receipt, Verdict};
use std::collections::BTreeSet;
use std::fmt::Write;

/// Latency columns of one table.
const COLUMNS: usize = 6;

/// The receipt as Markdown.
pub fn markdown(receipt: &Receipt) -> String {
    let receipt = &*visible_receipt(receipt);
    let mut out = format!("# Receipt: {}\n\n", text(&receipt.headline()));
    for reason in &receipt.reasons {
        let _ = writeln!(out, "- {}", text(reason));
    }
    if !receipt.reasons.is_empty() {
        out.push('\n');
    }
    summary(receipt, &mut out);
    matrix(receipt, &mut out);
    failures(receipt, &mut out);
    common(&sheet::left_out(receipt), &mut out);
    failfast(receipt, &mut out);
    latencies(receipt, &mut out);
    picks::picks(receipt, &mut out);
    let sheets = [
        sheet::warnings(receipt),
        sheet::hosts(receipt),
        sheet::settings(receipt, false),
        sheet::counters(receipt),
        sheet::provenance(receipt),
    ];
    sheets.iter().for_each(|of| common(of, &mut out));
    out
}

/// Text that Markdown is to show as it is, also within a table.
pub fn text(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        match c {
            '\\' | '|' | '*' | '_' | '[' | ']' | '`' | '#' | '~' | '$' | '!' | '@' => {
                out.push('\\');
                out.push(c);
            }
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '\n' | '\r' | '\t' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// A code span, also within a table.
pub fn code(raw: &str) -> String {
    if raw.is_empty() {
        return String::new();
    }
    let raw: String = raw
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let raw = raw.replace('|', "\\|");
    if raw.contains('`') {
        format!("`` {raw} ``")
    } else {
        format!("`{raw}`")
    }
}

fn table(out: &mut String, title: &str, head: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() {
        return;
    }
    let _ = write!(out, "## {title}\n\n");
    raw_table(out, head, rows);
}

fn raw_table(out: &mut String, head: &[&str], rows: Vec<Vec<String>>) {
    let _ = writeln!(out, "| {} |", head.join(" | "));
    let _ = writeln!(out, "|{}", "---|".repeat(head.len()));
    for row in rows {
        let _ = writeln!(out, "| {} |", row.join(" | "));
    }
    out.push('\n');
}

/// A table that the pages have in common.
fn common(of: &Sheet, out: &mut String) {
    table(out, of.title, of.head, rows(of));
    if of.more > 0 {
        let _ = write!(out, "{} more stand in `receipt.json`.\n\n", of.more);
    }
}

fn rows(of: &Sheet) -> Vec<Vec<String>> {
    let row = |row: &Vec<Cell>| row.iter().map(|cell| cell.render(text, code)).collect();
    of.rows.iter().map(row).collect()
}

fn summary(receipt: &Receipt, out: &mut String) {
    let (steps, checks) = sheet::totals(receipt);
    let cluster = format!(
        "{}, {} by {}",
        receipt.cluster.as_deref().unwrap_or("unnamed"),
        view::plural(receipt.world.into(), "rank"),
        receipt.launcher
    );
    let rows = [("steps", steps), ("checks", checks), ("cluster", cluster)];
    let rows = rows.map(|(what, text_of)| vec![what.to_owned(), text(&text_of)]);
    raw_table(out, &["", ""], rows.into());
}

fn matrix(receipt: &Receipt, out: &mut String) {
    let mut head = vec!["step", "scope"];
    let arms: Vec<String> = receipt.arms.iter().map(|a| text(&a.name)).collect();
    head.extend(arms.iter().map(String::as_str));
    let rows = view::step_names(receipt).into_iter().map(|name| {
        let scope = receipt
            .arms
            .iter()
            .filter_map(|a| receipt.step(&a.name, name))
            .map(|s| s.scope.as_str())
            .next();
        let mut row = vec![code(name), text(scope.unwrap_or(""))];
        for arm in &receipt.arms {
            row.push(match receipt.step(&arm.name, name) {
                None => "not run".into(),
                Some(step) => {
                    let word = match step.verdict {
                        Verdict::Passed => "passed".to_owned(),
                        ref other => format!("**{}**", text(other.as_str())),
                    };
                    let more = [view::checks(step), view::took(step)];
                    let more = more
                        .iter()
                        .filter(|m| !m.is_empty())
                        .cloned()
                        .collect::<Vec<_>>()
                        .join("; ");
                    if more.is_empty() {
                        word
                    } else {
                        format!("{word} ({more})")
                    }
                }
            });
        }
        row
    });
    table(out, "Arms and steps", &head, rows.collect());
}

fn failures(receipt: &Receipt, out: &mut String) {
    if receipt.failures.is_empty() {
        return;
    }
    out.push_str("## What went wrong\n\n");
    for failure in &receipt.failures {
        one_failure(failure, out);
    }
}

fn one_failure(failure: &Failure, out: &mut String) {
    let attempt = if failure.attempt > 1 {
        format!(", attempt {}", failure.attempt)
    } else {
        String::new()
    };
    let _ = write!(
        out,
        "### {} / {}{attempt}: {}\n\n",
        text(&failure.arm),
        text(&failure.step),
        text(failure.verdict.as_str())
    );
    for problem in &failure.problems {
        let _ = writeln!(out, "- {}", text(problem));
    }
    for cause in &failure.causes {
        let _ = writeln!(
            out,
            "- **Cause:** {} **Do:** {}",
            text(&cause.cause),
            text(&cause.remedy)
        );
        if !cause.evidence.is_empty() {
            let _ = writeln!(out, "  (seen: {})", code(&cause.evidence));
        }
    }
    out.push('\n');
    for (rank, lines) in failure.log_tails.iter().filter(|(_, lines)| !lines.is_empty()) {
        let longest = lines.iter().map(|l| longest_run(l, '`')).max().unwrap_or(0);
        let fence = "`".repeat(longest.max(2) + 1);
        let _ = write!(
            out,
            "<details><summary>end of the log of rank {}</summary>\n\n{fence}text\n{}\n{fence}\n\n</details>\n\n",
            text(rank),
            lines.join("\n")
        );
    }
}

fn longest_run(line: &str, of: char) -> usize {
    line.split(|c| c != of).map(str::len).max().unwrap_or(0)
}

fn failfast(receipt: &Receipt, out: &mut String) {
    let rows = receipt.failfast.iter().map(|f| {
        vec![
            text(&f.arm),
            code(&f.step),
            format!("rank {}: {}", f.victim, text(&f.victim_end)),
            survivors(f),
            f.limit_ms.map(view::milliseconds).unwrap_or_default(),
            text(f.verdict.as_str()),
        ]
    });
    let head = ["arm", "step", "victim ended", "others left after", "allowed", ""];
    table(out, "Ranks failed on purpose", &head, rows.collect());
}

fn survivors(row: &FailFast) -> String {
    let parts = row
        .survivors
        .iter()
        .map(|s| format!("rank {}: {} (exit {})", s.rank, sheet::after(s), text(&s.end)));
    parts.collect::<Vec<_>>().join(", ")
}

fn latencies(receipt: &Receipt, out: &mut String) {
    let all = view::latencies(receipt);
    if all.is_empty() {
        return;
    }
    out.push_str(
        "## Latencies\n\nMicroseconds an operation, slowest rank: median (10th to 90th percentile).\n\n",
    );
    let series: BTreeSet<&Series> = all.values().flat_map(|s| s.keys()).collect();
    let series: Vec<&Series> = series.into_iter().collect();
    for columns in series.chunks(COLUMNS) {
        latency_table(&all, columns, out);
    }
    if receipt.latencies.iter().any(|l| l.implausible.is_some()) {
        out.push_str(
            "`?` marks figures that cannot be the latency of one exchange; `receipt.json` says why.\n\n",
        );
    }
}

fn latency_table(all: &Latencies, columns: &[&Series], out: &mut String) {
    let names: Vec<String> = columns.iter().map(|s| text(&s.to_string())).collect();
    let mut head = vec!["operation", "bytes"];
    head.extend(names.iter().map(String::as_str));
    let mut rows = Vec::new();
    for (op, series) in all {
        let sizes: BTreeSet<u64> = columns
            .iter()
            .filter_map(|s| series.get(s))
            .flat_map(|points| points.keys().copied())
            .collect();
        for size in sizes {
            let mut row = vec![code(op), view::bytes(size)];
            for column in columns {
                row.push(series.get(column).and_then(|points| points.get(&size)).map_or(
                    String::new(),
                    |p| {
                        let odd = if p.implausible { " ?" } else { "" };
                        let figure = view::microseconds;
                        format!(
                            "{} ({} to {}){odd}",
                            figure(p.median),
                            figure(p.p10),
                            figure(p.p90)
                        )
                    },
                ));
            }
            rows.push(row);
        }
    }
    raw_table(out, &head, rows);
}

/// `rocep1s0f0:1`.
pub fn port(device: &str, port: u32) -> String {
    format!("{device}:{port}")
}
