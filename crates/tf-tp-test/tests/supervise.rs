//! The supervisor: what passes, what ends the rank, what is reported, what is left.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod common;

use common::{
    Ended, LIMIT, Running, children_of, eventually, lives, nothing_left, processes_with, run, runner,
    session, start,
};
use std::io::Write;
use std::process::{ChildStdin, Stdio};
use std::time::{Duration, Instant};
use tp_receipt::event::{Exit, Kind};

/// A supervisor with an open input.
fn supervise(command: &[&str]) -> (Running, ChildStdin) {
    let args: Vec<&str> = ["supervise", "--events", "--"]
        .iter()
        .chain(command)
        .copied()
        .collect();
    let mut runner = runner(&args);
    runner.stdin(Stdio::piped());
    let mut running = start(runner);
    let input = running.child.stdin.take().unwrap();
    (running, input)
}

/// The `exit` event, which must be the last line.
fn exit_of(ended: &Ended) -> Exit {
    let last = ended.out.lines().last().unwrap_or_default();
    match tp_receipt::event::Event::parse(last).map(|e| e.kind) {
        Ok(Kind::Exit(exit)) => exit,
        other => panic!("{other:?}: {ended:?}"),
    }
}

/// A word on a command line that only this test's processes have.
fn marked(script: &str, mark: &str) -> String {
    format!("{script} # {mark}")
}

#[test]
fn codes_and_signals_come_through() {
    for (script, code, exit) in [
        ("exit 0", 0, (Some(0), None)),
        ("exit 7", 7, (Some(7), None)),
        ("exit 70", 70, (Some(70), None)),
        ("kill -KILL $$", 137, (None, Some(9))),
        ("kill -TERM $$", 143, (None, Some(15))),
    ] {
        let (running, input) = supervise(&["sh", "-c", script]);
        let ended = running.end(LIMIT);
        drop(input);
        assert_eq!(ended.code(), Some(code), "{script}: {ended:?}");
        let event = exit_of(&ended);
        assert_eq!(
            (event.code, event.signal, event.ended_by),
            (exit.0, exit.1, None),
            "{script}"
        );
    }
}

#[test]
fn input_and_output_pass_unchanged() {
    let (running, mut input) = supervise(&[
        "sh",
        "-c",
        "read first; read second; echo \"$second|$first\"; echo err >&2; printf half",
    ]);
    input
        .write_all(b"{\"schema\":1,\"session\":\"s\",\"settings\":{\"TF_TP_RANK\":\"3\"}}\nbeat\n")
        .unwrap();
    let ended = running.end(LIMIT);
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(
        lines[0],
        "beat|{\"schema\":1,\"session\":\"s\",\"settings\":{\"TF_TP_RANK\":\"3\"}}"
    );
    // A last line without its end gets one, so that the event stands on its own.
    assert_eq!(lines[1], "half");
    assert_eq!(lines.len(), 3);
    assert!(ended.err.starts_with("err\n"), "{}", ended.err);
    let event = tp_receipt::event::Event::parse(lines[2]).unwrap();
    assert_eq!(event.rank, Some(3), "the start line names the rank");
}

#[test]
fn a_start_line_larger_than_a_pipe_passes_to_a_rank_that_reads_late() {
    let (running, mut input) = supervise(&["sh", "-c", "sleep 0.3; wc -c"]);
    let line = format!("{{\"schema\":1,\"session\":\"{}\"}}\n", "x".repeat(300_000));
    input.write_all(line.as_bytes()).unwrap();
    drop(input);
    let ended = running.end(LIMIT);
    assert_eq!(
        ended.out.lines().next().map(str::trim),
        Some(line.len().to_string().as_str())
    );
}

#[test]
fn a_closed_input_gives_a_second_to_leave() {
    let (running, input) = supervise(&["sh", "-c", "while read line; do :; done; exit 70"]);
    drop(input);
    let ended = running.end(LIMIT);
    assert_eq!(
        (ended.code(), exit_of(&ended).ended_by.as_deref()),
        (Some(70), Some("lease"))
    );

    let mark = session();
    let (running, input) = supervise(&["sh", "-c", &marked("trap '' TERM; sleep 100; exit 0", &mark)]);
    std::thread::sleep(Duration::from_millis(100));
    let began = Instant::now();
    drop(input);
    let ended = running.end(LIMIT);
    assert!(
        began.elapsed() >= Duration::from_millis(900),
        "the rank had less than a second"
    );
    assert_eq!(
        (ended.code(), exit_of(&ended).signal),
        (Some(137), Some(9)),
        "{ended:?}"
    );
    nothing_left(&mark);
}

#[test]
fn the_word_end_ends_a_rank_and_its_children() {
    let mark = session();
    let (running, mut input) = supervise(&["sh", "-c", &marked("sleep 98 & sleep 99", &mark)]);
    eventually(LIMIT, "the rank has not started", || {
        !processes_with(&mark).is_empty()
    });
    input.write_all(b"end\n").unwrap();
    let ended = running.end(LIMIT);
    assert_eq!(
        (ended.code(), exit_of(&ended).ended_by.as_deref()),
        (Some(137), Some("stop")),
        "{ended:?}"
    );
    nothing_left(&mark);
}

#[test]
fn a_stopped_rank_is_killed_at_once() {
    let (running, mut input) = supervise(&["sh", "-c", "echo $$; kill -STOP $$; sleep 100"]);
    std::thread::sleep(Duration::from_millis(300));
    let began = Instant::now();
    input.write_all(b"end\n").unwrap();
    let ended = running.end(LIMIT);
    let pid: i32 = ended.out.lines().next().unwrap().parse().unwrap();
    assert!(!lives(pid));
    assert!(
        began.elapsed() < Duration::from_millis(900),
        "a stopped rank cannot use the second"
    );
    assert_eq!(
        (ended.code(), exit_of(&ended).ended_by.as_deref()),
        (Some(137), Some("stop")),
        "{ended:?}"
    );
}

#[test]
fn a_killed_supervisor_leaves_no_rank() {
    for script in ["exec sleep 100", "kill -STOP $$; sleep 100"] {
        let (mut running, input) = supervise(&["sh", "-c", script]);
        eventually(LIMIT, "the rank has not started", || {
            !children_of(running.pid()).is_empty()
        });
        let children = children_of(running.pid());
        running.child.kill().unwrap();
        let _ = running.child.wait();
        for pid in children {
            eventually(Duration::from_secs(5), "the rank outlives its supervisor", || {
                !lives(pid)
            });
        }
        drop(input);
    }
}

#[test]
fn a_signal_to_the_supervisor_ends_the_rank() {
    let mark = session();
    let (running, input) = supervise(&["sh", "-c", &marked("sleep 97; exit 0", &mark)]);
    eventually(LIMIT, "the rank has not started", || {
        !processes_with(&mark).is_empty()
    });
    std::thread::sleep(Duration::from_millis(100));
    let term = std::process::Command::new("kill")
        .arg(running.pid().to_string())
        .status()
        .unwrap();
    assert!(term.success());
    let ended = running.end(LIMIT);
    assert_eq!(
        (ended.code(), exit_of(&ended).ended_by.as_deref()),
        (Some(137), Some("stop")),
        "{ended:?}"
    );
    drop(input);
    nothing_left(&mark);
}

#[test]
fn what_a_rank_leaves_in_its_group_ends_with_it() {
    let mark = session();
    let (running, input) = supervise(&["sh", "-c", &marked("sleep 96 & exit 0", &mark)]);
    let ended = running.end(LIMIT);
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    assert!(processes_with("sleep\u{0}96").is_empty());
    drop(input);
}

#[test]
fn a_command_that_cannot_be_started_is_one_line() {
    let ended = run(&["supervise", "--", "/nonexistent/runner"]);
    assert_eq!(ended.code(), Some(3));
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
    assert!(ended.err.contains("/nonexistent/runner"), "{}", ended.err);
}

#[test]
fn a_supervised_rank_that_hears_no_beat_is_ended_after_the_limit() {
    let (running, mut input) = supervise(&["sleep", "95"]);
    let began = Instant::now();
    input.write_all(b"{\"schema\":1,\"session\":\"s\"}\n").unwrap();
    std::thread::sleep(Duration::from_secs(2));
    input.write_all(b"beat\n").unwrap();
    let ended = running.end(LIMIT);
    let took = began.elapsed();
    assert!(
        took > Duration::from_millis(16_900) && took < Duration::from_secs(30),
        "{took:?}"
    );
    assert_eq!(
        (ended.code(), exit_of(&ended).ended_by.as_deref()),
        (Some(137), Some("lease")),
        "{ended:?}"
    );
}
