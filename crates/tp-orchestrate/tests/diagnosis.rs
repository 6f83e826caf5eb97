//! Every signature against the log that it was made for: `tests/logs/CODE.log`, as a failed step hears it.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use tp_orchestrate::diagnosis::{Evidence, Sign, diagnose, signatures};

fn logs() -> PathBuf {
    common::root().join("crates/tp-orchestrate/tests/logs")
}

/// Lines of a log with the rank that said each: the number that the runner puts in front.
fn evidence(log: &str) -> Evidence {
    let line = |line: &str| {
        let rank = line.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        (rank.and_then(|(rank, _)| rank.parse().ok()), line.to_owned())
    };
    Evidence {
        lines: log.lines().map(line).collect(),
        ..Evidence::default()
    }
}

#[test]
fn every_captured_log_is_explained_by_its_own_signature_first() {
    for signature in signatures() {
        let found = match signature.sign {
            Sign::Signal(signal) => diagnose(&Evidence {
                signals: vec![(1, signal)],
                ..Evidence::default()
            }),
            Sign::Line { .. } => {
                let path = logs().join(format!("{}.log", signature.code));
                let log = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                assert!(
                    log.lines().any(|line| line == signature.example),
                    "{}: the example is a line of its log",
                    signature.code
                );
                diagnose(&evidence(&log))
            }
        };
        let first = found.first();
        assert_eq!(
            first.map(|f| f.code.as_str()),
            Some(signature.code),
            "{}: {found:?}",
            signature.code
        );
    }
}

#[test]
fn every_captured_log_belongs_to_a_signature() {
    let codes: BTreeSet<String> = signatures().map(|s| format!("{}.log", s.code)).collect();
    for entry in fs::read_dir(logs()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        assert!(codes.contains(&name), "{name} explains nothing");
    }
}

#[test]
fn codes_are_unique_and_every_row_says_something() {
    let all: Vec<_> = signatures().map(|s| s.code).collect();
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
    for s in signatures() {
        let shape = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(s.code.chars().all(shape), "{}", s.code);
        assert!(
            s.cause.len() > 20 && s.remedy.len() > 20 && !s.source.is_empty(),
            "{}",
            s.code
        );
    }
}

#[test]
fn a_cause_names_the_rank_that_said_it_and_the_failure_comes_before_what_follows() {
    let log = "[0] ERROR: rank 1 never came within 60.0 s\n\
        [1] ERROR: failed to reach rank 0 at 192.0.2.1 port 29500 within 60.0 s: 192.0.2.1: filtered (no answer): a firewall";
    let found = diagnose(&evidence(log));
    let codes: Vec<_> = found.iter().map(|f| f.code.as_str()).collect();
    assert_eq!(codes, ["rank0-filtered", "rank-never-came"]);
    assert!(found[0].evidence.starts_with("rank 1: "), "{}", found[0].evidence);
}

#[test]
fn ordinary_lines_are_not_explained() {
    let lines = [
        "PASS roce-host 1000 gathers, 1 B to 256 KiB, wire shm",
        "listening on 127.0.0.1:29500",
        "rank 1 failed in phase run: injected by failfast",
        "wire: shm (both ranks on one host)",
        "SKIP graph all_reduce: this runner has no GPU backend",
        "NCCL INFO NET/IB : Using [0]rocep1s0f1:1/RoCE [RO]; OOB enp1s0f1np1:192.0.2.1<0>",
    ];
    for line in lines {
        let found = diagnose(&evidence(line));
        assert!(found.is_empty(), "{line}: {found:?}");
    }
}

#[test]
fn what_a_rank_says_for_information_explains_no_failure() {
    let said = "wire tcp, not verbs: rank 0: no RDMA device: pass --device /dev/infiniband to the container, there is no /dev/infiniband/uverbs*";
    let found = |line: String| diagnose(&evidence(&line)).into_iter().next().map(|d| d.code);
    assert_eq!(found(format!("[0] INFO: {said}")), None);
    assert_eq!(found(format!("[0] ERROR: {said}")).as_deref(), Some("no-uverbs"));
}
