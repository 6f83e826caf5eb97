//! Ctrl-C and SIGTERM.

use crate::exit_code;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// In the place of a signal: this machine was asleep for longer than the ranks' lease.
const ASLEEP: i32 = 1 << 16;

/// Which signals came, and how often. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    count: Arc<AtomicUsize>,
    first: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Takes SIGINT, SIGTERM and SIGHUP over from now on.
    pub fn install() -> Result<Self, crate::Error> {
        let interrupt = Self::default();
        let failed = |e: std::io::Error| crate::Error::Refused(format!("failed to take over Ctrl-C: {e}"));
        let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
        let shared = interrupt.clone();
        std::thread::Builder::new()
            .name("signals".into())
            .spawn(move || {
                for signal in signals.forever() {
                    shared.raise(signal);
                }
            })
            .map_err(failed)?;
        Ok(interrupt)
    }

    /// Counts a signal.
    pub fn raise(&self, signal: i32) {
        let _ = self
            .first
            .compare_exchange(0, signal as usize, Ordering::AcqRel, Ordering::Acquire);
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    /// This machine was asleep for longer than the ranks' lease: they are gone, and the run can be taken up again.
    pub fn asleep(&self) {
        self.raise(ASLEEP);
    }

    /// How many signals came.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// The first signal's name and the exit code that goes with it.
    pub fn first(&self) -> Option<(&'static str, u8)> {
        match self.first.load(Ordering::Acquire) as i32 {
            0 => None,
            ASLEEP => Some(("asleep", exit_code::FAILED)),
            SIGTERM => Some(("SIGTERM", exit_code::TERMINATED)),
            SIGHUP => Some(("SIGHUP", exit_code::TERMINATED)),
            _ => Some(("SIGINT", exit_code::INTERRUPTED)),
        }
    }
}
