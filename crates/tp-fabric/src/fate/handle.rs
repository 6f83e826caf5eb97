//! What the rest of the process does with its fate channel.

use super::leave::{Hook, Leaver};
use super::thread::{self, Loop};
use super::{EXIT_CODE, FateActions, FateConfig, FateReport, MemoryReport};
use crate::os;
use crate::types::Rank;
use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a rank that noticed a lost peer by other means waits for the fate channel to name the true culprit. On a
/// failure the word spreads within milliseconds; a rank that learnt of it second-hand would blame the messenger.
const SECOND_OPINION: Duration = Duration::from_millis(250);

/// A running fate channel. Dropping it without [`Fate::close`] hangs up, which the other ranks take for a death.
pub struct Fate {
    handle: FateHandle,
    thread: Option<JoinHandle<()>>,
}

/// A handle on the fate channel, for any thread.
#[derive(Clone)]
pub struct FateHandle(Arc<Shared>);

/// What handles and the channel's thread share.
pub(super) struct Shared {
    pub config: FateConfig,
    pub actions: FateActions,
    pub leaver: Leaver,
    pub state: Mutex<State>,
    pub changed: Condvar,
    wake: File,
}

pub(super) struct State {
    /// A failure that the thread is to act on.
    pub wanted: Option<FateReport>,
    /// The failure that this process leaves for.
    pub dead: Option<FateReport>,
    pub announce_stop: bool,
    pub expect_stop: bool,
    pub stop_seen: bool,
    pub close: bool,
    pub quit: bool,
    pub phase: String,
    pub memory: Vec<Option<MemoryReport>>,
    pub memory_at: Instant,
    /// The thread has ended.
    pub over: bool,
    pub exited: bool,
}

impl Shared {
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake(&self) {
        // A full pipe has woken the thread already.
        let _ = (&self.wake).write(&[1]);
    }

    // protocol 4.8
    /// Leaves the process: report, hooks, exit.
    pub fn leave(&self, report: &FateReport) {
        {
            let mut state = self.lock();
            if state.dead.is_none() {
                state.dead = Some(report.clone());
            }
            self.changed.notify_all();
        }
        self.leaver.leave(report, self.config.grace);
        self.actions.exit.exit(EXIT_CODE);
        self.lock().exited = true;
        self.changed.notify_all();
    }

    fn report(&self, culprit: Rank, phase: &str, reason: &str) -> FateReport {
        let host = self
            .config
            .hosts
            .get(culprit.index())
            .cloned()
            .unwrap_or_else(|| "?".to_owned());
        let own = culprit == self.config.rank;
        let reason = crate::text::line(reason, 640);
        FateReport {
            culprit,
            host,
            phase: phase.to_owned(),
            reason,
            own,
        }
    }
}

impl Fate {
    /// Starts the channel on the control connections: on rank 0 one to every other rank, in rank order; on the others
    /// the one to rank 0; none in a world of 1.
    pub fn start(links: Vec<TcpStream>, config: FateConfig, actions: FateActions) -> io::Result<Self> {
        for link in &links {
            link.set_nonblocking(true)?;
        }
        let (wake_read, wake_write) = os::pipe()?;
        let state = State {
            wanted: None,
            dead: None,
            announce_stop: false,
            expect_stop: false,
            stop_seen: false,
            close: false,
            quit: false,
            phase: "boot".to_owned(),
            memory: vec![None; config.hosts.len()],
            memory_at: Instant::now(),
            over: false,
            exited: false,
        };
        let shared = Arc::new(Shared {
            leaver: Leaver::start(actions.clone())?,
            config,
            actions,
            state: Mutex::new(state),
            changed: Condvar::new(),
            wake: File::from(wake_write),
        });
        let the_loop = Loop::new(Arc::clone(&shared), links, File::from(wake_read));
        let thread = std::thread::Builder::new()
            .name("fate".into())
            .spawn(move || thread::run(the_loop))?;
        Ok(Self {
            handle: FateHandle(shared),
            thread: Some(thread),
        })
    }

    /// A handle for other parts of the process.
    pub fn handle(&self) -> FateHandle {
        self.handle.clone()
    }

    /// The clean end of this rank. Rank 0 announces the stop and waits until every other rank has said its bye, at most for
    /// the heartbeat limit; the others say theirs and go. A rank that dies meanwhile is a failure like any other.
    pub fn close(mut self) {
        self.handle.0.lock().close = true;
        self.join();
    }

    fn join(&mut self) {
        self.handle.0.wake();
        // Where the exit returned and a hook hangs, the channel's thread hangs in it.
        if let Some(thread) = self.thread.take().filter(|_| !self.handle.0.leaver.is_busy()) {
            let _ = thread.join();
        }
    }
}

impl Drop for Fate {
    fn drop(&mut self) {
        self.handle.0.lock().quit = true;
        self.join();
    }
}

impl FateHandle {
    /// This rank has failed: every rank reports it and leaves with [`EXIT_CODE`], this one too.
    pub fn fatal(&self, phase: &str, reason: &str) -> ! {
        self.fail(phase, reason);
        // Reached only where a test has put another exit in place of the real one.
        loop {
            std::thread::park();
        }
    }

    /// [`FateHandle::fatal`] where the exit may return, as one put in for a test does.
    pub fn fail(&self, phase: &str, reason: &str) {
        let report = self.0.report(self.0.config.rank, phase, reason);
        self.leave_for(report);
    }

    /// A peer was seen to be lost by other means than this channel (a collective's wait ran out, a data connection
    /// closed). The channel is given a moment to name the true culprit; then this rank leaves and blames `peer`.
    pub fn lost_peer(&self, peer: Rank, phase: &str, reason: &str) -> ! {
        self.blame_peer(peer, phase, reason);
        loop {
            std::thread::park();
        }
    }

    /// [`FateHandle::lost_peer`] where the exit may return, as one put in for a test does.
    pub fn blame_peer(&self, peer: Rank, phase: &str, reason: &str) {
        let deadline = Instant::now() + SECOND_OPINION;
        let mut state = self.0.lock();
        while state.dead.is_none() && !state.over {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .0
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        drop(state);
        self.leave_for(self.0.report(peer, phase, reason));
    }

    fn leave_for(&self, report: FateReport) {
        // The thread sends the word to the others. Should it be stuck, this one leaves on its own after the grace.
        let deadline = Instant::now() + self.0.config.grace + Duration::from_millis(250);
        let mut state = self.0.lock();
        let over = state.over;
        if state.wanted.is_none() {
            state.wanted = Some(report.clone());
        }
        drop(state);
        if over {
            return self.0.leave(&report);
        }
        self.0.wake();
        let mut state = self.0.lock();
        while !state.exited {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || (state.over && state.dead.is_none()) {
                drop(state);
                return self.0.leave(&report);
            }
            state = self
                .0
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Adds an abort hook, run on a thread of the channel when any rank fails. It should end what could keep other threads or
    /// devices waiting; it may block, since the process leaves after the grace in any case.
    pub fn register_hook(&self, name: &str, hook: Hook) {
        self.0.leaver.register(name, hook);
    }

    /// Names what this rank does now; the others are told at once. At most 64 bytes of it are sent.
    pub fn set_phase(&self, phase: &str) {
        let phase = crate::text::line(phase, super::frame::PHASE_MAX);
        let mut state = self.0.lock();
        if state.phase == phase {
            return;
        }
        state.phase = phase;
        drop(state);
        self.0.wake();
    }

    /// The phase in force.
    pub fn phase(&self) -> String {
        self.0.lock().phase.clone()
    }

    /// From now on other ranks may leave by a clean stop before this one does. Call it before the last barrier.
    pub fn expect_stop(&self) {
        self.0.lock().expect_stop = true;
        self.0.wake();
    }

    /// Rank 0: tells all ranks that a clean stop is coming. It does not disarm the channel: a rank that dies in the drain
    /// is a failure. No effect on other ranks.
    pub fn announce_stop(&self) {
        let mut state = self.0.lock();
        state.announce_stop = true;
        state.expect_stop = true;
        drop(state);
        self.0.wake();
    }

    /// Whether rank 0 has announced a stop.
    pub fn stop_announced(&self) -> bool {
        let state = self.0.lock();
        state.stop_seen || state.announce_stop
    }

    /// The failure that this process is leaving for.
    pub fn failure(&self) -> Option<FateReport> {
        self.0.lock().dead.clone()
    }

    /// On rank 0, the last memory report of every other rank, in rank order; `None` where there is none.
    pub fn peer_memory(&self) -> Vec<Option<MemoryReport>> {
        let state = self.0.lock();
        let since = state.memory_at.elapsed();
        let older = |report: MemoryReport| MemoryReport {
            age: report.age + since,
            ..report
        };
        state.memory.iter().map(|report| report.map(older)).collect()
    }
}
