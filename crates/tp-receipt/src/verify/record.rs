//! The record, read anew: what follows from it, and whether it agrees with itself.

use super::Report;
use crate::receipt::{DerivedFrom, Deriver, Receipt};
use crate::record::{PlannedStep, Record, SCHEMA, StepStart};
use crate::store::events::NAME;
use crate::store::files;
use jiff::Timestamp;
use std::path::Path;

/// What the record says.
pub(super) struct Read {
    /// The receipt of the whole record.
    pub whole: Receipt,
    /// Every step that its first line planned.
    pub planned: Vec<PlannedStep>,
    /// Every attempt as it began.
    pub steps: Vec<StepStart>,
    /// The bytes of the whole lines.
    bytes: Vec<u8>,
}

impl Read {
    /// The receipt of the first `bytes` bytes; `None` where no line ends.
    pub fn prefix(&self, from: &DerivedFrom) -> Option<Receipt> {
        let at = usize::try_from(from.bytes).ok()?;
        if at == self.bytes.len() {
            return Some(self.whole.clone());
        }
        let part = self.bytes.get(..at)?;
        part.ends_with(b"\n").then(|| derive(part).receipt)
    }
}

/// Reads `events.jsonl` and checks it against itself.
pub(super) fn read(dir: &Path, sealed: bool, report: &mut Report) -> Option<Read> {
    let mut bytes = match files::read(&report.path(dir, NAME)) {
        Ok(bytes) => bytes,
        Err(e) => {
            report.unreadable(NAME, &e);
            return None;
        }
    };
    let end = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    if end < bytes.len() {
        let what = format!("its last {} bytes are no whole line", bytes.len() - end);
        if sealed {
            report.broken(NAME, what)
        } else {
            report.notes.push(format!("{NAME}: {what}"))
        }
        bytes.truncate(end);
    }
    let Derived {
        receipt: whole,
        planned,
        steps,
        wrong,
        schema,
    } = derive(&bytes);
    for what in whole.derived_from.unreadable.iter().chain(&wrong) {
        report.broken(NAME, what.clone());
    }
    if schema > SCHEMA {
        report.notes.push(format!(
            "{NAME} has schema {schema}; this program knows {SCHEMA} and counts what it knows"
        ));
    }
    Some(Read {
        whole,
        planned,
        steps,
        bytes,
    })
}

struct Derived {
    receipt: Receipt,
    planned: Vec<PlannedStep>,
    steps: Vec<StepStart>,
    /// What ought to be equal or in order and is not.
    wrong: Vec<String>,
    /// The newest version of the format that the record says it has.
    schema: u32,
}

fn derive(bytes: &[u8]) -> Derived {
    let mut schema = 0;
    let mut deriver = Deriver::default();
    let mut times = Times::default();
    let mut lines = 0u64;
    let (mut planned, mut steps) = (Vec::new(), Vec::new());
    for line in bytes.split_inclusive(|b| *b == b'\n') {
        lines += 1;
        let text = line.strip_suffix(b"\n").unwrap_or(line);
        match std::str::from_utf8(text)
            .map_err(|e| e.to_string())
            .and_then(parse)
        {
            Ok(record) => {
                if (lines == 1) != matches!(record, Record::Run(_)) {
                    deriver.unreadable(format!(
                        "line {lines}: the record `run` must be the first one, and only it"
                    ));
                }
                schema = schema.max(match &record {
                    Record::Run(run) => run.schema,
                    Record::Resumed(resumed) => resumed.schema,
                    _ => 0,
                });
                times.look(&record);
                deriver.push(&record);
                match record {
                    Record::Run(run) => planned = run.planned,
                    Record::Step(step) => steps.push(step),
                    _ => {}
                }
            }
            Err(why) => deriver.unreadable(format!("line {lines}: {why}")),
        }
    }
    let mut receipt = deriver.receipt();
    receipt.derived_from = DerivedFrom {
        lines,
        bytes: bytes.len() as u64,
        sha256: files::sha256(bytes),
        ..receipt.derived_from
    };
    let mut wrong = deriver.disagreements();
    wrong.extend(times.wrong);
    Derived {
        receipt,
        planned,
        steps,
        wrong,
        schema,
    }
}

fn parse(line: &str) -> Result<Record, String> {
    Record::parse(line).map_err(|e| e.to_string())
}

/// Wall times must follow each other as the record does.
#[derive(Default)]
struct Times {
    last: Option<(Timestamp, String)>,
    wrong: Vec<String>,
}

impl Times {
    fn look(&mut self, record: &Record) {
        match record {
            Record::Run(run) => self.at(&run.started, || "the run's begin".into()),
            Record::Step(step) => self.at(&step.started, || format!("the begin of {}", step.key)),
            Record::StepEnd(end) => self.at(&end.ended, || format!("the end of {}", end.key)),
            Record::Resumed(resumed) => self.at(&resumed.at, || "the resumption".into()),
            Record::RunEnd(end) => self.at(&end.ended, || "the run's end".into()),
            _ => {}
        }
    }

    fn at(&mut self, time: &str, what: impl Fn() -> String) {
        let Ok(time) = time.parse::<Timestamp>() else {
            self.wrong
                .push(format!("the time of {} is `{time}`, not RFC 3339 in UTC", what()));
            return;
        };
        if let Some((last, of)) = &self.last
            && time < *last
        {
            self.wrong
                .push(format!("{} is at {time}, before {of} at {last}", what()));
        }
        self.last = Some((time, what()));
    }
}
