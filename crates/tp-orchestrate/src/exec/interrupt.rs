//! Ctrl-C and SIGTERM.

use crate::exit_code;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// In the place of a signal: this machine was asleep for longer than the ranks' lease.
const ASLEEP: i32 = 1 << 16;

/// A run that has not looked for signals so long after one, or after a second one, is stuck: in a write to a terminal that
/// takes nothing, say. It is ended; its ranks end by their leases, and the receipt is that of a run that was cut off.
const PATIENCE: [Duration; 2] = [Duration::from_secs(30), Duration::from_secs(2)];

/// Which signals came, and how often. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    count: Arc<AtomicUsize>,
    /// How many of them the run has seen.
    seen: Arc<AtomicUsize>,
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
                    shared.guard();
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

    /// Ends this process where the run does not look for the signals that came.
    fn guard(&self) {
        let this = self.clone();
        let came = self.count.load(Ordering::Acquire);
        let code = self.first().map_or(exit_code::INTERRUPTED, |(_, code)| code);
        let guard = std::thread::Builder::new().name("signal guard".into());
        let started = guard.spawn(move || {
            std::thread::sleep(PATIENCE[usize::from(came > 1)]);
            if this.seen.load(Ordering::Acquire) < came {
                signal_hook::low_level::exit(i32::from(code));
            }
        });
        // Without a thread the run goes on as it would have without a guard.
        drop(started);
    }

    /// How many signals came. The run looks here often.
    pub fn count(&self) -> usize {
        let count = self.count.load(Ordering::Acquire);
        self.seen.store(count, Ordering::Release);
        count
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
