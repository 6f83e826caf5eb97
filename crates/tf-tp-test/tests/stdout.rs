//! Standard output that cannot be written: a reader that is gone, a disk that is full.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod common;

use common::{Ended, LIMIT, runner, start};
use std::process::{Command, Stdio};

/// Commands that print.
const PRINT: &[&[&str]] = &[
    &["--help"],
    &["--version"],
    &["suite", "--help"],
    &["explain"],
    &["explain", "--markdown"],
    &["doctor"],
    &["doctor", "--json"],
    &["secret"],
    &["suite", "host", "--list"],
    &["hca", "--capture"],
];

/// A pipe that nobody reads any more.
fn closed() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// A file that takes nothing, where the system has it.
fn full() -> Option<Stdio> {
    let file = std::fs::OpenOptions::new().write(true).open("/dev/full").ok()?;
    Some(file.into())
}

fn to(out: Stdio, mut command: Command) -> Ended {
    command.stdout(out);
    start(command).end(LIMIT)
}

/// A facts file with a pick for two ranks.
fn facts() -> tempfile::NamedTempFile {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hosts/facts");
    let files = ["twin-a.toml", "twin-b.toml"].map(|name| folder.join(name));
    let text = tp_hca::Document::from_host_files(&files)
        .unwrap()
        .to_toml()
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn commands(facts: &str) -> Vec<Vec<&str>> {
    let mut all: Vec<Vec<&str>> = PRINT.iter().map(|args| args.to_vec()).collect();
    all.push(vec!["hca", "--facts", facts]);
    all.push(vec!["hca", "--facts", facts, "--json"]);
    all
}

#[test]
fn a_reader_that_is_gone_ends_every_command_quietly() {
    let facts = facts();
    for args in commands(facts.path().to_str().unwrap()) {
        let ended = to(closed(), runner(&args));
        assert_eq!(ended.code(), Some(0), "{args:?}: {}", ended.err);
        for word in ["panicked", "standard output"] {
            assert!(!ended.err.contains(word), "{args:?}: {}", ended.err);
        }
    }
}

#[test]
fn a_full_disk_is_one_line_and_exit_2() {
    let facts = facts();
    for args in commands(facts.path().to_str().unwrap()) {
        let Some(full) = full() else { return };
        let ended = to(full, runner(&args));
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.err);
        let told = |line: &&str| line.contains("cannot write to standard output: ");
        assert_eq!(
            ended.err.lines().filter(told).count(),
            1,
            "{args:?}: {}",
            ended.err
        );
        assert!(!ended.err.contains("panicked"), "{args:?}: {}", ended.err);
    }
}

#[test]
fn a_record_with_missing_events_is_no_pass() {
    let args = ["suite", "host", "--world", "1", "--only", "4096 B", "--events"];
    for out in [Some(closed()), full()].into_iter().flatten() {
        let ended = to(out, runner(&args));
        assert_eq!(ended.code(), Some(1), "{}", ended.err);
        let warned = |line: &&str| line.contains("WARN: cannot write to standard output: ");
        assert_eq!(ended.err.lines().filter(warned).count(), 1, "{}", ended.err);
        assert!(ended.err.contains(" 0 failed"), "the checks ran: {}", ended.err);
    }
}
