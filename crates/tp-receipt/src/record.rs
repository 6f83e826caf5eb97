//! The run's record: `events.jsonl`, one JSON object a line.
//!
//! Everything that a receipt says is derived from this list alone, so that anybody can recompute it. A line is either
//! what the orchestrator records itself (it has a `record` field: a run or step began or ended, a step was not run) or
//! an event of a rank, kept as it came, with the `arm`, `step` and `attempt` it belongs to.

mod checks;
mod codec;

pub(crate) use checks::Groups;
pub use checks::{CheckNames, Passed};

use crate::event::Event;
use crate::receipt::{Diagnosis, NotRun, Scope, SetAside, Source, Tool};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The version of the record format that this crate writes. Since 2, passed checks stand in lines of [`Passed`]; a record
/// of version 1, in which each has its own, is read as well.
pub const SCHEMA: u32 = 2;

/// One line of `events.jsonl`.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The run began; the first line.
    Run(RunStart),
    /// A step began, on all its ranks at once.
    Step(StepStart),
    /// A rank (or, with no rank, the orchestrator) said something within a step, or outside any.
    Event(StepEvent),
    /// Names of checks and their numbers within an attempt.
    CheckNames(CheckNames),
    /// Checks that a rank passed.
    Passed(Passed),
    /// The step ended.
    StepEnd(StepEnd),
    /// A step was left out, and why.
    NotRun(NotRun),
    /// A file was set aside since a known secret remained in it.
    SetAside(SetAside),
    /// The run was taken up again after it had been cut off.
    Resumed(Resumed),
    /// The run ended, wholly or by an interruption.
    RunEnd(RunEnd),
    /// A record that this version does not know, kept whole.
    Unknown(Map<String, Value>),
}

/// Which step of which arm, and which attempt at it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StepKey {
    /// Arm: `none`, `nccl`, `roce`, or a name of the inventory's.
    pub arm: String,
    /// Step, e.g. `suite-host`.
    pub step: String,
    /// 1 for the first.
    #[serde(default = "first")]
    pub attempt: u32,
}

fn first() -> u32 {
    1
}

impl StepKey {
    /// A key.
    pub fn new(arm: impl Into<String>, step: impl Into<String>, attempt: u32) -> Self {
        Self {
            arm: arm.into(),
            step: step.into(),
            attempt,
        }
    }
}

impl std::fmt::Display for StepKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.arm, self.step)?;
        if self.attempt > 1 {
            write!(f, " (attempt {})", self.attempt)?;
        }
        Ok(())
    }
}

/// See [`Record::Run`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunStart {
    /// Version of the record format, [`SCHEMA`].
    #[serde(default)]
    pub schema: u32,
    /// A name of this run that nothing else has.
    #[serde(default)]
    pub run_id: String,
    /// The inventory's cluster name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// `local`, `ssh`, `slurm`.
    #[serde(default)]
    pub launcher: String,
    /// When it began, RFC 3339, UTC.
    #[serde(default)]
    pub started: String,
    /// The orchestrator that runs it.
    #[serde(default)]
    pub tool: Tool,
    /// The source the orchestrator was built from.
    #[serde(default)]
    pub source: Source,
    /// SHA-256 of the file `plan.json`, lower-case hex. Filled by the store.
    #[serde(default)]
    pub plan_sha256: String,
    /// Whether names and addresses are pseudonyms. Filled by the store.
    #[serde(default)]
    pub redacted: bool,
    /// The hosts, and which ranks run where.
    #[serde(default)]
    pub hosts: Vec<HostStart>,
    /// Every arm, with the HCA variables it sets (empty: none of them).
    #[serde(default)]
    pub arms: Vec<ArmStart>,
    /// Every step that is to run, in order. What is missing in the end is listed as not run, and the run is INCOMPLETE.
    #[serde(default)]
    pub planned: Vec<PlannedStep>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A host of [`RunStart`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HostStart {
    /// The inventory's name; a pseudonym in a redacted receipt.
    pub name: String,
    /// The ranks it runs.
    #[serde(default)]
    pub ranks: Vec<u32>,
    /// What is known of it beforehand: `kernel`, `gpu`, `rdma-core`, …
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An arm of [`RunStart`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ArmStart {
    /// Its name.
    pub name: String,
    /// What it is for, one line.
    #[serde(default)]
    pub about: String,
    /// The variables it sets, where they are known beforehand.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A step that the plan holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedStep {
    /// Its arm.
    pub arm: String,
    /// Its name.
    pub step: String,
    /// How many attempts are meant to run, whatever they bring (`--repeat`); 1 otherwise. Retries are not planned.
    #[serde(default = "first")]
    pub repeat: u32,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// See [`Record::Step`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepStart {
    /// Which step.
    #[serde(flatten)]
    pub key: StepKey,
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// What the step can prove.
    pub scope: Scope,
    /// The command of every rank, without the per-rank variables.
    #[serde(default)]
    pub command: Vec<String>,
    /// The deadline of the whole step, seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline_s: Option<f64>,
    /// The ranks and how each is meant to end.
    pub ranks: Vec<RankStart>,
    /// Fail-fast steps: the longest time from the injection to a survivor's exit, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_within_ms: Option<f64>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A rank of [`StepStart`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankStart {
    /// The rank.
    pub rank: u32,
    /// Its host's name.
    pub host: String,
    /// Exit codes that are right; empty with no signals: 0.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exits: Vec<i32>,
    /// Signals that are right.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub signals: Vec<i32>,
}

impl RankStart {
    /// A rank that is to end with 0.
    pub fn ok(rank: u32, host: impl Into<String>) -> Self {
        Self {
            rank,
            host: host.into(),
            exits: vec![0],
            signals: vec![],
        }
    }

    /// A rank that is to end with one of these codes or signals.
    pub fn expecting(rank: u32, host: impl Into<String>, exits: &[i32], signals: &[i32]) -> Self {
        Self {
            rank,
            host: host.into(),
            exits: exits.to_vec(),
            signals: signals.to_vec(),
        }
    }
}

/// See [`Record::Event`].
#[derive(Clone, Debug, PartialEq)]
pub struct StepEvent {
    /// The step it belongs to; absent for what happens between steps (preflight).
    pub key: Option<StepKey>,
    /// What was said.
    pub event: Event,
}

/// See [`Record::StepEnd`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepEnd {
    /// Which step.
    #[serde(flatten)]
    pub key: StepKey,
    /// When it ended, RFC 3339, UTC.
    pub ended: String,
    /// Wall time of the step on the orchestrator's clock, milliseconds.
    pub took_ms: f64,
    /// What the orchestrator itself found wrong: a launch that failed, the deadline, lines that are no events.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// The run was interrupted in this step: it counts neither as passed nor as failed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Known causes of what went wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Diagnosis>,
    /// How to bring a rank's `monotonic_ns` to one clock; a rank that is missing needs nothing added.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub clocks: BTreeMap<u32, Clock>,
    /// The last lines of each rank's log, when the step did not pass. Filled by the store.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub tails: BTreeMap<u32, Vec<String>>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A rank's clock against the orchestrator's reference.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// Added to the rank's `monotonic_ns` it gives the reference clock, nanoseconds.
    pub offset_ns: i64,
    /// Half-width of the offset's uncertainty, nanoseconds.
    pub error_ns: u64,
}

/// See [`Record::Resumed`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Resumed {
    /// Version of the record format from here on; 0 where that is the one of before.
    #[serde(default)]
    pub schema: u32,
    /// When, RFC 3339, UTC.
    pub at: String,
    /// Bytes of a half-written last line that were cut off.
    #[serde(default)]
    pub dropped_bytes: u64,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// See [`Record::RunEnd`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RunEnd {
    /// When, RFC 3339, UTC.
    pub ended: String,
    /// What cut the run short (`SIGINT`, …); absent when every step had its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
