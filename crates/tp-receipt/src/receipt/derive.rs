//! From a run's record to the receipt. Records are pushed one at a time, so that a long run is never held in memory.

use super::rows::{NotRun, SetAside};
use super::{Arm, Attempt, DerivedFrom, Host, Receipt, SCHEMA, Scope, Step, Totals, Verdict};
use crate::record::{HostStart, Record, Resumed, RunEnd, RunStart, StepEvent, StepKey, StepStart};
use attempt::AttemptState;
use serde_json::Map;
use std::collections::BTreeSet;

mod attempt;
mod collect;
mod patterns;

/// Takes records in order; gives the receipt as far as they go, at any time.
#[derive(Clone, Debug, Default)]
pub struct Deriver {
    run: Option<RunStart>,
    end: Option<RunEnd>,
    resumed: Vec<Resumed>,
    steps: Vec<StepState>,
    tables: collect::Tables,
    not_run: Vec<NotRun>,
    set_aside: Vec<SetAside>,
    unreadable: Vec<String>,
    /// Step and attempt of the last event, since events of one step follow each other.
    last: Option<(usize, usize)>,
}

/// One step of one arm.
#[derive(Clone, Debug)]
struct StepState {
    arm: String,
    name: String,
    attempts: Vec<AttemptState>,
}

impl Deriver {
    /// Takes the next record.
    pub fn push(&mut self, record: &Record) {
        match record {
            Record::Run(run) if self.run.is_none() => {
                for host in &run.hosts {
                    self.tables.host(host);
                }
                self.run = Some(run.clone());
            }
            Record::Run(_) => self.unreadable("a second `run` record".into()),
            Record::Step(start) => self.step(start),
            Record::Event(event) => self.event(event),
            Record::CheckNames(names) => self.within(&names.key, |attempt| attempt.names(names)),
            Record::Passed(passed) => self.within(&passed.key, |attempt| attempt.passed(passed)),
            Record::StepEnd(end) => match self.find(&end.key) {
                Some((step, attempt)) => self.steps[step].attempts[attempt].end = Some(end.clone()),
                None => self.unreadable(format!("step {} ends and never began", end.key)),
            },
            Record::NotRun(row) => self.not_run.push(row.clone()),
            // A run that was cut off in the scan says it again.
            Record::SetAside(row) if !self.set_aside.contains(row) => self.set_aside.push(row.clone()),
            Record::SetAside(_) => {}
            Record::Resumed(row) => {
                self.resumed.push(row.clone());
                // What was said before the cut no longer counts as the end.
                self.end = None;
                self.not_run.retain(|row| !row.planned);
            }
            Record::RunEnd(end) => self.end = Some(end.clone()),
            Record::Unknown(_) => {}
        }
    }

    /// Notes a line that could not be read; a receipt with such a line is never PASSED.
    pub fn unreadable(&mut self, why: String) {
        // The first ones tell the story; a megabyte of them would not.
        if self.unreadable.len() < 20 {
            self.unreadable.push(why);
        }
    }

    /// An attempt as the receipt has it.
    pub fn attempt(&self, key: &StepKey) -> Option<Attempt> {
        Some(self.state(key)?.result(self.world()))
    }

    /// What is wrong with an attempt as far as the records go, ended or not.
    pub fn problems(&self, key: &StepKey) -> Vec<String> {
        self.state(key)
            .map(|a| a.problems(self.world()))
            .unwrap_or_default()
    }

    /// The number that the next attempt at a step has.
    pub fn next_attempt(&self, arm: &str, step: &str) -> u32 {
        let attempts = self
            .steps
            .iter()
            .filter(|s| s.arm == arm && s.name == step)
            .flat_map(|s| &s.attempts);
        attempts.map(|a| a.start.key.attempt + 1).max().unwrap_or(1)
    }

    /// What ought to be equal on every rank of an attempt and is not.
    pub fn disagreements(&self) -> Vec<String> {
        let attempts = self.steps.iter().flat_map(|s| &s.attempts);
        attempts
            .flat_map(|a| {
                a.disagreements()
                    .into_iter()
                    .map(|d| format!("{}: {d}", a.start.key))
            })
            .collect()
    }

    fn state(&self, key: &StepKey) -> Option<&AttemptState> {
        self.find(key)
            .map(|(step, attempt)| &self.steps[step].attempts[attempt])
    }

    fn step(&mut self, start: &StepStart) {
        let key = &start.key;
        let step = match self
            .steps
            .iter()
            .position(|s| s.arm == key.arm && s.name == key.step)
        {
            Some(at) => at,
            None => {
                self.steps.push(StepState {
                    arm: key.arm.clone(),
                    name: key.step.clone(),
                    attempts: Vec::new(),
                });
                self.steps.len() - 1
            }
        };
        let attempts = &mut self.steps[step].attempts;
        if attempts.iter().any(|a| a.start.key.attempt == key.attempt) {
            self.unreadable(format!("step {key} began twice"));
            return;
        }
        attempts.push(AttemptState::new(start.clone()));
        self.last = Some((step, attempts.len() - 1));
    }

    fn find(&self, key: &StepKey) -> Option<(usize, usize)> {
        if let Some((step, attempt)) = self.last
            && self.steps[step].attempts[attempt].start.key == *key
        {
            return self.last;
        }
        let step = self
            .steps
            .iter()
            .position(|s| s.arm == key.arm && s.name == key.step)?;
        let attempt = self.steps[step]
            .attempts
            .iter()
            .position(|a| a.start.key.attempt == key.attempt)?;
        Some((step, attempt))
    }

    fn event(&mut self, event: &StepEvent) {
        let Some(key) = &event.key else {
            self.tables.outside(&event.event);
            return;
        };
        let Some(at) = self.find(key) else {
            self.unreadable(format!("an event of step {key}, which never began"));
            return;
        };
        self.last = Some(at);
        let world = self.world();
        let attempt = &mut self.steps[at.0].attempts[at.1];
        attempt.event(&event.event);
        self.tables.event(&attempt.start, &event.event, world);
    }

    /// Hands what a line says of checks to its attempt.
    fn within(&mut self, key: &StepKey, take: impl FnOnce(&mut AttemptState) -> Result<(), String>) {
        let Some(at) = self.find(key) else {
            self.unreadable(format!("checks of step {key}, which never began"));
            return;
        };
        self.last = Some(at);
        if let Err(why) = take(&mut self.steps[at.0].attempts[at.1]) {
            self.unreadable(format!("step {key}: {why}"));
        }
    }

    fn world(&self) -> u32 {
        let of_run = self
            .run
            .iter()
            .flat_map(|r| &r.hosts)
            .flat_map(|h| &h.ranks)
            .map(|r| r + 1)
            .max();
        let of_steps = || {
            self.steps
                .iter()
                .flat_map(|s| &s.attempts)
                .map(|a| a.start.ranks.len() as u32)
                .max()
        };
        of_run.or_else(of_steps).unwrap_or(0)
    }

    /// The receipt as far as the records go.
    pub fn receipt(&self) -> Receipt {
        let run = self.run.clone().unwrap_or_default();
        let world = self.world();
        let mut out = Receipt {
            schema: SCHEMA,
            run_id: run.run_id.clone(),
            cluster: run.cluster.clone(),
            launcher: run.launcher.clone(),
            started: run.started.clone(),
            ended: self.end.as_ref().map(|e| e.ended.clone()),
            interrupted: self.end.as_ref().and_then(|e| e.interrupted.clone()),
            resumed: self.resumed.len() as u32,
            tool: run.tool.clone(),
            source: run.source.clone(),
            plan_sha256: run.plan_sha256.clone(),
            executed_plan_sha256: run
                .extra
                .get("executed_plan_sha256")
                .and_then(|hash| hash.as_str())
                .map(str::to_owned),
            redacted: run.redacted,
            derived_from: DerivedFrom {
                unreadable: self.unreadable.clone(),
                ..DerivedFrom::default()
            },
            world,
            hosts: self.tables.hosts.clone(),
            picks: self.tables.picks.clone(),
            latencies: self.tables.latencies.clone(),
            settings: self.tables.settings(),
            counters: self.tables.counters.clone(),
            skipped: self.tables.skipped.clone(),
            warnings: self.tables.warnings.clone(),
            set_aside: self.set_aside.clone(),
            ..Receipt::default()
        };
        out.warnings.extend(patterns::throttled(&out.latencies));
        self.matrix(&run, world, self.steps.iter(), &mut out);
        self.left_out(&run, &mut out);
        let (verdict, reasons) = self.verdict(&out);
        out.verdict = verdict;
        out.reasons = reasons;
        out
    }

    /// A receipt in which nothing is filled but one step, with its failures and its injection.
    pub fn step_alone(&self, arm: &str, step: &str) -> Receipt {
        let run = self.run.clone().unwrap_or_default();
        let mut out = Receipt::default();
        let steps = self.steps.iter().filter(|s| s.arm == arm && s.name == step);
        self.matrix(&run, self.world(), steps, &mut out);
        out
    }

    fn matrix<'a>(
        &self,
        run: &RunStart,
        world: u32,
        steps: impl Iterator<Item = &'a StepState>,
        out: &mut Receipt,
    ) {
        out.arms = run
            .arms
            .iter()
            .map(|arm| Arm {
                name: arm.name.clone(),
                about: arm.about.clone(),
                settings: arm.settings.clone(),
                ..Arm::default()
            })
            .collect();
        let mut scopes: BTreeSet<Scope> = BTreeSet::new();
        for state in steps {
            let step = self.finished_step(state, run, world);
            scopes.insert(step.scope.clone());
            count(&step, &mut out.totals);
            for (attempt, from) in step.attempts.iter().zip(&state.attempts) {
                if !attempt.verdict.passed() {
                    out.failures.push(from.failure(attempt));
                }
                out.failfast.extend(from.failfast(attempt));
            }
            match out.arms.iter_mut().find(|a| a.name == state.arm) {
                Some(arm) => arm.steps.push(step),
                None => out.arms.push(Arm {
                    name: state.arm.clone(),
                    steps: vec![step],
                    ..Arm::default()
                }),
            }
        }
        out.scope = scopes.into_iter().collect();
    }

    fn finished_step(&self, state: &StepState, run: &RunStart, world: u32) -> Step {
        let attempts: Vec<_> = state.attempts.iter().map(|a| a.result(world)).collect();
        let ended = |v: &Verdict| attempts.iter().filter(|a| a.verdict == *v).count();
        let (passed, failed) = (ended(&Verdict::Passed), ended(&Verdict::Failed));
        let planned = run
            .planned
            .iter()
            .find(|p| p.arm == state.arm && p.step == state.name);
        let repeat = planned.map_or(1, |p| p.repeat.max(1)) as usize;
        let verdict = match (passed, failed) {
            (0, 0) => Verdict::Incomplete,
            (0, _) => Verdict::Failed,
            (n, 0) if n < repeat => Verdict::Incomplete,
            (_, 0) => Verdict::Passed,
            _ => Verdict::Flaky,
        };
        let first = &state.attempts[0].start;
        let shown = attempts
            .iter()
            .rev()
            .find(|a| a.ended.is_some())
            .or(attempts.last());
        Step {
            name: state.name.clone(),
            scope: first.scope.clone(),
            verdict,
            command: first.command.clone(),
            ranks: shown.map(|a| a.ranks.clone()).unwrap_or_default(),
            attempts,
            extra: Map::new(),
        }
    }

    fn left_out(&self, run: &RunStart, out: &mut Receipt) {
        out.not_run = self.not_run.clone();
        for planned in &run.planned {
            let began = self
                .steps
                .iter()
                .any(|s| s.arm == planned.arm && s.name == planned.step);
            let said = out
                .not_run
                .iter()
                .any(|n| n.step == planned.step && n.arm == planned.arm);
            if !began && !said {
                let reason = if self.end.is_some() {
                    "the run ended before it"
                } else {
                    "the run has not come to it"
                };
                out.not_run.push(NotRun {
                    arm: planned.arm.clone(),
                    step: planned.step.clone(),
                    reason: reason.into(),
                    planned: true,
                    ..NotRun::default()
                });
            }
        }
        out.totals.steps_not_run = out.not_run.len() as u64;
    }

    fn verdict(&self, out: &Receipt) -> (Verdict, Vec<String>) {
        let totals = &out.totals;
        let mut reasons = Vec::new();
        let mut say = |n: u64, what: &str| {
            if n > 0 {
                reasons.push(format!("{n} {}{what}", if n == 1 { "step " } else { "steps " }));
            }
        };
        say(totals.steps_failed, "failed");
        say(totals.steps_flaky, "passed in one attempt and failed in another");
        say(totals.steps_incomplete, "did not come to an end");
        let missing = out.not_run.iter().filter(|n| n.planned).count() as u64;
        say(missing, "of the plan not run");
        let mut failed = totals.steps_failed > 0;
        let binaries: BTreeSet<&String> = out.hosts.iter().flat_map(|h| &h.binary_sha256).collect();
        if binaries.len() > 1 {
            reasons.push(format!("{} different runner binaries took part", binaries.len()));
            failed = true;
        }
        if !self.unreadable.is_empty() {
            reasons.push(format!(
                "the record has lines that could not be read: {}",
                self.unreadable[0]
            ));
            failed = true;
        }
        if self.steps.is_empty() {
            reasons.push("no step was run".into());
        }
        let cut = match &self.end {
            _ if self.run.is_none() => Some("the record does not say which run it is".to_owned()),
            None => Some("the run did not come to its end".to_owned()),
            Some(RunEnd {
                interrupted: Some(by),
                ..
            }) => Some(format!("the run was interrupted: {by}")),
            Some(_) => None,
        };
        let verdict = match &cut {
            Some(_) => Verdict::Incomplete,
            None if failed => Verdict::Failed,
            None if self.steps.is_empty() || missing > 0 || totals.steps_incomplete > 0 => {
                Verdict::Incomplete
            }
            None if totals.steps_flaky > 0 => Verdict::Flaky,
            None => Verdict::Passed,
        };
        reasons.splice(0..0, cut);
        (verdict, reasons)
    }
}

fn count(step: &Step, totals: &mut Totals) {
    match step.verdict {
        Verdict::Passed => totals.steps_passed += 1,
        Verdict::Failed => totals.steps_failed += 1,
        Verdict::Flaky => totals.steps_flaky += 1,
        _ => totals.steps_incomplete += 1,
    }
    for rank in &step.ranks {
        totals.checks_passed += rank.passed;
        totals.checks_failed += rank.failed;
        totals.checks_skipped += rank.skipped;
    }
}

impl From<&HostStart> for Host {
    fn from(start: &HostStart) -> Self {
        Self {
            name: start.name.clone(),
            ranks: start.ranks.clone(),
            versions: start.versions.clone(),
            extra: start.extra.clone(),
            ..Self::default()
        }
    }
}
