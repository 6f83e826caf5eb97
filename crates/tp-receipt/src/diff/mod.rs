//! Two receipts side by side: where they come from first, then what came out, then which latencies moved beyond the
//! spread of both.
//!
//! What differs in the environment (driver, CUDA, NCCL, kernel, hosts, settings) makes latencies incomparable: a slower
//! figure is then another figure, not a regression. What differs in the project itself (source, runner binary) is what
//! a comparison is usually about.

mod latencies;
mod provenance;

pub use latencies::{Moved, Movement};
pub use provenance::{Difference, Part};

use crate::receipt::{Receipt, Verdict};
use crate::render::visible;
use std::collections::BTreeSet;

/// A comparison.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// Differences of where the two come from.
    pub provenance: Vec<Difference>,
    /// Steps that came out otherwise.
    pub outcomes: Vec<Outcome>,
    /// Latencies that both have and that moved beyond the spread of both.
    pub latencies: Vec<Moved>,
    /// Latencies that were compared.
    pub compared: usize,
    /// Latencies that only one of them has: in A only, in B only.
    pub unpaired: (usize, usize),
}

/// A step that came out otherwise.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The arm; empty for the run as a whole.
    pub arm: String,
    /// The step; empty for the run as a whole.
    pub step: String,
    /// In A; absent when A has no such step.
    pub a: Option<Verdict>,
    /// In B.
    pub b: Option<Verdict>,
}

impl Outcome {
    /// Whether B is worse: it passed in A and no longer does.
    pub fn worse(&self) -> bool {
        self.a.as_ref().is_some_and(Verdict::passed) && !self.b.as_ref().is_some_and(Verdict::passed)
    }
}

/// Compares two receipts, A the earlier.
pub fn diff(a: &Receipt, b: &Receipt) -> Diff {
    let mut out = Diff {
        provenance: provenance::compare(a, b),
        outcomes: outcomes(a, b),
        ..Diff::default()
    };
    latencies::compare(a, b, &mut out);
    out
}

fn outcomes(a: &Receipt, b: &Receipt) -> Vec<Outcome> {
    let mut out = Vec::new();
    if a.verdict != b.verdict {
        out.push(Outcome {
            arm: String::new(),
            step: String::new(),
            a: Some(a.verdict.clone()),
            b: Some(b.verdict.clone()),
        });
    }
    let steps = |r: &Receipt| -> Vec<(String, String)> {
        let of_arm = |arm: &crate::receipt::Arm| {
            let name = arm.name.clone();
            arm.steps
                .iter()
                .map(move |s| (name.clone(), s.name.clone()))
                .collect::<Vec<_>>()
        };
        r.arms.iter().flat_map(of_arm).collect()
    };
    let mut seen = BTreeSet::new();
    for (arm, step) in steps(a).into_iter().chain(steps(b)) {
        if !seen.insert((arm.clone(), step.clone())) {
            continue;
        }
        let of = |r: &Receipt| r.step(&arm, &step).map(|s| s.verdict.clone());
        let (in_a, in_b) = (of(a), of(b));
        if in_a != in_b {
            out.push(Outcome {
                arm,
                step,
                a: in_a,
                b: in_b,
            });
        }
    }
    out
}

impl Diff {
    /// Whether latencies can be judged: the environment is the same.
    pub fn comparable(&self) -> bool {
        !self.provenance.iter().any(|d| d.part == Part::Environment)
    }

    /// Latencies that are slower beyond noise, by more than `percent`. None where the environments differ.
    pub fn regressions(&self, percent: f64) -> Vec<&Moved> {
        if !self.comparable() {
            return Vec::new();
        }
        self.latencies
            .iter()
            .filter(|m| m.movement == Movement::Slower && m.percent() > percent)
            .collect()
    }

    /// The exit code. Without a limit 0; with one 1 when a step no longer passes or a latency is slower by more than it,
    /// and 2 when the environments differ, so that the question has no answer.
    pub fn exit_code(&self, fail_on_regression: Option<f64>) -> u8 {
        let Some(percent) = fail_on_regression else {
            return 0;
        };
        if self.outcomes.iter().any(Outcome::worse) {
            return 1;
        }
        if !self.comparable() && self.compared > 0 {
            return 2;
        }
        u8::from(!self.regressions(percent).is_empty())
    }

    /// The comparison as lines for people, provenance first.
    pub fn text(&self) -> String {
        let mut out = String::new();
        // Names and words of both come from files that may be anybody's.
        let mut say = |line: String| {
            out.push_str(&visible(&line));
            out.push('\n');
        };
        if self.provenance.is_empty() {
            say("same source, binary, environment and settings".to_owned());
        }
        for d in &self.provenance {
            say(format!("{}: {} is {} in A, {} in B", d.part, d.name, d.a, d.b));
        }
        if self.outcomes.is_empty() {
            say("every step came out the same".to_owned());
        }
        for o in &self.outcomes {
            let word = |v: &Option<Verdict>| v.as_ref().map_or("not run".to_owned(), ToString::to_string);
            let place = if o.arm.is_empty() {
                "the run".into()
            } else {
                format!("{} / {}", o.arm, o.step)
            };
            let worse = if o.worse() { "WORSE: " } else { "" };
            say(format!(
                "{worse}{place}: {} in A, {} in B",
                word(&o.a),
                word(&o.b)
            ));
        }
        for m in &self.latencies {
            say(format!("{}: {m}", self.word(m)));
        }
        let (a, b) = self.unpaired;
        say(format!(
            "{} latencies compared, {} moved beyond the spread of both; {a} only in A, {b} only in B",
            self.compared,
            self.latencies.len()
        ));
        if !self.comparable() && !self.latencies.is_empty() {
            say(
                "the environments differ (above), so no latency is called a regression; run both under one"
                    .to_owned(),
            );
        }
        out
    }

    fn word(&self, moved: &Moved) -> &'static str {
        match (self.comparable(), moved.movement) {
            (false, _) => "different",
            (true, Movement::Slower) => "slower",
            (true, Movement::Faster) => "faster",
        }
    }
}
