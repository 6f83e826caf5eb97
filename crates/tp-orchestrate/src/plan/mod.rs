//! The plan: every command, on every host, in order, as one immutable value.
//!
//! [`build()`] makes it from an inventory, what the hosts can do and what was asked for; it asks nobody and changes
//! nothing. `tp-orchestrate plan` prints the value and `run` executes the same value; its [`Plan::sha256`] stands in the
//! receipt. What is known only at run time stands as a symbol ([`symbol`]).

mod backends;
mod build;
mod commands;
mod glob;
mod render;
pub mod symbol;

pub use backends::{BACKENDS, Capabilities};
pub use build::{Selection, build};
pub(crate) use commands::argv as whole_argv;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// Version of the plan's JSON form.
pub const SCHEMA: u32 = 1;

/// The arms, in the order in which they run.
pub const ARMS: [&str; 3] = ["none", "nccl", "roce"];

/// What a run does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The inventory's cluster name.
    pub cluster: String,
    /// How ranks are started: `local`, `ssh` or `slurm`.
    pub launcher: String,
    /// Number of ranks.
    pub world: u32,
    /// Where each rank runs, by rank.
    pub places: Vec<Place>,
    /// Arms in the order in which they run.
    pub arms: Vec<Arm>,
    /// What was left out, and why.
    pub not_run: Vec<NotRun>,
}

/// Where a rank runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The rank.
    pub rank: u32,
    /// The inventory's name of the host.
    pub host: String,
    /// How it is reached: `this machine`, `ssh USER@HOST`, `srun`.
    pub via: String,
    /// CUDA ordinal of its GPU, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<u32>,
    /// The facts file that stands for this rank's ports in `model` steps, as the inventory names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts: Option<String>,
}

/// One setting of the HCA variables and the steps that run under it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Arm {
    /// `none`, `nccl` or `roce`.
    pub name: String,
    /// Its steps, in order.
    pub steps: Vec<Step>,
}

/// One runner command on all ranks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// `hca`, `roce-host`, `suite-BACKEND`, `bench-BACKEND`, `failfast-BACKEND-KIND-VICTIM`.
    pub name: String,
    /// What it touches: `model`, `host`, `softroce`, `gpu`, `nic`.
    pub scope: String,
    /// Milliseconds after which the step is ended everywhere.
    pub limit_ms: u64,
    /// How the ranks must end for the step to pass.
    pub expect: Expect,
    /// Why the step was added although it was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub added_because: Option<String>,
    /// One command a rank, by rank.
    pub commands: Vec<Command>,
}

/// How the ranks of a step must end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Expect {
    /// Every rank exits 0.
    AllPass,
    /// The victim fails on purpose and the others notice.
    FailFast {
        /// `fatal`, `kill` or `stall`.
        inject: String,
        /// The rank that fails.
        victim: u32,
        /// Milliseconds from the injection within which every other rank has left with 70.
        within_ms: u64,
    },
}

/// What one rank is started with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The rank.
    pub rank: u32,
    /// The host it runs on.
    pub host: String,
    /// The whole command line, symbols unresolved.
    pub argv: Vec<String>,
    /// Variables set for the rank, sent in its start line.
    pub settings: BTreeMap<String, String>,
    /// Variables removed for the rank, whatever it inherits.
    pub unset: Vec<String>,
    /// In a `model` step: the variables written into the rank's part of the merged facts file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub facts_env: Option<BTreeMap<String, String>>,
}

/// Something that was left out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotRun {
    /// What, e.g. `suite-nccl`.
    pub what: String,
    /// Why.
    pub reason: String,
}

impl Plan {
    /// The plan as one line of JSON: the form that is hashed.
    pub fn to_json(&self) -> String {
        // Strings, numbers and maps with string keys always serialise.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// SHA-256 of [`Plan::to_json`], lower-case hex.
    pub fn sha256(&self) -> String {
        hex::encode(Sha256::digest(self.to_json().as_bytes()))
    }

    /// Number of steps over all arms.
    pub fn step_count(&self) -> usize {
        self.arms.iter().map(|arm| arm.steps.len()).sum()
    }

    /// The plan for people.
    pub fn to_text(&self) -> String {
        render::text(self)
    }
}

impl Step {
    /// Whether it picks on facts files instead of this cluster's ports.
    pub fn is_model(&self) -> bool {
        self.scope == "model"
    }

    /// The pick symbols that its commands contain, each once, in order.
    pub fn symbols(&self) -> Vec<symbol::Pick> {
        let mut out = Vec::new();
        for command in &self.commands {
            let facts = command.facts_env.iter().flat_map(|env| env.values());
            for text in command.argv.iter().chain(command.settings.values()).chain(facts) {
                out.extend(symbol::picks(text));
            }
        }
        out.sort();
        out.dedup();
        out
    }
}
