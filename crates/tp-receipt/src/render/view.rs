//! What the renderings have in common: the matrix turned into rows, latencies turned into series, figures as text.

use crate::receipt::{LatencyRow, Receipt, SettingRow, Step};
use std::collections::BTreeMap;

/// Step names in the order in which they first ran, over all arms.
pub fn step_names(receipt: &Receipt) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for step in receipt.arms.iter().flat_map(|a| &a.steps) {
        if !names.contains(&step.name.as_str()) {
            names.push(&step.name);
        }
    }
    for row in receipt.not_run.iter().filter(|n| n.planned) {
        if !names.contains(&row.step.as_str()) {
            names.push(&row.step);
        }
    }
    names
}

/// A step's checks as `153 passed, 36 skipped`, summed over ranks; empty when it had none.
pub fn checks(step: &Step) -> String {
    let sum = |of: fn(&crate::receipt::RankResult) -> u64| step.ranks.iter().map(of).sum::<u64>();
    let parts = [
        (sum(|r| r.passed), "passed"),
        (sum(|r| r.failed), "failed"),
        (sum(|r| r.skipped), "skipped"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{n} {what}"))
        .collect();
    parts.join(", ")
}

/// Wall time of the attempt that is shown, as text.
pub fn took(step: &Step) -> String {
    let last = step.attempts.iter().rev().find_map(|a| a.took_ms);
    last.map(milliseconds).unwrap_or_default()
}

/// `1.4 s`, `83 ms`.
pub fn milliseconds(ms: f64) -> String {
    match ms {
        ms if ms >= 60_000.0 => format!(
            "{:.0} min {:.0} s",
            (ms / 60_000.0).floor(),
            (ms % 60_000.0) / 1000.0
        ),
        ms if ms >= 1000.0 => format!("{:.1} s", ms / 1000.0),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.1} ms"),
    }
}

/// Microseconds with three figures.
pub fn microseconds(us: f64) -> String {
    match us {
        us if us >= 100.0 => format!("{us:.0}"),
        us if us >= 10.0 => format!("{us:.1}"),
        us => format!("{us:.2}"),
    }
}

/// `4 KiB`, `512 B`.
pub fn bytes(n: u64) -> String {
    const UNITS: [(u32, &str); 3] = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    for (shift, unit) in UNITS {
        if n >= 1 << shift && n.trailing_zeros() >= shift {
            return format!("{} {unit}", n >> shift);
        }
        if n >= 1 << shift {
            return format!("{:.1} {unit}", n as f64 / f64::from(1u32 << shift));
        }
    }
    format!("{n} B")
}

/// One line of a latency plot or one column of a latency table.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Series {
    /// Where the arm stands in the plan: series are in that order.
    pub place: usize,
    /// The arm.
    pub arm: String,
    /// Backend and wire, e.g. `host shm`.
    pub backend: String,
    /// `eager`, or `graph of 20`.
    pub mode: String,
}

impl std::fmt::Display for Series {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {}, {}", self.backend, self.mode, self.arm)
    }
}

/// One point: the slowest rank's figures, since a collective is done when its last rank is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Median, microseconds.
    pub median: f64,
    /// 10th percentile, microseconds.
    pub p10: f64,
    /// 90th percentile, microseconds.
    pub p90: f64,
    /// Whether the figure cannot be a latency.
    pub implausible: bool,
}

/// Latencies by operation, then by series, then by bytes.
pub type Latencies = BTreeMap<String, BTreeMap<Series, BTreeMap<u64, Point>>>;

/// Turns the rows into series.
pub fn latencies(receipt: &Receipt) -> Latencies {
    let mut out = Latencies::new();
    for row in &receipt.latencies {
        let point = Point {
            median: row.median_us,
            p10: row.p10_us,
            p90: row.p90_us,
            implausible: row.implausible.is_some(),
        };
        let points = out
            .entry(row.op.clone())
            .or_default()
            .entry(series(receipt, row))
            .or_default();
        match points.get(&row.bytes) {
            Some(known) if known.median >= point.median => {}
            _ => {
                points.insert(row.bytes, point);
            }
        }
    }
    out
}

fn series(receipt: &Receipt, row: &LatencyRow) -> Series {
    let backend = match &row.wire {
        Some(wire) => format!("{} {wire}", row.backend),
        None => row.backend.clone(),
    };
    let mode = match row.ops_per_graph {
        0 | 1 => row.mode.clone(),
        n => format!("{} of {n}", row.mode),
    };
    let place = receipt.arms.iter().position(|a| a.name == row.arm);
    Series {
        place: place.unwrap_or(receipt.arms.len()),
        arm: row.arm.clone(),
        backend,
        mode,
    }
}

/// The source as text: the revision and whether it was changed.
pub fn source(receipt: &Receipt) -> String {
    let revision = receipt.source.revision.as_deref().unwrap_or("unknown");
    match receipt.source.dirty {
        Some(true) => format!("{revision} (changed since)"),
        Some(false) => revision.to_owned(),
        None => format!("{revision} (whether it was changed is not known)"),
    }
}

/// The hashes of the plan, each with what it is the hash of.
pub fn plans(receipt: &Receipt) -> Vec<(&'static str, &str)> {
    let executed = receipt.executed_plan_sha256.as_deref();
    let executed = executed.map(|hash| ("SHA-256 of the plan as executed", hash));
    let file = ("SHA-256 of the file plan.json", receipt.plan_sha256.as_str());
    executed.into_iter().chain([file]).collect()
}

/// A time of RFC 3339 to the second.
pub fn time(raw: &str) -> String {
    let Some((seconds, rest)) = raw.split_once('.') else {
        return raw.to_owned();
    };
    format!(
        "{seconds}{}",
        rest.trim_start_matches(|c: char| c.is_ascii_digit())
    )
}

/// Settings that say something of the run: without the port and the session, which every step has anew.
pub fn settings(receipt: &Receipt) -> impl Iterator<Item = &SettingRow> {
    const OF_EACH_STEP: [&str; 2] = ["TF_TP_PORT", "TF_TP_SESSION"];
    let rows = receipt.settings.iter();
    rows.filter(|row| row.source == "default" || !OF_EACH_STEP.contains(&row.name.as_str()))
}

/// Every runner binary that took part.
pub fn binaries(receipt: &Receipt) -> Vec<&str> {
    let mut all: Vec<&str> = receipt
        .hosts
        .iter()
        .flat_map(|h| &h.binary_sha256)
        .map(String::as_str)
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Numbers as ranges: `0-3, 5`.
pub fn ranges(numbers: &[u32]) -> String {
    let mut sorted = numbers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for n in sorted {
        match parts.last_mut() {
            Some((_, end)) if end.checked_add(1) == Some(n) => *end = n,
            _ => parts.push((n, n)),
        }
    }
    let text = parts
        .iter()
        .map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    text.collect::<Vec<_>>().join(", ")
}

/// A count with its noun: `1 step`, `2 steps`.
pub fn plural(n: u64, noun: &str) -> String {
    if n == 1 {
        format!("1 {noun}")
    } else {
        format!("{n} {noun}s")
    }
}
