//! One attempt at one step: what its ranks said, how they ended, and everything that was wrong.

use crate::event::{Event, Hello, Inject, Kind, Outcome, Summary};
use crate::receipt::{Attempt, FailFast, Failure, RankResult, Survivor, Verdict};
use crate::record::{CheckNames, Groups, Passed, RankStart, StepEnd, StepStart};
use serde_json::Map;
use std::collections::{BTreeMap, BTreeSet};

/// Failed checks that are named one by one for a rank; the rest is a number.
const NAMED_CHECKS: usize = 10;

#[derive(Clone, Debug)]
pub(super) struct AttemptState {
    pub start: StepStart,
    pub end: Option<StepEnd>,
    ranks: BTreeMap<u32, RankState>,
    inject: Option<Inject>,
    strangers: BTreeSet<u32>,
    groups: Groups,
}

#[derive(Clone, Debug, Default)]
struct RankState {
    result: RankResult,
    hello: Option<Hello>,
    summary: Option<Summary>,
    exit_ns: Option<u64>,
    failed_checks: Vec<String>,
    doubled: Vec<&'static str>,
}

impl AttemptState {
    pub fn new(start: StepStart) -> Self {
        let ranks = start
            .ranks
            .iter()
            .map(|r| {
                let result = RankResult {
                    rank: r.rank,
                    host: r.host.clone(),
                    expected: expected(r),
                    ..RankResult::default()
                };
                (
                    r.rank,
                    RankState {
                        result,
                        ..RankState::default()
                    },
                )
            })
            .collect();
        Self {
            start,
            end: None,
            ranks,
            inject: None,
            strangers: BTreeSet::new(),
            groups: Groups::default(),
        }
    }

    /// Takes names of checks; the error says why they cannot be right.
    pub fn names(&mut self, names: &CheckNames) -> Result<(), String> {
        self.groups.add(names)
    }

    /// Takes checks that a rank passed; the error says why that cannot be.
    pub fn passed(&mut self, passed: &Passed) -> Result<(), String> {
        let counts = self.groups.count(passed)?;
        let Some(state) = self.ranks.get_mut(&passed.rank) else {
            self.strangers.insert(passed.rank);
            return Ok(());
        };
        for (group, count) in counts {
            state.result.of_group(group)[0] += count;
            state.result.passed += count;
        }
        Ok(())
    }

    pub fn event(&mut self, event: &Event) {
        let Some(rank) = event.rank else { return };
        let Some(state) = self.ranks.get_mut(&rank) else {
            self.strangers.insert(rank);
            return;
        };
        match &event.kind {
            Kind::Hello(hello) => keep(&mut state.hello, hello, "hello", &mut state.doubled),
            Kind::Summary(summary) => keep(&mut state.summary, summary, "summary", &mut state.doubled),
            Kind::Check(check) => {
                let result = &mut state.result;
                let (total, of_group) = match check.outcome {
                    Outcome::Passed => (&mut result.passed, 0),
                    Outcome::Failed => (&mut result.failed, 1),
                    Outcome::Skipped => (&mut result.skipped, 2),
                };
                *total += 1;
                result.of_group(&check.group)[of_group] += 1;
                if check.outcome == Outcome::Failed && state.failed_checks.len() < NAMED_CHECKS {
                    let reason = check.reason.as_deref().unwrap_or("no reason given");
                    state.failed_checks.push(format!("`{}`: {reason}", check.name));
                }
            }
            Kind::Inject(inject) if self.inject.is_none() => self.inject = Some(inject.clone()),
            Kind::Fate(fate) => {
                state.result.fate = Some(fate.reason.clone());
                state.result.culprit = fate.culprit;
            }
            Kind::Exit(exit) => {
                if state.exit_ns.is_some() {
                    state.doubled.push("exit");
                    return;
                }
                state.exit_ns = Some(exit.monotonic_ns);
                state.result.exit = exit.code;
                state.result.signal = exit.signal;
                state.result.ended_by = exit.ended_by.clone();
            }
            _ => {}
        }
    }

    /// The ranks as the receipt has them.
    fn ranks(&self) -> Vec<RankResult> {
        let starts = self.start.ranks.iter();
        let mut ranks: Vec<RankResult> = starts
            .filter_map(|start| {
                let mut result = self.ranks.get(&start.rank)?.result.clone();
                result.as_expected = as_expected(start, &result);
                Some(result)
            })
            .collect();
        ranks.sort_by_key(|r| r.rank);
        ranks
    }

    /// Everything that is wrong, whether the attempt has ended or not.
    pub fn problems(&self, world: u32) -> Vec<String> {
        let mut problems = Vec::new();
        for result in self.ranks() {
            rank_problems(&self.ranks[&result.rank], &result, &mut problems);
        }
        for rank in &self.strangers {
            problems.push(format!("rank {rank} spoke and is no rank of this step"));
        }
        self.agreement(world, &mut problems);
        self.injection_problems(&mut problems);
        problems.extend(self.end.iter().flat_map(|e| e.errors.iter().cloned()));
        problems
    }

    /// The attempt as the receipt has it. `world` is the run's number of ranks.
    pub fn result(&self, world: u32) -> Attempt {
        let mut problems = self.problems(world);
        let interrupted = self.end.as_ref().is_none_or(|end| end.interrupted);
        if interrupted {
            problems.insert(0, "the run was cut off in this step".into());
        }
        let verdict = match (interrupted, problems.is_empty()) {
            (true, _) => Verdict::Incomplete,
            (false, true) => Verdict::Passed,
            (false, false) => Verdict::Failed,
        };
        Attempt {
            attempt: self.start.key.attempt,
            verdict,
            started: self.start.started.clone(),
            ended: self.end.as_ref().map(|e| e.ended.clone()),
            took_ms: self.end.as_ref().map(|e| e.took_ms),
            sessions: self.distinct(|h| Some(h.session.clone())).into_iter().collect(),
            problems,
            ranks: self.ranks(),
            extra: Map::new(),
        }
    }

    fn hellos(&self) -> impl Iterator<Item = (u32, &Hello)> {
        self.ranks
            .iter()
            .filter_map(|(rank, s)| Some((*rank, s.hello.as_ref()?)))
    }

    fn distinct(&self, of: impl Fn(&Hello) -> Option<String>) -> BTreeSet<String> {
        self.hellos().filter_map(|(_, h)| of(h)).collect()
    }

    /// What must be equal on every rank, and is not.
    pub fn disagreements(&self) -> Vec<String> {
        let image = |h: &Hello| Some(h.image_sha256.clone().unwrap_or_else(|| "none".into()));
        let fields: [(&str, BTreeSet<String>); 4] = [
            ("world", self.distinct(|h| Some(h.world.to_string()))),
            ("session", self.distinct(|h| Some(h.session.clone()))),
            ("runner binary", self.distinct(|h| Some(h.binary_sha256.clone()))),
            ("kernel image", self.distinct(image)),
        ];
        let differing = fields.into_iter().filter(|(_, values)| values.len() > 1);
        differing
            .map(|(name, values)| {
                let values: Vec<_> = values.into_iter().collect();
                format!("the ranks differ in {name}: {}", values.join(", "))
            })
            .collect()
    }

    fn agreement(&self, world: u32, problems: &mut Vec<String>) {
        problems.extend(self.disagreements());
        let here = self.start.ranks.len() as u32;
        if let Some((rank, hello)) = self.hellos().find(|(_, h)| h.world != here) {
            problems.push(format!(
                "rank {rank} says a world of {}, the step has {here} ranks",
                hello.world
            ));
        }
        if here == 0 {
            problems.push(format!("the step has no ranks; the run has {world}"));
        }
    }

    fn is_failfast(&self) -> bool {
        self.start.exit_within_ms.is_some() || self.start.key.step.starts_with("failfast-")
    }

    fn injection_problems(&self, problems: &mut Vec<String>) {
        if !self.is_failfast() {
            return;
        }
        if self.inject.is_none() {
            problems.push("no failure was injected".into());
            return;
        }
        for survivor in self.survivors() {
            if survivor
                .after_ms
                .is_some_and(|after| after + survivor.error_ms < 0.0)
            {
                problems.push(format!("rank {} had left before the injection", survivor.rank));
            }
            match (survivor.after_ms, self.start.exit_within_ms) {
                (Some(after), Some(limit)) if after - survivor.error_ms > limit => problems.push(format!(
                    "rank {} left {after:.1} ms after the injection, more than {limit} ms",
                    survivor.rank
                )),
                (None, Some(_)) => {
                    problems.push(format!(
                        "rank {}: nobody saw when it left after the injection",
                        survivor.rank
                    ));
                }
                _ => {}
            }
        }
    }

    fn survivors(&self) -> Vec<Survivor> {
        let Some(inject) = &self.inject else {
            return Vec::new();
        };
        let clock = |rank: &u32| {
            self.end
                .as_ref()
                .and_then(|e| e.clocks.get(rank))
                .copied()
                .unwrap_or_default()
        };
        let victim_clock = clock(&inject.victim);
        let injected = i128::from(inject.monotonic_ns) + i128::from(victim_clock.offset_ns);
        self.ranks
            .iter()
            .filter(|(rank, _)| **rank != inject.victim)
            .map(|(rank, state)| {
                let own = clock(rank);
                let after = state
                    .exit_ns
                    .map(|ns| i128::from(ns) + i128::from(own.offset_ns) - injected);
                Survivor {
                    rank: *rank,
                    end: state.result.end(),
                    after_ms: after.map(|ns| ns as f64 / 1e6),
                    error_ms: own.error_ns.saturating_add(victim_clock.error_ns) as f64 / 1e6,
                    named_victim: state.result.culprit == Some(inject.victim),
                    extra: Map::new(),
                }
            })
            .collect()
    }

    pub fn failfast(&self, attempt: &Attempt) -> Option<FailFast> {
        let inject = self.inject.as_ref()?;
        Some(FailFast {
            arm: self.start.key.arm.clone(),
            step: self.start.key.step.clone(),
            attempt: attempt.attempt,
            what: inject.what.clone(),
            victim: inject.victim,
            victim_end: self
                .ranks
                .get(&inject.victim)
                .map_or_else(|| "?".into(), |s| s.result.end()),
            limit_ms: self.start.exit_within_ms,
            survivors: self.survivors(),
            verdict: attempt.verdict.clone(),
            extra: Map::new(),
        })
    }

    pub fn failure(&self, attempt: &Attempt) -> Failure {
        let end = self.end.as_ref();
        Failure {
            arm: self.start.key.arm.clone(),
            step: self.start.key.step.clone(),
            attempt: attempt.attempt,
            verdict: attempt.verdict.clone(),
            problems: attempt.problems.clone(),
            causes: end.map(|e| e.causes.clone()).unwrap_or_default(),
            log_tails: end
                .map(|e| {
                    e.tails
                        .iter()
                        .map(|(rank, lines)| (rank.to_string(), lines.clone()))
                        .collect()
                })
                .unwrap_or_default(),
            extra: Map::new(),
        }
    }
}

fn keep<T: Clone>(slot: &mut Option<T>, value: &T, name: &'static str, doubled: &mut Vec<&'static str>) {
    match slot {
        Some(_) => doubled.push(name),
        None => *slot = Some(value.clone()),
    }
}

fn expected(start: &RankStart) -> String {
    let exits: &[i32] = if start.exits.is_empty() && start.signals.is_empty() {
        &[0]
    } else {
        &start.exits
    };
    let exits = exits.iter().map(|code| format!("exit {code}"));
    let signals = start.signals.iter().map(|signal| format!("signal {signal}"));
    exits.chain(signals).collect::<Vec<_>>().join(" or ")
}

fn as_expected(start: &RankStart, result: &RankResult) -> bool {
    match (result.exit, result.signal) {
        // A process ends in one way; who says both says nothing.
        (Some(_), Some(_)) => false,
        (None, Some(signal)) => start.signals.contains(&signal),
        (Some(0), None) if start.exits.is_empty() => start.signals.is_empty(),
        (Some(code), None) => start.exits.contains(&code),
        (None, None) => false,
    }
}

fn rank_problems(state: &RankState, result: &RankResult, problems: &mut Vec<String>) {
    let rank = result.rank;
    if !result.as_expected {
        let ended = match (result.exit, result.signal) {
            (None, None) => "nobody saw how it ended".to_owned(),
            (Some(code), None) => format!("ended with exit {code}"),
            (_, Some(signal)) => format!("ended by signal {signal}"),
        };
        let by = result
            .ended_by
            .as_ref()
            .map(|by| format!(" (ended by: {by})"))
            .unwrap_or_default();
        let fate = result
            .fate
            .as_ref()
            .map(|f| format!("; it said: {f}"))
            .unwrap_or_default();
        problems.push(format!(
            "rank {rank} {ended}{by}, expected {}{fate}",
            result.expected
        ));
    }
    for check in &state.failed_checks {
        problems.push(format!("rank {rank}: check {check}"));
    }
    let more = result.failed.saturating_sub(state.failed_checks.len() as u64);
    if more > 0 {
        problems.push(format!("rank {rank}: {more} more failed checks"));
    }
    if let Some(said) = &state.summary {
        let counted = Summary {
            passed: result.passed,
            failed: result.failed,
            skipped: result.skipped,
        };
        if *said != counted {
            problems.push(format!(
                "rank {rank} says {} passed, {} failed, {} skipped; its events say {}, {}, {}",
                said.passed, said.failed, said.skipped, counted.passed, counted.failed, counted.skipped
            ));
        }
    }
    // An end that looks right is none when nobody knows who it was that ended.
    if state.hello.is_none() && result.as_expected {
        problems.push(format!("rank {rank} never introduced itself"));
    }
    if state.summary.is_none() && result.exit == Some(0) {
        problems.push(format!("rank {rank} ended with exit 0 and gave no totals"));
    }
    for name in &state.doubled {
        problems.push(format!("rank {rank} sent `{name}` twice"));
    }
}
