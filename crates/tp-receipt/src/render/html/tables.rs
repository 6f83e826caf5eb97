//! The page's tables.

use super::super::view;
use super::{anchor, class, code, escape, section, table, wide};
use crate::receipt::{FailFast, Receipt};
use std::fmt::Write;

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
        let figure = match (s.after_ms, s.error_ms) {
            (None, _) => "unknown".to_owned(),
            (Some(ms), error) if error > 0.0 => format!("{ms:.1} ms ± {error:.1}"),
            (Some(ms), _) => format!("{ms:.1} ms"),
        };
        let width = s.after_ms.unwrap_or(0.0).max(0.0) / slowest * 6.0;
        let _ = write!(
            out,
            "<div><span class=\"bar\" style=\"width:{width:.2}rem\"></span>rank {}: {figure} (exit {})</div>",
            s.rank,
            escape(&s.end)
        );
    }
    if shown.len() > 4 {
        let _ = write!(out, "<div class=\"dim\">and {} faster</div>", shown.len() - 4);
    }
    out
}

/// What was not run, what was skipped, what is not here.
pub fn left_out(receipt: &Receipt, out: &mut String) {
    let mut rows: Vec<Vec<String>> = receipt
        .not_run
        .iter()
        .map(|n| {
            let arm = if n.arm.is_empty() {
                "every arm".into()
            } else {
                escape(&n.arm)
            };
            vec![arm, code(&n.step), escape(&n.reason)]
        })
        .collect();
    for s in &receipt.skipped {
        let what = format!(
            "{}: {} of {}",
            code(&s.step),
            view::plural(s.count, "check"),
            escape(&s.group)
        );
        rows.push(vec![escape(&s.arm), what, escape(&s.reason)]);
    }
    for f in &receipt.set_aside {
        rows.push(vec![
            String::new(),
            format!("file {}", code(&f.file)),
            escape(&f.why),
        ]);
    }
    section(out, "What was not run, or is not here");
    if rows.is_empty() {
        out.push_str("<p>Nothing: every step of the plan ran, and no check was skipped.</p>\n");
    } else {
        table(out, &["arm", "what", "why"], &rows);
    }
    out.push_str("</section>\n");
}

/// Hosts and versions.
pub fn hosts(receipt: &Receipt, out: &mut String) {
    section(out, "Hosts");
    let rows: Vec<Vec<String>> = receipt
        .hosts
        .iter()
        .map(|h| {
            let versions: Vec<String> = h
                .versions
                .iter()
                .map(|(k, v)| format!("{} {}", escape(k), code(v)))
                .collect();
            vec![code(&h.name), view::ranges(&h.ranks), versions.join(", ")]
        })
        .collect();
    table(out, &["host", "ranks", "versions"], &rows);
    out.push_str("</section>\n");
}

/// Settings; those that are not defaults first, the others folded away.
pub fn settings(receipt: &Receipt, out: &mut String) {
    if receipt.settings.is_empty() {
        return;
    }
    section(out, "Settings");
    let head = ["name", "value", "from", "arms", "ranks"];
    let rows = |default: bool| -> Vec<Vec<String>> {
        let chosen = view::settings(receipt).filter(|s| (s.source == "default") == default);
        chosen
            .map(|s| {
                vec![
                    code(&s.name),
                    code(&s.value),
                    escape(&s.source),
                    escape(&s.arms.join(", ")),
                    view::ranges(&s.ranks),
                ]
            })
            .collect()
    };
    let (set, defaults) = (rows(false), rows(true));
    table(out, &head, &set);
    if !defaults.is_empty() {
        let _ = writeln!(out, "<details><summary>{} defaults</summary>", defaults.len());
        table(out, &head, &defaults);
        out.push_str("</details>\n");
    }
    out.push_str("</section>\n");
}

/// Counters that moved.
pub fn counters(receipt: &Receipt, out: &mut String) {
    /// More rows than this are of use to a program only.
    const SHOWN: usize = 500;
    let moved: Vec<_> = receipt.counters.iter().filter(|c| c.before != c.after).collect();
    if moved.is_empty() {
        return;
    }
    section(out, "Counters that moved");
    let show = |n: Option<u64>| n.map_or_else(|| "?".into(), |n| n.to_string());
    let rows: Vec<Vec<String>> = moved
        .iter()
        .take(SHOWN)
        .map(|c| {
            let rank = c.rank.map(|r| r.to_string()).unwrap_or_default();
            let step = format!("{} / {}", escape(&c.arm), escape(&c.step));
            vec![
                step,
                rank,
                code(&c.place),
                escape(&c.name),
                show(c.before),
                show(c.after),
            ]
        })
        .collect();
    table(
        out,
        &["step", "rank", "place", "counter", "before", "after"],
        &rows,
    );
    if moved.len() > SHOWN {
        let _ = writeln!(out, "<p>{} more stand in receipt.json.</p>", moved.len() - SHOWN);
    }
    out.push_str("</section>\n");
}

/// Warnings with a documented code.
pub fn warnings(receipt: &Receipt, out: &mut String) {
    if receipt.warnings.is_empty() {
        return;
    }
    section(out, "Warnings");
    let rows: Vec<Vec<String>> = receipt
        .warnings
        .iter()
        .map(|w| {
            let steps = match w.steps.len() {
                0..=4 => w.steps.join(", "),
                n => format!("{} and {} more", w.steps[..3].join(", "), n - 3),
            };
            vec![
                code(&w.code),
                escape(&w.text),
                escape(&steps),
                view::ranges(&w.ranks),
            ]
        })
        .collect();
    table(out, &["code", "warning", "steps", "ranks"], &rows);
    out.push_str("</section>\n");
}

/// Where all of this comes from.
pub fn provenance(receipt: &Receipt, out: &mut String) {
    section(out, "Where this comes from");
    let binaries: Vec<String> = view::binaries(receipt).into_iter().map(code).collect();
    let images: std::collections::BTreeSet<&String> =
        receipt.hosts.iter().flat_map(|h| &h.image_sha256).collect();
    let images: Vec<String> = images.into_iter().map(|i| code(i)).collect();
    let names = if receipt.redacted {
        "pseudonyms: hosts, users, addresses, serial numbers, GUIDs and paths are replaced; the same host has the same \
         pseudonym in every receipt of one workstation"
    } else {
        "as they are"
    };
    let mut rows = vec![
        vec!["source".to_owned(), code(&view::source(receipt))],
        vec![
            "orchestrator".into(),
            escape(&format!("{} {}", receipt.tool.name, receipt.tool.version)),
        ],
        vec!["runner SHA-256".into(), binaries.join("<br>")],
        vec![
            "kernel image SHA-256".into(),
            if images.is_empty() {
                "none".into()
            } else {
                images.join("<br>")
            },
        ],
        vec!["record SHA-256".into(), code(&receipt.derived_from.sha256)],
        vec!["launcher".into(), escape(&receipt.launcher)],
        vec!["began".into(), escape(&view::time(&receipt.started))],
        vec![
            "ended".into(),
            escape(&view::time(receipt.ended.as_deref().unwrap_or("not"))),
        ],
        vec!["names".into(), names.into()],
    ];
    let plans = view::plans(receipt).into_iter();
    rows.splice(4..4, plans.map(|(what, hash)| vec![what.into(), code(hash)]));
    if receipt.resumed > 0 {
        rows.push(vec![
            "taken up again".into(),
            view::plural(receipt.resumed.into(), "time"),
        ]);
    }
    table(out, &["", ""], &rows);
    out.push_str("</section>\n");
}
