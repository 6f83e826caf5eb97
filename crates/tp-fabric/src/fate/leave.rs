//! The way out: the report, the abort hooks, the grace, the exit.

use super::{EXIT_CODE, FateActions, FateReport};
use crate::os;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How a process leaves.
pub trait Exit: Send + Sync {
    /// Leaves with this code. The real one does not return; one for tests within a process does.
    fn exit(&self, code: i32);
}

/// `_exit`: no destructors, nothing that a driver could hang.
#[derive(Clone, Copy, Debug)]
pub struct RealExit;

impl Exit for RealExit {
    fn exit(&self, code: i32) {
        os::exit_now(code)
    }
}

/// An abort hook.
pub(super) type Hook = Box<dyn Fn() + Send>;

/// Runs report and hooks on the thread that leaves, which is never one that works: where CPUs are scarce, every change of
/// threads on the way out is a wait in the scheduler's queue. A second thread, started beforehand so that a process which can
/// start none any more still leaves, looks at the clock meanwhile and ends the process when the grace is over.
pub(super) struct Leaver {
    shared: Arc<Shared>,
    actions: FateActions,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    hooks: Vec<(String, Hook)>,
    /// Since the first thread leaves: when the process ends whatever the hooks do.
    deadline: Option<Instant>,
    /// The hook that runs now, for the line that names a hook which did not end.
    running: Option<String>,
    done: bool,
    quit: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A panicking hook must not keep the process from leaving.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until report and hooks are done; `false` where the grace is over before.
    fn wait<'a>(&'a self, mut state: MutexGuard<'a, State>) -> bool {
        while !state.done {
            let Some(deadline) = state.deadline else {
                return false;
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let running = state.running.take().unwrap_or_else(|| "the report".to_owned());
                drop(state);
                tracing::warn!("leaving without waiting for {running}: not done within the grace");
                return false;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

impl Leaver {
    pub fn start(actions: FateActions) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let (theirs, exit) = (Arc::clone(&shared), Arc::clone(&actions.exit));
        let body = move || watch(&theirs, exit.as_ref());
        let thread = std::thread::Builder::new()
            .name("fate-grace".into())
            .spawn(body)?;
        Ok(Self {
            shared,
            actions,
            thread: Some(thread),
        })
    }

    pub fn register(&self, name: &str, hook: Hook) {
        self.shared.lock().hooks.push((name.to_owned(), hook));
    }

    /// Whether report and hooks have begun and not ended.
    pub fn is_busy(&self) -> bool {
        let state = self.shared.lock();
        state.deadline.is_some() && !state.done
    }

    /// Runs report and hooks, or waits for the thread that does; returns when they are done or the grace is over.
    pub fn leave(&self, report: &FateReport, grace: Duration) {
        let mut state = self.shared.lock();
        if state.deadline.is_some() {
            self.shared.wait(state);
            return;
        }
        state.deadline = Some(Instant::now() + grace);
        drop(state);
        self.shared.changed.notify_all();
        self.work(report);
    }

    fn work(&self, report: &FateReport) {
        tracing::error!("{report}; leaving with exit {EXIT_CODE}");
        if let Some(on_fate) = &self.actions.on_fate {
            guarded("the report's callback", || on_fate(report));
        }
        loop {
            let mut state = self.shared.lock();
            if state.hooks.is_empty() {
                state.running = None;
                state.done = true;
                self.shared.changed.notify_all();
                return;
            }
            let (name, hook) = state.hooks.remove(0);
            let what = format!("abort hook `{name}`");
            state.running = Some(what.clone());
            drop(state);
            guarded(&what, hook);
        }
    }
}

impl Drop for Leaver {
    fn drop(&mut self) {
        let busy = self.is_busy();
        self.shared.lock().quit = true;
        self.shared.changed.notify_all();
        // A hook that hangs must not hang whoever drops this.
        if let (Some(thread), false) = (self.thread.take(), busy) {
            let _ = thread.join();
        }
    }
}

/// The second thread: sleeps until somebody leaves, then sees that the process ends within the grace.
fn watch(shared: &Shared, exit: &dyn Exit) {
    let mut state = shared.lock();
    while state.deadline.is_none() {
        if state.quit {
            return;
        }
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    }
    if !shared.wait(state) {
        exit.exit(EXIT_CODE);
    }
}

/// A panic in one hook must keep neither the next one nor the exit from coming.
fn guarded(what: &str, call: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err() {
        tracing::warn!("{what} panicked");
    }
}
