//! A run without processes: the calls an orchestrator makes, with figures of the test's choice.
#![allow(dead_code, reason = "every test file uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use tp_receipt::event::{
    Check, Counter, Event, Exit, Fate, Hello, Inject, Kind, Latency, Log, Outcome, Port, Rail, Setting,
    Summary,
};
use tp_receipt::receipt::{Diagnosis, NotRun, Receipt, Scope, Source, Tool};
use tp_receipt::record::{
    ArmStart, HostStart, PlannedStep, RankStart, RunEnd, RunStart, StepEnd, StepKey, StepStart,
};
use tp_receipt::redact::Redactor;
use tp_receipt::store::{Options, Store};

pub const BINARY: &str = "11d0a1b5c5a0f7c2b8d3e4f5a6b7c8d9e0f1a2b3c4d5e6f708192a3b4c5d6e7f";

/// Seconds after the run began, as a time.
pub fn at(seconds: u32) -> String {
    format!("2026-03-01T12:{:02}:{:02}Z", seconds / 60 % 60, seconds % 60)
}

pub fn out_dir(root: &tempfile::TempDir) -> PathBuf {
    root.path().join("receipt")
}

/// The shape of a run.
pub struct Shape {
    pub ranks: u32,
    pub arms: Vec<&'static str>,
    pub suites: u32,
    pub checks: u32,
    pub failfast: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            ranks: 2,
            arms: vec!["none", "nccl", "roce"],
            suites: 1,
            checks: 5,
            failfast: true,
        }
    }
}

impl Shape {
    pub fn steps(&self) -> Vec<String> {
        let mut steps = vec!["hca".to_owned()];
        steps.extend((0..self.suites).map(|i| {
            if i == 0 {
                "suite-host".into()
            } else {
                format!("suite-host-{i}")
            }
        }));
        steps.push("bench-host".into());
        if self.failfast {
            steps.push("failfast-host-kill-1".into());
        }
        steps
    }

    pub fn start(&self) -> RunStart {
        let hosts = (0..self.ranks).map(|rank| HostStart {
            name: host(rank),
            ranks: vec![rank],
            versions: [("kernel".to_owned(), "6.8.0".to_owned())].into(),
            ..HostStart::default()
        });
        let planned = self.arms.iter().flat_map(|arm| {
            self.steps().into_iter().map(move |step| PlannedStep {
                arm: (*arm).into(),
                step,
                repeat: 1,
                extra: Default::default(),
            })
        });
        RunStart {
            run_id: "run-1".into(),
            cluster: Some("two-sparks".into()),
            launcher: "local".into(),
            started: at(0),
            tool: Tool {
                name: "tp-orchestrate".into(),
                version: "0.1.0".into(),
                ..Tool::default()
            },
            source: Source {
                revision: Some("0123456789abcdef".into()),
                dirty: Some(false),
                ..Source::default()
            },
            hosts: hosts.collect(),
            arms: self
                .arms
                .iter()
                .map(|a| ArmStart {
                    name: (*a).into(),
                    ..ArmStart::default()
                })
                .collect(),
            planned: planned.collect(),
            ..RunStart::default()
        }
    }
}

pub fn host(rank: u32) -> String {
    format!("spark-{rank}.lab.example")
}

pub fn plan() -> serde_json::Value {
    serde_json::json!({ "schema": 1, "hosts": ["spark-0.lab.example", "spark-1.lab.example"], "steps": ["hca"] })
}

pub fn redactor() -> Redactor {
    let redactor = Redactor::with_key([7; 32]);
    (0..4).for_each(|rank| drop(redactor.host(&host(rank))));
    redactor
}

pub fn create(dir: &Path, shape: &Shape) -> Store {
    Store::create(dir, shape.start(), &plan(), redactor(), Options::default()).unwrap()
}

pub fn key(arm: &str, step: &str, attempt: u32) -> StepKey {
    StepKey::new(arm, step, attempt)
}

pub fn step_start(key: &StepKey, ranks: u32, second: u32) -> StepStart {
    let failfast = key.step.starts_with("failfast-");
    let starts = (0..ranks).map(|rank| match (failfast, rank) {
        (true, 1) => RankStart::expecting(rank, host(rank), &[], &[9]),
        (true, _) => RankStart::expecting(rank, host(rank), &[70], &[]),
        _ => RankStart::ok(rank, host(rank)),
    });
    StepStart {
        key: key.clone(),
        started: at(second),
        scope: if key.step == "hca" {
            Scope::Model
        } else {
            Scope::Host
        },
        command: vec!["tf-tp-test".into(), key.step.clone()],
        deadline_s: Some(60.0),
        ranks: starts.collect(),
        exit_within_ms: failfast.then_some(3000.0),
        extra: Default::default(),
    }
}

pub fn step_end(key: &StepKey, second: u32) -> StepEnd {
    StepEnd {
        key: key.clone(),
        ended: at(second),
        took_ms: 1234.5,
        errors: vec![],
        interrupted: false,
        causes: vec![],
        clocks: Default::default(),
        tails: Default::default(),
        extra: Default::default(),
    }
}

pub fn event(rank: u32, kind: Kind) -> Event {
    Event::new(0.5, Some(rank), kind)
}

pub fn hello(rank: u32, world: u32) -> Event {
    let versions = [("runner".to_owned(), "0.1.0".to_owned())].into();
    event(
        rank,
        Kind::Hello(Hello {
            world,
            session: "5e55".into(),
            pid: 100 + rank,
            binary_sha256: BINARY.into(),
            image_sha256: None,
            versions,
        }),
    )
}

pub fn check(rank: u32, n: u32, outcome: Outcome) -> Event {
    let reason = (outcome != Outcome::Passed).then(|| "no GPU on this host".to_owned());
    let name = format!("host all_reduce sum bf16 {} B in place", 16 * (n + 1));
    event(
        rank,
        Kind::Check(Check {
            name,
            outcome,
            group: "core".into(),
            reason,
        }),
    )
}

pub fn summary(rank: u32, passed: u64, failed: u64, skipped: u64) -> Event {
    event(
        rank,
        Kind::Summary(Summary {
            passed,
            failed,
            skipped,
        }),
    )
}

pub fn exit(rank: u32, code: Option<i32>, signal: Option<i32>, ns: u64) -> Event {
    event(
        rank,
        Kind::Exit(Exit {
            code,
            signal,
            monotonic_ns: ns,
            ended_by: None,
        }),
    )
}

/// The events of a step that goes as it should.
pub fn good_events(key: &StepKey, shape: &Shape) -> Vec<Event> {
    let mut out = Vec::new();
    for rank in 0..shape.ranks {
        out.push(hello(rank, shape.ranks));
    }
    for rank in 0..shape.ranks {
        match key.step.as_str() {
            "hca" => out.extend(pick_events(rank, shape.ranks)),
            "bench-host" => out.extend(bench_events(rank)),
            step if step.starts_with("failfast-") => out.extend(failfast_events(rank)),
            _ => {
                out.push(event(
                    rank,
                    Kind::Setting(Setting {
                        name: "NCCL_IB_HCA".into(),
                        value: "=rocep1s0f0:1".into(),
                        source: "orchestrator".into(),
                    }),
                ));
                out.extend((0..shape.checks).map(|n| check(rank, n, Outcome::Passed)));
                out.push(check(rank, shape.checks, Outcome::Skipped));
                out.push(summary(rank, shape.checks.into(), 0, 1));
                out.push(exit(rank, Some(0), None, 1_000_000_000));
            }
        }
    }
    out
}

fn pick_events(rank: u32, world: u32) -> Vec<Event> {
    let port = |device: &str, chosen: bool, reason: &str| {
        event(
            rank,
            Kind::Port(Port {
                device: device.into(),
                port: 1,
                chosen,
                reason: reason.into(),
                model: true,
            }),
        )
    };
    let rail = Rail {
        peer: (rank + 1) % world.max(1),
        device: "rocep1s0f0".into(),
        port: 1,
        gid_index: 3,
        address: format!("10.177.8.{}", rank + 1),
        peer_device: "rocep1s0f1".into(),
        peer_port: 1,
        by: "subnet".into(),
        probed: false,
        model: true,
    };
    vec![
        port("rocep1s0f0", true, "shares 10.177.8.0/24 with rank 1"),
        port("rocep1s0f1", false, "down, not considered"),
        event(rank, Kind::Rail(rail)),
        event(
            rank,
            Kind::Log(Log {
                level: "warn".into(),
                code: Some("unprobed".into()),
                text: "not probed".into(),
            }),
        ),
        summary(rank, 0, 0, 0),
        exit(rank, Some(0), None, 1_000_000_000),
    ]
}

fn bench_events(rank: u32) -> Vec<Event> {
    let mut out = Vec::new();
    for wire in ["shm", "tcp"] {
        for shift in [4u32, 10, 16] {
            let base = if wire == "shm" { 2.0 } else { 30.0 } + f64::from(1u32 << shift) / 4096.0;
            out.push(event(
                rank,
                Kind::Latency(Latency {
                    backend: "host".into(),
                    wire: Some(wire.into()),
                    op: "all_reduce".into(),
                    bytes: 1 << shift,
                    mode: "eager".into(),
                    median_us: base,
                    p10_us: base * 0.9,
                    p90_us: base * 1.3,
                    samples: 1000,
                    ops_per_graph: 1,
                }),
            ));
        }
    }
    for when in ["before", "after"] {
        let value = if when == "before" { 10 } else { 12 };
        out.push(event(
            rank,
            Kind::Counter(Counter {
                place: "rxe0/1".into(),
                name: "sent_pkts".into(),
                value,
                when: when.into(),
            }),
        ));
    }
    out.push(summary(rank, 0, 0, 0));
    out.push(exit(rank, Some(0), None, 1_000_000_000));
    out
}

fn failfast_events(rank: u32) -> Vec<Event> {
    if rank == 1 {
        let inject = Inject {
            what: "kill".into(),
            victim: 1,
            monotonic_ns: 2_000_000_000,
        };
        return vec![
            event(rank, Kind::Inject(inject)),
            exit(rank, None, Some(9), 2_000_500_000),
        ];
    }
    let fate = Fate {
        reason: "rank 1 closed its connection".into(),
        culprit: Some(1),
        phase: "run".into(),
    };
    vec![
        event(rank, Kind::Fate(fate)),
        exit(rank, Some(70), None, 2_018_000_000),
    ]
}

/// Runs one step as it should go.
pub fn good_step(store: &mut Store, key: &StepKey, shape: &Shape, second: u32) {
    store.step_begin(step_start(key, shape.ranks, second)).unwrap();
    for event in good_events(key, shape) {
        store.event(&event).unwrap();
    }
    for rank in 0..shape.ranks {
        store
            .log(
                rank,
                format!("{}:41:41 [0] NCCL INFO hello from {}\n", host(rank), host(rank)).as_bytes(),
            )
            .unwrap();
    }
    store.step_end(step_end(key, second + 1)).unwrap();
}

/// A step in which rank 0 fails a check.
pub fn bad_step(store: &mut Store, key: &StepKey, shape: &Shape, second: u32) {
    store.step_begin(step_start(key, shape.ranks, second)).unwrap();
    for rank in 0..shape.ranks {
        store.event(&hello(rank, shape.ranks)).unwrap();
        let bad = u64::from(rank == 0);
        let outcome = if rank == 0 {
            Outcome::Failed
        } else {
            Outcome::Passed
        };
        store.event(&check(rank, 0, outcome)).unwrap();
        store.event(&summary(rank, 1 - bad, bad, 0)).unwrap();
        store
            .event(&exit(rank, Some(i32::from(rank == 0)), None, 5))
            .unwrap();
        store.log(rank, b"ibv_modify_qp failed: errno 110\n").unwrap();
    }
    let mut end = step_end(key, second + 1);
    end.causes.push(Diagnosis {
        code: "qp-timeout".into(),
        cause: "the peer cannot be reached over this port".into(),
        remedy: "look at the cable of rocep1s0f0".into(),
        evidence: "errno 110".into(),
        ..Diagnosis::default()
    });
    store.step_end(end).unwrap();
}

pub fn end(second: u32) -> RunEnd {
    RunEnd {
        ended: at(second),
        ..RunEnd::default()
    }
}

/// A run of one arm of which the first step has ended well.
pub fn after_hca(dir: &Path) -> (Shape, Store) {
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    let mut store = create(dir, &shape);
    good_step(&mut store, &key("none", "hca", 1), &shape, 1);
    (shape, store)
}

/// A whole run in which everything goes as it should.
pub fn good_run(dir: &Path, shape: &Shape) -> Receipt {
    let mut store = create(dir, shape);
    let mut second = 1;
    for arm in &shape.arms {
        for step in shape.steps() {
            good_step(&mut store, &key(arm, &step, 1), shape, second);
            second += 2;
        }
    }
    store
        .not_run(NotRun {
            step: "suite-roce".into(),
            reason: "no RDMA port here".into(),
            ..NotRun::default()
        })
        .unwrap();
    store.finish(end(second)).unwrap()
}
