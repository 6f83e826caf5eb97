//! How a thread waits for a word to change.
//!
//! First it spins, so that an answer within microseconds costs no system call; then it yields, so that the thread that is
//! to answer gets this processor; then it naps, longer each time, so that a wait for a slow peer costs next to nothing.
//! Where more threads want to run than there are processors, spinning only keeps the others from answering, and is
//! left out.

use std::hint::spin_loop;
use std::thread;
use std::time::{Duration, Instant};

/// Turns of spinning, some 50 ns each on memory: about the time that an answer takes which is already on its way.
const SPINS: u32 = 100;
/// Turns of spinning where each asks the kernel for every peer.
const COSTLY_SPINS: u32 = 8;
/// How long is yielded before the first nap; longer where only a nap's end notices what comes.
const YIELD: Duration = Duration::from_millis(2);
/// The same where a nap ends as soon as something comes.
const YIELD_BEFORE_WAKING_NAP: Duration = Duration::from_micros(50);
/// The first nap and the longest.
const NAPS: (Duration, Duration) = (Duration::from_micros(20), Duration::from_micros(500));

/// The state of one wait.
#[derive(Debug)]
pub struct Backoff {
    spins: u32,
    left: u32,
    yield_for: Duration,
    yielding: Option<Instant>,
    nap: Duration,
}

impl Backoff {
    /// A new wait. `crowded`: more threads want to run than there are processors. `kernel`: each turn asks the kernel, and
    /// a nap ends as soon as something comes.
    pub fn new(crowded: bool, kernel: bool) -> Self {
        let spins = match (crowded, kernel) {
            (true, _) => 4,
            (false, true) => COSTLY_SPINS,
            (false, false) => SPINS,
        };
        let yield_for = if kernel { YIELD_BEFORE_WAKING_NAP } else { YIELD };
        Self {
            spins,
            left: spins,
            yield_for,
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
        if since.elapsed() < self.yield_for {
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
