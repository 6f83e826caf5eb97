//! One real small collective on all ranks: what every look at a host leaves open.

use super::ask::Answer;
use super::{Collective, Hosts};
use crate::host::{Launch, Message, RankProcess, What};
use crate::inventory::{Gpus, HCA_VARIABLES, Host, Inventory};
use crate::plan::symbol::{self, Values};
use crate::plan::whole_argv;
use std::collections::BTreeMap;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};
use tp_receipt::control::{Order, SCHEMA, Start};
use tp_receipt::event::Kind;

/// The check that the ranks are given: four bytes of each, summed.
const CHECK: &str = "all_reduce sum f32 4 B";
/// How long it may take, most of which is the ranks' start.
const LIMIT: Duration = Duration::from_secs(30);
/// How long ranks have to leave when they are told to.
const GRACE: Duration = Duration::from_secs(3);

/// Runs it on host memory, and through NCCL where every host can; adds to `not_tested` what it left out.
pub(super) fn run(
    inventory: &Inventory,
    hosts: &Hosts,
    answers: &[Answer],
    master: &str,
    not_tested: &mut Vec<String>,
) -> Vec<Collective> {
    let mut backends = vec!["host"];
    match nccl_obstacle(inventory, answers) {
        None => backends.push("nccl"),
        Some(why) => not_tested.push(format!("a collective on GPUs: {why}")),
    }
    backends
        .into_iter()
        .map(|backend| {
            let since = Instant::now();
            let outcome = Attempt::start(inventory, hosts, master, backend).and_then(Attempt::finish);
            let (passed, text) = match outcome {
                Ok(text) => (true, text),
                Err(text) => (false, text),
            };
            Collective {
                backend: backend.to_owned(),
                passed,
                text,
                ms: u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX),
            }
        })
        .collect()
}

fn nccl_obstacle(inventory: &Inventory, answers: &[Answer]) -> Option<String> {
    for (host, answer) in inventory.hosts.iter().zip(answers) {
        if !matches!(&host.gpus, Gpus::Listed(list) if !list.is_empty()) {
            return Some(format!("the inventory lists no GPU of host {}", host.name));
        }
        let can = answer
            .report
            .as_ref()?
            .abilities
            .iter()
            .find(|a| a.command == "suite nccl");
        match can {
            Some(ability) if ability.can => {}
            Some(ability) => return Some(format!("host {}: {}", host.name, ability.why)),
            None => return Some(format!("host {}: its runner does not say that it can", host.name)),
        }
    }
    None
}

struct Attempt {
    processes: BTreeMap<u32, Box<dyn RankProcess>>,
    messages: Receiver<Message>,
    since: Instant,
    /// Ranks that have ended, with the code or signal of their own end.
    ended: BTreeMap<u32, String>,
    passed: u64,
    /// The last line that each rank said.
    said: BTreeMap<u32, String>,
}

impl Attempt {
    fn start(inventory: &Inventory, hosts: &Hosts, master: &str, backend: &str) -> Result<Self, String> {
        let since = Instant::now();
        let secret = crate::exec::secret().map_err(|e| e.to_string())?;
        let session = format!("doctor-{}", crate::exec::new_run_id().map_err(|e| e.to_string())?);
        let connected = |name: &str| match hosts.get(name) {
            Some(Ok(host)) => Ok(host),
            _ => Err(format!("host {name} is not connected")),
        };
        let head = inventory.host_of(0).ok_or("there is no rank 0")?;
        let port = connected(&head.name)?.free_port().map_err(|e| e.to_string())?;
        let mut values = Values::default();
        values.set(symbol::SESSION, session.as_str());
        values.set(symbol::PORT, port.to_string());
        let words = ["--backend", backend, "suite", backend, "--only", CHECK].map(str::to_owned);
        let (send, messages) = mpsc::channel();
        let mut attempt = Self {
            processes: BTreeMap::new(),
            messages,
            since,
            ended: BTreeMap::new(),
            passed: 0,
            said: BTreeMap::new(),
        };
        for host in &inventory.hosts {
            let connected = connected(&host.name)?;
            values.set(symbol::RUNNER, connected.runner().display().to_string());
            for (index, rank) in host.ranks.iter().enumerate() {
                let argv = whole_argv(inventory, *rank, master.to_owned(), &words);
                let launch = Launch {
                    rank: *rank,
                    argv: values.resolve_all(&argv).map_err(|e| e.to_string())?,
                    start: Start {
                        schema: SCHEMA,
                        session: session.clone(),
                        secret: Some(secret.clone()),
                        settings: settings(host, *rank, index),
                        unset: HCA_VARIABLES.map(str::to_owned).to_vec(),
                    },
                };
                let process = connected
                    .start(&launch, send.clone())
                    .map_err(|e| e.to_string())?;
                attempt.processes.insert(*rank, process);
            }
        }
        Ok(attempt)
    }

    /// Follows the ranks to their end and says what came out.
    fn finish(mut self) -> Result<String, String> {
        let world = self.processes.len();
        let mut gone = 0;
        let mut until = self.since + LIMIT;
        let mut late = false;
        while gone < world {
            match self
                .messages
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(message) => gone += usize::from(self.hear(message)),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) if late => {
                    self.processes.values().for_each(|process| process.kill());
                    break;
                }
                Err(RecvTimeoutError::Timeout) => {
                    late = true;
                    until = Instant::now() + GRACE;
                    self.processes
                        .values()
                        .for_each(|process| process.order(Order::End));
                }
            }
        }
        self.outcome(world, late)
    }

    /// Takes a message; true where a rank's process is gone.
    fn hear(&mut self, message: Message) -> bool {
        match message.what {
            What::Event(event) => {
                match event.kind {
                    Kind::Exit(exit) => {
                        let how = match (exit.code, exit.signal) {
                            (_, Some(signal)) => format!("signal {signal}"),
                            (Some(code), None) => format!("exit {code}"),
                            (None, None) => "an end that nobody saw".to_owned(),
                        };
                        self.ended.insert(message.rank, how);
                    }
                    Kind::Summary(summary) => self.passed += summary.passed,
                    _ => {}
                }
                false
            }
            What::Stderr(said) => {
                let text = String::from_utf8_lossy(&said.bytes);
                if let Some(line) = text.lines().rev().find(|line| !line.trim().is_empty()) {
                    self.said.insert(message.rank, line.to_owned());
                }
                false
            }
            What::Noise { .. } => false,
            What::Lost(why) => {
                self.said.insert(message.rank, why);
                true
            }
            What::Ended(_) => true,
        }
    }

    fn outcome(&self, world: usize, late: bool) -> Result<String, String> {
        let ms = self.since.elapsed().as_millis();
        let bad: Vec<String> = self
            .processes
            .keys()
            .filter(|rank| self.ended.get(rank).map(String::as_str) != Some("exit 0"))
            .map(|rank| {
                let how = self.ended.get(rank).map_or("no exit event", String::as_str);
                let said = self
                    .said
                    .get(rank)
                    .map_or(String::new(), |said| format!(", it said: {said}"));
                format!("rank {rank}: {how}{said}")
            })
            .collect();
        if late {
            return Err(format!(
                "not done within {} s; {}",
                LIMIT.as_secs(),
                bad.join("; ")
            ));
        }
        if !bad.is_empty() {
            return Err(bad.join("; "));
        }
        if self.passed == 0 {
            return Err("every rank ended well and none has checked anything".to_owned());
        }
        Ok(format!(
            "{CHECK} on {world} ranks, bit for bit, {ms} ms with the ranks' start"
        ))
    }
}

fn settings(host: &Host, rank: u32, index: usize) -> BTreeMap<String, String> {
    let mut settings = host.env.clone();
    settings.insert("TF_TP_RANK".to_owned(), rank.to_string());
    if let Gpus::Listed(list) = &host.gpus
        && let Some(gpu) = list.get(index)
    {
        settings.insert("TF_TP_DEVICE".to_owned(), gpu.to_string());
    }
    settings
}
