//! Where everything that happens goes: into the receipt and to the display, in this order.

use super::{Earlier, Runner, time};
use crate::Error;
use crate::display::{Reporter, StepReport, figures};
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::path::Path;
use tp_receipt::event::Event;
use tp_receipt::receipt::{Attempt, NotRun, Receipt, Source, Tool};
use tp_receipt::record::{
    ArmStart, HostStart, PlannedStep, Record, RunEnd, RunStart, StepEnd, StepEvent, StepKey, StepStart,
};
use tp_receipt::redact::Redactor;
use tp_receipt::store::{Options, Store, StoreError, log_name};

/// See the module.
pub struct Ledger {
    store: Store,
    reporter: Box<dyn Reporter>,
    step: Option<StepKey>,
    /// The ranks of the step that runs.
    ranks: Vec<u32>,
}

/// What a run is begun with.
pub struct Begin<'a> {
    /// The plan that is executed.
    pub plan: &'a Plan,
    /// A name that no other run has.
    pub run_id: &'a str,
    /// Attempts at every step.
    pub repeat: u32,
    /// Versions that are known before the first rank speaks, by host.
    pub versions: BTreeMap<String, Vec<(String, String)>>,
    /// What replaces names.
    pub redactor: Redactor,
}

fn failed(error: StoreError) -> Error {
    let text = error.to_string();
    if error.exit_code() == crate::exit_code::USAGE {
        Error::Usage(text)
    } else {
        Error::Failed(text)
    }
}

impl Ledger {
    /// Makes the receipt directory, which must not exist, and begins the record.
    pub fn create(dir: &Path, begin: Begin<'_>, mut reporter: Box<dyn Reporter>) -> Result<Self, Error> {
        outside_receipts(dir)?;
        let plan = plan_value(begin.plan)?;
        let start = run_start(&begin);
        let store = Store::create(dir, start, &plan, begin.redactor, Options::default()).map_err(failed)?;
        reporter.begin(begin.plan, dir);
        reporter.record(&first_record(dir)?);
        let mut ledger = Self {
            store,
            reporter,
            step: None,
            ranks: Vec::new(),
        };
        for left_out in &begin.plan.not_run {
            let row = NotRun {
                step: left_out.what.clone(),
                reason: left_out.reason.clone(),
                ..NotRun::default()
            };
            ledger.not_run(row)?;
        }
        Ok(ledger)
    }

    /// Takes up an interrupted run: gives what is there already.
    pub fn resume(
        dir: &Path,
        plan: &Plan,
        redactor: Redactor,
        mut reporter: Box<dyn Reporter>,
    ) -> Result<(Self, Earlier), Error> {
        let value = plan_value(plan)?;
        let resume =
            Store::resume(dir, &value, redactor, Options::default(), &time::now()).map_err(failed)?;
        reporter.begin(plan, dir);
        let earlier = Earlier::of(plan, &resume.receipt);
        Ok((
            Self {
                store: resume.store,
                reporter,
                step: None,
                ranks: Vec::new(),
            },
            earlier,
        ))
    }

    /// The number of the next attempt at a step.
    pub(super) fn next_attempt(&self, arm: &str, step: &str) -> u32 {
        self.store.next_attempt(arm, step)
    }

    /// A step begins.
    pub(super) fn step_begin(&mut self, start: StepStart) -> Result<(), Error> {
        self.reporter.record(&Record::Step(start.clone()));
        self.step = Some(start.key.clone());
        self.ranks = start.ranks.iter().map(|rank| rank.rank).collect();
        self.store.step_begin(start).map_err(failed)
    }

    /// Something was said within the step that runs.
    pub(super) fn event(&mut self, event: Event) -> Result<(), Error> {
        self.store.event(&event).map_err(failed)?;
        self.reporter.record(&Record::Event(StepEvent {
            key: self.step.clone(),
            event,
        }));
        Ok(())
    }

    /// What a rank says for people: lines or parts of them, as they come.
    pub(super) fn log(&mut self, rank: u32, bytes: &[u8]) -> Result<(), Error> {
        self.store.log(rank, bytes).map_err(failed)
    }

    /// Whether the step that runs has anything wrong so far.
    pub(super) fn has_problems(&self) -> bool {
        !self.store.problems().is_empty()
    }

    /// The step has ended.
    pub(super) fn step_end(&mut self, end: StepEnd) -> Result<Attempt, Error> {
        let mut tails: Vec<_> = self
            .ranks
            .iter()
            .map(|rank| (*rank, self.store.tail(*rank)))
            .collect();
        let attempt = self.store.step_end(end.clone()).map_err(failed)?;
        self.reporter.record(&Record::StepEnd(end.clone()));
        self.step = None;
        if attempt.problems.is_empty() {
            tails.clear();
        }
        let dir = self.store.dir();
        let report = StepReport {
            verdict: attempt.verdict.clone(),
            problems: attempt.problems.clone(),
            causes: end.causes,
            figures: figures(&self.store.step_alone(&end.key), &end.key),
            tails: tails
                .into_iter()
                .filter(|(_, lines)| !lines.is_empty())
                .map(|(rank, lines)| (rank, dir.join(log_name(&end.key, rank)), lines))
                .collect(),
            key: end.key,
        };
        self.reporter.step_ended(&report);
        Ok(attempt)
    }

    /// A step is left out.
    pub(super) fn not_run(&mut self, row: NotRun) -> Result<(), Error> {
        self.reporter.record(&Record::NotRun(row.clone()));
        self.store.not_run(row).map_err(failed)
    }

    /// Nothing has come for a while.
    pub(super) fn tick(&mut self) -> Result<(), Error> {
        self.reporter.tick();
        self.store.flush().map_err(failed)
    }

    /// The run has ended: seals the receipt.
    pub(super) fn finish(mut self, interrupted: Option<String>) -> Result<Receipt, Error> {
        let end = RunEnd {
            ended: time::now(),
            interrupted,
            ..RunEnd::default()
        };
        self.reporter.record(&Record::RunEnd(end.clone()));
        let dir = self.store.dir().to_owned();
        let receipt = self.store.finish(end).map_err(failed)?;
        self.reporter.end(&receipt, &dir);
        match self.reporter.failure() {
            None => Ok(receipt),
            Some(why) => Err(Error::Usage(format!(
                "cannot write to standard output: {why}; records are missing there, the receipt in {} has them all",
                dir.display()
            ))),
        }
    }
}

/// A receipt's directory is closed by its checksums: another one inside it would break it.
fn outside_receipts(dir: &Path) -> Result<(), Error> {
    let whole = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let is_receipt = |dir: &&Path| {
        [tp_receipt::store::events::NAME, "receipt.json"]
            .iter()
            .any(|name| dir.join(name).is_file())
    };
    match whole.ancestors().skip(1).find(is_receipt) {
        None => Ok(()),
        Some(outer) => Err(Error::Usage(format!(
            "--out: {} lies inside the receipt {}: name a directory outside of it",
            dir.display(),
            outer.display()
        ))),
    }
}

/// The record that a new receipt begins with, as the store completed it: with its schema and the hash of plan.json.
fn first_record(dir: &Path) -> Result<Record, Error> {
    let path = dir.join(tp_receipt::store::events::NAME);
    let failed = |e: String| Error::Failed(format!("failed to read {}: {e}", path.display()));
    let text = std::fs::read_to_string(&path).map_err(|e| failed(e.to_string()))?;
    let line = text.lines().next().unwrap_or_default();
    Record::parse(line).map_err(|e| failed(e.to_string()))
}

fn plan_value(plan: &Plan) -> Result<serde_json::Value, Error> {
    serde_json::to_value(plan).map_err(|e| Error::Failed(format!("failed to write the plan as JSON: {e}")))
}

/// Whether the receipt in a directory has pseudonyms; a run that is taken up again goes on as it began, with the runner
/// that it began with.
pub fn is_redacted(dir: &Path, runners: &[&Runner]) -> Result<bool, Error> {
    let path = dir.join("receipt.json");
    let text = tp_receipt::store::read_text(dir, "receipt.json")
        .map_err(|e| Error::Usage(format!("--resume: {} is no receipt: {e}", dir.display())))?;
    let receipt =
        Receipt::from_json(&text).map_err(|e| Error::Usage(format!("--resume: {}: {e}", path.display())))?;
    for host in &receipt.hosts {
        let recorded = host.versions.get("runner_sha256").into_iter();
        let mut other = recorded.filter(|hash| !runners.iter().any(|runner| runner.sha256 == **hash));
        if let (Some(hash), Some(runner)) = (other.next(), runners.first()) {
            return Err(Error::Usage(format!(
                "--resume: {} began with a runner of SHA-256 {hash} on {}; {} has {}; name the first one by --runner, or \
                 begin a new run",
                dir.display(),
                host.name,
                runner.path.display(),
                runner.sha256
            )));
        }
    }
    Ok(receipt.redacted)
}

fn run_start(begin: &Begin<'_>) -> RunStart {
    let plan = begin.plan;
    let mut hosts: Vec<HostStart> = Vec::new();
    for place in &plan.places {
        match hosts.iter_mut().find(|host| host.name == place.host) {
            Some(host) => host.ranks.push(place.rank),
            None => hosts.push(HostStart {
                name: place.host.clone(),
                ranks: vec![place.rank],
                versions: begin
                    .versions
                    .get(&place.host)
                    .into_iter()
                    .flatten()
                    .cloned()
                    .collect(),
                ..HostStart::default()
            }),
        }
    }
    let planned = plan.arms.iter().flat_map(|arm| {
        arm.steps.iter().map(|step| PlannedStep {
            arm: arm.name.clone(),
            step: step.name.clone(),
            repeat: begin.repeat.max(1),
            extra: serde_json::Map::new(),
        })
    });
    let mut extra = serde_json::Map::new();
    // The hash that `plan` prints; the one of the file plan.json is that of its redacted form.
    extra.insert("executed_plan_sha256".into(), plan.sha256().into());
    RunStart {
        run_id: begin.run_id.to_owned(),
        cluster: Some(plan.cluster.clone()),
        launcher: plan.launcher.clone(),
        started: time::now(),
        tool: Tool {
            name: "tp-orchestrate".into(),
            version: crate::cli::VERSION.into(),
            ..Tool::default()
        },
        source: source(crate::cli::REVISION),
        hosts,
        arms: plan.arms.iter().map(|arm| arm_start(&arm.name)).collect(),
        planned: planned.collect(),
        extra,
        ..RunStart::default()
    }
}

fn arm_start(name: &str) -> ArmStart {
    let about = match name {
        "none" => "neither HCA variable is set",
        "nccl" => "only NCCL_IB_HCA is set",
        "roce" => "only TF_TP_ROCE_HCA is set",
        _ => "",
    };
    ArmStart {
        name: name.to_owned(),
        about: about.to_owned(),
        ..ArmStart::default()
    }
}

fn source(revision: &str) -> Source {
    let (commit, dirty) = match revision.strip_suffix("-dirty") {
        Some(commit) => (commit, true),
        None => (revision, false),
    };
    let known = commit != "unknown";
    Source {
        revision: known.then(|| commit.to_owned()),
        dirty: known.then_some(dirty),
        ..Source::default()
    }
}
