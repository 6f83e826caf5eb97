//! What is running now: which step, since when, and how far each rank is.

use crate::plan::Plan;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tp_receipt::event::{Kind, Outcome};
use tp_receipt::record::{Record, StepKey};

/// The state of the run as a display needs it.
#[derive(Debug, Default)]
pub(super) struct Running {
    /// Steps of the plan.
    pub steps: usize,
    /// Steps that have begun.
    pub begun: usize,
    /// The step under way.
    pub key: Option<StepKey>,
    /// Its scope.
    pub scope: String,
    since: Option<Instant>,
    ranks: BTreeMap<u32, Rank>,
}

#[derive(Clone, Debug, Default)]
struct Rank {
    host: String,
    passed: u64,
    failed: u64,
    skipped: u64,
    doing: String,
    ended: bool,
}

impl Running {
    pub fn begin(&mut self, plan: &Plan) {
        self.steps = plan.step_count();
    }

    pub fn record(&mut self, record: &Record) {
        match record {
            Record::Step(start) => {
                if start.key.attempt == 1 {
                    self.begun += 1;
                }
                self.key = Some(start.key.clone());
                self.scope = start.scope.to_string();
                self.since = Some(Instant::now());
                let rank = |r: &tp_receipt::record::RankStart| {
                    (
                        r.rank,
                        Rank {
                            host: r.host.clone(),
                            doing: "starting".into(),
                            ..Rank::default()
                        },
                    )
                };
                self.ranks = start.ranks.iter().map(rank).collect();
            }
            Record::StepEnd(_) => (self.key, self.since) = (None, None),
            Record::Event(event) => {
                if let Some(rank) = event.event.rank.and_then(|rank| self.ranks.get_mut(&rank)) {
                    rank.event(&event.event.kind);
                }
            }
            _ => {}
        }
    }

    /// How long the step has run.
    pub fn elapsed(&self) -> Duration {
        self.since.map(|since| since.elapsed()).unwrap_or_default()
    }

    /// One line a rank: where it runs and what it does.
    pub fn lines(&self, at_most: usize) -> Vec<String> {
        let mut lines: Vec<_> = self
            .ranks
            .iter()
            .take(at_most)
            .map(|(number, rank)| rank.line(*number))
            .collect();
        if self.ranks.len() > at_most {
            lines.push(format!("… and {} more ranks", self.ranks.len() - at_most));
        }
        lines
    }
}

impl Rank {
    fn event(&mut self, kind: &Kind) {
        match kind {
            Kind::Hello(_) => self.doing = "running".into(),
            Kind::Check(check) => {
                match check.outcome {
                    Outcome::Passed => self.passed += 1,
                    Outcome::Failed => self.failed += 1,
                    Outcome::Skipped => self.skipped += 1,
                }
                self.doing = check.name.clone();
            }
            Kind::Latency(l) => self.doing = format!("{} {} {} B", l.backend, l.op, l.bytes),
            Kind::Progress(p) if p.total > 0 => self.doing = format!("{} {}/{}", p.what, p.done, p.total),
            Kind::Progress(p) => self.doing = format!("{} {}", p.what, p.done),
            Kind::Inject(inject) => self.doing = format!("injecting {}", inject.what),
            Kind::Fate(fate) => self.doing = fate.reason.clone(),
            Kind::Exit(exit) => {
                self.ended = true;
                self.doing = match (exit.code, exit.signal) {
                    (_, Some(signal)) => format!("ended by signal {signal}"),
                    (Some(code), None) => format!("exit {code}"),
                    (None, None) => "ended".into(),
                };
            }
            _ => {}
        }
    }

    fn line(&self, number: u32) -> String {
        let mut line = format!("rank {number} on {}: {}", self.host, self.doing);
        let counts = [
            (self.passed, "passed"),
            (self.failed, "failed"),
            (self.skipped, "skipped"),
        ];
        for (count, word) in counts.iter().filter(|(count, _)| *count > 0) {
            line.push_str(&format!(", {count} {word}"));
        }
        line
    }
}
