//! The tables of a receipt beside the matrix: picks, latencies, settings, counters, failures, what was left out.

use super::{Diagnosis, Scope, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// What one rank picked under one arm.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pick {
    /// The arm.
    pub arm: String,
    /// The step that said so first.
    pub step: String,
    /// The rank.
    pub rank: u32,
    /// Its host.
    #[serde(default)]
    pub host: String,
    /// True where the ports come from a facts file and not from this machine.
    #[serde(default)]
    pub model: bool,
    /// Every port that was considered.
    #[serde(default)]
    pub ports: Vec<PickedPort>,
    /// The rails that were chosen, in order.
    #[serde(default)]
    pub rails: Vec<PickedRail>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A port that was considered.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PickedPort {
    /// RDMA device.
    pub device: String,
    /// Port number, from 1.
    pub port: u32,
    /// Whether the pick took it.
    pub chosen: bool,
    /// Why, in words a person can act on.
    pub reason: String,
    /// Fields that the runner gave beyond these.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A rail that was chosen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PickedRail {
    /// The rank at the other end.
    pub peer: u32,
    /// Own RDMA device.
    pub device: String,
    /// Own port number.
    pub port: u32,
    /// Own GID index.
    pub gid_index: u32,
    /// Own address on the rail.
    pub address: String,
    /// The peer's RDMA device.
    pub peer_device: String,
    /// The peer's port number.
    pub peer_port: u32,
    /// `subnet`, `route` or `explicit`.
    pub by: String,
    /// Whether a real RDMA write crossed it each way before it counted.
    pub probed: bool,
    /// Fields that the runner gave beyond these.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// One measured latency of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LatencyRow {
    /// The arm.
    pub arm: String,
    /// The step.
    pub step: String,
    /// Which attempt at it.
    pub attempt: u32,
    /// The rank that measured.
    pub rank: u32,
    /// `host`, `nccl`, `mailbox`, `roce`.
    pub backend: String,
    /// `verbs`, `shm`, `tcp`; absent for NCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
    /// Operation, e.g. `all_reduce`.
    pub op: String,
    /// Bytes per rank.
    pub bytes: u64,
    /// `eager` or `graph`.
    pub mode: String,
    /// Operations between two looks at the clock; 1 for eager.
    pub ops_per_graph: u32,
    /// Timed operations behind the figures.
    pub samples: u64,
    /// Median time of one operation, microseconds.
    pub median_us: f64,
    /// 10th percentile, microseconds.
    pub p10_us: f64,
    /// 90th percentile, microseconds.
    pub p90_us: f64,
    /// Why the figure cannot be a latency, when it cannot (below what two processes need to exchange one cache line).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub implausible: Option<String>,
    /// Fields that the runner gave beyond these, e.g. `floor_us` or `sync`.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A variable or option and the value in force.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SettingRow {
    /// Name, as `docs/settings.md` has it.
    pub name: String,
    /// Value as text; secrets are never given.
    pub value: String,
    /// `default`, `environment`, `option`, `orchestrator`, `launcher`, `derived`.
    pub source: String,
    /// The arms in which it was so.
    #[serde(default)]
    pub arms: Vec<String>,
    /// The ranks for which it was so.
    #[serde(default)]
    pub ranks: Vec<u32>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A counter before and after a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CounterRow {
    /// The arm.
    pub arm: String,
    /// The step.
    pub step: String,
    /// Which attempt at it.
    pub attempt: u32,
    /// The rank on whose host it was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<u32>,
    /// Where, e.g. `rxe0/1`.
    pub place: String,
    /// Counter name.
    pub name: String,
    /// Value before the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<u64>,
    /// Value after the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// An attempt that did not pass.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failure {
    /// The arm.
    pub arm: String,
    /// The step.
    pub step: String,
    /// Which attempt at it.
    pub attempt: u32,
    /// FAILED or INCOMPLETE.
    pub verdict: Verdict,
    /// Everything that was wrong.
    #[serde(default)]
    pub problems: Vec<String>,
    /// Known causes.
    #[serde(default)]
    pub causes: Vec<Diagnosis>,
    /// The last lines of each rank's log.
    #[serde(default)]
    pub log_tails: BTreeMap<String, Vec<String>>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// Checks of a step that were skipped for one reason.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SkippedChecks {
    /// The arm.
    pub arm: String,
    /// The step.
    pub step: String,
    /// Which attempt at it.
    pub attempt: u32,
    /// The check's group.
    pub group: String,
    /// Why.
    pub reason: String,
    /// How many, summed over ranks.
    pub count: u64,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A step that was not run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct NotRun {
    /// The arm; empty for every arm.
    #[serde(default)]
    pub arm: String,
    /// The step, or what else was left out.
    pub step: String,
    /// Why.
    pub reason: String,
    /// Whether the plan had it, so that the run is INCOMPLETE without it.
    #[serde(default)]
    pub planned: bool,
    /// What it would have proved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A warning that one or more ranks gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Warning {
    /// A code of the documented list, e.g. `unprobed`.
    pub code: String,
    /// The line.
    pub text: String,
    /// Where it was given: `arm/step`, each once.
    #[serde(default)]
    pub steps: Vec<String>,
    /// The ranks that gave it.
    #[serde(default)]
    pub ranks: Vec<u32>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A file that is kept outside of the receipt.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SetAside {
    /// The file, relative to the receipt.
    pub file: String,
    /// Why, without the secret itself.
    pub why: String,
    /// What stands in its place: empty for nothing.
    #[serde(default)]
    pub instead: String,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
