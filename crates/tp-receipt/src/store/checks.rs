//! Passed checks on their way into the record: names are given numbers, and what a rank passed since the last line of it
//! waits until that line is due. What waits is no more than lines of the record that wait for the same moment.

use crate::event::{self, Event, Kind, Outcome};
use crate::record::{CheckNames, Passed, Record, StepKey};
use crate::redact::Redactor;
use serde_json::Map;
use std::collections::{BTreeMap, HashMap};

/// More than this do not wait.
const WAITING_MAX: usize = 1 << 14;

/// The passed checks of one attempt.
#[derive(Default)]
pub(super) struct Checks {
    /// The number of each name, as the ranks give it, and which of `groups` it is of.
    numbers: HashMap<String, (u32, usize)>,
    groups: Vec<String>,
    /// Names that the record has not got yet, redacted, and which of `groups` each is of.
    fresh: Vec<(usize, String)>,
    waiting: BTreeMap<u32, Waiting>,
    /// Checks that wait, of all ranks.
    count: usize,
}

#[derive(Default)]
struct Waiting {
    checks: Vec<(u32, u32)>,
    times: Vec<f64>,
}

impl Checks {
    /// Takes a check that passed. False for what has to have a line of its own: any other event, one with fields that
    /// [`Passed`] has not, a name that was given in another group.
    pub fn take(&mut self, event: &Event, redactor: &Redactor) -> bool {
        let (Kind::Check(check), Some(rank)) = (&event.kind, event.rank) else {
            return false;
        };
        let plain = check.outcome == Outcome::Passed
            && check.reason.is_none()
            && event.extra.is_empty()
            && event.schema == event::SCHEMA
            && event.t.is_finite();
        if !plain {
            return false;
        }
        let number = match self.numbers.get(&check.name) {
            Some((_, group)) if self.groups[*group] != check.group => return false,
            Some((number, _)) => *number,
            None => match self.name(&check.name, &check.group, redactor) {
                Some(number) => number,
                None => return false,
            },
        };
        let waiting = self.waiting.entry(rank).or_default();
        match waiting.checks.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(number) => *last = number,
            _ => waiting.checks.push((number, number)),
        }
        waiting.times.push(event.t);
        self.count += 1;
        true
    }

    /// Gives a name its number.
    fn name(&mut self, name: &str, group: &str, redactor: &Redactor) -> Option<u32> {
        let number = u32::try_from(self.numbers.len()).ok()?;
        let group = match self.groups.iter().position(|known| known == group) {
            Some(at) => at,
            None => {
                self.groups.push(group.to_owned());
                self.groups.len() - 1
            }
        };
        self.numbers.insert(name.to_owned(), (number, group));
        self.fresh.push((group, redactor.line(name)));
        Some(number)
    }

    /// Whether so much waits that it is to be written at once.
    pub fn is_full(&self) -> bool {
        self.count >= WAITING_MAX
    }

    /// The lines of what waits, of one rank or of all.
    pub fn records(&mut self, key: &StepKey, rank: Option<u32>) -> Vec<Record> {
        let waiting = match rank {
            None => std::mem::take(&mut self.waiting),
            Some(rank) => self.waiting.remove_entry(&rank).into_iter().collect(),
        };
        if waiting.is_empty() {
            return Vec::new();
        }
        let mut out = self.names(key);
        for (rank, Waiting { checks, times }) in waiting {
            self.count -= times.len();
            out.push(Record::Passed(Passed {
                key: key.clone(),
                rank,
                checks,
                times,
                extra: Map::new(),
            }));
        }
        out
    }

    fn names(&mut self, key: &StepKey) -> Vec<Record> {
        let fresh = std::mem::take(&mut self.fresh);
        let mut first = (self.numbers.len() - fresh.len()) as u32;
        let runs = fresh.chunk_by(|(a, _), (b, _)| a == b);
        runs.map(|run| {
            let names = CheckNames {
                key: key.clone(),
                first,
                group: self.groups[run[0].0].clone(),
                names: run.iter().map(|(_, name)| name.clone()).collect(),
                extra: Map::new(),
            };
            first += run.len() as u32;
            Record::CheckNames(names)
        })
        .collect()
    }
}
