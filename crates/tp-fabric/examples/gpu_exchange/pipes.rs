//! A meeting through the parent: a line up the standard output, the answers of all down the standard input.

use std::io::{BufRead, Write};
use tp_fabric::meeting::{Meeting, MeetingError};
use tp_fabric::types::{Rank, World};

/// The variable by which a child knows its rank.
pub(crate) const RANK_VARIABLE: &str = "GPU_EXCHANGE_RANK";
/// What a line of a meeting begins with; other lines are for people.
pub(crate) const PREFIX: &str = "\u{1}meet ";

pub(crate) struct PipeMeeting {
    rank: Rank,
    world: World,
}

impl PipeMeeting {
    /// The end of this process, if it is a rank.
    pub(crate) fn of_this_process(ranks: u32) -> Option<Self> {
        let rank = std::env::var(RANK_VARIABLE).ok()?.parse().ok()?;
        Some(Self {
            rank: Rank(rank),
            world: World(ranks),
        })
    }

    fn trade(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, String> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{PREFIX}{} {}", op.replace(' ', "_"), hex(mine))
            .and_then(|()| out.flush())
            .map_err(|e| e.to_string())?;
        let mut line = String::new();
        std::io::stdin()
            .lock()
            .read_line(&mut line)
            .map_err(|e| e.to_string())?;
        if line.is_empty() {
            return Err("the parent has closed the meeting: a rank has left".to_owned());
        }
        line.trim_end_matches('\n').split(' ').map(unhex).collect()
    }
}

impl Meeting for PipeMeeting {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> World {
        self.world
    }

    fn all_gather(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError> {
        let lost = |reason| MeetingError::Lost {
            op: op.to_owned(),
            rank: Rank(0),
            reason,
        };
        let all = self.trade(op, mine).map_err(lost)?;
        if all.len() != self.world.size() {
            return Err(lost(format!("{} answers, not {}", all.len(), self.world)));
        }
        Ok(all)
    }
}

/// Bytes as digits; `-` where there are none, so that fields stay apart.
pub(crate) fn hex(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        "-".to_owned()
    } else {
        bytes.iter().map(|b| format!("{b:02x}")).collect()
    }
}

fn unhex(text: &str) -> Result<Vec<u8>, String> {
    if text == "-" {
        return Ok(Vec::new());
    }
    let digits = |at: usize| {
        text.get(at..at + 2)
            .and_then(|two| u8::from_str_radix(two, 16).ok())
    };
    (0..text.len())
        .step_by(2)
        .map(|at| digits(at).ok_or_else(|| format!("`{text}` is not hexadecimal")))
        .collect()
}
