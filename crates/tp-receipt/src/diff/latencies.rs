//! Latencies of two receipts, judged against the spread of both.

use super::Diff;
use crate::receipt::Receipt;
use crate::render::{Point, Series, latency_series};
use std::collections::BTreeMap;

/// Which way a latency moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Movement {
    /// B takes longer.
    Slower,
    /// B takes less long.
    Faster,
}

/// A latency that moved: the ranges from the 10th to the 90th percentile do not touch.
#[derive(Clone, Debug, PartialEq)]
pub struct Moved {
    /// The operation.
    pub op: String,
    /// Backend and wire, mode, arm.
    pub series: String,
    /// Bytes a rank.
    pub bytes: u64,
    /// In A: median, p10, p90, microseconds, of the slowest rank.
    pub a: [f64; 3],
    /// In B.
    pub b: [f64; 3],
    /// Which way.
    pub movement: Movement,
}

impl Moved {
    /// By how much B's median differs from A's, percent of A's.
    pub fn percent(&self) -> f64 {
        (self.b[0] - self.a[0]) / self.a[0] * 100.0
    }
}

impl std::fmt::Display for Moved {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} {} B ({}): {:.2} us ({:.2} to {:.2}) in A, {:.2} us ({:.2} to {:.2}) in B, {:+.0} %",
            self.op,
            self.bytes,
            self.series,
            self.a[0],
            self.a[1],
            self.a[2],
            self.b[0],
            self.b[1],
            self.b[2],
            self.percent()
        )
    }
}

type Flat = BTreeMap<(String, Series, u64), Point>;

fn flat(receipt: &Receipt) -> Flat {
    let mut out = Flat::new();
    for (op, lines) in latency_series(receipt) {
        for (series, points) in lines {
            for (bytes, point) in points {
                out.insert((op.clone(), series.clone(), bytes), point);
            }
        }
    }
    out
}

pub(super) fn compare(a: &Receipt, b: &Receipt, out: &mut Diff) {
    let (in_a, in_b) = (flat(a), flat(b));
    for (key, a) in &in_a {
        let Some(b) = in_b.get(key) else {
            out.unpaired.0 += 1;
            continue;
        };
        // A figure that cannot be a latency is no measure of anything.
        if a.implausible || b.implausible || !(a.median > 0.0 && b.median > 0.0) {
            continue;
        }
        out.compared += 1;
        let movement = if b.p10 > a.p90 {
            Movement::Slower
        } else if b.p90 < a.p10 {
            Movement::Faster
        } else {
            continue;
        };
        let (op, series, bytes) = key;
        out.latencies.push(Moved {
            op: op.clone(),
            series: series.to_string(),
            bytes: *bytes,
            a: [a.median, a.p10, a.p90],
            b: [b.median, b.p10, b.p90],
            movement,
        });
    }
    out.unpaired.1 = in_b.keys().filter(|key| !in_a.contains_key(*key)).count();
}
