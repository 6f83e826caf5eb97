//! Ranks that were failed on purpose, and how soon the others left.

use super::Verdict;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One injection.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FailFast {
    /// Arm of the step.
    pub arm: String,
    /// The step.
    pub step: String,
    /// Which attempt at it.
    pub attempt: u32,
    /// `fatal`, `kill`, `stall` or `transport`.
    pub what: String,
    /// The rank that failed on purpose.
    pub victim: u32,
    /// How the victim ended: an exit code, `signal 9`, or `?`.
    #[serde(default)]
    pub victim_end: String,
    /// Longest time allowed from the injection to a survivor's exit, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit_ms: Option<f64>,
    /// The other ranks.
    #[serde(default)]
    pub survivors: Vec<Survivor>,
    /// What the attempt came to.
    #[serde(default)]
    pub verdict: Verdict,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// A rank that had to leave since another failed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Survivor {
    /// The rank.
    pub rank: u32,
    /// How it ended: an exit code, `signal 9`, or `?`.
    #[serde(default)]
    pub end: String,
    /// From the injection to the exit, on one clock, milliseconds; absent when either is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_ms: Option<f64>,
    /// Uncertainty of that figure from bringing two hosts' clocks together, milliseconds; 0 on one host.
    #[serde(default)]
    pub error_ms: f64,
    /// Whether it named the victim as the one that failed.
    #[serde(default)]
    pub named_victim: bool,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}
