//! The way out: the report, the abort hooks, the grace, the exit.

use super::{FateActions, FateReport};
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

/// The thread that runs report and hooks. It is started beforehand, so that a process which can start no thread any more
/// can still leave in order.
pub(super) struct Leaver {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    hooks: Vec<(String, Hook)>,
    report: Option<FateReport>,
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
}

impl Leaver {
    pub fn start(actions: FateActions) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let theirs = Arc::clone(&shared);
        let body = move || run(&theirs, &actions);
        let thread = std::thread::Builder::new()
            .name("fate-hooks".into())
            .spawn(body)?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    pub fn register(&self, name: &str, hook: Hook) {
        self.shared.lock().hooks.push((name.to_owned(), hook));
    }

    /// Hands the report to the thread and waits until report and hooks are done, at most for `grace`.
    pub fn leave(&self, report: &FateReport, grace: Duration) {
        let deadline = Instant::now() + grace;
        let mut state = self.shared.lock();
        state.report.get_or_insert_with(|| report.clone());
        self.shared.changed.notify_all();
        while !state.done {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let running = state.running.take().unwrap_or_else(|| "the report".to_owned());
                tracing::warn!("leaving without waiting for {running}: not done within the grace");
                return;
            }
            let waited = self.shared.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Leaver {
    fn drop(&mut self) {
        let busy = {
            let mut state = self.shared.lock();
            state.quit = true;
            state.report.is_some() && !state.done
        };
        self.shared.changed.notify_all();
        // A hook that hangs must not hang whoever drops this.
        if let (Some(thread), false) = (self.thread.take(), busy) {
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared, actions: &FateActions) {
    let mut state = shared.lock();
    let report = loop {
        if let Some(report) = state.report.clone() {
            break report;
        }
        if state.quit {
            return;
        }
        state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
    };
    drop(state);
    tracing::error!("{report}; leaving with exit {}", super::EXIT_CODE);
    if let Some(on_fate) = &actions.on_fate {
        guarded("the report's callback", || on_fate(&report));
    }
    loop {
        let mut state = shared.lock();
        if state.hooks.is_empty() {
            state.running = None;
            state.done = true;
            shared.changed.notify_all();
            return;
        }
        let (name, hook) = state.hooks.remove(0);
        state.running = Some(format!("abort hook `{name}`"));
        drop(state);
        guarded(&format!("abort hook `{name}`"), hook);
    }
}

/// A panic in one hook must keep neither the next one nor the exit from coming.
fn guarded(what: &str, call: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err() {
        tracing::warn!("{what} panicked");
    }
}
