//! What the orchestrator sends to a rank's standard input: one start line, then a beat every two seconds.
//!
//! The start line carries the settings and the secret, so that neither stands in an argument list or in another user's
//! view of the process table. The beats are the lease: a rank whose input closes, or brings no beat for
//! [`LEASE_LIMIT_S`], leaves. `end` is the order to leave now.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the start line.
pub const SCHEMA: u32 = 1;
/// Seconds between two beats.
pub const BEAT_EVERY_S: f64 = 2.0;
/// Seconds without a beat after which a rank leaves.
pub const LEASE_LIMIT_S: f64 = 15.0;
/// A start line longer than this is refused before it is parsed, bytes.
pub const START_LINE_MAX: usize = 1 << 20;

/// The first line on standard input.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Start {
    /// Version, [`SCHEMA`].
    pub schema: u32,
    /// Session name, the same on every rank of a step.
    pub session: String,
    /// The secret that the ranks prove to each other, hex; made anew for each step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Variables set for this rank: `TF_TP_*`, `NCCL_*`, …
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// Variables that must not be set for this rank, whatever it inherits (the `none` arm).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unset: Vec<String>,
}

/// A line after the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The orchestrator lives.
    Beat,
    /// Leave now, with the processes you started.
    End,
}

impl Order {
    /// The line as it is sent, without the line feed.
    pub fn as_line(self) -> &'static str {
        match self {
            Self::Beat => "beat",
            Self::End => "end",
        }
    }

    /// Reads a line; anything else than the two words is `None` and is to be ignored, so that words of a later version
    /// do no harm.
    pub fn parse(line: &str) -> Option<Self> {
        match line.trim() {
            "beat" => Some(Self::Beat),
            "end" => Some(Self::End),
            _ => None,
        }
    }
}

/// A line that asks a supervisor for its host's clock. It answers at once with an event `clock` that carries the token and
/// `CLOCK_MONOTONIC` in nanoseconds, so that times of two hosts can be brought to one clock; the rank never sees the line.
pub fn clock_line(token: u64) -> String {
    format!("clock {token}")
}

/// The token of a line that asks for the clock.
pub fn clock_token(line: &str) -> Option<u64> {
    line.trim().strip_prefix("clock ")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_for_the_clock_is_no_order() {
        let line = clock_line(7);
        assert_eq!((clock_token(&line), Order::parse(&line)), (Some(7), None));
        assert_eq!(clock_token("clock"), None);
        assert_eq!(clock_token("beat"), None);
    }
}
