//! Ranks as processes on this machine.

use super::stream::{read_events, read_stderr, write_orders};
use super::{CommandOutput, Ended, Fault, Host, HostError, Launch, Message, RankProcess, What};
use crate::os;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use tp_receipt::control::Order;

/// Variables of the user's shell that would change what a rank does; the plan says what a rank is given, so they are
/// not inherited.
const NOT_INHERITED: &[&str] = &["TF_TP_", "TF_COMM_", "TF_NCCL_", "NCCL_"];

/// Where rank 0's port is looked for: below the range from which Linux gives ports to outgoing connections (32768 to 60999
/// unless set), so that none of those takes it before rank 0 listens.
const PORTS: std::ops::Range<u16> = 20_000..32_768;
/// Ports that are tried there before any free one is taken.
const PORT_TRIES: usize = 64;

/// How long output may still arrive after the process is gone: a process that it left behind could hold the pipe open.
const DRAIN: Duration = Duration::from_millis(500);

/// This machine under one of the inventory's names.
#[derive(Clone, Debug)]
pub struct LocalHost {
    name: String,
    runner: PathBuf,
}

impl LocalHost {
    /// A host whose ranks are started with `runner`.
    pub fn new(name: impl Into<String>, runner: impl Into<PathBuf>) -> Self {
        Self {
            name: name.into(),
            runner: runner.into(),
        }
    }

    fn error(&self, what: impl Into<String>) -> HostError {
        HostError {
            host: self.name.clone(),
            what: what.into(),
            fault: Fault::Other,
        }
    }

    /// A command with a clean environment, in a process group of its own: Ctrl-C on the terminal must reach the
    /// orchestrator alone, which then ends the ranks in order.
    fn command(&self, argv: &[String]) -> Result<Command, HostError> {
        let (program, arguments) = argv
            .split_first()
            .ok_or_else(|| self.error("start an empty command"))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if NOT_INHERITED.iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        Ok(command)
    }
}

impl Host for LocalHost {
    fn name(&self) -> &str {
        &self.name
    }

    fn runner(&self) -> &Path {
        &self.runner
    }

    fn start(&self, launch: &Launch, messages: Sender<Message>) -> Result<Box<dyn RankProcess>, HostError> {
        let mut child = self
            .command(&launch.argv)?
            .stdin(Stdio::piped())
            .spawn()
            .map_err(|e| self.error(format!("start rank {} ({}): {e}", launch.rank, launch.argv[0])))?;
        let (orders, receive_orders) = mpsc::channel();
        let start = launch.start.clone();
        if let Some(stdin) = child.stdin.take() {
            thread::spawn(move || write_orders(stdin, &start, &receive_orders));
        }
        let rank = launch.rank;
        let (done, all_read) = mpsc::channel();
        spawn_reader(
            child.stdout.take(),
            messages.clone(),
            done.clone(),
            move |s, m| read_events(rank, s, m),
        );
        spawn_reader(child.stderr.take(), messages.clone(), done, move |s, m| {
            read_stderr(rank, s, m)
        });
        let child = Arc::new(Mutex::new(child));
        let waited = Arc::clone(&child);
        thread::spawn(move || {
            let ended = wait(&waited);
            // Both readers drop their ends at the end of their stream; until then this blocks, at most for DRAIN.
            let _ = all_read.recv_timeout(DRAIN);
            let _ = messages.send(Message {
                rank,
                what: What::Ended(ended),
            });
        });
        Ok(Box::new(LocalProcess { child, orders }))
    }

    fn output(&self, argv: &[String], limit: Duration) -> Result<CommandOutput, HostError> {
        let mut child = self
            .command(argv)?
            .stdin(Stdio::null())
            .spawn()
            .map_err(|e| self.error(format!("start {}: {e}", argv[0])))?;
        let stdout = collect(child.stdout.take());
        let stderr = collect(child.stderr.take());
        let end = Instant::now() + limit;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < end => thread::sleep(Duration::from_millis(2)),
                Ok(None) => {
                    kill_group(&mut child);
                    let what = format!("get an answer from {} within {limit:?}", argv.join(" "));
                    return Err(HostError {
                        fault: Fault::Deadline,
                        ..self.error(what)
                    });
                }
                Err(e) => return Err(self.error(format!("wait for {}: {e}", argv[0]))),
            }
        };
        let text = |received: mpsc::Receiver<String>| received.recv_timeout(DRAIN).unwrap_or_default();
        Ok(CommandOutput {
            code: status.code(),
            stdout: text(stdout),
            stderr: text(stderr),
            noise: String::new(),
        })
    }

    fn free_port(&self) -> Result<u16, HostError> {
        let failed = |e: &dyn std::fmt::Display| self.error(format!("find a free TCP port: {e}"));
        let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
        for _ in 0..PORT_TRIES {
            let random = getrandom::u32().map_err(|e| failed(&e))?;
            let width = u32::from(PORTS.end - PORTS.start);
            let port = PORTS.start + u16::try_from(random % width).unwrap_or_default();
            if is_free(&port) {
                return Ok(port);
            }
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(|e| failed(&e))?;
        listener
            .local_addr()
            .map(|address| address.port())
            .map_err(|e| failed(&e))
    }

    fn runner_sha256(&self) -> Result<String, HostError> {
        use sha2::{Digest, Sha256};
        let mut file = std::fs::File::open(&self.runner)
            .map_err(|e| self.error(format!("open the runner {}: {e}", self.runner.display())))?;
        let mut hash = Sha256::new();
        let mut buffer = vec![0; 1 << 16];
        loop {
            match file.read(&mut buffer) {
                Ok(0) => return Ok(hex::encode(hash.finalize())),
                Ok(n) => hash.update(&buffer[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error(format!("read the runner {}: {e}", self.runner.display()))),
            }
        }
    }

    fn provide(&self, _run_id: &str, file: &Path) -> Result<PathBuf, HostError> {
        Ok(file.to_owned())
    }

    fn clean(&self, _run_id: &str) {}

    fn control_address(&self) -> Option<IpAddr> {
        None
    }
}

fn spawn_reader<S: Read + Send + 'static>(
    stream: Option<S>,
    messages: Sender<Message>,
    done: Sender<()>,
    read: impl FnOnce(S, &Sender<Message>) + Send + 'static,
) {
    let Some(stream) = stream else { return };
    thread::spawn(move || {
        read(stream, &messages);
        drop(done);
    });
}

/// Reads a whole short output on a thread, so that neither pipe can fill and block the command.
fn collect(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<String> {
    let (send, receive) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(stream) = stream {
            // A read error ends the output where it is.
            let _ = stream.take(16 << 20).read_to_end(&mut bytes);
        }
        let _ = send.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receive
}

/// Waits without holding the lock, so that [`LocalProcess::kill`] can act meanwhile; reaps under the lock, so that no
/// signal can go to a process id that has been given to somebody else.
fn wait(child: &Mutex<Child>) -> Ended {
    let pid = child.lock().unwrap_or_else(PoisonError::into_inner).id();
    os::wait_without_reaping(pid);
    loop {
        match child.lock().unwrap_or_else(PoisonError::into_inner).try_wait() {
            Ok(Some(status)) => {
                return Ended {
                    code: status.code(),
                    signal: status.signal(),
                };
            }
            Ok(None) => {}
            Err(_) => {
                return Ended {
                    code: None,
                    signal: None,
                };
            }
        }
        thread::sleep(Duration::from_millis(2));
    }
}

fn kill_group(child: &mut Child) {
    if matches!(child.try_wait(), Ok(None)) {
        os::kill_group(child.id());
        // The group is the child's own; it cannot refuse.
        let _ = child.wait();
    }
}

struct LocalProcess {
    child: Arc<Mutex<Child>>,
    orders: Sender<Order>,
}

impl RankProcess for LocalProcess {
    fn order(&self, order: Order) {
        let _ = self.orders.send(order);
    }

    fn kill(&self) {
        let mut child = self.child.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(child.try_wait(), Ok(None)) {
            os::kill_group(child.id());
        }
    }
}
