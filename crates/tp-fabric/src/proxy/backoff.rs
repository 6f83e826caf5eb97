//! How a thread waits for a word to change.
//!
//! First it spins, so that an answer within microseconds costs no system call; then it yields, so that the thread that is
//! to answer gets this processor; then it naps, longer each time, so that a wait for a slow peer costs next to nothing.
//! Where more threads want to run than there are processors, spinning only keeps the others from answering, and is
//! left out.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// Turns of spinning on memory, some 20 ns each.
const SPINS: u32 = 2000;
/// Turns of spinning where each asks the kernel for every peer.
const COSTLY_SPINS: u32 = 100;
/// How long is yielded before the first nap.
const YIELD: Duration = Duration::from_millis(2);
/// The first nap and the longest.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

/// The state of one wait.
#[derive(Debug)]
pub struct Backoff {
    spins: u32,
    left: u32,
    yielding: Option<Instant>,
    nap: Duration,
}

impl Backoff {
    /// A new wait. `crowded`: more threads want to run than there are processors. `costly`: each turn makes system calls.
    pub fn new(crowded: bool, costly: bool) -> Self {
        let spins = match (crowded, costly) {
            (true, _) => 4,
            (false, true) => COSTLY_SPINS,
            (false, false) => SPINS,
        };
        Self {
            spins,
            left: spins,
            yielding: None,
            nap: NAPS.0,
        }
    }

    /// Spins one turn. False when it is time to look around and [`pause`](Self::pause).
    #[inline]
    pub fn spin(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        spin_loop();
        true
    }

    /// Yields, and later naps by calling `nap`.
    pub fn pause(&mut self, nap: impl FnOnce(Duration)) {
        let since = *self.yielding.get_or_insert_with(Instant::now);
        if since.elapsed() < YIELD {
            thread::yield_now();
        } else {
            nap(self.nap);
            self.nap = (self.nap * 2).min(NAPS.1);
        }
    }

    /// What was waited for has come; the next wait begins anew.
    pub fn reset(&mut self) {
        self.left = self.spins;
        self.yielding = None;
        self.nap = NAPS.0;
    }
}
