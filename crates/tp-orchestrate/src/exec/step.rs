//! One attempt at one step: all ranks at once, one loop over what they say, one deadline.

use super::clock::Clocks;
use super::heard::Heard;
use super::judge::{Action, Judge, expected_end};
use super::ledger::Ledger;
use super::{Context, Picks, time};
use crate::Error;
use crate::diagnosis::diagnose;
use crate::host::{Launch, Message, RankProcess, What};
use crate::os;
use crate::plan::symbol::{self, Values};
use crate::plan::{Command, Expect, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};
use tp_receipt::control::{BEAT_EVERY_S, LEASE_LIMIT_S, Order, SCHEMA as START_SCHEMA, Start};
use tp_receipt::event::{Event, Exit, Kind, Log, Outcome, Setting};
use tp_receipt::receipt::{Attempt, Scope};
use tp_receipt::record::{RankStart, StepEnd, StepKey, StepStart};

/// How often signals and the display are looked at while nothing arrives.
const TICK: Duration = Duration::from_millis(40);
/// Lines that are no events are kept in the rank's log; this many of each rank also become warnings.
const NOISE_WARNINGS: usize = 5;

/// How long this process may stand still before the ranks' lease is as good as lost.
const ASLEEP: Duration = Duration::from_millis(((LEASE_LIMIT_S - BEAT_EVERY_S) * 1e3) as u64);

/// `CLOCK_MONOTONIC` of this machine, nanoseconds.
pub(super) type MonotonicNs = u64;

fn monotonic_ns() -> MonotonicNs {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, |now| u64::try_from(now.as_nanos()).unwrap_or(u64::MAX))
}

/// An attempt under way.
pub(super) struct Trial<'a> {
    step: &'a Step,
    key: StepKey,
    context: &'a Context<'a>,
    began: Instant,
    judge: Judge,
    processes: BTreeMap<u32, Box<dyn RankProcess>>,
    heard: Heard,
    exits: BTreeMap<u32, Exit>,
    noise: BTreeMap<u32, usize>,
    /// What each rank's NCCL has said of its network.
    nccl_words: BTreeSet<(u32, String)>,
    /// The rails that this attempt's ranks named.
    own_picks: Picks,
    clocks: Clocks,
    /// Signals that were already acted upon.
    interrupts: usize,
}

impl<'a> Trial<'a> {
    pub fn new(step: &'a Step, key: StepKey, context: &'a Context<'a>) -> Self {
        let now = Instant::now();
        let ranks = step.commands.iter().map(|command| command.rank);
        let judge = Judge::new(&step.expect, Duration::from_millis(step.limit_ms), ranks, now);
        Self {
            step,
            key,
            context,
            began: now,
            judge,
            processes: BTreeMap::new(),
            heard: Heard::default(),
            exits: BTreeMap::new(),
            noise: BTreeMap::new(),
            nccl_words: BTreeSet::new(),
            own_picks: Picks::default(),
            clocks: Clocks::default(),
            interrupts: 0,
        }
    }

    /// Runs the attempt to its end. `known` are the symbols' values from earlier steps; rails of the supplying step go to
    /// `picks`.
    pub fn run(mut self, known: Values, ledger: &mut Ledger, picks: &mut Picks) -> Result<Attempt, Error> {
        ledger.step_begin(self.step_start())?;
        let (send, messages) = mpsc::channel();
        let started = self.start_all(known, &send, ledger);
        drop(send);
        let done = started.and_then(|()| self.follow(&messages, ledger, picks));
        if let Err(error) = done {
            self.abandon(&messages);
            return Err(error);
        }
        self.finish(ledger, picks)
    }

    fn step_start(&self) -> StepStart {
        let rank = |command: &Command| RankStart {
            host: command.host.clone(),
            ..expected_end(&self.step.expect, command.rank)
        };
        let exit_within_ms = match &self.step.expect {
            Expect::AllPass => None,
            Expect::FailFast { within_ms, .. } => Some(*within_ms as f64),
        };
        StepStart {
            key: self.key.clone(),
            started: time::now(),
            scope: scope(&self.step.scope),
            command: self
                .step
                .commands
                .first()
                .map(|c| c.argv.clone())
                .unwrap_or_default(),
            deadline_s: Some(self.step.limit_ms as f64 / 1e3),
            ranks: self.step.commands.iter().map(rank).collect(),
            exit_within_ms,
            extra: serde_json::Map::new(),
        }
    }

    fn say(&self, ledger: &mut Ledger, rank: Option<u32>, kind: Kind) -> Result<(), Error> {
        let event = Event::new(self.began.elapsed().as_secs_f64(), rank, kind);
        ledger.event(event)
    }

    fn start_all(&mut self, known: Values, send: &Sender<Message>, ledger: &mut Ledger) -> Result<(), Error> {
        for pick in self.step.symbols() {
            let name = pick.to_string();
            if let Ok(value) = known.resolve(&name) {
                let setting = Setting {
                    name,
                    value,
                    source: "derived".to_owned(),
                };
                self.say(ledger, None, Kind::Setting(setting))?;
            }
        }
        let session = format!(
            "{}-{}-{}-{}",
            self.context.run_id, self.key.arm, self.key.step, self.key.attempt
        );
        let secret = super::secret()?;
        match self.launches(known, &session, &secret) {
            Ok(launches) => {
                for launch in launches {
                    self.start(&launch, send, ledger)?;
                }
            }
            Err(error) => {
                let now = Instant::now();
                for command in &self.step.commands {
                    self.judge.not_started(command.rank, error.clone(), now);
                }
                self.judge.errors.dedup();
            }
        }
        Ok(())
    }

    /// Everything that the ranks are started with, before the first one is.
    fn launches(&self, mut values: Values, session: &str, secret: &str) -> Result<Vec<Launch>, String> {
        values.set(symbol::SESSION, session);
        let head = self
            .step
            .commands
            .iter()
            .find(|c| c.rank == 0)
            .ok_or("the step has no rank 0")?;
        let port = self
            .context
            .host(&head.host)?
            .free_port()
            .map_err(|e| e.to_string())?;
        values.set(symbol::PORT, port.to_string());
        if let Some(address) = self.context.host(&head.host)?.control_address() {
            values.set(symbol::CONTROL, address.to_string());
        }
        let facts = match self.step.is_model() {
            true => Some(self.context.facts.write(self.step, &self.key, &values)?),
            false => None,
        };
        let launch = |command: &Command| {
            let host = self.context.host(&command.host)?;
            let mut values = values.clone();
            if let Some(file) = &facts {
                let there = host
                    .provide(self.context.run_id, file)
                    .map_err(|e| e.to_string())?;
                values.set(symbol::FACTS, there.display().to_string());
            }
            values.set(symbol::RUNNER, host.runner().display().to_string());
            let text = |e: symbol::Unresolved| e.to_string();
            let mut settings = BTreeMap::from([("TF_TP_RANK".to_owned(), command.rank.to_string())]);
            for (name, value) in &command.settings {
                settings.insert(name.clone(), values.resolve(value).map_err(text)?);
            }
            let start = Start {
                schema: START_SCHEMA,
                session: session.to_owned(),
                secret: Some(secret.to_owned()),
                settings,
                unset: command.unset.clone(),
            };
            Ok(Launch {
                rank: command.rank,
                argv: values.resolve_all(&command.argv).map_err(text)?,
                start,
            })
        };
        self.step.commands.iter().map(launch).collect()
    }

    fn start(&mut self, launch: &Launch, send: &Sender<Message>, ledger: &mut Ledger) -> Result<(), Error> {
        let command = self.step.commands.iter().find(|c| c.rank == launch.rank);
        let Some(host) = command.and_then(|c| self.context.host(&c.host).ok()) else {
            return Ok(());
        };
        let started = serde_json::json!({ "event": "launch", "argv": launch.argv });
        if let serde_json::Value::Object(map) = started {
            self.say(ledger, Some(launch.rank), Kind::Unknown(map))?;
        }
        match host.start(launch, send.clone()) {
            Ok(process) => {
                if matches!(self.step.expect, Expect::FailFast { .. }) {
                    process.ask_clock(monotonic_ns());
                }
                self.processes.insert(launch.rank, process);
            }
            Err(error) => {
                let actions = self
                    .judge
                    .not_started(launch.rank, error.to_string(), Instant::now());
                self.act(&actions);
            }
        }
        Ok(())
    }

    fn follow(
        &mut self,
        messages: &Receiver<Message>,
        ledger: &mut Ledger,
        picks: &mut Picks,
    ) -> Result<(), Error> {
        let mut awake = os::clock_with_sleep();
        while !self.judge.over() {
            let now = Instant::now();
            let wait = self.judge.next_tick().saturating_duration_since(now).min(TICK);
            let message = messages.recv_timeout(wait);
            let woken = os::clock_with_sleep();
            if woken
                .zip(awake)
                .is_some_and(|(now, before)| now.saturating_sub(before) > ASLEEP)
            {
                self.context.interrupt.asleep();
            }
            awake = woken;
            match message {
                Ok(message) => self.hear(message, ledger, picks)?,
                Err(RecvTimeoutError::Timeout) => ledger.tick()?,
                // Every rank that was started has said that it is gone.
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let now = Instant::now();
            let mut actions = self.judge.tick(now);
            let count = self.context.interrupt.count();
            // What has ended whole cannot be interrupted any more.
            if count > self.interrupts && !self.judge.over() {
                self.interrupts = count;
                actions.extend(self.judge.interrupt(count > 1, now));
            }
            self.act(&actions);
        }
        Ok(())
    }

    fn act(&self, actions: &[Action]) {
        for action in actions {
            match action {
                Action::End(rank) => {
                    if let Some(process) = self.processes.get(rank) {
                        process.order(Order::End);
                    }
                }
                Action::Kill(rank) => {
                    if let Some(process) = self.processes.get(rank) {
                        process.kill();
                    }
                }
            }
        }
    }

    fn hear(&mut self, message: Message, ledger: &mut Ledger, picks: &mut Picks) -> Result<(), Error> {
        let rank = message.rank;
        let now = Instant::now();
        match message.what {
            What::Event(event) => {
                if let Some(again) = self.clocks.hear(rank, &event.kind, monotonic_ns()) {
                    if let Some(process) = self.processes.get(&rank).filter(|_| again) {
                        process.ask_clock(monotonic_ns());
                    }
                    return Ok(());
                }
                if Picks::supplies(&self.key) {
                    picks.event(event.rank, &event.kind);
                }
                self.own_picks.event(event.rank, &event.kind);
                let actions = self.hear_event(rank, &event.kind, now);
                ledger.event(*event)?;
                self.act(&actions);
            }
            What::Noise { line, why } => {
                ledger.log(rank, format!("[not an event: {why}] {line}\n").as_bytes())?;
                // NCCL writes to standard output where nobody sends it elsewhere.
                if self.hear_nccl(rank, &line, ledger, picks)? {
                    return Ok(());
                }
                let count = self.noise.entry(rank).or_default();
                *count += 1;
                if *count <= NOISE_WARNINGS {
                    let log = Log {
                        level: "warn".into(),
                        code: Some("noise".into()),
                        text: shortened(&line),
                    };
                    self.say(ledger, Some(rank), Kind::Log(log))?;
                }
            }
            What::Stderr(said) => {
                ledger.log(rank, &said.bytes)?;
                self.heard.lines(rank, &said.bytes);
                for line in String::from_utf8_lossy(&said.bytes).lines() {
                    self.hear_nccl(rank, line, ledger, picks)?;
                }
            }
            What::Ended(ended) => {
                let how = match (ended.code, ended.signal) {
                    (_, Some(signal)) => format!("signal {signal}"),
                    (Some(code), None) => format!("exit {code}"),
                    (None, None) => "in an unknown way".to_owned(),
                };
                let actions = self.judge.gone(rank, &how, now);
                self.act(&actions);
            }
            What::Lost(why) => {
                let actions = self.judge.lost(rank, &why, now);
                self.act(&actions);
            }
        }
        Ok(())
    }

    /// What counts is what NCCL does, not what it was told: its words on the network are kept as events, each once a rank, and
    /// held against the pick. Whether the line is such a one.
    fn hear_nccl(
        &mut self,
        rank: u32,
        line: &str,
        ledger: &mut Ledger,
        picks: &Picks,
    ) -> Result<bool, Error> {
        let Some(text) = tp_hca::nccl_log::network(line) else {
            return Ok(false);
        };
        if self.nccl_words.insert((rank, text.to_owned())) {
            let log = Log {
                level: "info".into(),
                code: Some("nccl-net".into()),
                text: shortened(text),
            };
            self.say(ledger, Some(rank), Kind::Log(log))?;
        }
        if let Some(problem) = picks.nccl_difference(rank, line)
            && !self.judge.errors.contains(&problem)
        {
            self.judge.errors.push(problem);
        }
        Ok(true)
    }

    fn hear_event(&mut self, rank: u32, kind: &Kind, now: Instant) -> Vec<Action> {
        match kind {
            Kind::Inject(_) => self.judge.injected(now),
            Kind::Exit(exit) => {
                self.exits.insert(rank, exit.clone());
                return self.judge.exited(rank, exit, now);
            }
            Kind::Log(log) => {
                let text = log
                    .code
                    .as_ref()
                    .map_or_else(|| log.text.clone(), |c| format!("{c}: {}", log.text));
                self.heard.line(rank, text);
            }
            Kind::Fate(fate) => self.heard.line(rank, fate.reason.clone()),
            Kind::Check(check) if check.outcome == Outcome::Failed => {
                let reason = check.reason.as_deref().unwrap_or("failed");
                self.heard.line(rank, format!("{}: {reason}", check.name));
            }
            _ => {}
        }
        Vec::new()
    }

    /// The record cannot be written any more: nothing is worth waiting for.
    fn abandon(&mut self, messages: &Receiver<Message>) {
        let actions = self.judge.interrupt(false, Instant::now());
        self.act(&actions);
        while !self.judge.over() {
            match messages.recv_timeout(TICK) {
                Ok(Message {
                    rank,
                    what: What::Ended(_) | What::Lost(_),
                }) => drop(self.judge.gone(rank, "", Instant::now())),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            let actions = self.judge.tick(Instant::now());
            self.act(&actions);
        }
    }

    /// With the values that the `none` arm picked, the other arms must end with the same rails.
    fn compare_picks(&mut self, supplied: &Picks) {
        if self.step.name == "hca" && !self.step.symbols().is_empty() && self.judge.errors.is_empty() {
            let all_left = self.exits.values().all(|exit| exit.code == Some(0));
            let ranks = self.step.commands.iter().map(|command| command.rank);
            if all_left {
                self.judge
                    .errors
                    .extend(ranks.filter_map(|rank| supplied.difference(&self.own_picks, rank)));
            }
        }
    }

    fn finish(mut self, ledger: &mut Ledger, picks: &Picks) -> Result<Attempt, Error> {
        if self.interrupts == 0 {
            self.compare_picks(picks);
        }
        let mut end = StepEnd {
            key: self.key.clone(),
            ended: time::now(),
            took_ms: self.began.elapsed().as_secs_f64() * 1e3,
            errors: self.judge.errors.clone(),
            interrupted: self.interrupts > 0,
            causes: Vec::new(),
            clocks: std::mem::take(&mut self.clocks).take(),
            tails: BTreeMap::new(),
            extra: serde_json::Map::new(),
        };
        if !end.interrupted && (!end.errors.is_empty() || ledger.has_problems()) {
            let errors = &self.judge.errors;
            let mut evidence = self.heard.evidence(errors, &self.step.expect, &self.exits);
            if self.judge.late && self.step.scope == "gpu" {
                let line = "the step on GPUs did not end by its deadline".to_owned();
                evidence.lines.push((None, line));
            }
            end.causes = diagnose(&evidence);
        }
        ledger.step_end(end)
    }
}

fn scope(word: &str) -> Scope {
    match word {
        "model" => Scope::Model,
        "host" => Scope::Host,
        "softroce" => Scope::Softroce,
        "gpu" => Scope::Gpu,
        "nic" => Scope::Nic,
        other => Scope::Other(other.to_owned()),
    }
}

fn shortened(line: &str) -> String {
    const MAX: usize = 200;
    match line.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}
