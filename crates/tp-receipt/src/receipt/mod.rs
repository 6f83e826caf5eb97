//! The receipt: one document that says what a run was, what it found and what it did not look at.
//!
//! Every figure in it is derived from the run's record ([`Receipt::derive`]), so that `verify` can compute it again.
//! Fields that this version does not know survive a read and a write, at every level.

mod derive;
mod failfast;
mod rows;
mod step;
mod verdict;

pub use derive::Deriver;
pub use failfast::{FailFast, Survivor};
pub use rows::{
    CounterRow, Failure, LatencyRow, NotRun, Pick, PickedPort, PickedRail, SetAside, SettingRow,
    SkippedChecks, Warning,
};
pub use step::{Arm, Attempt, RankResult, Step};
pub use verdict::{Scope, Verdict};

use crate::record::Record;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// The version of the receipt document that this crate writes.
pub const SCHEMA: u32 = 1;

/// `receipt.json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Receipt {
    /// Version of the document.
    pub schema: u32,
    /// What the run as a whole comes to.
    pub verdict: Verdict,
    /// What the verdict rests on, one line for people.
    #[serde(default)]
    pub reasons: Vec<String>,
    /// What the steps that ran can prove: the set of their scopes.
    #[serde(default)]
    pub scope: Vec<Scope>,
    /// A name of this run that no other run has.
    #[serde(default)]
    pub run_id: String,
    /// The inventory's cluster name; a pseudonym in a redacted receipt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<String>,
    /// How the ranks were started: `local`, `ssh`, `slurm`.
    #[serde(default)]
    pub launcher: String,
    /// When the run began, RFC 3339, UTC, on the orchestrator's clock.
    pub started: String,
    /// When it ended; absent while it is not finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// What cut the run short, e.g. `SIGINT`; absent when every step had its turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<String>,
    /// How often the run was cut off and taken up again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub resumed: u32,
    /// The orchestrator that ran it.
    #[serde(default)]
    pub tool: Tool,
    /// The source it was built from.
    #[serde(default)]
    pub source: Source,
    /// SHA-256 of the file `plan.json` beside this one, lower-case hex.
    pub plan_sha256: String,
    /// SHA-256 of the plan as it was executed, before redaction: the one that `tp-orchestrate plan` prints.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executed_plan_sha256: Option<String>,
    /// Whether host names, users, addresses, serial numbers and paths are pseudonyms.
    #[serde(default)]
    pub redacted: bool,
    /// How much of `events.jsonl` this document was derived from.
    #[serde(default)]
    pub derived_from: DerivedFrom,
    /// Number of ranks.
    #[serde(default)]
    pub world: u32,
    /// Steps and checks counted.
    #[serde(default)]
    pub totals: Totals,
    /// The hosts and what ran on them.
    #[serde(default)]
    pub hosts: Vec<Host>,
    /// The matrix: every arm and every step of it.
    #[serde(default)]
    pub arms: Vec<Arm>,
    /// Which ports and rails each rank picked, and why.
    #[serde(default)]
    pub picks: Vec<Pick>,
    /// Measured latencies.
    #[serde(default)]
    pub latencies: Vec<LatencyRow>,
    /// Ranks failed on purpose, and how soon the others left.
    #[serde(default)]
    pub failfast: Vec<FailFast>,
    /// Variables and options that were in force.
    #[serde(default)]
    pub settings: Vec<SettingRow>,
    /// Hardware and kernel counters before and after the steps.
    #[serde(default)]
    pub counters: Vec<CounterRow>,
    /// What went wrong, with the known causes and the end of the logs.
    #[serde(default)]
    pub failures: Vec<Failure>,
    /// Checks that were skipped within steps that ran, with the reasons.
    #[serde(default)]
    pub skipped: Vec<SkippedChecks>,
    /// Steps that were not run, with the reasons.
    #[serde(default)]
    pub not_run: Vec<NotRun>,
    /// Warnings with a documented code that ranks gave.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<Warning>,
    /// Files that are not in this directory since a known secret remained in them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub set_aside: Vec<SetAside>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// A program and its version.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tool {
    /// Its name.
    #[serde(default)]
    pub name: String,
    /// Its version.
    #[serde(default)]
    pub version: String,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Where a program was built from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Source {
    /// Revision of the source, hex; absent where the build did not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Whether the source differed from that revision; absent where the build did not know.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty: Option<bool>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The prefix of `events.jsonl` that a document rests on; the whole file in a finished receipt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DerivedFrom {
    /// Lines.
    #[serde(default)]
    pub lines: u64,
    /// Bytes, up to and with the last line feed.
    #[serde(default)]
    pub bytes: u64,
    /// SHA-256 of those bytes, lower-case hex.
    #[serde(default)]
    pub sha256: String,
    /// Lines that were none of our records, and were left out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<String>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Counts over the whole run; steps by their outcome, checks by every rank of the attempts that decided.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Steps that passed.
    #[serde(default)]
    pub steps_passed: u64,
    /// Steps that failed.
    #[serde(default)]
    pub steps_failed: u64,
    /// Steps whose attempts disagree.
    #[serde(default)]
    pub steps_flaky: u64,
    /// Steps that began and did not end.
    #[serde(default)]
    pub steps_incomplete: u64,
    /// Steps that were planned and did not begin, and steps left out with a reason.
    #[serde(default)]
    pub steps_not_run: u64,
    /// Checks that passed, summed over ranks.
    #[serde(default)]
    pub checks_passed: u64,
    /// Checks that failed, summed over ranks.
    #[serde(default)]
    pub checks_failed: u64,
    /// Checks that were skipped, summed over ranks.
    #[serde(default)]
    pub checks_skipped: u64,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A host and what ran on it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Its name; a pseudonym in a redacted receipt.
    pub name: String,
    /// The ranks it ran.
    #[serde(default)]
    pub ranks: Vec<u32>,
    /// Versions: `kernel`, `driver`, `cuda`, `nccl`, `rdma-core`, `runner`, `revision`, …
    #[serde(default)]
    pub versions: BTreeMap<String, String>,
    /// SHA-256 of the runner's executable, as its ranks said; more than one is a fault.
    #[serde(default)]
    pub binary_sha256: Vec<String>,
    /// SHA-256 of the kernel image in it; empty in a binary without kernels.
    #[serde(default)]
    pub image_sha256: Vec<String>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A known cause of a failure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Diagnosis {
    /// Name of the signature that matched.
    #[serde(default)]
    pub code: String,
    /// What most probably happened.
    pub cause: String,
    /// What to do about it.
    #[serde(default)]
    pub remedy: String,
    /// What was seen: the line, number or counter that matched.
    #[serde(default)]
    pub evidence: String,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl Receipt {
    /// Derives the whole document from a run's record. `derived_from` is left to whoever knows the bytes.
    pub fn derive<'a>(records: impl IntoIterator<Item = &'a Record>) -> Self {
        let mut deriver = Deriver::default();
        for record in records {
            deriver.push(record);
        }
        deriver.receipt()
    }

    /// Reads `receipt.json`.
    ///
    /// # Errors
    /// What is wrong with the text: not JSON, or a field that does not fit.
    pub fn from_json(text: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(text)
    }

    /// The text of `receipt.json`, indented, with a line feed at the end.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).unwrap_or_default();
        text.push('\n');
        text
    }

    /// The step of that arm and name.
    pub fn step(&self, arm: &str, step: &str) -> Option<&Step> {
        self.arms
            .iter()
            .find(|a| a.name == arm)?
            .steps
            .iter()
            .find(|s| s.name == step)
    }

    /// The verdict with its scope, e.g. `PASSED (model, host)`.
    pub fn headline(&self) -> String {
        let scope: Vec<&str> = self.scope.iter().map(Scope::as_str).collect();
        if scope.is_empty() {
            return self.verdict.to_string();
        }
        format!("{} ({})", self.verdict, scope.join(", "))
    }
}
