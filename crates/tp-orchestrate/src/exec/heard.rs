//! What a diagnosis may look at: the last lines of each rank, whatever way they came.

use super::judge::expected_end;
use crate::diagnosis::Evidence;
use crate::plan::Expect;
use std::collections::{BTreeMap, VecDeque};
use tp_receipt::event::Exit;

/// Lines kept of a rank: the last ones.
const LINES: usize = 200;
/// Bytes that are kept of a line.
const LINE_MAX: usize = 4 << 10;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Heard(BTreeMap<u32, VecDeque<String>>);

impl Heard {
    /// A rank said this.
    pub fn line(&mut self, rank: u32, line: String) {
        let lines = self.0.entry(rank).or_default();
        if lines.len() >= LINES {
            lines.pop_front();
        }
        lines.push_back(line);
    }

    /// A rank said these lines, or a part of a very long one; of a flood only the last can matter.
    pub fn lines(&mut self, rank: u32, bytes: &[u8]) {
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let mut last: Vec<&[u8]> = bytes.rsplit(|b| *b == b'\n').take(LINES).collect();
        last.reverse();
        for line in last {
            let line = &line[..line.len().min(LINE_MAX)];
            self.line(rank, String::from_utf8_lossy(line).trim_end().to_owned());
        }
    }

    /// The evidence of a step that failed: the orchestrator's own errors first, then what the ranks said, then signals
    /// that nobody meant to send.
    pub fn evidence(&self, errors: &[String], expect: &Expect, exits: &BTreeMap<u32, Exit>) -> Evidence {
        let mut evidence = Evidence::default();
        evidence
            .lines
            .extend(errors.iter().map(|error| (None, error.clone())));
        for (rank, lines) in &self.0 {
            evidence
                .lines
                .extend(lines.iter().map(|line| (Some(*rank), line.clone())));
        }
        for (rank, exit) in exits {
            let meant = expected_end(expect, *rank).signals;
            if let Some(signal) = exit.signal
                && exit.ended_by.is_none()
                && !meant.contains(&signal)
            {
                evidence.signals.push((*rank, signal));
            }
        }
        evidence
    }
}
