//! Exit codes of the runner. They are part of its interface: the orchestrator and scripts read them.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | all checks passed |
//! | 1 | a check failed, or an event could not be written |
//! | 2 | usage or settings: what was asked for cannot be meant; an output exists or cannot be written |
//! | 3 | this host cannot: no GPU, kernel, library, port, memory |
//! | 70 | this rank failed, or it lost a peer or its lease |
//! | 128 + n | from `supervise`: signal n ended the command |

/// All checks passed.
pub const PASSED: u8 = 0;
/// A check failed.
pub const FAILED: u8 = 1;
/// Usage or settings.
pub const USAGE: u8 = 2;
/// This host cannot.
pub const CANNOT: u8 = 3;
/// Failed, lost a peer, or lost the lease.
pub const LOST: u8 = 70;

/// The code that stands for the end by signal `signal`, as shells have it.
pub fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + (signal & 0x7f)).unwrap_or(u8::MAX)
}

/// An end that is not "all passed", with the one line that says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct Refusal {
    /// Exit code.
    pub code: u8,
    /// What, where, what to do; one line.
    pub text: String,
}

impl Refusal {
    /// Usage or settings are wrong ([`USAGE`]).
    pub fn usage(text: impl Into<String>) -> Self {
        Self {
            code: USAGE,
            text: text.into(),
        }
    }

    /// This host cannot ([`CANNOT`]).
    pub fn cannot(text: impl Into<String>) -> Self {
        Self {
            code: CANNOT,
            text: text.into(),
        }
    }

    /// This rank failed or lost a peer ([`LOST`]).
    pub fn lost(text: impl Into<String>) -> Self {
        Self {
            code: LOST,
            text: text.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_has_the_shells_code() {
        assert_eq!(of_signal(9), 137);
        assert_eq!(of_signal(15), 143);
    }
}
