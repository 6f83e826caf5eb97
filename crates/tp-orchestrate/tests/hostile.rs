//! Disks that are full or read-only, logs that are endless or no text: said clearly, and nothing lost of what was there.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{ORCHESTRATE, Scratch, TWO, receipt, text};
use std::io::Write;
use std::process::Command;
use tp_receipt::receipt::Verdict;

const RUN: &str = "run inventory.toml --runner ./fake-runner --arms none --steps roce-host";

/// Runs a script with mounts of its own: `$DISK` is a file system of so many KiB, `run` and `orchestrate` are there.
/// Gives what it printed on both streams; `None` where this user may mount nothing.
fn with_a_disk(scratch: &Scratch, kib: u32, script: &str) -> Option<String> {
    let head = format!(
        "set -u; DISK=$PWD/disk; mkdir -p $DISK; mount -t tmpfs -o size={kib}k tmpfs $DISK || exit 99\n\
         orchestrate() {{ '{ORCHESTRATE}' \"$@\"; echo \"$1 ended with $?\"; }}\n\
         run() {{ orchestrate {RUN} \"$@\"; }}\n"
    );
    let output = Command::new("unshare")
        .args([
            "--mount",
            "--map-root-user",
            "sh",
            "-c",
            &format!("{head}{script}"),
        ])
        .current_dir(scratch.dir.path())
        .env("XDG_STATE_HOME", scratch.path("state"))
        .env("TMPDIR", scratch.tmp())
        .output()
        .ok()
        .filter(|output| output.status.code() != Some(99));
    if output.is_none() {
        // Past the test harness, which keeps what a passing test says to itself.
        let said = "SKIPPED: full and read-only disks: no file system may be mounted here\n";
        std::io::stderr().write_all(said.as_bytes()).unwrap();
    }
    output.map(|output| text(&output.stdout) + &text(&output.stderr))
}

/// Every rank writes 3 MB for people.
const WORDY: &str =
    "hello; yes 'a line that somebody may want to read' | head -c 3000000 >&2; summary; ended 0";

#[test]
fn a_disk_that_becomes_full_ends_the_run_and_room_lets_it_go_on() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner(WORDY);
    let script = "run --out $DISK/out\n\
                  orchestrate receipt verify $DISK/out\n\
                  orchestrate receipt show $DISK/out\n\
                  head -c 9000000 /dev/zero 2>&- >$DISK/fill; orchestrate report $DISK/out >$DISK/report.md\n\
                  cat $DISK/report.md; rm $DISK/fill\n\
                  mount -o remount,size=40m tmpfs $DISK\n\
                  run --resume $DISK/out\n\
                  orchestrate receipt verify $DISK/out";
    let Some(said) = with_a_disk(&scratch, 1024, script) else {
        return;
    };
    let ends: Vec<&str> = said
        .lines()
        .filter(|line| line.contains(" ended with "))
        .collect();
    let first = ["run ended with 2", "receipt ended with 0", "receipt ended with 0"];
    assert_eq!(ends[..3], first, "{said}");
    assert_eq!(
        ends[ends.len() - 2..],
        ["run ended with 0", "receipt ended with 0"],
        "{said}"
    );
    assert!(
        said.contains("No space left on device") && said.contains("make room and resume"),
        "{said}"
    );
    assert!(
        said.contains("the run was INCOMPLETE") && said.contains("the run was PASSED"),
        "{said}"
    );
    assert!(
        said.contains("cannot write to standard output: No space left"),
        "{said}"
    );
}

#[test]
fn a_disk_without_room_or_without_leave_is_refused_at_once_and_left_as_it_was() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; summary; ended 0");
    let script = "run --out $DISK/out\n\
                  echo \"left: $(ls -A $DISK)\"\n\
                  mount -o remount,size=4m tmpfs $DISK; run --out $DISK/out; mount -o remount,ro tmpfs $DISK\n\
                  run --out $DISK/other\n\
                  run --resume $DISK/out\n\
                  orchestrate receipt verify $DISK/out\n\
                  orchestrate receipt show $DISK/out\n\
                  orchestrate report $DISK/out\n\
                  orchestrate receipt diff $DISK/out $DISK/out\n\
                  export XDG_STATE_HOME=$DISK/state; run --out out";
    let Some(said) = with_a_disk(&scratch, 4, script) else {
        return;
    };
    let ends: Vec<&str> = said
        .lines()
        .filter(|line| line.contains(" ended with "))
        .collect();
    let codes: Vec<&str> = ends.iter().map(|line| &line[line.len() - 1..]).collect();
    assert_eq!(codes, ["2", "0", "2", "2", "0", "0", "0", "0", "2"], "{said}");
    assert!(said.lines().any(|line| line == "left: "), "{said}");
    assert!(said.contains("No space left on device"), "{said}");
    assert!(
        said.contains("Read-only file system") && said.contains("writable file system (--out DIR)"),
        "{said}"
    );
}

#[test]
fn bytes_that_are_no_text_are_kept_as_such() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner(
        "hello; printf 'caf\\351 \\377 \\033[2J\\nlast words' >&2; printf '\\376\\n'; summary; ended 1",
    );
    let arguments: Vec<&str> = RUN.split(' ').chain(["--out", "out"]).collect();
    let output = scratch.output(&arguments);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    let log = std::fs::read_to_string(scratch.path("out/logs/none/roce-host/rank-0.log")).unwrap();
    for expected in [
        "caf\\xe9 \\xff \\x1b[2J",
        "last words",
        "2 bytes of this log were not UTF-8",
        "] \\xfe",
    ] {
        assert!(log.contains(expected), "{expected}: {log}");
    }
    let tails = &receipt(&scratch.path("out")).failures[0].log_tails["0"];
    assert!(tails.iter().any(|line| line.contains("caf\\xe9")), "{tails:?}");
}

/// 64 MB a rank; 1 GB with `TP_LONG`. The memory it takes does not grow with the log.
#[test]
fn an_endless_log_is_cut_where_it_says_so() {
    let megabytes = if std::env::var_os("TP_LONG").is_some() {
        1000
    } else {
        64
    };
    let scratch = Scratch::new(TWO);
    scratch.fake_runner(&format!(
        "hello; yes 'a line that nobody will ever read' | head -c {megabytes}000000 >&2; echo 'the last words' >&2\n\
         summary; ended 0"
    ));
    let arguments: Vec<&str> = RUN.split(' ').chain(["--out", "out"]).collect();
    let begun = std::time::Instant::now();
    let output = scratch.output(&arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_CHILDREN).unwrap();
    eprintln!(
        "2 logs of {megabytes} MB in {:?}, at most {} KiB of memory",
        begun.elapsed(),
        usage.max_rss()
    );
    assert!(usage.max_rss() < 300 << 10, "{} KiB", usage.max_rss());
    let log = std::fs::read_to_string(scratch.path("out/logs/none/roce-host/rank-1.log")).unwrap();
    assert!(log.len() < (8 << 20) + 1000, "{}", log.len());
    for expected in [
        "reached its limit of 8388608 bytes",
        "bytes were left out]",
        "the last words\n",
    ] {
        assert!(log.contains(expected), "{expected}");
    }
    let report = tp_receipt::verify::verify(&scratch.path("out"), &Default::default());
    assert_eq!((report.broken, report.verdict), (vec![], Verdict::Passed));
}
