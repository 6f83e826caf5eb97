//! A program of ours that runs for a while on a host under a lease: lines go both ways until it ends.

use super::super::stream::Splitter;
use super::channel::{End, Input, Sink};
use super::connection::Running;
use super::{HostError, SshHost, remote};
use std::sync::mpsc::Sender;
use std::time::Duration;
use tp_receipt::control::{BEAT_EVERY_S, Order, Start};

/// What a program says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// A line on standard output.
    Line(String),
    /// A line on standard error.
    Error(String),
    /// It is gone; nothing follows.
    Ended(End),
}

/// A program under way. Dropping it ends its lease.
pub struct Session(Running);

impl Session {
    /// Writes a line to it.
    pub fn write_line(&self, line: &str) {
        self.0.write(format!("{line}\n").into_bytes());
    }
}

impl SshHost {
    /// Starts a program with its start line; what it says goes to `told`, under `tag`.
    pub fn session(
        &self,
        argv: &[String],
        start: &Start,
        tag: usize,
        told: Sender<(usize, Said)>,
    ) -> Result<Session, HostError> {
        let mut first = serde_json::to_vec(start).unwrap_or_default();
        first.push(b'\n');
        let input = Input::Lease {
            first,
            beat: Order::Beat.as_line(),
            every: Duration::from_secs_f64(BEAT_EVERY_S),
        };
        let sink = Lines {
            tag,
            told,
            stdout: Splitter::default(),
            stderr: Splitter::default(),
        };
        let running = self
            .connection()?
            .start(remote::with_pid(argv), input, Box::new(sink));
        Ok(Session(running))
    }
}

struct Lines {
    tag: usize,
    told: Sender<(usize, Said)>,
    stdout: Splitter,
    stderr: Splitter,
}

impl Lines {
    fn error(told: &Sender<(usize, Said)>, tag: usize, line: String) {
        if !line.starts_with(remote::PID) {
            let _ = told.send((tag, Said::Error(line)));
        }
    }
}

impl Sink for Lines {
    fn stdout(&mut self, bytes: &[u8]) {
        let (tag, told) = (self.tag, &self.told);
        self.stdout
            .push(bytes, |line| drop(told.send((tag, Said::Line(line)))));
    }

    fn stderr(&mut self, bytes: &[u8]) {
        let (tag, told) = (self.tag, &self.told);
        self.stderr.push(bytes, |line| Self::error(told, tag, line));
    }

    fn ended(&mut self, end: End) {
        let (tag, told) = (self.tag, &self.told);
        self.stdout
            .finish(|line| drop(told.send((tag, Said::Line(line)))));
        self.stderr.finish(|line| Self::error(told, tag, line));
        // Nobody waits for one that was given up.
        let _ = told.send((tag, Said::Ended(end)));
    }
}
