//! `failfast VICTIM transport`: the victim breaks its transport, not its process. Four steps: T0 the ports are quiet, T1 messages
//! pass, T2 the fault is put in and every rank finds it, T3 what is left is as it must be, and a new session on the same ports
//! works.

pub mod lane;
pub mod quiet;

use crate::exit_code::{self, Refusal};
use crate::group::refusal;
use crate::os;
use crate::sink::Sink;
use lane::{Lane, Use};
use quiet::{KernelLog, STRAY, carried, counters};
use std::process::Command;
use std::time::{Duration, Instant};
use tp_fabric::rails::{self, Agreed};
use tp_fabric::session::Group;
use tp_fabric::settings::Settings;
use tp_fabric::types::Rank;
use tp_fabric::wire::Wire;
use tp_fabric::wire::verbs::{Fault, RailEnd};
use tp_receipt::event::{Counter, Inject, Kind, Outcome};

/// Group of the checks in events.
const GROUP: &str = "transport";
/// How long the ports must be quiet.
const SAMPLE: Duration = Duration::from_secs(1);
/// Exchanges before the fault.
const BASELINE: u64 = 40;
/// Most exchanges after it: one that nobody finds is not found by the next either.
const AFTER: u64 = 4000;
/// How much longer than the wire's own patience a fault may take to be found.
const SLACK: Duration = Duration::from_secs(8);
/// How long a clean end waits for the others.
const CLOSE: Duration = Duration::from_secs(5);

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Who breaks its transport.
    pub victim: u32,
    /// What takes the victim's link down and up again, by a shell; without them that fault is skipped.
    pub link: Option<(String, String)>,
}

/// The faults, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinds {
    QueuePairs,
    WrongKey,
    LinkDown,
}

impl Kinds {
    const ALL: [Self; 3] = [Self::QueuePairs, Self::WrongKey, Self::LinkDown];

    fn name(self) -> &'static str {
        match self {
            Self::QueuePairs => "queue pairs to error",
            Self::WrongKey => "wrong remote key",
            Self::LinkDown => "link down",
        }
    }
}

struct Run<'a> {
    group: Group,
    agreed: Agreed,
    ends: Vec<RailEnd>,
    plan: &'a Plan,
    settings: &'a Settings,
    sink: &'a Sink,
}

/// Runs the steps in a group that has agreed on its rails. The exit code is 0 when all hold, 1 when one does not, 3 where the ports are not idle.
pub fn run(
    plan: &Plan,
    (group, agreed): (Group, Agreed),
    settings: &Settings,
    sink: &Sink,
) -> Result<u8, Refusal> {
    let ends = rails::ends(&agreed.document, settings.rank, settings.world.size());
    let mut run = Run {
        ends: ends.map_err(Refusal::cannot)?.into_iter().flatten().collect(),
        group,
        agreed,
        plan,
        settings,
        sink,
    };
    let outcome = run.steps();
    run.group.close();
    outcome?;
    let totals = sink.summary();
    Ok(if totals.failed == 0 {
        exit_code::PASSED
    } else {
        exit_code::FAILED
    })
}

impl Run<'_> {
    fn is_victim(&self) -> bool {
        self.plan.victim == self.settings.rank.0
    }

    fn steps(&mut self) -> Result<(), Refusal> {
        self.say_counters("before");
        self.idle()?;
        for fault in Kinds::ALL {
            self.fault(fault)?;
        }
        // T3 ends with this: the same ports serve a new session after all that.
        let mut last = self.open()?;
        let result = (0..BASELINE).try_for_each(|round| last.exchange(round));
        last.wire.close(CLOSE);
        self.sink
            .check_result(GROUP, "T3 a new session on the same ports works", result);
        self.say_counters("after");
        self.meet("transport done", Ok(()))
    }

    /// T0.
    fn idle(&mut self) -> Result<(), Refusal> {
        let name = "T0 the ports are idle";
        let result = match carried(&self.ends, SAMPLE) {
            Some(packets) if packets > STRAY => Err(format!(
                "{packets} packets in {:.0} s on this rank's ports: something else uses them, stop it first",
                SAMPLE.as_secs_f64()
            )),
            Some(_) => {
                self.sink.check(GROUP, name, Outcome::Passed, None);
                Ok(())
            }
            None => {
                let reason = "these ports count no packets".to_owned();
                self.sink.check(GROUP, name, Outcome::Skipped, Some(reason));
                Ok(())
            }
        };
        self.meet("transport idle", result)
    }

    /// T1 to T3 for one fault.
    fn fault(&mut self, fault: Kinds) -> Result<(), Refusal> {
        let name = |step: &str| format!("{step}, {}", fault.name());
        if fault == Kinds::LinkDown && self.plan.link.is_none() {
            let reason = "no --link-down and --link-up were given".to_owned();
            self.sink.check(
                GROUP,
                &name("T2 the fault is found"),
                Outcome::Skipped,
                Some(reason),
            );
            return Ok(());
        }
        let mut log = KernelLog::open();
        let mut lane = self.open()?;
        let baseline = (0..BASELINE).try_for_each(|round| lane.exchange(round));
        self.sink
            .check_result(GROUP, &name("T1 messages pass"), baseline.clone());
        self.meet("transport baseline", baseline)?;

        let began = Instant::now();
        if self.is_victim() {
            self.sink.event(Kind::Inject(Inject {
                what: "transport".to_owned(),
                victim: self.plan.victim,
                monotonic_ns: os::monotonic_ns(),
            }));
            self.inject(fault, &lane).map_err(Refusal::cannot)?;
        }
        let found = (BASELINE..BASELINE + AFTER).find_map(|round| lane.exchange(round).err());
        let took = began.elapsed();
        let limit = self.settings.heartbeat_limit + SLACK;
        let result = match &found {
            None => Err(format!("{AFTER} exchanges passed in spite of it")),
            Some(reason) if took > limit => {
                Err(format!("found only after {:.1} s: {reason}", took.as_secs_f64()))
            }
            Some(reason) => {
                self.sink
                    .human(&format!("found after {:.2} s: {reason}", took.as_secs_f64()));
                Ok(())
            }
        };
        self.sink
            .check_result(GROUP, &name("T2 the fault is found"), result);
        let reason = found.unwrap_or_default();
        lane.wire.halt(self.settings.rank, &reason);
        self.meet("transport halted", Ok(()))?;
        self.aftermath(&lane, &name, &mut log);
        // Nobody opens the next transport while another still looks at the counters.
        self.meet("transport examined", Ok(()))?;
        drop(lane);
        if let (true, Kinds::LinkDown, Some((_, up))) = (self.is_victim(), fault, &self.plan.link) {
            shell(up).map_err(Refusal::cannot)?;
        }
        self.meet("transport mended", Ok(()))
    }

    fn inject(&self, fault: Kinds, lane: &Lane) -> Result<(), String> {
        let first = self
            .settings
            .world
            .peers(self.settings.rank)
            .next()
            .unwrap_or(Rank(0));
        match (fault, &self.plan.link) {
            (Kinds::QueuePairs, _) => lane.wire.inject(Fault::QueuePairs),
            (Kinds::WrongKey, _) => lane.wire.inject(Fault::Key(first)),
            (Kinds::LinkDown, Some((down, _))) => shell(down),
            (Kinds::LinkDown, None) => Ok(()),
        }
    }

    /// T3 but for the new session.
    fn aftermath(&self, lane: &Lane, name: &dyn Fn(&str) -> String, log: &mut KernelLog) {
        let halted = lane.wire.halted().unwrap_or_default();
        let drained = if halted.in_error == halted.queue_pairs && halted.stuck == 0 && halted.queue_pairs > 0
        {
            Ok(())
        } else {
            Err(format!("{halted:?}"))
        };
        self.sink
            .check_result(GROUP, &name("T3 queue pairs in error and drained"), drained);
        self.sink
            .check_result(GROUP, &name("T3 the memory is kept"), lane.wire.check_memory());
        let quiet = name("T3 the ports are quiet");
        match carried(&self.ends, SAMPLE) {
            Some(packets) if packets > STRAY => {
                let reason = format!("{packets} packets after the halt");
                self.sink.check(GROUP, &quiet, Outcome::Failed, Some(reason));
            }
            Some(_) => self.sink.check(GROUP, &quiet, Outcome::Passed, None),
            None => {
                let reason = "these ports count no packets".to_owned();
                self.sink.check(GROUP, &quiet, Outcome::Skipped, Some(reason));
            }
        }
        let silent = name("T3 the kernel has said nothing");
        if !log.is_readable() {
            let reason = "/dev/kmsg cannot be read by this user".to_owned();
            self.sink.check(GROUP, &silent, Outcome::Skipped, Some(reason));
            return;
        }
        let mut words: Vec<&str> = self.ends.iter().map(|end| end.device.as_str()).collect();
        words.extend(["mlx5", "rdma_rxe", "infiniband", "BUG", "WARNING"]);
        let lines = log.take(&words);
        let result = lines.first().map_or(Ok(()), |line| Err(line.clone()));
        self.sink.check_result(GROUP, &silent, result);
    }

    fn open(&mut self) -> Result<Lane, Refusal> {
        let wait = self.settings.heartbeat_limit + SLACK;
        let lane = Lane::open(self.group.meeting(), &self.agreed, self.settings, Use::All, wait);
        lane.map_err(|why| Refusal::cannot(format!("failed to open the transport: {why}")))
    }

    /// All ranks meet; where one cannot go on, none does.
    fn meet(&mut self, what: &str, mine: Result<(), String>) -> Result<(), Refusal> {
        let met = self.group.meeting().verdict(what, mine);
        met.map_err(|error| refusal(self.group.settle(error)))
    }

    fn say_counters(&self, when: &str) {
        for end in &self.ends {
            for (name, value) in counters(end) {
                self.sink.event(Kind::Counter(Counter {
                    place: format!("{}/{}", end.device, end.port),
                    name,
                    value,
                    when: when.to_owned(),
                }));
            }
        }
    }
}

fn shell(command: &str) -> Result<(), String> {
    let status = Command::new("sh").arg("-c").arg(command).status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("`{command}` ended with {status}")),
        Err(error) => Err(format!("`{command}` was not started: {error}")),
    }
}
