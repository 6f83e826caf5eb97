//! Where a rank speaks: lines for people on standard error, and with `--events` one JSON object a line on standard
//! output.

use serde_json::{Map, Value};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Instant;
use tp_receipt::event::{Check, Event, Kind, Log, Outcome, Summary};

/// Rank not known yet.
const NOBODY: u32 = u32::MAX;

/// The way out for everything that a rank says. Cheap to clone; usable from any thread.
#[derive(Clone)]
pub struct Sink {
    inner: Arc<Inner>,
}

struct Inner {
    events: bool,
    /// Standard output under a descriptor of the events' own.
    own: OnceLock<File>,
    rank: AtomicU32,
    began: Instant,
    /// One line at a time on either stream, so that an event is never torn by another thread's.
    turn: Mutex<()>,
    /// An event could not be written.
    torn: AtomicBool,
    passed: AtomicU64,
    failed: AtomicU64,
    skipped: AtomicU64,
}

impl Sink {
    /// A sink whose clock starts now; `events` turns the JSON lines on.
    pub fn new(events: bool) -> Self {
        let inner = Inner {
            events,
            own: OnceLock::new(),
            rank: AtomicU32::new(NOBODY),
            began: Instant::now(),
            turn: Mutex::new(()),
            torn: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
        };
        Self {
            inner: Arc::new(inner),
        }
    }

    /// From here on what libraries print on standard output goes to standard error, and the events go on where they went: a
    /// library's line (NCCL's, with `NCCL_DEBUG`) would tear them. A program that this one becomes has no standard output then.
    pub fn keep_apart(&self) -> io::Result<()> {
        if self.inner.events && self.inner.own.get().is_none() {
            let own = io::stdout().as_fd().try_clone_to_owned()?;
            nix::unistd::dup2_stdout(io::stderr())?;
            let _ = self.inner.own.set(File::from(own));
        }
        Ok(())
    }

    /// From here on events and lines carry this rank.
    pub fn set_rank(&self, rank: u32) {
        self.inner.rank.store(rank, Ordering::Relaxed);
    }

    /// The rank, once it is known.
    pub fn rank(&self) -> Option<u32> {
        match self.inner.rank.load(Ordering::Relaxed) {
            NOBODY => None,
            rank => Some(rank),
        }
    }

    /// Whether events go to standard output.
    pub fn events(&self) -> bool {
        self.inner.events
    }

    /// Says an event of this rank. Without `--events` nothing is written.
    pub fn event(&self, kind: Kind) {
        self.event_as(self.rank(), kind);
    }

    /// Says an event in the name of another rank (the pick for all ranks of a facts file) or of none.
    pub fn event_as(&self, rank: Option<u32>, kind: Kind) {
        if self.inner.events {
            self.write(Event::new(self.inner.began.elapsed().as_secs_f64(), rank, kind));
        }
    }

    /// Says an event with fields beyond its kind's own.
    pub fn event_with(&self, kind: Kind, extra: Map<String, Value>) {
        if self.inner.events {
            let mut event = Event::new(self.inner.began.elapsed().as_secs_f64(), self.rank(), kind);
            event.extra = extra;
            self.write(event);
        }
    }

    fn write(&self, event: Event) {
        let mut line = event.to_line();
        line.push('\n');
        let written = {
            let _turn = self.inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
            match self.inner.own.get() {
                Some(mut own) => own.write_all(line.as_bytes()),
                None => {
                    let mut out = io::stdout().lock();
                    out.write_all(line.as_bytes()).and_then(|()| out.flush())
                }
            }
        };
        // The run goes on, its peers depend on it; but nobody shall take the record for a whole one.
        if let Err(error) = written
            && !self.inner.torn.swap(true, Ordering::Relaxed)
        {
            self.human(&format!(
                "WARN: cannot write to standard output: {error}; events are missing from the record"
            ));
        }
    }

    /// Whether an event could not be written, so that what was recorded is not all that happened.
    pub fn torn(&self) -> bool {
        self.inner.torn.load(Ordering::Relaxed)
    }

    /// A line for people, on standard error only.
    pub fn human(&self, text: &str) {
        let mut line = match self.rank() {
            Some(rank) => format!("[{rank}] {text}"),
            None => text.to_owned(),
        };
        line.push('\n');
        let _turn = self.inner.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = std::io::stderr().lock().write_all(line.as_bytes());
    }

    /// A line for people that is kept with the run: on standard error and as a `log` event.
    pub fn log(&self, level: &str, code: Option<&str>, text: &str) {
        self.log_with(level, code, text, Map::new());
    }

    /// [`Sink::log`] with figures beside the text, for programs.
    pub fn log_with(&self, level: &str, code: Option<&str>, text: &str, extra: Map<String, Value>) {
        self.human(&format!("{}: {text}", level.to_uppercase()));
        let log = Log {
            level: level.to_owned(),
            code: code.map(str::to_owned),
            text: text.to_owned(),
        };
        self.event_with(Kind::Log(log), extra);
    }

    /// Reports a check and counts it.
    pub fn check(&self, group: &str, name: &str, outcome: Outcome, reason: Option<String>) {
        let (counter, word) = match outcome {
            Outcome::Passed => (&self.inner.passed, "PASS"),
            Outcome::Failed => (&self.inner.failed, "FAIL"),
            Outcome::Skipped => (&self.inner.skipped, "SKIP"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        match &reason {
            Some(reason) => self.human(&format!("{word} {name}: {reason}")),
            None => self.human(&format!("{word} {name}")),
        }
        self.event(Kind::Check(Check {
            name: name.to_owned(),
            outcome,
            group: group.to_owned(),
            reason,
        }));
    }

    /// A check that came out right (`Ok`) or wrong with its reason.
    pub fn check_result(&self, group: &str, name: &str, result: Result<(), String>) {
        match result {
            Ok(()) => self.check(group, name, Outcome::Passed, None),
            Err(reason) => self.check(group, name, Outcome::Failed, Some(reason)),
        }
    }

    /// What was counted so far.
    pub fn counts(&self) -> Summary {
        Summary {
            passed: self.inner.passed.load(Ordering::Relaxed),
            failed: self.inner.failed.load(Ordering::Relaxed),
            skipped: self.inner.skipped.load(Ordering::Relaxed),
        }
    }

    /// Says the totals, the last thing a rank says, and returns them.
    pub fn summary(&self) -> Summary {
        let counts = self.counts();
        let Summary {
            passed,
            failed,
            skipped,
        } = counts;
        self.human(&format!(
            "SUMMARY {passed} passed, {failed} failed, {skipped} skipped"
        ));
        self.event(Kind::Summary(counts.clone()));
        counts
    }
}
