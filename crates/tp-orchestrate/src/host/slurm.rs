//! Nodes of a cluster that Slurm hands out: every command there is a step of one allocation.
//!
//! Inside an allocation (`salloc`, a batch script) its nodes are used; outside one is made, and given back when this
//! program ends in whatever way: the allocation lives as long as its command, which reads a pipe that only this process
//! holds open.

use super::{CommandOutput, Fault, Host, HostError, Launch, LocalHost, Message, RankProcess};
use crate::inventory::{Gpus, Inventory};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long Slurm may take to hand the nodes out: others may have to end first.
const ALLOCATION_LIMIT: Duration = Duration::from_secs(600);
/// How long a small question may take, Slurm's own start of the step included.
const ASK_LIMIT: Duration = Duration::from_secs(30);
/// How long Slurm may take to start a step on a busy node.
const STEP_START: Duration = Duration::from_secs(60);
/// Prints the kernel's tables of TCP sockets; without IPv6 the second is not there.
const PORTS_SCRIPT: &str = "cat /proc/net/tcp; cat /proc/net/tcp6 2>/dev/null; true";
/// Where a free port is looked for on a node, as on this machine: below those of outgoing connections.
const PORTS: std::ops::Range<u16> = 20_000..32_768;

/// Nodes that belong to this run while the value lives.
#[derive(Debug)]
pub struct Allocation {
    job: String,
    /// The allocation's own command and its input; absent where somebody else made the allocation.
    held: Option<(Mutex<Child>, Mutex<Option<ChildStdin>>)>,
}

impl Allocation {
    /// The allocation that this process runs in, else a new one with every host of the inventory.
    ///
    /// # Errors
    /// What Slurm said where it gives none.
    pub fn get(inventory: &Inventory) -> Result<Arc<Self>, HostError> {
        if let Some(job) = std::env::var("SLURM_JOB_ID").ok().filter(|job| !job.is_empty()) {
            return Ok(Arc::new(Self { job, held: None }));
        }
        make(inventory).map(Arc::new)
    }

    /// Its number.
    pub fn job(&self) -> &str {
        &self.job
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if let Some((child, input)) = &self.held {
            // The end of its input ends the command, and that the allocation.
            drop(input.lock().unwrap_or_else(PoisonError::into_inner).take());
            let _ = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        }
    }
}

fn error(what: impl Into<String>) -> HostError {
    HostError {
        host: "slurm".to_owned(),
        what: what.into(),
        fault: Fault::Other,
    }
}

fn make(inventory: &Inventory) -> Result<Allocation, HostError> {
    let names: Vec<&str> = inventory.hosts.iter().map(|host| host.name.as_str()).collect();
    let ranks = inventory
        .hosts
        .iter()
        .map(|host| host.ranks.len())
        .max()
        .unwrap_or(1);
    let gpus = inventory.hosts.iter().map(|host| match &host.gpus {
        Gpus::Listed(list) => list.len(),
        Gpus::Auto => 0,
    });
    let mut command = Command::new("salloc");
    command
        .arg(format!("--nodelist={}", names.join(",")))
        .arg(format!("--nodes={}", names.len()))
        .arg(format!("--ntasks-per-node={ranks}"))
        .arg(format!("--job-name=tp-{}", inventory.name))
        .args(
            gpus.max()
                .filter(|n| *n > 0)
                .map(|n| format!("--gpus-per-node={n}")),
        )
        .args(["sh", "-c", "echo \"tp-job $SLURM_JOB_ID\"; exec cat >/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C is for this program, which then gives the nodes back in order.
        .process_group(0);
    let mut child = command.spawn().map_err(|e| {
        error(format!(
            "ask for nodes with salloc: {e}; is Slurm on this machine?"
        ))
    })?;
    let input = child.stdin.take();
    match (job_id(&mut child), input) {
        (Ok(job), Some(input)) => Ok(Allocation {
            job,
            held: Some((Mutex::new(child), Mutex::new(Some(input)))),
        }),
        (given, _) => {
            // It holds nothing, or is still waiting for what it will not get in time.
            let _ = child.kill();
            let _ = child.wait();
            Err(error(
                given.err().unwrap_or_else(|| "hold the allocation".to_owned()),
            ))
        }
    }
}

/// What salloc and the allocation's command print.
enum Heard {
    /// The allocation's number.
    Job(String),
    /// A line of salloc's own.
    Said(String),
}

/// Waits for the line that the allocation's command prints; else what salloc said.
fn job_id(child: &mut Child) -> Result<String, String> {
    let (send, receive) = mpsc::channel();
    if let Some(stdout) = child.stdout.take() {
        let send = send.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if let Some(job) = line.strip_prefix("tp-job ") {
                    let _ = send.send(Heard::Job(job.to_owned()));
                }
            }
        });
    }
    if let Some(stderr) = child.stderr.take() {
        std::thread::spawn(move || {
            // It is read to its end, or salloc would wait for somebody to read it.
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                let _ = send.send(Heard::Said(line));
            }
        });
    }
    let until = Instant::now() + ALLOCATION_LIMIT;
    let mut said = "nothing".to_owned();
    loop {
        match receive.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(Heard::Job(job)) => return Ok(job),
            // Slurm looks for its configuration again and again for a minute; it will not come.
            Ok(Heard::Said(line)) if line.contains("cannot stat file") => {
                return Err(format!(
                    "get the nodes: Slurm has no configuration here; salloc said: {line}"
                ));
            }
            Ok(Heard::Said(line)) if line.contains("error") => said = line,
            Ok(Heard::Said(_)) => {}
            Err(mpsc::RecvTimeoutError::Timeout) => {
                return Err(format!(
                    "get the nodes within {} s: they are in use; look at squeue",
                    ALLOCATION_LIMIT.as_secs()
                ));
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                return Err(format!("get the nodes; salloc said: {said}"));
            }
        }
    }
}

/// One node.
#[derive(Debug)]
pub struct SlurmHost {
    here: LocalHost,
    node: String,
    allocation: Arc<Allocation>,
}

impl SlurmHost {
    /// The node of this name, with the runner's path there.
    pub fn new(node: impl Into<String>, runner: impl Into<PathBuf>, allocation: Arc<Allocation>) -> Self {
        let node = node.into();
        Self {
            here: LocalHost::new(node.clone(), runner),
            node,
            allocation,
        }
    }

    fn error(&self, what: impl Into<String>) -> HostError {
        HostError {
            host: self.node.clone(),
            what: what.into(),
            fault: Fault::Other,
        }
    }

    /// A step of one task on the node. Steps overlap, since ranks of one node are steps of their own, and none is bound to
    /// a processor, since all would be bound to the first.
    fn step(&self, argv: &[String]) -> Vec<String> {
        let mut step: Vec<String> = ["srun", "--overlap", "--nodes=1", "--ntasks=1", "--cpu-bind=none"]
            .map(str::to_owned)
            .to_vec();
        step.extend(["--unbuffered", "--quiet", "--export=ALL"].map(str::to_owned));
        step.push(format!("--jobid={}", self.allocation.job()));
        step.push(format!("--nodelist={}", self.node));
        step.extend_from_slice(argv);
        step
    }
}

impl Host for SlurmHost {
    fn name(&self) -> &str {
        &self.node
    }

    fn runner(&self) -> &Path {
        self.here.runner()
    }

    fn start(&self, launch: &Launch, messages: Sender<Message>) -> Result<Box<dyn RankProcess>, HostError> {
        let step = Launch {
            argv: self.step(&launch.argv),
            ..launch.clone()
        };
        self.here.start(&step, messages)
    }

    fn output(&self, argv: &[String], limit: Duration) -> Result<CommandOutput, HostError> {
        // The limit is the command's; Slurm's own start of the step comes on top.
        self.here.output(&self.step(argv), limit + STEP_START)
    }

    fn free_port(&self) -> Result<u16, HostError> {
        let argv = ["sh", "-c", PORTS_SCRIPT].map(str::to_owned);
        let output = self.output(&argv, ASK_LIMIT)?;
        let taken = listening(&output.stdout);
        for _ in 0..1000 {
            let random = getrandom::u32().map_err(|e| self.error(format!("get random bytes: {e}")))?;
            let width = u32::from(PORTS.end - PORTS.start);
            let port = PORTS.start + u16::try_from(random % width).unwrap_or_default();
            if !taken.contains(&port) {
                return Ok(port);
            }
        }
        Err(self.error("find a free TCP port"))
    }

    fn runner_sha256(&self) -> Result<String, HostError> {
        let runner = self.runner().display().to_string();
        let output = self.output(&["sha256sum".to_owned(), runner.clone()], ASK_LIMIT)?;
        let hash = output.stdout.split_whitespace().next().unwrap_or_default();
        if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Ok(hash.to_owned());
        }
        let said = output.stderr.lines().next().unwrap_or("nothing").to_owned();
        Err(self.error(format!(
            "hash the runner {runner}: it said: {said}; it must be at one path on every node"
        )))
    }

    fn provide(&self, run_id: &str, file: &Path) -> Result<PathBuf, HostError> {
        let failed = |what: String| self.error(format!("bring {} to the node: {what}", file.display()));
        let about = std::fs::metadata(file).map_err(|e| failed(e.to_string()))?;
        if about.len() > PROVIDE_MAX {
            return Err(failed(format!("it has more than {PROVIDE_MAX} B")));
        }
        let text = std::fs::read_to_string(file).map_err(|e| failed(e.to_string()))?;
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("file");
        let dir = run_dir(run_id);
        let argv = ["sh", "-c", PROVIDE, "sh", &dir, name, &text].map(str::to_owned);
        let output = self.output(&argv, ASK_LIMIT)?;
        if output.code != Some(0) {
            let said = output.stderr.lines().next().unwrap_or("nothing was said");
            return Err(failed(said.to_owned()));
        }
        Ok(PathBuf::from(format!("{dir}/{name}")))
    }

    fn clean(&self, run_id: &str) {
        let argv = ["rm", "-rf", "--", &run_dir(run_id)].map(str::to_owned);
        let _ = self.output(&argv, ASK_LIMIT);
    }

    fn control_address(&self) -> Option<IpAddr> {
        None
    }
}

/// Where the files of a run lie on a node.
fn run_dir(run_id: &str) -> String {
    format!("/tmp/tp-orchestrate-run-{run_id}")
}

/// `$1` a directory that is made for the user alone, `$2` a name in it, `$3` the file's text.
const PROVIDE: &str = "umask 077; mkdir -p \"$1\" && printf %s \"$3\" >\"$1/$2\"";
/// A longer text is no argument of a command on Linux, bytes.
const PROVIDE_MAX: u64 = 120_000;

/// The local ports on which something listens, from the kernel's tables.
fn listening(tables: &str) -> BTreeSet<u16> {
    const LISTEN: &str = "0A";
    tables
        .lines()
        .filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (local, state) = (words.get(1)?, words.get(3)?);
            let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
            (*state == LISTEN).then_some(port)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_on_which_something_listens() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            0: 0100007F:4E20 00000000:0000 0A 00000000:00000000 00:00000000\n\
            1: 0100007F:4E21 0100007F:9C40 01 00000000:00000000 00:00000000\n";
        assert_eq!(listening(table), BTreeSet::from([20_000]));
    }
}
