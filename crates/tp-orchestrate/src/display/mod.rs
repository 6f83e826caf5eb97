//! What a run shows while it goes. One stream of records and lines goes in; a live table, plain lines or JSON come out.

mod excerpt;
mod json;
mod live;
mod plain;
mod progress;
mod table;

pub use json::JsonLines;
pub use live::Live;
pub use plain::{Plain, not_run};
pub use table::{failures, figures, matrix};

use crate::plan::Plan;
use std::path::{Path, PathBuf};
use tp_receipt::receipt::{Diagnosis, Receipt, Verdict};
use tp_receipt::record::{Record, StepKey};

/// One attempt that has ended, as people are told about it.
#[derive(Clone, Debug)]
pub struct StepReport {
    /// Which step.
    pub key: StepKey,
    /// What it came to.
    pub verdict: Verdict,
    /// Everything that was wrong.
    pub problems: Vec<String>,
    /// Known causes.
    pub causes: Vec<Diagnosis>,
    /// The figures of a good end: checks, time, fail-fast.
    pub figures: String,
    /// Last lines of each rank's log and the log's path; empty where the step passed.
    pub tails: Vec<(u32, PathBuf, Vec<String>)>,
}

/// Something that shows a run.
pub trait Reporter {
    /// The run begins.
    fn begin(&mut self, plan: &Plan, out: &Path);
    /// A record was written.
    fn record(&mut self, record: &Record);
    /// An attempt has ended.
    fn step_ended(&mut self, report: &StepReport);
    /// Time has passed.
    fn tick(&mut self);
    /// The run has ended and the receipt is written.
    fn end(&mut self, receipt: &Receipt, out: &Path);
    /// Why what was to be shown could not be written, where a program reads it and would miss something.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// A number and a noun that agrees with it: `1 arm`, `3 arms`.
pub(crate) fn counted(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

/// The reporter that fits: JSON where asked, the live table where standard error is a terminal that can show it, plain
/// lines elsewhere.
pub fn reporter(json: bool) -> Box<dyn Reporter> {
    let terminal = console::Term::stderr();
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    if json {
        Box::new(JsonLines::stdout())
    } else if terminal.is_term() && console::user_attended_stderr() && !dumb {
        Box::new(Live::new())
    } else {
        Box::new(Plain::stderr())
    }
}
