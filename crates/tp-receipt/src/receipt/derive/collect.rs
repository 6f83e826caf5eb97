//! The tables that are filled event by event: hosts, picks, latencies, settings, counters, skipped checks, warnings.

use crate::event::{Check, Counter, Event, Hello, Kind, Latency, Log, Outcome, Port, Rail, Setting};
use crate::floor::floor_us;
use crate::receipt::{
    CounterRow, Host, LatencyRow, Pick, PickedPort, PickedRail, SettingRow, SkippedChecks, Warning,
};
use crate::record::{HostStart, StepStart};
use serde_json::{Map, Value};

#[derive(Clone, Debug, Default)]
pub(super) struct Tables {
    pub hosts: Vec<Host>,
    pub picks: Vec<Pick>,
    pub latencies: Vec<LatencyRow>,
    /// One row an arm; see [`Tables::settings`].
    settings: Vec<SettingRow>,
    pub counters: Vec<CounterRow>,
    pub skipped: Vec<SkippedChecks>,
    pub warnings: Vec<Warning>,
}

impl Tables {
    pub fn host(&mut self, start: &HostStart) {
        self.hosts.push(start.into());
    }

    /// An event that belongs to no step.
    pub fn outside(&mut self, event: &Event) {
        if let Kind::Log(log) = &event.kind {
            self.warning("preflight", event.rank, log);
        }
    }

    pub fn event(&mut self, step: &StepStart, event: &Event, world: u32) {
        if let Kind::Log(log) = &event.kind {
            self.warning(&format!("{}/{}", step.key.arm, step.key.step), event.rank, log);
        }
        if let Kind::Counter(counter) = &event.kind {
            self.counter(step, event.rank, counter);
        }
        let Some(rank) = event.rank else { return };
        let Some(host) = step
            .ranks
            .iter()
            .find(|r| r.rank == rank)
            .map(|r| r.host.as_str())
        else {
            return;
        };
        match &event.kind {
            Kind::Hello(hello) => self.hello(host, rank, hello),
            Kind::Setting(setting) => self.setting(&step.key.arm, rank, setting),
            Kind::Port(port) => self.port(step, rank, host, port, &event.extra),
            Kind::Rail(rail) => self.rail(step, rank, host, rail, &event.extra),
            Kind::Check(check) if check.outcome == Outcome::Skipped => self.skip(step, check),
            Kind::Latency(latency) => self.latency(step, rank, latency, &event.extra, world),
            _ => {}
        }
    }

    fn hello(&mut self, name: &str, rank: u32, hello: &Hello) {
        let host = match self.hosts.iter().position(|h| h.name == name) {
            Some(at) => &mut self.hosts[at],
            None => {
                self.hosts.push(Host {
                    name: name.to_owned(),
                    ..Host::default()
                });
                let last = self.hosts.len() - 1;
                &mut self.hosts[last]
            }
        };
        insert_sorted(&mut host.ranks, rank);
        insert_sorted(&mut host.binary_sha256, hello.binary_sha256.clone());
        if let Some(image) = &hello.image_sha256 {
            insert_sorted(&mut host.image_sha256, image.clone());
        }
        for (what, version) in &hello.versions {
            let known = host
                .versions
                .entry(what.clone())
                .or_insert_with(|| version.clone());
            // Two ranks of one host may load different libraries; both are shown.
            if !known.split(" | ").any(|v| v == version) {
                known.push_str(" | ");
                known.push_str(version);
            }
        }
    }

    fn setting(&mut self, arm: &str, rank: u32, setting: &Setting) {
        let same = |row: &SettingRow| {
            row.arms[0] == arm
                && row.name == setting.name
                && row.value == setting.value
                && row.source == setting.source
        };
        let at = match self.settings.iter().position(same) {
            Some(at) => at,
            None => {
                self.settings.push(SettingRow {
                    name: setting.name.clone(),
                    value: setting.value.clone(),
                    source: setting.source.clone(),
                    arms: vec![arm.to_owned()],
                    ..SettingRow::default()
                });
                self.settings.len() - 1
            }
        };
        insert_sorted(&mut self.settings[at].ranks, rank);
    }

    /// The settings, with arms in which the same ranks had the same value put together.
    pub fn settings(&self) -> Vec<SettingRow> {
        let mut out: Vec<SettingRow> = Vec::new();
        for row in &self.settings {
            let same = |known: &&mut SettingRow| {
                (&known.name, &known.value, &known.source, &known.ranks)
                    == (&row.name, &row.value, &row.source, &row.ranks)
            };
            match out.iter_mut().find(same) {
                Some(known) => known.arms.extend(row.arms.iter().cloned()),
                None => out.push(row.clone()),
            }
        }
        out
    }

    /// The pick that this step's ports and rails belong to; a later step of the same arm that only repeats it is not
    /// listed again.
    fn pick(&mut self, step: &StepStart, rank: u32, host: &str, model: bool) -> Option<&mut Pick> {
        let arm = &step.key.arm;
        match self
            .picks
            .iter()
            .position(|p| p.arm == *arm && p.rank == rank && p.model == model)
        {
            Some(at) if self.picks[at].step != step.key.step => None,
            Some(at) => self.picks.get_mut(at),
            None => {
                self.picks.push(Pick {
                    arm: arm.clone(),
                    step: step.key.step.clone(),
                    rank,
                    host: host.to_owned(),
                    model,
                    ..Pick::default()
                });
                self.picks.last_mut()
            }
        }
    }

    fn port(&mut self, step: &StepStart, rank: u32, host: &str, port: &Port, extra: &Map<String, Value>) {
        let Some(pick) = self.pick(step, rank, host, port.model) else {
            return;
        };
        let row = PickedPort {
            device: port.device.clone(),
            port: port.port,
            chosen: port.chosen,
            reason: port.reason.clone(),
            extra: extra.clone(),
        };
        if !pick.ports.contains(&row) {
            pick.ports.push(row);
        }
    }

    fn rail(&mut self, step: &StepStart, rank: u32, host: &str, rail: &Rail, extra: &Map<String, Value>) {
        let Some(pick) = self.pick(step, rank, host, rail.model) else {
            return;
        };
        let row = PickedRail {
            peer: rail.peer,
            device: rail.device.clone(),
            port: rail.port,
            gid_index: rail.gid_index,
            address: rail.address.clone(),
            peer_device: rail.peer_device.clone(),
            peer_port: rail.peer_port,
            by: rail.by.clone(),
            probed: rail.probed,
            extra: extra.clone(),
        };
        if !pick.rails.contains(&row) {
            pick.rails.push(row);
        }
    }

    fn latency(&mut self, step: &StepStart, rank: u32, l: &Latency, extra: &Map<String, Value>, world: u32) {
        let floor = floor_us(l.bytes);
        let implausible = (world > 1 && l.median_us < floor).then(|| {
            format!("below {floor} us so many bytes cannot have gone to a peer; see ops_per_graph and sync")
        });
        self.latencies.push(LatencyRow {
            arm: step.key.arm.clone(),
            step: step.key.step.clone(),
            attempt: step.key.attempt,
            rank,
            backend: l.backend.clone(),
            wire: l.wire.clone(),
            op: l.op.clone(),
            bytes: l.bytes,
            mode: l.mode.clone(),
            ops_per_graph: l.ops_per_graph,
            samples: l.samples,
            median_us: l.median_us,
            p10_us: l.p10_us,
            p90_us: l.p90_us,
            implausible,
            extra: extra.clone(),
        });
    }

    fn counter(&mut self, step: &StepStart, rank: Option<u32>, counter: &Counter) {
        let key = &step.key;
        let same = |row: &CounterRow| {
            row.rank == rank
                && row.attempt == key.attempt
                && row.name == counter.name
                && row.place == counter.place
                && row.step == key.step
                && row.arm == key.arm
        };
        // Counters of one step follow each other: the row is near the end, if it is there at all.
        let at = match self.counters.iter().rposition(same) {
            Some(at) => at,
            None => {
                self.counters.push(CounterRow {
                    arm: key.arm.clone(),
                    step: key.step.clone(),
                    attempt: key.attempt,
                    rank,
                    place: counter.place.clone(),
                    name: counter.name.clone(),
                    ..CounterRow::default()
                });
                self.counters.len() - 1
            }
        };
        match counter.when.as_str() {
            "before" => self.counters[at].before = Some(counter.value),
            _ => self.counters[at].after = Some(counter.value),
        }
    }

    fn skip(&mut self, step: &StepStart, check: &Check) {
        let key = &step.key;
        let reason = check.reason.as_deref().unwrap_or("no reason given");
        let same = |row: &SkippedChecks| {
            row.attempt == key.attempt
                && row.group == check.group
                && row.reason == reason
                && row.step == key.step
                && row.arm == key.arm
        };
        match self.skipped.iter().rposition(same) {
            Some(at) => self.skipped[at].count += 1,
            None => self.skipped.push(SkippedChecks {
                arm: key.arm.clone(),
                step: key.step.clone(),
                attempt: key.attempt,
                group: check.group.clone(),
                reason: reason.to_owned(),
                count: 1,
                extra: Map::new(),
            }),
        }
    }

    fn warning(&mut self, place: &str, rank: Option<u32>, log: &Log) {
        let Some(code) = &log.code else { return };
        // Words that say how it went (`boot`, `backend`) have codes too.
        if !matches!(log.level.as_str(), "warn" | "error") {
            return;
        }
        let at = match self
            .warnings
            .iter()
            .position(|w| w.code == *code && w.text == log.text)
        {
            Some(at) => at,
            None => {
                self.warnings.push(Warning {
                    code: code.clone(),
                    text: log.text.clone(),
                    ..Warning::default()
                });
                self.warnings.len() - 1
            }
        };
        let row = &mut self.warnings[at];
        if !row.steps.iter().any(|s| s == place) {
            row.steps.push(place.to_owned());
        }
        if let Some(rank) = rank {
            insert_sorted(&mut row.ranks, rank);
        }
    }
}

fn insert_sorted<T: Ord>(list: &mut Vec<T>, value: T) {
    if let Err(at) = list.binary_search(&value) {
        list.insert(at, value);
    }
}
