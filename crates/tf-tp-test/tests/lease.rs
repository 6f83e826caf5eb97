//! The lease of a rank on its standard input.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod common;

use common::{Ended, LIMIT, Running, free_port, nothing_left, rank_args, runner, session, start};
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};
use tp_receipt::control::Start;

const SECRET: &str = "5ec2e7ab5ec2e7ab5ec2e7ab5ec2e7ab";

/// A rank that waits for a peer which never comes, with a lease.
fn waiting_rank(session: &str, vars: &[(&str, &str)]) -> (Running, ChildStdin) {
    let args = rank_args(
        0,
        2,
        free_port(),
        session,
        &["suite", "--events", "--lease", "stdin"],
    );
    let mut command = runner(&args.iter().map(String::as_str).collect::<Vec<_>>());
    command.stdin(Stdio::piped()).envs(vars.iter().copied());
    let mut running = start(command);
    let input = running.child.stdin.take().unwrap();
    (running, input)
}

fn start_line(settings: &[(&str, &str)], unset: &[&str]) -> String {
    let settings = settings
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    let unset = unset.iter().map(|name| (*name).to_owned()).collect();
    let start = Start {
        schema: 1,
        session: String::new(),
        secret: Some(SECRET.to_owned()),
        settings,
        unset,
    };
    format!("{}\n", serde_json::to_string(&start).unwrap())
}

fn lost(ended: &Ended, why: &str) {
    assert_eq!(ended.code(), Some(70), "{ended:?}");
    assert!(ended.err.contains(why), "{}", ended.err);
    assert!(
        !ended.err.contains(SECRET) && !ended.out.contains(SECRET),
        "the secret shows"
    );
}

#[test]
fn a_closed_input_ends_a_rank_before_and_after_the_start_line() {
    let session = session();
    let (running, input) = waiting_rank(&session, &[]);
    drop(input);
    lost(&running.end(LIMIT), "closed before the start line");
    let (running, mut input) = waiting_rank(&session, &[]);
    input.write_all(start_line(&[], &[]).as_bytes()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    let began = Instant::now();
    drop(input);
    lost(&running.end(LIMIT), "standard input closed");
    assert!(began.elapsed() < Duration::from_secs(2));
    nothing_left(&session);
}

#[test]
fn the_word_end_ends_a_rank() {
    let session = session();
    let (running, mut input) = waiting_rank(&session, &[]);
    input
        .write_all(format!("{}beat\nend\n", start_line(&[], &[])).as_bytes())
        .unwrap();
    lost(&running.end(LIMIT), "said end");
    nothing_left(&session);
}

#[test]
fn silence_ends_a_rank_after_the_limit() {
    let session = session();
    let (running, mut input) = waiting_rank(&session, &[]);
    input.write_all(start_line(&[], &[]).as_bytes()).unwrap();
    let began = Instant::now();
    let ended = running.end(LIMIT);
    let took = began.elapsed();
    lost(&ended, "no beat for 15 s");
    assert!(
        took > Duration::from_millis(14_900) && took < Duration::from_secs(25),
        "{took:?}"
    );
    drop(input);
    nothing_left(&session);
}

#[test]
fn the_start_line_sets_and_unsets() {
    let session = session();
    let (running, mut input) =
        waiting_rank(&session, &[("TF_TP_ROCE_WIRE", "nonsense"), ("TF_TP_RANK", "9")]);
    // What the environment has wrong is unset by the line, and the option wins over both.
    let line = start_line(
        &[("TF_TP_BOOT_TIMEOUT", "0.5"), ("TF_TP_WORLD", "9")],
        &["TF_TP_ROCE_WIRE"],
    );
    input.write_all(line.as_bytes()).unwrap();
    let ended = running.end(LIMIT);
    assert_eq!(ended.code(), Some(70), "{ended:?}");
    assert!(ended.err.contains("rank 1 never came"), "{}", ended.err);
    assert!(!ended.err.contains("WARN: no TF_TP_SECRET"), "{}", ended.err);
    let settings: Vec<(String, String, String)> = ended
        .events()
        .into_iter()
        .filter_map(|e| match e.kind {
            tp_receipt::event::Kind::Setting(s) => Some((s.name, s.value, s.source)),
            _ => None,
        })
        .collect();
    let has = |name: &str, value: &str, source: &str| {
        settings
            .iter()
            .any(|s| (s.0.as_str(), s.1.as_str(), s.2.as_str()) == (name, value, source))
    };
    assert!(has("TF_TP_BOOT_TIMEOUT", "0.5", "orchestrator"), "{settings:?}");
    assert!(has("TF_TP_WORLD", "2", "option"), "{settings:?}");
    assert!(has("TF_TP_SECRET", "set", "orchestrator"), "{settings:?}");
    nothing_left(&session);
}

#[test]
fn a_bad_start_line_is_one_line_and_exit_2() {
    for bad in [
        "beat",
        "{}",
        "{\"schema\":7,\"session\":\"s\"}",
        "{\"schema\":1,\"session\":\"s\",\"settings\":{\"A=\":\"\"}}",
    ] {
        let session = session();
        let (running, mut input) = waiting_rank(&session, &[]);
        input.write_all(format!("{bad}\n").as_bytes()).unwrap();
        let ended = running.end(LIMIT);
        assert_eq!(ended.code(), Some(2), "{bad}: {ended:?}");
        assert_eq!(ended.err.lines().count(), 1, "{bad}: {}", ended.err);
    }
}
