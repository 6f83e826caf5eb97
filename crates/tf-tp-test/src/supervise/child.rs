//! The supervised process and its group.

use super::News;
use crate::os;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::WaitStatus;
use nix::unistd::Pid;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tp_receipt::event::Exit;

/// How often a write is tried again while the rank does not read; it never happens with a rank of ours.
const WRITE_AGAIN: Duration = Duration::from_millis(5);

/// The rank's standard input: one thread writes lines to it, another may close it.
#[derive(Clone)]
pub(super) struct Input(Arc<Mutex<Option<ChildStdin>>>);

impl Input {
    /// Writes all of `bytes`, waiting while the pipe is full; gives up where it is closed on either side.
    pub(super) fn write(&self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            // The lock is held for one call that cannot block.
            let mut place = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(pipe) = place.as_mut() else { return };
            match pipe.write(bytes) {
                Ok(n) => bytes = &bytes[n..],
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    drop(place);
                    std::thread::sleep(WRITE_AGAIN);
                }
                Err(_) => *place = None,
            }
        }
    }

    /// Closes it: the rank's lease ends.
    pub(super) fn close(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

pub(super) struct Child {
    pid: Pid,
    input: Input,
    output: Option<ChildStdout>,
    /// Whether the process is reaped; held while signalling, so that no signal goes to a number that is used again.
    reaped: Arc<Mutex<bool>>,
}

impl Child {
    /// Starts the command in a group of its own, with pipes for input and output, to die with the calling thread.
    pub(super) fn start(program: &OsString, arguments: &[OsString]) -> io::Result<Self> {
        let me = std::process::id();
        let mut command = Command::new(program);
        command
            .args(arguments)
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        // SAFETY: between fork and exec only prctl and getppid are called, both async-signal-safe; nothing is allocated.
        unsafe { command.pre_exec(move || os::die_with_parent(me)) };
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
        let input = child.stdin.take();
        if let Some(pipe) = &input {
            fcntl(pipe, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        }
        Ok(Self {
            pid: Pid::from_raw(pid),
            input: Input(Arc::new(Mutex::new(input))),
            output: child.stdout.take(),
            reaped: Arc::new(Mutex::new(false)),
        })
    }

    pub(super) fn input(&self) -> Input {
        self.input.clone()
    }

    pub(super) fn take_output(&mut self) -> Option<ChildStdout> {
        self.output.take()
    }

    /// Whether it is stopped by a signal and hears nothing.
    pub(super) fn is_stopped(&self) -> bool {
        os::is_stopped(self.pid)
    }

    /// SIGKILL to every process of the group, unless the rank is reaped.
    pub(super) fn kill_group(&self) {
        let reaped = self.reaped.lock().unwrap_or_else(PoisonError::into_inner);
        if !*reaped {
            let _ = killpg(self.pid, Signal::SIGKILL);
        }
    }

    /// Starts the thread that waits for the end, kills what the rank left in its group, and tells.
    pub(super) fn watch(&self, tell: Sender<News>) -> io::Result<()> {
        let (pid, reaped) = (self.pid, self.reaped.clone());
        let thread = std::thread::Builder::new().name("wait".to_owned());
        thread
            .spawn(move || {
                let mut at = 0;
                let mut lock = None;
                let status = os::reap(pid, || {
                    at = os::monotonic_ns();
                    let held = reaped.lock().unwrap_or_else(PoisonError::into_inner);
                    let _ = killpg(pid, Signal::SIGKILL);
                    lock = Some(held);
                });
                if let Some(mut held) = lock {
                    *held = true;
                }
                let (code, signal) = match status {
                    Ok(WaitStatus::Exited(_, code)) => (Some(code), None),
                    Ok(WaitStatus::Signaled(_, signal, _)) => (None, Some(signal as i32)),
                    _ => (None, None),
                };
                let _ = tell.send(News::Ended(Exit {
                    code,
                    signal,
                    monotonic_ns: at,
                    ended_by: None,
                }));
            })
            .map(drop)
    }
}
