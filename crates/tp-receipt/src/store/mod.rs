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
mod checks;
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
use checks::Checks;
use events::EventsFile;
use log::LogFile;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use sums::Sums;

/// The text of a file of a receipt, for whoever shows or compares it.
///
/// # Errors
/// It cannot be read; so also what is no plain file, which is never opened, since a pipe would never answer.
pub fn read_text(dir: &Path, name: &str) -> std::io::Result<String> {
    files::read_text(&dir.join(name))
}

/// The plan's file name.
pub const PLAN: &str = "plan.json";

/// Steps with at most this many logs have each brought to the disk at their end; larger ones at the end of the run.
const SYNCED_LOGS: usize = 8;

/// A document larger than this, bytes, takes its time to be written; see [`Written::is_recent`].
const LARGE: usize = 256 << 10;
/// So many times as long as a large document took to be written it stays as it is.
const REST: u32 = 5;

/// When the document was last written.
struct Written {
    at: Instant,
    took: Duration,
    bytes: usize,
}

impl Written {
    /// Whether a large document was written so lately that the next one can wait for a moment: of many ranks' quick steps
    /// not each has to have it anew. A cut-off run goes on from the record, which is never behind.
    fn is_recent(&self) -> bool {
        self.bytes > LARGE && self.at.elapsed() < self.took * REST
    }
}

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
    step: Option<Open>,
    logs: BTreeMap<u32, LogFile>,
    /// When the document was last written, and whether a step has ended since.
    written: Option<Written>,
    behind: bool,
}

/// A step that has begun and not ended.
struct Open {
    /// As the orchestrator names it.
    given: StepKey,
    /// As the record does.
    key: StepKey,
    checks: Checks,
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
                "step {} begins before step {} has ended",
                start.key, open.given
            )));
        }
        let given = start.key.clone();
        let record = redacted(Record::Step(start), &self.redactor);
        let key = match &record {
            Record::Step(start) => start.key.clone(),
            _ => self.redacted_key(&given),
        };
        self.step = Some(Open {
            given,
            key,
            checks: Checks::default(),
        });
        self.append(&record);
        // Before the first log is there: a run that goes on must know that this attempt's logs are taken.
        self.events.flush()
    }

    /// Records an event of the step that runs, or outside any step.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn event(&mut self, event: &Event) -> Result<(), StoreError> {
        let open = self.step.as_mut();
        if !open.is_some_and(|open| open.checks.take(event, &self.redactor)) {
            // What a rank says stands in the order in which it said it.
            if let Some(rank) = event.rank {
                self.write_checks(Some(rank));
            }
            let record = Record::Event(StepEvent {
                key: self.step.as_ref().map(|open| open.key.clone()),
                event: self.redactor.event(event),
            });
            self.append(&record);
        }
        self.flush_what_is_due()
    }

    /// Hands the checks that wait, of one rank or of all, to the record.
    fn write_checks(&mut self, rank: Option<u32>) {
        let Some(open) = &mut self.step else { return };
        for record in open.checks.records(&open.key, rank) {
            self.append(&record);
        }
    }

    /// Appends what a rank of the step that runs wrote on its standard error: bytes as they come, lines or parts of
    /// them.
    ///
    /// # Errors
    /// No step runs, or the log cannot be written.
    pub fn log(&mut self, rank: u32, bytes: &[u8]) -> Result<(), StoreError> {
        let Some(open) = &self.step else {
            return Err(StoreError::Order("log lines outside any step".into()));
        };
        if !self.logs.contains_key(&rank) {
            let name = log_name(&open.key, rank);
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
        let open = self.step.as_ref();
        open.map(|open| self.deriver.problems(&open.key))
            .unwrap_or_default()
    }

    /// Records that the step ended, brings everything to the disk and writes `receipt.json` anew; a large one that was
    /// written a moment ago has its turn with a later step or [`Store::flush`]. Gives what the attempt came to.
    ///
    /// # Errors
    /// That step does not run, or a file cannot be written.
    pub fn step_end(&mut self, mut end: StepEnd) -> Result<Attempt, StoreError> {
        let Some(open) = self.step.as_ref().filter(|open| open.given == end.key) else {
            return Err(StoreError::Order(format!(
                "step {} ends and does not run",
                end.key
            )));
        };
        let key = open.key.clone();
        self.write_checks(None);
        let sync = self.logs.len() <= SYNCED_LOGS;
        let wrong = !self.deriver.problems(&key).is_empty() || !end.errors.is_empty() || end.interrupted;
        for (rank, log) in std::mem::take(&mut self.logs) {
            let (name, hash, tail) = log.close(&self.redactor, sync, wrong)?;
            self.sums.files.insert(name, hash);
            if wrong {
                end.tails.insert(rank, tail);
            }
        }
        let mut record = redacted(Record::StepEnd(end), &self.redactor);
        if let Record::StepEnd(end) = &mut record {
            // Also where a name became known meanwhile that is part of it.
            end.key = key.clone();
        }
        self.append(&record);
        self.step = None;
        let attempt = self.deriver.attempt(&key).unwrap_or_default();
        self.behind = true;
        self.events.flush()?;
        self.catch_up()?;
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

    /// The same of one step alone, which is quick also late in a long run.
    pub fn step_alone(&self, key: &StepKey) -> Receipt {
        let key = self.redacted_key(key);
        self.deriver.step_alone(&key.arm, &key.step)
    }

    /// Hands every line to the system at once; to be called now and then while nothing comes.
    ///
    /// # Errors
    /// The record cannot be written.
    pub fn flush(&mut self) -> Result<(), StoreError> {
        self.write_checks(None);
        self.events.flush()?;
        self.catch_up()
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
        self.append(&record);
        self.flush_what_is_due()
    }

    /// Appends a record to those that wait to be handed to the system.
    fn append(&mut self, record: &Record) {
        self.deriver.push(record);
        self.events.append(&record.to_line());
    }

    /// Hands everything to the system where that has waited long enough, or is much.
    fn flush_what_is_due(&mut self) -> Result<(), StoreError> {
        let full = self.step.as_ref().is_some_and(|open| open.checks.is_full());
        if full || self.events.is_due() {
            self.write_checks(None);
            self.events.flush()
        } else {
            Ok(())
        }
    }

    fn redacted_key(&self, key: &StepKey) -> StepKey {
        StepKey::new(
            self.redactor.line(&key.arm),
            self.redactor.line(&key.step),
            key.attempt,
        )
    }

    /// Writes the document of what has ended since the last one, unless it is to wait.
    fn catch_up(&mut self) -> Result<(), StoreError> {
        if !self.behind || self.written.as_ref().is_some_and(Written::is_recent) {
            return Ok(());
        }
        self.checkpoint()
    }

    /// Brings the directory to a consistent state on the disk; see the module's rules.
    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.checkpoint_with(&[])
    }

    /// The same, with files that were written anew and wait under their temporary names.
    fn checkpoint_with(&mut self, others: &[&str]) -> Result<(), StoreError> {
        let begun = Instant::now();
        self.events.sync()?;
        self.redactor.save()?;
        let receipt = self.receipt();
        let at = &receipt.derived_from;
        self.sums
            .grows
            .insert(events::NAME.into(), (at.bytes, at.sha256.clone()));
        let document = receipt.to_json();
        self.replace_document(document.as_bytes(), others)?;
        self.behind = false;
        self.written = Some(Written {
            at: Instant::now(),
            took: begun.elapsed(),
            bytes: document.len(),
        });
        Ok(())
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
