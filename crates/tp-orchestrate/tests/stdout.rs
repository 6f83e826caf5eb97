//! Standard output that takes no more: a reader that left is no error, a full disk is one line and exit code 2.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{Scratch, TWO, text};
use std::fs::{File, OpenOptions};
use std::process::Stdio;

/// Every command that prints, on a receipt in `out`.
const COMMANDS: &[&[&str]] = &[
    &["--version", "--runner", "./fake-runner"],
    &["--help"],
    &["plan", "inventory.toml", "--runner", "./fake-runner"],
    &["plan", "inventory.toml", "--runner", "./fake-runner", "--json"],
    &[
        "doctor",
        "inventory.toml",
        "--runner",
        "./fake-runner",
        "--no-collective",
    ],
    &[
        "doctor",
        "inventory.toml",
        "--runner",
        "./fake-runner",
        "--no-collective",
        "--json",
    ],
    &["init", "--local", "2", "--runner", "./fake-runner"],
    &["report", "out"],
    &["report", "out", "--format", "html"],
    &["receipt", "show", "out"],
    &["receipt", "show", "out", "--json"],
    &["receipt", "verify", "out"],
    &["receipt", "verify", "out", "--json"],
    &["receipt", "diff", "out", "out"],
    &["completions", "bash"],
    &["man"],
];

fn with_a_receipt() -> Scratch {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; summary; ended 0");
    let run = [
        "run",
        "inventory.toml",
        "--runner",
        "./fake-runner",
        "--out",
        "out",
    ];
    let output = scratch.output(&[&run[..], &["--arms", "none", "--steps", "roce-host"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    scratch
}

fn to(scratch: &Scratch, arguments: &[&str], out: impl Into<Stdio>) -> (Option<i32>, String) {
    let child = scratch
        .command(arguments)
        .stdout(out)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.wait_with_output().unwrap();
    (output.status.code(), text(&output.stderr))
}

#[test]
fn a_reader_that_left_is_no_error() {
    let scratch = with_a_receipt();
    for arguments in COMMANDS {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let got = to(&scratch, arguments, writer);
        assert_eq!(got, (Some(0), String::new()), "{arguments:?}");
    }
}

#[test]
fn a_full_disk_is_one_line_and_exit_code_2() {
    if File::open("/dev/full").is_err() {
        return;
    }
    let scratch = with_a_receipt();
    for arguments in COMMANDS {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, said) = to(&scratch, arguments, full);
        assert_eq!(code, Some(2), "{arguments:?}: {said}");
        assert!(
            said.starts_with("tp-orchestrate: cannot write to standard output: No space left"),
            "{arguments:?}: {said}"
        );
        assert!(said.lines().count() <= 2, "{arguments:?}: {said}");
    }
}

/// A program that reads the records must not take a part of them for the whole run.
#[test]
fn records_that_cannot_be_written_are_noticed_and_the_receipt_is_whole() {
    if File::open("/dev/full").is_err() {
        return;
    }
    let scratch = with_a_receipt();
    let run = ["run", "inventory.toml", "--runner", "./fake-runner", "--json"];
    let run = [
        &run[..],
        &["--arms", "none", "--steps", "roce-host", "--out", "second"],
    ]
    .concat();
    let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let (code, said) = to(&scratch, &run, full);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("cannot write to standard output"), "{said}");
    let verified = scratch.output(&["receipt", "verify", "second"]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified.stdout));
}
