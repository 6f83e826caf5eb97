//! The tables that the pages have in common, in no page's form: each page turns the cells into its own.

use super::view;
use crate::receipt::{Receipt, SkippedChecks, Survivor};
use std::collections::BTreeSet;

/// More counters than this are of use to a program only.
const COUNTERS: usize = 500;

/// Steps that are named where one thing holds for more of them.
const STEPS: usize = 4;

/// A part of a cell.
#[derive(Clone, Debug, PartialEq)]
enum Piece {
    Text(String),
    Code(String),
}

/// A cell: text and code in a row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell(Vec<Piece>);

impl Cell {
    /// Words.
    pub fn text(text: impl Into<String>) -> Self {
        Self::default().and_text(text)
    }

    /// A name, a value, a hash: as it stands.
    pub fn code(code: impl Into<String>) -> Self {
        Self::default().and_code(code)
    }

    /// Names side by side, or a word where there is none.
    fn codes<'a>(codes: impl IntoIterator<Item = &'a str>, none: &str) -> Self {
        let cell = codes
            .into_iter()
            .fold(Self::default(), |cell, code| cell.comma().and_code(code));
        if cell.0.is_empty() { Self::text(none) } else { cell }
    }

    fn and_text(mut self, text: impl Into<String>) -> Self {
        self.0.push(Piece::Text(text.into()));
        self
    }

    fn and_code(mut self, code: impl Into<String>) -> Self {
        self.0.push(Piece::Code(code.into()));
        self
    }

    fn comma(self) -> Self {
        if self.0.is_empty() {
            self
        } else {
            self.and_text(", ")
        }
    }

    /// The cell in a page's form.
    pub fn render(&self, text: impl Fn(&str) -> String, code: impl Fn(&str) -> String) -> String {
        let pieces = self.0.iter().map(|piece| match piece {
            Piece::Text(raw) => text(raw),
            Piece::Code(raw) => code(raw),
        });
        pieces.collect()
    }
}

/// A table; where it has no rows, there is nothing to say.
#[derive(Clone, Debug, Default)]
pub struct Sheet {
    /// What it is about.
    pub title: &'static str,
    /// Names of the columns.
    pub head: &'static [&'static str],
    /// The rows.
    pub rows: Vec<Vec<Cell>>,
    /// Rows that there would be beyond these.
    pub more: usize,
}

/// Where all of it comes from.
pub fn provenance(receipt: &Receipt) -> Sheet {
    let images: BTreeSet<&str> = receipt
        .hosts
        .iter()
        .flat_map(|h| h.image_sha256.iter().map(String::as_str))
        .collect();
    let names = if receipt.redacted {
        "pseudonyms: hosts, users, addresses, serial numbers, GUIDs and paths are replaced; the same host has the same \
         pseudonym in every receipt of one workstation"
    } else {
        "as they are"
    };
    let tool = format!("{} {}", receipt.tool.name, receipt.tool.version);
    let mut rows = vec![
        ("source", Cell::code(view::source(receipt))),
        ("orchestrator", Cell::text(tool)),
        ("launcher", Cell::text(&receipt.launcher)),
        (
            "runner SHA-256",
            Cell::codes(view::binaries(receipt), "not given"),
        ),
        ("kernel image SHA-256", Cell::codes(images, "none")),
    ];
    let plans = view::plans(receipt).into_iter();
    rows.extend(plans.map(|(what, hash)| (what, Cell::code(hash))));
    rows.extend([
        ("SHA-256 of the record", Cell::code(&receipt.derived_from.sha256)),
        ("began", Cell::text(view::time(&receipt.started))),
        (
            "ended",
            Cell::text(view::time(receipt.ended.as_deref().unwrap_or("not"))),
        ),
        ("names", Cell::text(names)),
    ]);
    if receipt.resumed > 0 {
        rows.push((
            "taken up again",
            Cell::text(view::plural(receipt.resumed.into(), "time")),
        ));
    }
    Sheet {
        title: "Where this comes from",
        head: &["", ""],
        rows: rows
            .into_iter()
            .map(|(what, cell)| vec![Cell::text(what), cell])
            .collect(),
        more: 0,
    }
}

/// Hosts and versions.
pub fn hosts(receipt: &Receipt) -> Sheet {
    let rows = receipt.hosts.iter().map(|h| {
        let versions = h.versions.iter().fold(Cell::default(), |cell, (name, version)| {
            cell.comma().and_text(format!("{name} ")).and_code(version)
        });
        let image = Cell::codes(h.image_sha256.iter().map(String::as_str), "none");
        vec![
            Cell::code(&h.name),
            Cell::text(view::ranges(&h.ranks)),
            versions,
            image,
        ]
    });
    Sheet {
        title: "Hosts",
        head: &["host", "ranks", "versions", "kernel image"],
        rows: rows.collect(),
        more: 0,
    }
}

/// Settings that are defaults, or those that are not.
pub fn settings(receipt: &Receipt, defaults: bool) -> Sheet {
    let chosen = view::settings(receipt).filter(|s| (s.source == "default") == defaults);
    let rows = chosen.map(|s| {
        vec![
            Cell::code(&s.name),
            Cell::code(&s.value),
            Cell::text(&s.source),
            Cell::text(s.arms.join(", ")),
            Cell::text(view::ranges(&s.ranks)),
        ]
    });
    Sheet {
        title: if defaults {
            "Defaults"
        } else {
            "Settings that are not defaults"
        },
        head: &["name", "value", "from", "arms", "ranks"],
        rows: rows.collect(),
        more: 0,
    }
}

/// Counters that moved.
pub fn counters(receipt: &Receipt) -> Sheet {
    let moved: Vec<_> = receipt.counters.iter().filter(|c| c.before != c.after).collect();
    let show = |n: Option<u64>| Cell::text(n.map_or_else(|| "?".into(), |n| n.to_string()));
    let rows = moved.iter().take(COUNTERS).map(|c| {
        vec![
            Cell::text(format!("{} / {}", c.arm, c.step)),
            Cell::text(c.rank.map(|r| r.to_string()).unwrap_or_default()),
            Cell::code(&c.place),
            Cell::text(&c.name),
            show(c.before),
            show(c.after),
        ]
    });
    Sheet {
        title: "Counters that moved",
        head: &["step", "rank", "place", "counter", "before", "after"],
        rows: rows.collect(),
        more: moved.len().saturating_sub(COUNTERS),
    }
}

/// Warnings with a documented code.
pub fn warnings(receipt: &Receipt) -> Sheet {
    let rows = receipt.warnings.iter().map(|w| {
        let steps = match w.steps.len() {
            0..=4 => w.steps.join(", "),
            n => format!("{} and {} more", w.steps[..3].join(", "), n - 3),
        };
        vec![
            Cell::code(&w.code),
            Cell::text(&w.text),
            Cell::text(steps),
            Cell::text(view::ranges(&w.ranks)),
        ]
    });
    Sheet {
        title: "Warnings",
        head: &["code", "warning", "steps", "ranks"],
        rows: rows.collect(),
        more: 0,
    }
}

/// What was not run, what was skipped, what is not here.
pub fn left_out(receipt: &Receipt) -> Sheet {
    let not_run = receipt.not_run.iter().map(|n| {
        let arm = if n.arm.is_empty() { "every arm" } else { &n.arm };
        vec![Cell::text(arm), Cell::code(&n.step), Cell::text(&n.reason)]
    });
    let skipped = alike(&receipt.skipped).into_iter().map(|(arms, steps, s)| {
        let shown = steps.iter().take(STEPS).copied();
        let mut what = Cell::codes(shown, "");
        if steps.len() > STEPS {
            what = what.and_text(format!(" and {} more", steps.len() - STEPS));
        }
        let each = each(&arms, &steps);
        let count = format!(": {} of {}{each}", view::plural(s.count, "check"), s.group);
        vec![
            Cell::text(arms.join(", ")),
            what.and_text(count),
            Cell::text(&s.reason),
        ]
    });
    let aside = receipt.set_aside.iter().map(|f| {
        let what = Cell::text("file ").and_code(&f.file);
        vec![Cell::default(), what, Cell::text(&f.why)]
    });
    Sheet {
        title: "What was not run, or is not here",
        head: &["arm", "what", "why"],
        rows: not_run.chain(skipped).chain(aside).collect(),
        more: 0,
    }
}

/// What stands behind a count that holds for each of several arms or steps.
pub fn each(arms: &[&str], steps: &[&str]) -> &'static str {
    if arms.len() * steps.len() > 1 {
        ", each"
    } else {
        ""
    }
}

/// Checks skipped alike in several arms and steps, put together: the arms, the steps, and one of the rows.
pub fn alike(rows: &[SkippedChecks]) -> Vec<(Vec<&str>, Vec<&str>, &SkippedChecks)> {
    let same = |a: &SkippedChecks, b: &SkippedChecks| {
        (&a.group, &a.reason, a.count, a.attempt) == (&b.group, &b.reason, b.count, b.attempt)
    };
    let mut by_step: Vec<(Vec<&str>, &SkippedChecks)> = Vec::new();
    for row in rows {
        match by_step
            .iter_mut()
            .find(|(_, known)| known.step == row.step && same(known, row))
        {
            Some((arms, _)) => arms.push(&row.arm),
            None => by_step.push((vec![&row.arm], row)),
        }
    }
    let mut out: Vec<(Vec<&str>, Vec<&str>, &SkippedChecks)> = Vec::new();
    for (arms, row) in by_step {
        match out
            .iter_mut()
            .find(|(known_arms, _, known)| *known_arms == arms && same(known, row))
        {
            Some((_, steps, _)) => steps.push(&row.step),
            None => out.push((arms, vec![&row.step], row)),
        }
    }
    out
}

/// How soon a survivor left: `18.0 ms`, with the error of two hosts' clocks.
pub fn after(survivor: &Survivor) -> String {
    match (survivor.after_ms, survivor.error_ms) {
        (None, _) => "unknown".to_owned(),
        (Some(ms), error) if error > 0.0 => format!("{ms:.1} ms ± {error:.1}"),
        (Some(ms), _) => format!("{ms:.1} ms"),
    }
}

/// The run's totals: steps, then checks.
pub fn totals(receipt: &Receipt) -> (String, String) {
    let t = &receipt.totals;
    let steps = [
        (t.steps_passed, "passed"),
        (t.steps_failed, "failed"),
        (t.steps_flaky, "flaky"),
        (t.steps_incomplete, "incomplete"),
        (t.steps_not_run, "not run"),
    ];
    let steps = steps
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, w)| format!("{n} {w}"));
    let checks = format!(
        "{} passed, {} failed, {} skipped",
        t.checks_passed, t.checks_failed, t.checks_skipped
    );
    (steps.collect::<Vec<_>>().join(", "), checks)
}
