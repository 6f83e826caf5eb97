//! Hosts reached by SSH.
//!
//! [`SshHost`] is one host; [`connect`] logs in to all of an inventory. A host has one connection, or more where more
//! commands run at once than its server takes on one. Every command line is built here ([`remote`]), so that what one
//! command of this program sees is what every other sees.

mod about;
mod channel;
mod config;
mod connection;
mod dial;
mod forward;
mod known_hosts;
mod open;
mod pattern;
mod rank;
pub mod remote;
mod session;
mod target;

pub use about::About;
pub use channel::{End, Input, Sink};
pub use dial::HostKeys;
pub use open::{Options, connect};
pub use session::{Said, Session};
pub use target::{Surroundings, Target};

use super::{CommandOutput, Fault, Host, HostError, Launch, Message, RankProcess};
use connection::Connection;
use open::Jumps;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Commands on one connection: sshd takes ten sessions on each unless it is set otherwise (MaxSessions).
const COMMANDS_MAX: usize = 8;
/// How long a login may take when a lost connection is made anew in the middle of a run.
const AGAIN_LIMIT: Duration = Duration::from_secs(5);
/// How long a small question may take.
const ASK_LIMIT: Duration = Duration::from_secs(20);
/// Bytes of a command's output that are kept.
const OUTPUT_MAX: usize = 16 << 20;

/// What failed on a connection, before a host is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    pub fault: Fault,
    pub what: String,
}

impl Trouble {
    pub fn new(fault: Fault, what: impl Into<String>) -> Self {
        Self {
            fault,
            what: what.into(),
        }
    }
}

/// A host reached by SSH.
pub struct SshHost {
    name: String,
    target: Target,
    keys: HostKeys,
    jumps: Arc<Jumps>,
    connections: Mutex<Vec<Arc<Connection>>>,
    about: About,
    runner: OnceLock<PathBuf>,
}

impl std::fmt::Debug for SshHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SshHost")
            .field("name", &self.name)
            .field("target", &self.target)
            .finish_non_exhaustive()
    }
}

impl SshHost {
    /// What the host said of itself at the login.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Where it is and who logs in.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Says where the runner is, once it is there.
    pub fn set_runner(&self, path: impl Into<PathBuf>) {
        let _ = self.runner.set(path.into());
    }

    fn error(&self, trouble: Trouble) -> HostError {
        HostError {
            host: self.name.clone(),
            what: trouble.what,
            fault: trouble.fault,
        }
    }

    /// A connection that takes another command; a new one where all are busy or lost.
    fn connection(&self) -> Result<Arc<Connection>, HostError> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        connections.retain(|connection| connection.lost().is_none());
        if let Some(free) = connections.iter().find(|c| c.busy() < COMMANDS_MAX) {
            return Ok(Arc::clone(free));
        }
        let deadline = Instant::now() + AGAIN_LIMIT;
        let new = self
            .jumps
            .open(&self.target, self.keys, deadline)
            .map_err(|trouble| self.error(trouble))?;
        connections.push(Arc::clone(&new));
        Ok(new)
    }

    /// Runs a command line to its end, with its input; what it prints is separated from the noise around it.
    pub fn run(&self, line: String, input: Input, limit: Duration) -> Result<CommandOutput, HostError> {
        let (send, done) = mpsc::channel();
        let shown: String = line.chars().take(120).collect();
        let running = self
            .connection()?
            .start(line, input, Box::new(Collect::new(send)));
        let (end, stdout, stderr) = match done.recv_timeout(limit) {
            Ok(done) => done,
            Err(_) => {
                let (said, pid) = self.give_up(&running, &done);
                if let Some(pid) = pid {
                    self.signal(pid, "KILL");
                }
                let said = said
                    .lines()
                    .last()
                    .map_or(String::new(), |l| format!("; it said: {l}"));
                let what = format!(
                    "get an answer to `{shown}` within {} s{said}",
                    limit.as_secs_f64()
                );
                return Err(self.error(Trouble::new(Fault::Deadline, what)));
            }
        };
        let (stdout, noise) = remote::after_begin(&stdout);
        let (stderr, _) = remote::after_pid(&stderr);
        let code = match end {
            End::Exit(code) => Some(code),
            End::Signal(_) => None,
            End::Unknown(why) => {
                let fault = if running.connection().lost().is_some() {
                    Fault::Lost
                } else {
                    Fault::Other
                };
                return Err(self.error(Trouble::new(fault, format!("run `{shown}`: {why}"))));
            }
        };
        Ok(CommandOutput {
            code,
            stdout,
            stderr,
            noise,
        })
    }

    fn give_up(
        &self,
        running: &connection::Running,
        done: &mpsc::Receiver<Collected>,
    ) -> (String, Option<u32>) {
        running.abandon();
        match done.recv_timeout(Duration::from_secs(1)) {
            Ok((_, _, stderr)) => remote::after_pid(&stderr),
            Err(_) => (String::new(), None),
        }
    }

    /// Runs a POSIX shell script with arguments `$1`, `$2`, … to its end.
    pub fn script(
        &self,
        script: &str,
        arguments: &[String],
        limit: Duration,
    ) -> Result<CommandOutput, HostError> {
        let input = Input::Bytes(remote::marked_script(script).into_bytes());
        self.run(remote::script_line(arguments), input, limit)
    }

    /// The output of a script that must end with 0; else its last line is the error.
    pub fn answer(&self, what: &str, script: &str, arguments: &[String]) -> Result<String, HostError> {
        let output = self.script(script, arguments, ASK_LIMIT)?;
        if output.code == Some(0) {
            return Ok(output.stdout);
        }
        let said = output.stderr.lines().last().unwrap_or("nothing").to_owned();
        Err(self.error(Trouble::new(
            Fault::Other,
            format!("{what}: the host says: {said}"),
        )))
    }

    /// Sends a signal to a process of ours. One that is gone needs none.
    fn signal(&self, pid: u32, signal: &str) {
        if let Ok(connection) = self.connection() {
            let (send, _) = mpsc::channel();
            drop(connection.start(
                format!("kill -{signal} {pid}"),
                Input::Empty,
                Box::new(Collect::new(send)),
            ));
        }
    }

    /// A directory of a run on the host.
    fn run_dir(&self, run_id: &str) -> String {
        format!("{}/run/{run_id}", self.about.dir)
    }
}

impl Host for SshHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn runner(&self) -> &Path {
        self.runner
            .get()
            .map_or(Path::new("tf-tp-test"), PathBuf::as_path)
    }

    fn start(&self, launch: &Launch, messages: Sender<Message>) -> Result<Box<dyn RankProcess>, HostError> {
        let mut launch = launch.clone();
        // As on this machine, what a rank is given is what the plan says.
        let inherited = self
            .about
            .variables
            .iter()
            .filter(|name| !launch.start.settings.contains_key(*name));
        let more: Vec<String> = inherited
            .filter(|name| !launch.start.unset.contains(name))
            .cloned()
            .collect();
        launch.start.unset.extend(more);
        let connection = self.connection()?;
        rank::start(&connection, &launch, messages)
            .map_err(|what| self.error(Trouble::new(Fault::Other, what)))
    }

    fn output(&self, argv: &[String], limit: Duration) -> Result<CommandOutput, HostError> {
        self.run(remote::marked(argv), Input::Empty, limit)
    }

    fn free_port(&self) -> Result<u16, HostError> {
        let taken = self.answer("list the TCP ports in use", about::PORTS_SCRIPT, &[])?;
        about::free_port(&taken).map_err(|what| self.error(Trouble::new(Fault::Other, what)))
    }

    fn runner_sha256(&self) -> Result<String, HostError> {
        let path = self.runner().display().to_string();
        let answer = self.answer("hash the runner", about::HASH_SCRIPT, std::slice::from_ref(&path))?;
        let hash = remote::value(&answer, "sha256").unwrap_or_default();
        if hash.len() == 64 {
            return Ok(hash.to_owned());
        }
        Err(self.error(Trouble::new(
            Fault::Other,
            format!("hash the runner {path}: no hash came back"),
        )))
    }

    fn provide(&self, run_id: &str, file: &Path) -> Result<PathBuf, HostError> {
        let failed = |what: String| self.error(Trouble::new(Fault::Other, what));
        let name = file.file_name().and_then(|n| n.to_str()).unwrap_or("file");
        let open = std::fs::File::open(file).map_err(|e| failed(format!("read {}: {e}", file.display())))?;
        let dir = self.run_dir(run_id);
        let line = remote::marked(&[
            "sh".into(),
            "-c".into(),
            about::PROVIDE_SCRIPT.into(),
            "sh".into(),
            dir.clone(),
            name.into(),
        ]);
        let output = self.run(line, Input::File(open), ASK_LIMIT)?;
        if output.code != Some(0) {
            let said = output.stderr.lines().last().unwrap_or("nothing").to_owned();
            return Err(failed(format!("write {dir}/{name}: the host says: {said}")));
        }
        Ok(PathBuf::from(format!("{dir}/{name}")))
    }

    fn clean(&self, run_id: &str) {
        let line = remote::marked(&["rm".into(), "-rf".into(), "--".into(), self.run_dir(run_id)]);
        let _ = self.run(line, Input::Empty, ASK_LIMIT);
    }

    fn control_address(&self) -> Option<IpAddr> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .find_map(|connection| connection.peer())
    }
}

type Collected = (End, String, String);

/// Keeps a short command's output.
struct Collect {
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    done: Sender<Collected>,
}

impl Collect {
    fn new(done: Sender<Collected>) -> Self {
        Self {
            stdout: Vec::new(),
            stderr: Vec::new(),
            done,
        }
    }
}

fn keep(kept: &mut Vec<u8>, bytes: &[u8]) {
    let room = OUTPUT_MAX.saturating_sub(kept.len());
    kept.extend_from_slice(&bytes[..bytes.len().min(room)]);
}

impl Sink for Collect {
    fn stdout(&mut self, bytes: &[u8]) {
        keep(&mut self.stdout, bytes);
    }

    fn stderr(&mut self, bytes: &[u8]) {
        keep(&mut self.stderr, bytes);
    }

    fn ended(&mut self, end: End) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        // Nobody waits any more where the limit has passed.
        let _ = self.done.send((end, text(&self.stdout), text(&self.stderr)));
    }
}
