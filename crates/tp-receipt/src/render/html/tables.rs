//! The page's tables.

use super::super::sheet::{self, Cell, Sheet};
use super::super::view;
use super::{anchor, class, code, escape, section, table, wide};
use crate::receipt::{FailFast, Receipt};
use std::fmt::Write;

/// A table of more rows than this is folded away: of many ranks it would bury what stands below it.
const SHOWN: usize = 24;

/// The matrix as a grid: steps down, arms across.
pub fn matrix(receipt: &Receipt, out: &mut String) {
    section(out, "Arms and steps");
    let _ = write!(
        out,
        "<div class=\"{}\"><table class=\"grid\">\n<thead><tr><th>step</th><th>scope</th>",
        wide(receipt.arms.len() + 2)
    );
    for arm in &receipt.arms {
        let _ = write!(out, "<th scope=\"col\">{}</th>", escape(&arm.name));
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for name in view::step_names(receipt) {
        let steps: Vec<_> = receipt
            .arms
            .iter()
            .map(|arm| receipt.step(&arm.name, name))
            .collect();
        let scope = steps.iter().flatten().next().map_or("", |s| s.scope.as_str());
        let _ = write!(
            out,
            "<tr><td class=\"name\">{}</td><td class=\"name dim\">{}</td>",
            code(name),
            escape(scope)
        );
        for (arm, step) in receipt.arms.iter().zip(steps) {
            let Some(step) = step else {
                out.push_str("<td class=\"none\">not run</td>");
                continue;
            };
            let word = escape(step.verdict.as_str());
            let failed = receipt
                .failures
                .iter()
                .any(|f| f.arm == arm.name && f.step == step.name);
            let word = if failed {
                format!("<a href=\"#{}\">{word}</a>", anchor(&arm.name, &step.name))
            } else {
                word
            };
            let checks = view::checks(step);
            let checks = if checks.is_empty() {
                String::new()
            } else {
                format!("{checks}; ")
            };
            let attempts = if step.attempts.len() > 1 {
                format!("; {}", view::plural(step.attempts.len() as u64, "attempt"))
            } else {
                String::new()
            };
            let _ = write!(
                out,
                "<td class=\"{}\"><b>{word}</b><small>{checks}{}{attempts}</small></td>",
                class(&step.verdict),
                view::took(step)
            );
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// Injections and how soon the others left.
pub fn failfast(receipt: &Receipt, out: &mut String) {
    if receipt.failfast.is_empty() {
        return;
    }
    section(out, "Ranks failed on purpose");
    let slowest = receipt
        .failfast
        .iter()
        .flat_map(|f| &f.survivors)
        .filter_map(|s| s.after_ms);
    let slowest = slowest.fold(1.0, f64::max);
    let rows: Vec<Vec<String>> = receipt
        .failfast
        .iter()
        .map(|f| {
            vec![
                escape(&f.arm),
                code(&f.step),
                format!("rank {}: {}", f.victim, escape(&f.victim_end)),
                survivors(f, slowest),
                f.limit_ms.map(view::milliseconds).unwrap_or_default(),
                escape(f.verdict.as_str()),
            ]
        })
        .collect();
    table(
        out,
        &["arm", "step", "victim ended", "others left after", "allowed", ""],
        &rows,
    );
    out.push_str("</section>\n");
}

fn survivors(row: &FailFast, slowest: f64) -> String {
    let mut out = String::new();
    // Of a large world the slowest tell the story.
    let mut shown: Vec<_> = row.survivors.iter().collect();
    shown.sort_by(|a, b| {
        b.after_ms
            .unwrap_or(f64::MAX)
            .total_cmp(&a.after_ms.unwrap_or(f64::MAX))
    });
    for s in shown.iter().take(4) {
        let width = s.after_ms.unwrap_or(0.0).max(0.0) / slowest * 6.0;
        let _ = write!(
            out,
            "<div><span class=\"bar\" style=\"width:{width:.2}rem\"></span>rank {}: {} (exit {})</div>",
            s.rank,
            sheet::after(s),
            escape(&s.end)
        );
    }
    if shown.len() > 4 {
        let _ = write!(out, "<div class=\"dim\">and {} faster</div>", shown.len() - 4);
    }
    out
}

/// A table that the pages have in common, as a section of its own; nothing where it has no rows.
pub fn sheet(of: &Sheet, out: &mut String) {
    if !of.rows.is_empty() {
        section(out, of.title);
        rows(of, out);
        out.push_str("</section>\n");
    }
}

fn cells(of: &Sheet) -> Vec<Vec<String>> {
    let row = |row: &Vec<Cell>| row.iter().map(|cell| cell.render(escape, code)).collect();
    of.rows.iter().map(row).collect()
}

fn rows(of: &Sheet, out: &mut String) {
    let rows = cells(of);
    let folded = rows.len() > SHOWN;
    if folded {
        let _ = writeln!(out, "<details><summary>{} rows</summary>", rows.len());
    }
    table(out, of.head, &rows);
    if of.more > 0 {
        let _ = writeln!(out, "<p>{} more stand in receipt.json.</p>", of.more);
    }
    if folded {
        out.push_str("</details>\n");
    }
}

/// What was not run, what was skipped, what is not here; said also where that is nothing.
pub fn left_out(receipt: &Receipt, out: &mut String) {
    let of = sheet::left_out(receipt);
    if of.rows.is_empty() {
        section(out, of.title);
        out.push_str("<p>Nothing: every step of the plan ran, and no check was skipped.</p>\n</section>\n");
    }
    sheet(&of, out);
}

/// Settings; those that are not defaults first, the others folded away.
pub fn settings(receipt: &Receipt, out: &mut String) {
    if receipt.settings.is_empty() {
        return;
    }
    let (set, defaults) = (sheet::settings(receipt, false), sheet::settings(receipt, true));
    section(out, set.title);
    if set.rows.is_empty() {
        out.push_str("<p>None: all are defaults.</p>\n");
    } else {
        rows(&set, out);
    }
    if !defaults.rows.is_empty() {
        let _ = writeln!(
            out,
            "<details><summary>{} defaults</summary>",
            defaults.rows.len()
        );
        table(out, defaults.head, &cells(&defaults));
        out.push_str("</details>\n");
    }
    out.push_str("</section>\n");
}
