//! The fate channel: a rank that fails, vanishes or falls silent ends all the others, at once and by name.
//!
//! It runs on the control connections from right after the agreement until the clean stop, on a thread that only polls.
//! On a failure every rank reports who failed, in which phase and why; abort hooks run on that thread, and the process leaves
//! with [`EXIT_CODE`] as soon as they are done, at the latest after the grace, which a second thread watches.

mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod handle;
mod leave;
mod thread;
mod watch;

pub use handle::{Fate, FateHandle};
pub use leave::{Exit, RealExit};

use crate::types::Rank;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Exit code of a rank that failed or lost a peer.
pub const EXIT_CODE: i32 = 70;

/// What a fate channel needs to know.
#[derive(Clone, Debug)]
pub struct FateConfig {
    /// This rank.
    pub rank: Rank,
    /// Host of every rank, in rank order, for messages; its length is the world.
    pub hosts: Vec<String>,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a rank counts as lost.
    pub limit: Duration,
    /// Longest time of abort hooks.
    pub grace: Duration,
    /// Time between a follower's memory reports.
    pub memory_every: Duration,
}

/// A failure, as every rank reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FateReport {
    /// The rank that failed.
    pub culprit: Rank,
    /// Its host's name.
    pub host: String,
    /// What it was doing, as far as is known: `boot`, `close`, or a name that [`FateHandle::set_phase`] gave.
    pub phase: String,
    /// Why, one line.
    pub reason: String,
    /// Whether the culprit is this rank.
    pub own: bool,
}

impl fmt::Display for FateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            culprit,
            host,
            phase,
            reason,
            own,
        } = self;
        let who = if *own {
            format!("this rank ({culprit} on {host})")
        } else {
            format!("rank {culprit} on {host}")
        };
        write!(f, "{who} failed in phase `{phase}`: {reason}")
    }
}

/// How often and how much memory a rank has reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryReport {
    /// Available memory of the rank's host, bytes.
    pub available: u64,
    /// How old the report is.
    pub age: Duration,
}

/// What is called with the report, on a thread of the channel, before the process leaves.
pub type OnFate = Arc<dyn Fn(&FateReport) + Send + Sync>;

/// What a fate channel does to its process.
#[derive(Clone)]
pub struct FateActions {
    /// Called once with the report, before the abort hooks. `None`: the report goes to the log alone.
    pub on_fate: Option<OnFate>,
    /// How the process leaves.
    pub exit: Arc<dyn Exit>,
}

impl Default for FateActions {
    fn default() -> Self {
        Self {
            on_fate: None,
            exit: Arc::new(RealExit),
        }
    }
}

impl fmt::Debug for FateActions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FateActions")
            .field("on_fate", &self.on_fate.is_some())
            .finish_non_exhaustive()
    }
}
