//! Receipts in which pipes, devices and links stand for files: every command refuses them, and none waits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use nix::sys::stat::Mode;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;
use support::*;
use tp_receipt::store::{self, Options, Store};
use tp_receipt::verify::{self, Report, signature, verify};

const NAMES: [&str; 5] = [
    "SHA256SUMS",
    "plan.json",
    "receipt.json",
    "receipt.intoto.json",
    "events.jsonl",
];

/// What a call gives, which must be within a time in which none of these does any work.
fn within<T: Send + 'static>(what: &str, call: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, result) = mpsc::channel();
    std::thread::spawn(move || done.send(call()));
    match result.recv_timeout(Duration::from_secs(20)) {
        Ok(result) => result,
        Err(_) => panic!("{what} did not come to an end"),
    }
}

fn checked(dir: &Path) -> Report {
    let dir = dir.to_owned();
    within("verify", move || verify(&dir, &verify::Options::default()))
}

/// A run that has ended, or one that was cut off after its second step.
fn receipt(root: &Path, name: &str, ended: bool) -> PathBuf {
    let dir = root.join(name);
    let shape = Shape {
        arms: vec!["none"],
        ..Shape::default()
    };
    if ended {
        good_run(&dir, &shape);
    } else {
        let mut store = create(&dir, &shape);
        good_step(&mut store, &key("none", "hca", 1), &shape, 1);
        good_step(&mut store, &key("none", "suite-host", 1), &shape, 3);
    }
    assert_eq!(checked(&dir).broken, vec![]);
    dir
}

/// Every way in which a file can be none.
fn spoil(path: &Path, how: usize) {
    let _ = fs::remove_file(path);
    match how {
        0 => nix::unistd::mkfifo(path, Mode::S_IRWXU).unwrap(),
        1 => symlink("/dev/zero", path).unwrap(),
        _ => fs::create_dir_all(path.join("in")).unwrap(),
    }
}

#[test]
fn no_command_waits_for_what_is_no_file() {
    let root = tempfile::tempdir().unwrap();
    for (n, name) in NAMES.into_iter().enumerate() {
        for how in 0..3 {
            for ended in [true, false] {
                let dir = receipt(root.path(), &format!("{n}-{how}-{ended}"), ended);
                spoil(&dir.join(name), how);
                let report = checked(&dir);
                assert_eq!(report.exit_code(), 1, "{name} {how}: {}", report.text());
                let found = report.broken.iter().filter(|b| b.file == name).count();
                let inside = report.broken.iter().any(|b| b.file.starts_with(name));
                assert!(
                    found == 1 || (how == 2 && inside),
                    "{name} {how}: {}",
                    report.text()
                );
                // What `show`, `diff` and the begin of `--resume` read.
                let shown = dir.clone();
                within("show", move || store::read_text(&shown, name)).unwrap_err();
                let resumed = dir.clone();
                let resume = move || {
                    Store::resume(&resumed, &plan(), redactor(), Options::default(), &at(20))
                        .map(|_| ())
                        .unwrap_err()
                        .exit_code()
                };
                assert_eq!(within("resume", resume), 2);
            }
        }
    }
}

/// Files that the sums do not list, and that may lie there while a run goes on.
#[test]
fn nor_for_what_the_sums_do_not_list() {
    let root = tempfile::tempdir().unwrap();
    let unlisted = [
        "SHA256SUMS.sig",
        "receipt.json.tmp",
        "receipt.md",
        "logs/none/hca/rank-7.log",
    ];
    for (n, name) in unlisted.into_iter().enumerate() {
        for how in 0..2 {
            let dir = receipt(root.path(), &format!("{n}-{how}"), false);
            spoil(&dir.join(name), how);
            let report = checked(&dir);
            let found: Vec<_> = report.broken.iter().map(ToString::to_string).collect();
            assert_eq!(found, [format!("{name}: it is not a plain file")]);
        }
    }
}

#[test]
fn a_link_to_the_right_bytes_is_no_file_of_a_receipt() {
    let root = tempfile::tempdir().unwrap();
    for (n, name) in NAMES.into_iter().enumerate() {
        let dir = receipt(root.path(), &n.to_string(), true);
        let elsewhere = root.path().join(format!("{n}-elsewhere"));
        fs::rename(dir.join(name), &elsewhere).unwrap();
        symlink(&elsewhere, dir.join(name)).unwrap();
        let report = checked(&dir);
        assert_eq!(report.broken[0].file, name, "{}", report.text());
        assert!(report.broken[0].what.contains("not a plain file"));
    }
}

#[test]
fn sums_that_are_no_file_are_not_signed() {
    let root = tempfile::tempdir().unwrap();
    let dir = receipt(root.path(), "signed", true);
    spoil(&dir.join("SHA256SUMS"), 0);
    let why = within("sign", move || {
        signature::sign(&dir, Path::new("/dev/null")).unwrap_err()
    });
    assert!(why.contains("not a plain file"), "{why}");
}
