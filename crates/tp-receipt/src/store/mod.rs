//! The receipt directory, written as the run goes.
//!
//! Killed at any moment, what is there is consistent and says INCOMPLETE. These rules make it so:
//! - The directory appears with the begin of the record, the plan and the sums in it, by a rename.
//! - `events.jsonl` and the logs are only appended to; everything else is put in place whole, by a rename.
//! - `receipt.json` names the prefix of `events.jsonl` that it rests on, and says INCOMPLETE until the run has ended.
//! - `SHA256SUMS` is replaced before `receipt.json` and lists both the new one and the one it replaces ([`sums`]).
//! - What else is replaced before the end (a plan and a record in which a name was left) lies complete under its temporary
//!   name before the sums list it; where the last rename is missing, that file stands for it.
//! - The pages for people are written when the run ends, before the seal; until then they are not part of the receipt.

mod begin;
mod error;
pub mod events;
pub(crate) mod files;
mod log;
mod resume;
mod seal;
pub mod sums;

pub use error::StoreError;
pub use resume::Resume;

use crate::event::Event;
use crate::receipt::{Attempt, Deriver, NotRun, Receipt};
use crate::record::{Record, RunEnd, StepEnd, StepEvent, StepKey, StepStart};
use crate::redact::Redactor;
use events::EventsFile;
use log::LogFile;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use sums::Sums;

/// The plan's file name.
pub const PLAN: &str = "plan.json";

/// Steps with at most this many logs have each brought to the disk at their end; larger ones at the end of the run.
const SYNCED_LOGS: usize = 8;

/// Limits of what is kept.
#[derive(Clone, Debug)]
pub struct Options {
    /// The most that is kept of one rank's log in one step, bytes; 7/8 from its beginning, 1/8 from its end.
    pub log_bytes: u64,
    /// Lines of each log that a failed step's entry shows.
    pub tail_lines: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            log_bytes: 8 << 20,
            tail_lines: 20,
        }
    }
}

/// A receipt directory that is being written.
pub struct Store {
    dir: PathBuf,
    redactor: Redactor,
    options: Options,
    events: EventsFile,
    deriver: Deriver,
    sums: Sums,
    /// The step that has begun and not ended, and its logs.
    step: Option<StepKey>,
    logs: BTreeMap<u32, LogFile>,
}

impl Store {
    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The redactor, for lines that are shown elsewhere.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Records that a step began. One step runs at a time.
    ///
    /// # Errors
    /// Another step has not ended, or the record cannot be written.
    pub fn step_begin(&mut self, start: StepStart) -> Result<(), StoreError> {
        if let Some(open) = &self.step {
            return Err(StoreError::Order(format!(
                "step {} begins before step {open} has ended",
                start.key
            )));
        }
        self.step = Some(start.key.clone());
        self.record(Record::Step(start))?;
        // Before the first log is there: a run that goes on must know that this attempt's logs are taken.
        self.events.flush()
    }

    /// Records an event of the step that runs, or outside any step.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn event(&mut self, event: &Event) -> Result<(), StoreError> {
        let key = self.step.as_ref().map(|key| self.redacted_key(key));
        let record = Record::Event(StepEvent {
            key,
            event: self.redactor.event(event),
        });
        self.append(&record)
    }

    /// Appends what a rank of the step that runs wrote on its standard error: bytes as they come, lines or parts of
    /// them.
    ///
    /// # Errors
    /// No step runs, or the log cannot be written.
    pub fn log(&mut self, rank: u32, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(key) = &self.step else {
            return Err(StoreError::Order("log lines outside any step".into()));
        };
        if !self.logs.contains_key(&rank) {
            let name = log_name(&self.redacted_key(key), rank);
            let log = LogFile::create(&self.dir, name, self.options.log_bytes, self.options.tail_lines)?;
            self.logs.insert(rank, log);
        }
        match self.logs.get_mut(&rank) {
            Some(log) => log.push(bytes, &self.redactor),
            None => Ok(()),
        }
    }

    /// The last lines of a rank's log in the step that runs, redacted.
    pub fn tail(&self, rank: u32) -> Vec<String> {
        let log = self.logs.get(&rank);
        log.map(|log| log.tail(&self.redactor)).unwrap_or_default()
    }

    /// What is wrong in the step that runs, as far as is known before it has ended: for the diagnosis.
    pub fn problems(&self) -> Vec<String> {
        let key = self.step.as_ref().map(|key| self.redacted_key(key));
        key.map(|key| self.deriver.problems(&key)).unwrap_or_default()
    }

    /// Records that the step ended, brings everything to the disk and writes `receipt.json` anew. Gives what the
    /// attempt came to.
    ///
    /// # Errors
    /// That step does not run, or a file cannot be written.
    pub fn step_end(&mut self, mut end: StepEnd) -> Result<Attempt, StoreError> {
        if self.step.as_ref() != Some(&end.key) {
            return Err(StoreError::Order(format!(
                "step {} ends and does not run",
                end.key
            )));
        }
        let key = self.redacted_key(&end.key);
        let sync = self.logs.len() <= SYNCED_LOGS;
        let wrong = !self.deriver.problems(&key).is_empty() || !end.errors.is_empty() || end.interrupted;
        for (rank, log) in std::mem::take(&mut self.logs) {
            let (name, hash, tail) = log.close(&self.redactor, sync, wrong)?;
            self.sums.files.insert(name, hash);
            if wrong {
                end.tails.insert(rank, tail);
            }
        }
        self.record(Record::StepEnd(end))?;
        self.step = None;
        let attempt = self.deriver.attempt(&key).unwrap_or_default();
        self.checkpoint()?;
        Ok(attempt)
    }

    /// Records that a step is left out, and why.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn not_run(&mut self, row: NotRun) -> Result<(), StoreError> {
        self.record(Record::NotRun(row))
    }

    /// The receipt as far as the run has come.
    pub fn receipt(&self) -> Receipt {
        let mut receipt = self.deriver.receipt();
        let unreadable = std::mem::take(&mut receipt.derived_from.unreadable);
        receipt.derived_from = self.events.so_far();
        receipt.derived_from.unreadable = unreadable;
        receipt
    }

    /// Hands every line to the system at once; to be called now and then while nothing comes.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.events.flush()
    }

    /// Records that the run ended, scans for known secrets, writes the pages for people, and seals the receipt.
    ///
    /// # Errors
    /// A file cannot be written; the directory then is one of a run that was cut off.
    pub fn finish(mut self, end: RunEnd) -> Result<Receipt, StoreError> {
        self.seal(end)
    }

    /// Redacts a record of ours and appends it.
    fn record(&mut self, record: Record) -> Result<(), StoreError> {
        let record = redacted(record, &self.redactor);
        self.append(&record)
    }

    fn append(&mut self, record: &Record) -> Result<(), StoreError> {
        self.deriver.push(record);
        self.events.append(&record.to_line())
    }

    fn redacted_key(&self, key: &StepKey) -> StepKey {
        StepKey::new(
            self.redactor.line(&key.arm),
            self.redactor.line(&key.step),
            key.attempt,
        )
    }

    /// Brings the directory to a consistent state on the disk; see the module's rules.
    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.checkpoint_with(&[])
    }

    /// The same, with files that were written anew and wait under their temporary names.
    fn checkpoint_with(&mut self, others: &[&str]) -> Result<(), StoreError> {
        self.events.sync()?;
        self.redactor.save()?;
        let receipt = self.receipt();
        let at = &receipt.derived_from;
        self.sums
            .grows
            .insert(events::NAME.into(), (at.bytes, at.sha256.clone()));
        self.replace_document(receipt.to_json().as_bytes(), others)
    }

    /// Puts the document in its place, and before it the other files that wait under their temporary names.
    fn replace_document(&mut self, document: &[u8], others: &[&str]) -> Result<(), StoreError> {
        files::write_temporary(&self.dir, sums::DOCUMENT, document)?;
        let new = files::sha256(document);
        self.sums.was = self.sums.files.insert(sums::DOCUMENT.into(), new);
        files::write(&self.dir, sums::NAME, self.sums.render().as_bytes())?;
        for name in others {
            files::put(&self.dir, name)?;
        }
        files::put(&self.dir, sums::DOCUMENT)?;
        files::sync_dir(&self.dir)
    }
}

/// The log's name within the receipt: `logs/ARM/STEP/rank-N.log`, later attempts in a directory of their own.
pub fn log_name(key: &StepKey, rank: u32) -> String {
    let attempt = if key.attempt > 1 {
        format!("attempt-{}/", key.attempt)
    } else {
        String::new()
    };
    let (arm, step) = (files::component(&key.arm), files::component(&key.step));
    format!("logs/{arm}/{step}/{attempt}rank-{rank}.log")
}

fn plan_bytes(plan: &Value, redactor: &Redactor) -> Vec<u8> {
    let mut plan = plan.clone();
    redactor.value(&mut plan);
    let mut text = serde_json::to_string_pretty(&plan).unwrap_or_default();
    text.push('\n');
    text.into_bytes()
}

/// A record of ours with everything replaced; host names also where they are words of our own.
fn redacted(mut record: Record, redactor: &Redactor) -> Record {
    match &mut record {
        Record::Run(run) => run.hosts.iter_mut().for_each(|h| h.name = redactor.host(&h.name)),
        Record::Step(step) => step
            .ranks
            .iter_mut()
            .for_each(|r| r.host = redactor.host(&r.host)),
        // The tails were redacted line by line.
        _ => {}
    }
    let mut value = Value::Object(record.to_object());
    redactor.value(&mut value);
    match value {
        // Our own field names are never replaced, so what comes out is a record again.
        Value::Object(map) => Record::from_object(map.clone()).unwrap_or(Record::Unknown(map)),
        _ => record,
    }
}
