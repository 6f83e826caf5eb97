//! Where ranks run: one trait, one implementation for each launcher.
//!
//! A [`Host`] starts ranks and answers small questions; a [`RankProcess`] is one started rank. What a rank says arrives
//! as [`Message`]s on one channel for all ranks of a step, so that the executor is one loop without locks.

mod local;
mod slurm;
pub mod ssh;
mod stream;

pub use local::LocalHost;
pub use slurm::{Allocation, SlurmHost};
pub use ssh::SshHost;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;
use tp_receipt::control::{Order, Start};
use tp_receipt::event::Event;

/// One rank to start.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The rank.
    pub rank: u32,
    /// The whole command line, symbols resolved.
    pub argv: Vec<String>,
    /// The first line on its standard input.
    pub start: Start,
}

/// What a rank says or does.
#[derive(Clone, Debug)]
pub struct Message {
    /// The rank.
    pub rank: u32,
    /// What.
    pub what: What,
}

/// What a rank wrote for people: whole lines, or a part of a very long one. It counts as waiting until it is dropped.
#[derive(Debug)]
pub struct Said {
    /// As it came.
    pub bytes: Vec<u8>,
    waiting: Option<Arc<AtomicUsize>>,
}

impl Said {
    fn counted(bytes: Vec<u8>, waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(bytes.len(), Ordering::Relaxed);
        let waiting = Some(Arc::clone(waiting));
        Self { bytes, waiting }
    }
}

impl From<Vec<u8>> for Said {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, waiting: None }
    }
}

impl Clone for Said {
    fn clone(&self) -> Self {
        self.bytes.clone().into()
    }
}

impl Drop for Said {
    fn drop(&mut self) {
        if let Some(waiting) = &self.waiting {
            waiting.fetch_sub(self.bytes.len(), Ordering::Relaxed);
        }
    }
}

/// See [`Message::what`].
#[derive(Clone, Debug)]
pub enum What {
    /// A line of the event stream.
    Event(Box<Event>),
    /// A line on standard output that is no event, and why it is none.
    Noise {
        /// The line, bytes that are not UTF-8 as `\xNN`.
        line: String,
        /// What is wrong with it as an event.
        why: String,
    },
    /// What came on standard error.
    Stderr(Said),
    /// The process that was started (the supervisor) is gone; nothing follows.
    Ended(Ended),
    /// The way to the host is gone, and how the rank ends is not seen: by its lease, at the latest. Nothing follows.
    Lost(String),
}

/// How the supervisor process ended. The rank's own end is in its `exit` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Exit code, when it returned one.
    pub code: Option<i32>,
    /// Signal, when one ended it.
    pub signal: Option<i32>,
}

/// What kind of thing kept a host from doing something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// The name of the host cannot be resolved.
    Unresolved,
    /// Nothing answers: the host is down, or packets are dropped.
    NoAnswer,
    /// The host is up and nothing listens.
    Refused,
    /// The SSH server has too many starting sessions.
    Busy,
    /// What answers is no SSH server, or none that we share a method with.
    NotSsh,
    /// The host key is not known.
    KeyUnknown,
    /// The host key is another than the known one, or revoked.
    KeyChanged,
    /// There is no key to log in with.
    NoKeys,
    /// The host refused every key.
    Denied,
    /// The connection broke.
    Lost,
    /// A command took longer than it may.
    Deadline,
    /// Anything else; the text says what.
    Other,
}

/// A host could not do something; one line that names the host and what.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host {host}: failed to {what}")]
pub struct HostError {
    /// The inventory's name of the host.
    pub host: String,
    /// What failed and why.
    pub what: String,
    /// The kind of it.
    pub fault: Fault,
}

/// What a short command printed.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// Exit code; `None` where a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// What came before the command's own output: banners and what profiles print. Shown, never interpreted.
    pub noise: String,
}

/// A machine that ranks run on.
pub trait Host: Send + Sync {
    /// The inventory's name.
    fn name(&self) -> &str;

    /// The runner's path on the host.
    fn runner(&self) -> &Path;

    /// Starts a rank; what it says goes to `messages` until [`What::Ended`]. Dropping the process drops its lease.
    fn start(&self, launch: &Launch, messages: Sender<Message>) -> Result<Box<dyn RankProcess>, HostError>;

    /// Runs a short command to its end; longer than `limit` is an error and the command is killed.
    fn output(&self, argv: &[String], limit: Duration) -> Result<CommandOutput, HostError>;

    /// A TCP port that nothing listened on a moment ago.
    fn free_port(&self) -> Result<u16, HostError>;

    /// SHA-256 of the runner on the host, lower-case hex.
    fn runner_sha256(&self) -> Result<String, HostError>;

    /// Makes a file of this machine readable there, in the directory of the run, and gives its path.
    fn provide(&self, run_id: &str, file: &Path) -> Result<PathBuf, HostError>;

    /// Removes what [`Host::provide`] brought. What cannot be removed is in the way of nobody.
    fn clean(&self, run_id: &str);

    /// The address at which this machine reaches it; `None` where it is this machine, or behind another one.
    fn control_address(&self) -> Option<IpAddr>;
}

/// A started rank.
pub trait RankProcess: Send {
    /// Sends an order; a rank that is gone takes none, and that is no error.
    fn order(&self, order: Order);

    /// Asks the supervisor for its host's clock; the answer is an event that carries the token. Nothing comes where the
    /// rank runs under this machine's own clock.
    fn ask_clock(&self, token: u64) {
        let _ = token;
    }

    /// Kills the supervisor and, by the parent-death signal, the rank. For a supervisor that does not answer `end`.
    fn kill(&self);
}
