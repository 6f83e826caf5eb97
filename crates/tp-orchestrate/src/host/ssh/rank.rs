//! A rank on a host reached by SSH.

use super::super::stream::{Splitter, event_of};
use super::super::{Ended, Launch, Message, RankProcess, What};
use super::channel::{End, Input, Sink};
use super::connection::{Connection, Running};
use super::remote;
use nix::sys::signal::Signal;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;
use tp_receipt::control::{BEAT_EVERY_S, Order, clock_line};

/// Starts the rank's supervisor. The start line goes first, then a beat whenever one is due, from the connection's own
/// thread.
pub(super) fn start(
    connection: &Arc<Connection>,
    launch: &Launch,
    messages: Sender<Message>,
) -> Result<Box<dyn RankProcess>, String> {
    let mut first = serde_json::to_vec(&launch.start).map_err(|e| format!("write the start line: {e}"))?;
    first.push(b'\n');
    let input = Input::Lease {
        first,
        beat: Order::Beat.as_line(),
        every: Duration::from_secs_f64(BEAT_EVERY_S),
    };
    let pid = Arc::new(AtomicU32::new(0));
    let sink = RankSink {
        rank: launch.rank,
        messages,
        stdout: Splitter::default(),
        stderr: Splitter::default(),
        pid: Arc::clone(&pid),
        connection: Arc::downgrade(connection),
    };
    let running = connection.start(remote::with_pid(&launch.argv), input, Box::new(sink));
    Ok(Box::new(SshProcess { running, pid }))
}

struct SshProcess {
    running: Running,
    /// The supervisor's process id on its host, 0 until it is known.
    pid: Arc<AtomicU32>,
}

impl RankProcess for SshProcess {
    fn order(&self, order: Order) {
        self.running.write(format!("{}\n", order.as_line()).into_bytes());
        if order == Order::End {
            self.running.close_input();
        }
    }

    fn ask_clock(&self, token: u64) {
        self.running
            .write(format!("{}\n", clock_line(token)).into_bytes());
    }

    fn kill(&self) {
        self.running.close_input();
        let pid = self.pid.load(Ordering::Acquire);
        if pid > 1 {
            let line = format!("kill -KILL {pid}");
            drop(
                self.running
                    .connection()
                    .start(line, Input::Empty, Box::new(Unheard)),
            );
        } else {
            // It never said its number: nothing of ours is known to run there.
            self.running.abandon();
        }
    }
}

/// Nobody asks what comes of it.
struct Unheard;

impl Sink for Unheard {
    fn stdout(&mut self, _: &[u8]) {}
    fn stderr(&mut self, _: &[u8]) {}
    fn ended(&mut self, _: End) {}
}

struct RankSink {
    rank: u32,
    messages: Sender<Message>,
    stdout: Splitter,
    stderr: Splitter,
    pid: Arc<AtomicU32>,
    connection: std::sync::Weak<Connection>,
}

/// Sends what was said; the receiver is gone only when the step is over.
fn tell(messages: &Sender<Message>, rank: u32, what: Option<What>) {
    if let Some(what) = what {
        let _ = messages.send(Message { rank, what });
    }
}

fn stderr_line(pid: &AtomicU32, line: String) -> Option<What> {
    match line
        .strip_prefix(remote::PID)
        .and_then(|number| number.trim().parse().ok())
    {
        Some(number) if pid.load(Ordering::Acquire) == 0 => {
            pid.store(number, Ordering::Release);
            None
        }
        _ => Some(What::Stderr((line + "\n").into_bytes().into())),
    }
}

impl Sink for RankSink {
    fn stdout(&mut self, bytes: &[u8]) {
        let (rank, messages) = (self.rank, &self.messages);
        self.stdout
            .push(bytes, |line| tell(messages, rank, event_of(rank, line)));
    }

    fn stderr(&mut self, bytes: &[u8]) {
        let (rank, messages, pid) = (self.rank, &self.messages, &self.pid);
        self.stderr
            .push(bytes, |line| tell(messages, rank, stderr_line(pid, line)));
    }

    fn ended(&mut self, end: End) {
        let (rank, messages, pid) = (self.rank, &self.messages, &self.pid);
        self.stdout
            .finish(|line| tell(messages, rank, event_of(rank, line)));
        self.stderr
            .finish(|line| tell(messages, rank, stderr_line(pid, line)));
        let lost = self
            .connection
            .upgrade()
            .is_none_or(|connection| connection.lost().is_some());
        let what = match end {
            End::Exit(code) => What::Ended(Ended {
                code: Some(code),
                signal: None,
            }),
            End::Signal(name) => What::Ended(Ended {
                code: None,
                signal: format!("SIG{name}")
                    .parse::<Signal>()
                    .ok()
                    .map(|signal| signal as i32),
            }),
            End::Unknown(why) if lost => What::Lost(format!("the connection to its host was lost: {why}")),
            End::Unknown(why) => What::Lost(why),
        };
        tell(messages, rank, Some(what));
    }
}
