//! A rank fails on purpose; every other rank must leave with 70, at once, and say who and why.

mod common;

use common::{Ended, lives, nothing_left, session, start, start_group};
use std::time::Duration;
use tp_receipt::event::{Fate, Inject, Kind};

/// Longer than any detection by a broken connection, shorter than any by silence.
const AT_ONCE: Duration = Duration::from_secs(2);

fn inject_of(ended: &Ended) -> Option<Inject> {
    ended.events().into_iter().find_map(|e| match e.kind {
        Kind::Inject(inject) => Some(inject),
        _ => None,
    })
}

fn fate_of(ended: &Ended) -> Option<Fate> {
    ended.events().into_iter().find_map(|e| match e.kind {
        Kind::Fate(fate) => Some(fate),
        _ => None,
    })
}

/// Runs a world with a victim that ends itself and returns what became of the ranks.
fn ended(world: u32, victim: u32, kind: &str, more: &[&str], vars: &[(&str, &str)]) -> Vec<Ended> {
    let session = session();
    let number = victim.to_string();
    let args: Vec<&str> = ["failfast", &number, kind, "--events"]
        .iter()
        .copied()
        .chain(more.iter().copied())
        .collect();
    let running = start_group(world, &args, &session, vars);
    let all: Vec<Ended> = running.into_iter().map(|r| r.end(common::LIMIT)).collect();
    nothing_left(&session);
    all
}

fn check(world: u32, victim: u32, kind: &str, more: &[&str]) {
    let all = ended(world, victim, kind, more, &[]);
    for (rank, ended) in all.iter().enumerate() {
        let place = format!(
            "world {world} victim {victim} {kind} {more:?} rank {rank}: {}",
            ended.err
        );
        if rank == victim as usize {
            let inject = inject_of(ended).expect(&place);
            assert_eq!((inject.victim, inject.what.as_str()), (victim, kind), "{place}");
            let dead = std::os::unix::process::ExitStatusExt::signal(&ended.status);
            let wanted = if kind == "kill" {
                (None, Some(9))
            } else {
                (Some(70), None)
            };
            assert_eq!((ended.code(), dead), wanted, "{place}");
        } else {
            assert_eq!(ended.code(), Some(70), "{place}");
            let fate = fate_of(ended).expect(&place);
            assert_eq!(fate.culprit, Some(victim), "{place}");
            assert!(ended.err.contains(&format!("rank {victim} ")), "{place}");
            if kind == "fatal" {
                assert!(fate.reason.contains("injected"), "{place}");
            }
        }
    }
}

#[test]
fn a_rank_that_fails_ends_the_others() {
    for victim in 0..2 {
        check(2, victim, "fatal", &[]);
    }
    for victim in 0..3 {
        check(3, victim, "fatal", &["--wire", "tcp"]);
    }
}

#[test]
fn a_rank_that_is_killed_ends_the_others() {
    for victim in 0..2 {
        check(2, victim, "kill", &["--wire", "tcp"]);
    }
    for victim in 0..4 {
        check(4, victim, "kill", &[]);
    }
}

#[test]
fn a_rank_that_fails_when_the_channel_has_begun_ends_the_others() {
    for victim in 0..2 {
        for phase in ["agreed", "open", "close"] {
            check(2, victim, "kill", &["--at", phase]);
            check(2, victim, "fatal", &["--at", phase]);
        }
    }
    check(3, 1, "kill", &["--at", "agreed"]);
}

#[test]
fn a_rank_that_is_killed_before_the_channel_ends_the_others_by_name() {
    for victim in 0..2 {
        let all = ended(2, victim, "kill", &["--at", "met"], &[]);
        let survivor = &all[1 - victim as usize];
        assert_eq!(survivor.code(), Some(70), "{}", survivor.err);
        assert!(
            survivor.err.contains(&format!("rank {victim}")),
            "{}",
            survivor.err
        );
    }
}

#[test]
fn a_rank_that_never_comes_is_named_at_the_deadline() {
    let all = ended(
        3,
        2,
        "kill",
        &["--at", "connect"],
        &[("TF_TP_BOOT_TIMEOUT", "0.7")],
    );
    assert_eq!(all[0].code(), Some(70), "{}", all[0].err);
    assert!(all[0].err.contains("rank 2 never came"), "{}", all[0].err);
    assert_eq!(all[1].code(), Some(70), "{}", all[1].err);
}

#[test]
fn a_stopped_rank_is_noticed_by_its_silence() {
    for victim in 0..2_u32 {
        let session = session();
        let number = victim.to_string();
        let vars = [("TF_TP_HEARTBEAT_S", "0.05"), ("TF_TP_HEARTBEAT_LIMIT_S", "0.5")];
        let mut running = start_group(2, &["failfast", &number, "stall", "--events"], &session, &vars);
        let survivor = running.remove(1 - victim as usize).end(common::LIMIT);
        assert_eq!(survivor.code(), Some(70), "{}", survivor.err);
        assert_eq!(
            fate_of(&survivor).and_then(|f| f.culprit),
            Some(victim),
            "{}",
            survivor.err
        );
        let mut stopped = running.remove(0);
        assert!(lives(stopped.pid()), "a stopped rank cannot leave by itself");
        stopped.child.kill().unwrap();
        let stopped = stopped.end(AT_ONCE);
        assert!(inject_of(&stopped).is_some());
        nothing_left(&session);
    }
}

/// Both ranks took the other for the victim, and went on for ever.
#[test]
fn ranks_that_were_told_different_things_say_so() {
    let port = common::free_port().to_string();
    let commands: [&[&str]; 2] = [&["failfast", "1", "kill"], &["failfast", "0", "kill"]];
    let others: [&[&str]; 2] = [&["suite", "host"], &["bench", "--backend", "host"]];
    for told in [commands, others] {
        let running: Vec<_> = told
            .iter()
            .zip(["0", "1"])
            .map(|(words, rank)| {
                let mut command = common::runner(words);
                command.args(["--rank", rank, "--world", "2", "--port", &port]);
                start(command)
            })
            .collect();
        for ended in running.into_iter().map(|rank| rank.end(common::LIMIT)) {
            assert_eq!(ended.code(), Some(2), "{}", ended.err);
            let says = format!("the ranks differ in command: `{}", told[0][0]);
            assert!(ended.err.contains(&says), "{}", ended.err);
        }
    }
}
