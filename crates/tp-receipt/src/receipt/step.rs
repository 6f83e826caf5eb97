//! The matrix: arms, their steps, the attempts at each step, and the ranks of each attempt.

use super::{Scope, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// One setting of the HCA variables under test, and what came of every step under it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Arm {
    /// `none`, `nccl`, `roce`, or a name of the inventory's.
    pub name: String,
    /// What it is for.
    #[serde(default)]
    pub about: String,
    /// The variables it set, where they were known beforehand.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Its steps, in the order in which they first began.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One runner command on all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Step {
    /// Its name, e.g. `suite-host`.
    pub name: String,
    /// What it can prove.
    pub scope: Scope,
    /// What its attempts come to. Attempts that were cut off count only when nothing else was done.
    pub verdict: Verdict,
    /// The command of every rank, without the per-rank variables.
    #[serde(default)]
    pub command: Vec<String>,
    /// The ranks of the last attempt.
    #[serde(default)]
    pub ranks: Vec<RankResult>,
    /// Every attempt, in order, the last included.
    #[serde(default)]
    pub attempts: Vec<Attempt>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One attempt at a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Attempt {
    /// 1 for the first.
    pub attempt: u32,
    /// PASSED when every rank ended as it should and nothing else was wrong.
    pub verdict: Verdict,
    /// When it began, RFC 3339, UTC, on the orchestrator's clock.
    pub started: String,
    /// When it ended; absent when the run was cut off in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
    /// Wall time, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub took_ms: Option<f64>,
    /// The session that the ranks shared, as they said; more than one is a fault.
    #[serde(default)]
    pub sessions: Vec<String>,
    /// Everything that was wrong, one line each; empty when it passed.
    #[serde(default)]
    pub problems: Vec<String>,
    /// The ranks.
    #[serde(default)]
    pub ranks: Vec<RankResult>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// How one rank of an attempt ended, and what it checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RankResult {
    /// The rank.
    pub rank: u32,
    /// Its host.
    #[serde(default)]
    pub host: String,
    /// Exit code, when the process returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit: Option<i32>,
    /// Signal number, when a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// Why the supervisor ended it, when it did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
    /// How it was meant to end: `exit 0`, `exit 70`, `signal 9`, joined by ` or `.
    #[serde(default)]
    pub expected: String,
    /// Whether it ended so.
    #[serde(default)]
    pub as_expected: bool,
    /// Checks passed.
    #[serde(default)]
    pub passed: u64,
    /// Checks failed.
    #[serde(default)]
    pub failed: u64,
    /// Checks skipped.
    #[serde(default)]
    pub skipped: u64,
    /// Checks by group (`core`, `extended`, `graph`, …): passed, failed, skipped.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<String, [u64; 3]>,
    /// Why it left, as it said over the fate channel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fate: Option<String>,
    /// The rank that it named as the one that failed first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<u32>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

impl RankResult {
    /// How it ended, for tables: the exit code, `signal 9`, or `?` when nobody said.
    pub fn end(&self) -> String {
        match (self.exit, self.signal) {
            (_, Some(signal)) => format!("signal {signal}"),
            (Some(code), None) => code.to_string(),
            (None, None) => "?".into(),
        }
    }

    /// The three counts of a group.
    pub(super) fn of_group(&mut self, group: &str) -> &mut [u64; 3] {
        if !self.groups.contains_key(group) {
            self.groups.insert(group.to_owned(), [0; 3]);
        }
        self.groups.entry(group.to_owned()).or_default()
    }
}
