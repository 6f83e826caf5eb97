//! The suite and roce-host with real processes.

mod common;

use common::{Ended, group, run};
use std::collections::BTreeMap;
use tp_receipt::event::{Kind, Outcome};

/// Checks by group and outcome.
fn counts(rank: &Ended) -> BTreeMap<(String, &'static str), usize> {
    let mut counts = BTreeMap::new();
    for event in rank.events() {
        if let Kind::Check(check) = event.kind {
            let outcome = match check.outcome {
                Outcome::Passed => "passed",
                Outcome::Failed => "failed",
                Outcome::Skipped => "skipped",
            };
            assert_eq!(
                check.reason.is_some(),
                check.outcome != Outcome::Passed,
                "{check:?}"
            );
            *counts.entry((check.group, outcome)).or_default() += 1;
        }
    }
    counts
}

fn suite(world: u32, wire: &str) {
    for (rank, ended) in group(world, &["suite", "host", "--wire", wire, "--events"], &[])
        .iter()
        .enumerate()
    {
        assert_eq!(
            ended.code(),
            Some(0),
            "world {world} {wire} rank {rank}: {}",
            ended.err
        );
        let counts = counts(ended);
        let of = |group: &str, outcome| counts.get(&(group.to_owned(), outcome)).copied().unwrap_or(0);
        assert_eq!(of("graph", "skipped"), 36);
        if world == 2 {
            assert_eq!(of("core", "passed"), 153);
        }
        assert_eq!(of("core", "passed") > 0, world == 2);
        assert!(of("extended", "passed") > 250, "{counts:?}");
        // The large matrices of world 4 are for GPUs.
        assert_eq!(
            of("extended", "skipped") > 0,
            matches!(world, 1 | 4),
            "{counts:?}"
        );
        let all: usize = counts.values().sum();
        let (passed, failed, skipped) = ended.summary();
        assert_eq!((passed + failed + skipped) as usize, all, "a total hides a check");
        assert_eq!(failed, 0);
        assert!(
            matches!(ended.events()[0].kind, Kind::Hello(_)),
            "hello comes first"
        );
    }
}

#[test]
fn suite_at_world_1() {
    suite(1, "shm");
}

#[test]
fn suite_at_world_2_over_shm() {
    suite(2, "shm");
}

#[test]
fn suite_at_world_2_over_tcp() {
    suite(2, "tcp");
}

#[test]
fn suite_at_world_3_over_shm() {
    suite(3, "shm");
}

/// All-reduce, all-gather, reduce-scatter, broadcast and exchange at one size. The whole table runs over tcp at world 2,
/// and over shm at every world.
fn some_over_tcp(world: u32) {
    let args = ["suite", "host", "--wire", "tcp", "--only", "4096 B", "--events"];
    for (rank, ended) in group(world, &args, &[]).iter().enumerate() {
        assert_eq!(ended.code(), Some(0), "world {world} rank {rank}: {}", ended.err);
        let (passed, failed, _) = ended.summary();
        assert!(passed >= 40 && failed == 0, "{}", ended.err);
    }
}

#[test]
fn suite_at_world_3_over_tcp() {
    some_over_tcp(3);
}

#[test]
fn suite_at_world_4_over_shm() {
    suite(4, "shm");
}

#[test]
fn suite_at_world_4_over_tcp() {
    some_over_tcp(4);
}

#[test]
fn only_the_checks_that_were_asked_for_run() {
    for ended in group(
        2,
        &["suite", "--only", "all_reduce sum bf16 4096 B", "--events"],
        &[],
    ) {
        assert_eq!(ended.code(), Some(0), "{}", ended.err);
        // Apart, in place at an offset; special values at 4096 B.
        assert_eq!(ended.summary(), (3, 0, 0));
    }
}

#[test]
fn the_list_names_every_check_of_the_run() {
    let list = run(&["suite", "host", "--list"]);
    assert_eq!(list.code(), Some(0));
    let of = |group: &str| {
        list.out
            .lines()
            .filter(|l| l.split('\t').next() == Some(group))
            .count()
    };
    assert_eq!((of("core"), of("graph")), (153, 36));
    assert!(
        list.out
            .contains("core\thost all_reduce sum bf16 4096 B in place at offset 1\n"),
        "{}",
        list.out
    );
}

fn roce_host(world: u32, wire: &str) {
    let all = group(world, &["roce-host", "--wire", wire, "--events"], &[]);
    for (rank, ended) in all.iter().enumerate() {
        assert_eq!(
            ended.code(),
            Some(0),
            "world {world} {wire} rank {rank}: {}",
            ended.err
        );
        assert_eq!(ended.summary(), (1, 0, 0));
        let sizes: Vec<u64> = ended
            .events()
            .into_iter()
            .filter_map(|e| match e.kind {
                Kind::Latency(latency) => {
                    assert_eq!((latency.samples, latency.wire.as_deref()), (2000, Some(wire)));
                    assert!(latency.p10_us <= latency.median_us && latency.median_us <= latency.p90_us);
                    Some(latency.bytes)
                }
                _ => None,
            })
            .collect();
        let wanted: &[u64] = if rank == 0 {
            &[16, 4096, 8192, 16_384, 65_536, 262_144]
        } else {
            &[]
        };
        assert_eq!(sizes, wanted);
    }
}

#[test]
fn roce_host_over_shm_at_world_2() {
    roce_host(2, "shm");
}

#[test]
fn roce_host_over_tcp_at_world_2() {
    roce_host(2, "tcp");
}

#[test]
fn roce_host_over_shm_at_world_3() {
    roce_host(3, "shm");
}

#[test]
fn bench_gives_medians_of_rank_0() {
    let all = group(
        2,
        &[
            "bench",
            "--sizes",
            "4K,64K",
            "--calls",
            "20",
            "--ops",
            "all_reduce,broadcast",
            "--events",
        ],
        &[],
    );
    let of = |ended: &Ended| {
        ended
            .events()
            .iter()
            .filter(|e| matches!(e.kind, Kind::Latency(_)))
            .count()
    };
    assert!(all.iter().all(|ended| ended.code() == Some(0)), "{all:?}");
    assert_eq!((of(&all[0]), of(&all[1])), (4, 0));
    let first = all[0]
        .events()
        .into_iter()
        .find(|e| matches!(e.kind, Kind::Latency(_)))
        .unwrap();
    assert!(first.extra.contains_key("busbw_gb_s"), "{first:?}");
}
