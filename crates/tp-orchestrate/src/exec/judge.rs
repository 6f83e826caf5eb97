//! When a step's ranks are to be ended: the rules, without processes or clocks of their own.
//!
//! The judge hears what happens, with the time, and answers with what to do. Whether the step passed is not its
//! business: that is derived from the recorded events.

use crate::plan::Expect;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tp_receipt::event::Exit;
use tp_receipt::record::RankStart;

/// How long a supervisor has to end its rank after `end` (it gives the rank 1 s itself) before it is killed.
const END_GRACE: Duration = Duration::from_secs(3);
/// How much later than a survivor's own limit the orchestrator ends it: the event of its exit may be on its way.
const SURVIVOR_SLACK: Duration = Duration::from_secs(1);

/// What to do to a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Send `end`.
    End(u32),
    /// Kill the supervisor.
    Kill(u32),
}

#[derive(Clone, Debug, Default)]
struct Rank {
    exited: bool,
    gone: bool,
    told_to_end: bool,
    killed: bool,
}

pub(super) struct Judge {
    expect: Expect,
    began: Instant,
    limit: Duration,
    ranks: BTreeMap<u32, Rank>,
    injected: Option<Instant>,
    /// When the orchestrator began to end the step, where it did.
    ending: Option<Instant>,
    /// The step was ended at its deadline.
    pub late: bool,
    /// What the orchestrator itself found wrong.
    pub errors: Vec<String>,
}

impl Judge {
    pub fn new(expect: &Expect, limit: Duration, ranks: impl IntoIterator<Item = u32>, now: Instant) -> Self {
        let ranks = ranks.into_iter().map(|rank| (rank, Rank::default())).collect();
        Self {
            expect: expect.clone(),
            began: now,
            limit,
            ranks,
            injected: None,
            ending: None,
            late: false,
            errors: Vec::new(),
        }
    }

    /// Whether every process is gone.
    pub fn over(&self) -> bool {
        self.ranks.values().all(|rank| rank.gone)
    }

    /// A rank could not be started.
    pub fn not_started(&mut self, rank: u32, error: String, now: Instant) -> Vec<Action> {
        self.errors.push(error);
        if let Some(state) = self.ranks.get_mut(&rank) {
            (state.exited, state.gone) = (true, true);
        }
        self.end_all(now)
    }

    /// The victim said that it is about to fail.
    pub fn injected(&mut self, now: Instant) {
        self.injected.get_or_insert(now);
    }

    /// A rank's `exit` event came.
    pub fn exited(&mut self, rank: u32, exit: &Exit, now: Instant) -> Vec<Action> {
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.exited = true;
        }
        if !as_expected(&expected_end(&self.expect, rank), exit) {
            return self.end_all(now);
        }
        self.end_stalled_victim()
    }

    /// The supervisor's process is gone.
    pub fn gone(&mut self, rank: u32, how: &str, now: Instant) -> Vec<Action> {
        let Some(state) = self.ranks.get_mut(&rank) else {
            return Vec::new();
        };
        state.gone = true;
        if state.exited {
            return Vec::new();
        }
        state.exited = true;
        if !state.killed {
            self.errors.push(format!(
                "rank {rank}: the supervisor ended ({how}) without an exit event"
            ));
        }
        self.end_all(now)
    }

    /// The way to the rank is gone: how it ends is not seen.
    pub fn lost(&mut self, rank: u32, why: &str, now: Instant) -> Vec<Action> {
        let Some(state) = self.ranks.get_mut(&rank) else {
            return Vec::new();
        };
        state.gone = true;
        // Its exit event may have come before the way was lost.
        if !std::mem::replace(&mut state.exited, true) {
            self.errors
                .push(format!("rank {rank}: {why}; how it ended is not known"));
        }
        self.end_all(now)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) -> Vec<Action> {
        if let Some(since) = self.ending {
            return if now >= since + END_GRACE {
                self.kill_all()
            } else {
                Vec::new()
            };
        }
        if now >= self.began + self.limit {
            let seconds = self.limit.as_secs_f64();
            for rank in self.running() {
                self.late = true;
                self.errors.push(format!(
                    "rank {rank} still ran at the step's deadline of {seconds} s"
                ));
            }
            return self.end_all(now);
        }
        if let (
            Expect::FailFast {
                victim, within_ms, ..
            },
            Some(at),
        ) = (&self.expect, self.injected)
        {
            let (victim, within) = (*victim, Duration::from_millis(*within_ms));
            if now >= at + within + SURVIVOR_SLACK {
                for rank in self.running().into_iter().filter(|rank| *rank != victim) {
                    let ms = within.as_millis();
                    self.errors
                        .push(format!("rank {rank} had not left {ms} ms after the injection"));
                }
                return self.end_all(now);
            }
        }
        Vec::new()
    }

    /// When [`Judge::tick`] is to be called next at the latest.
    pub fn next_tick(&self) -> Instant {
        match (self.ending, &self.expect, self.injected) {
            (Some(since), ..) => since + END_GRACE,
            (None, Expect::FailFast { within_ms, .. }, Some(at)) => {
                (at + Duration::from_millis(*within_ms) + SURVIVOR_SLACK).min(self.began + self.limit)
            }
            _ => self.began + self.limit,
        }
    }

    /// The run is interrupted: the ranks are to leave; again: at once.
    pub fn interrupt(&mut self, at_once: bool, now: Instant) -> Vec<Action> {
        if at_once {
            self.kill_all()
        } else {
            self.end_all(now)
        }
    }

    fn running(&self) -> Vec<u32> {
        self.ranks
            .iter()
            .filter(|(_, state)| !state.exited)
            .map(|(rank, _)| *rank)
            .collect()
    }

    /// Survivors of a stall leave by themselves; the victim never can.
    fn end_stalled_victim(&mut self) -> Vec<Action> {
        let Expect::FailFast { inject, victim, .. } = &self.expect else {
            return Vec::new();
        };
        let victim = *victim;
        if inject != "stall" || self.running() != [victim] {
            return Vec::new();
        }
        match self.ranks.get_mut(&victim).filter(|state| !state.told_to_end) {
            Some(state) => {
                state.told_to_end = true;
                vec![Action::End(victim)]
            }
            None => Vec::new(),
        }
    }

    fn end_all(&mut self, now: Instant) -> Vec<Action> {
        self.ending.get_or_insert(now);
        let to_end = |(rank, state): (&u32, &mut Rank)| {
            let tell = !state.gone && !state.told_to_end;
            state.told_to_end |= tell;
            tell.then_some(Action::End(*rank))
        };
        self.ranks.iter_mut().filter_map(to_end).collect()
    }

    fn kill_all(&mut self) -> Vec<Action> {
        let to_kill = |(rank, state): (&u32, &mut Rank)| {
            let kill = !state.gone;
            state.killed |= kill;
            kill.then_some(Action::Kill(*rank))
        };
        self.ranks.iter_mut().filter_map(to_kill).collect()
    }
}

/// The exit code of a rank that lost a peer or failed on purpose.
const LOST: i32 = 70;
const SIGKILL: i32 = 9;

/// How a rank must end.
pub(super) fn expected_end(expect: &Expect, rank: u32) -> RankStart {
    match expect {
        Expect::AllPass => RankStart::ok(rank, ""),
        Expect::FailFast { inject, victim, .. } if *victim == rank && inject != "fatal" => {
            RankStart::expecting(rank, "", &[], &[SIGKILL])
        }
        Expect::FailFast { .. } => RankStart::expecting(rank, "", &[LOST], &[]),
    }
}

fn as_expected(expected: &RankStart, exit: &Exit) -> bool {
    match (exit.code, exit.signal) {
        (_, Some(signal)) => expected.signals.contains(&signal),
        (Some(code), None) => expected.exits.contains(&code),
        (None, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(code: i32) -> Exit {
        Exit {
            code: Some(code),
            ..Exit::default()
        }
    }

    fn signal(signal: i32) -> Exit {
        Exit {
            signal: Some(signal),
            ..Exit::default()
        }
    }

    fn failfast(inject: &str, victim: u32) -> Expect {
        Expect::FailFast {
            inject: inject.into(),
            victim,
            within_ms: 2000,
        }
    }

    fn judge(expect: &Expect, ranks: u32) -> (Judge, Instant) {
        let now = Instant::now();
        (Judge::new(expect, Duration::from_secs(30), 0..ranks, now), now)
    }

    #[test]
    fn a_rank_that_errs_ends_the_others_at_once() {
        let (mut judge, now) = judge(&Expect::AllPass, 3);
        assert!(judge.exited(1, &code(0), now).is_empty());
        judge.gone(1, "exit 0", now);
        assert_eq!(judge.exited(0, &code(1), now), [Action::End(0), Action::End(2)]);
        assert!(judge.errors.is_empty());
        judge.gone(0, "exit 1", now);
        assert!(!judge.over());
        judge.exited(2, &code(70), now);
        judge.gone(2, "exit 70", now);
        assert!(judge.over());
    }

    #[test]
    fn what_does_not_end_is_killed_after_the_grace() {
        let (mut judge, now) = judge(&Expect::AllPass, 2);
        judge.exited(0, &signal(11), now);
        judge.gone(0, "exit 139", now);
        assert!(judge.tick(now + Duration::from_secs(2)).is_empty());
        assert_eq!(judge.tick(now + END_GRACE), [Action::Kill(1)]);
        judge.gone(1, "signal 9", now);
        assert!(judge.over());
        assert!(
            judge.errors.is_empty(),
            "we killed it ourselves: {:?}",
            judge.errors
        );
    }

    #[test]
    fn the_deadline_names_who_still_ran() {
        let (mut judge, now) = judge(&Expect::AllPass, 2);
        judge.exited(0, &code(0), now);
        judge.gone(0, "exit 0", now);
        assert_eq!(judge.tick(now + Duration::from_secs(30)), [Action::End(1)]);
        assert_eq!(judge.errors, ["rank 1 still ran at the step's deadline of 30 s"]);
    }

    #[test]
    fn survivors_are_waited_for_and_a_stalled_victim_is_ended_after_them() {
        let (mut judge, now) = judge(&failfast("stall", 1), 3);
        judge.injected(now);
        assert!(judge.exited(0, &code(70), now).is_empty());
        assert_eq!(judge.exited(2, &code(70), now), [Action::End(1)]);
        assert!(judge.exited(1, &signal(9), now).is_empty());
    }

    #[test]
    fn a_survivor_that_stays_is_ended_and_named() {
        let (mut judge, now) = judge(&failfast("kill", 0), 2);
        judge.injected(now);
        assert!(judge.exited(0, &signal(9), now).is_empty());
        judge.gone(0, "exit 137", now);
        assert!(judge.tick(now + Duration::from_millis(2500)).is_empty());
        assert_eq!(judge.tick(now + Duration::from_secs(3)), [Action::End(1)]);
        assert_eq!(judge.errors, ["rank 1 had not left 2000 ms after the injection"]);
    }

    #[test]
    fn a_victim_that_lives_on_is_no_victim() {
        let (mut judge, now) = judge(&failfast("fatal", 0), 2);
        assert_eq!(judge.exited(0, &code(0), now), [Action::End(0), Action::End(1)]);
    }

    #[test]
    fn a_supervisor_that_is_shot_is_said() {
        let (mut judge, now) = judge(&Expect::AllPass, 2);
        assert_eq!(judge.gone(1, "signal 9", now), [Action::End(0)]);
        assert_eq!(
            judge.errors,
            ["rank 1: the supervisor ended (signal 9) without an exit event"]
        );
    }

    #[test]
    fn a_second_interrupt_kills() {
        let (mut judge, now) = judge(&Expect::AllPass, 2);
        assert_eq!(judge.interrupt(false, now), [Action::End(0), Action::End(1)]);
        assert_eq!(judge.interrupt(true, now), [Action::Kill(0), Action::Kill(1)]);
    }
}
