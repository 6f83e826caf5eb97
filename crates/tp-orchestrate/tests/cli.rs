//! The command line against bad input: one clear line, the right exit code, nothing half-written.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{ORCHESTRATE, Scratch, TWO, text, twins};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs, asserts the exit code and one line on standard error, and gives that line.
fn refused(scratch: &Scratch, code: i32, arguments: &[&str]) -> String {
    let output = scratch.output(arguments);
    let said = text(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(code),
        "{arguments:?}: {said}{}",
        text(&output.stdout)
    );
    assert_eq!(said.lines().count(), 1, "one line: {said}");
    assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
    said.trim_end().to_owned()
}

fn scratch(inventory: &str) -> Scratch {
    let scratch = Scratch::new(inventory);
    scratch.fake_runner("hello; summary; ended 0");
    scratch
}

const RUN: [&str; 4] = ["run", "inventory.toml", "--runner", "./fake-runner"];

fn run_with<'a>(extra: &[&'a str]) -> Vec<&'a str> {
    RUN.iter().copied().chain(extra.iter().copied()).collect()
}

#[test]
fn a_typing_error_in_the_inventory() {
    let scratch = scratch(&TWO.replace("launcher", "luancher"));
    let line = refused(&scratch, 2, &RUN);
    assert_eq!(
        line,
        "tp-orchestrate: inventory.toml:5:1: unknown key `luancher` in [cluster]; did you mean `launcher`?"
    );
    assert!(!scratch.path("receipts").exists());
}

#[test]
fn a_world_of_0_and_a_rank_twice() {
    let line = refused(&scratch(&TWO.replace("ranks = 2", "ranks = 0")), 2, &RUN);
    assert!(
        line.contains("inventory.toml:8:9: `ranks` of host `here` is 0"),
        "{line}"
    );
    let twice = format!("{TWO}rank = 0\n[[host]]\nname = \"there\"\nranks = 1\nrank = 1\n");
    let line = refused(&scratch(&twice), 2, &RUN);
    assert!(
        line.contains("rank 1 is given twice: to host `here` and to host `there`"),
        "{line}"
    );
}

#[test]
fn an_inventory_that_is_not_there() {
    let line = refused(&scratch(TWO), 2, &["run", "nowhere.toml"]);
    assert!(
        line.contains("failed to read the inventory nowhere.toml: No such file"),
        "{line}"
    );
}

#[test]
fn an_output_that_exists_is_left_alone() {
    let scratch = scratch(TWO);
    fs::create_dir(scratch.path("out")).unwrap();
    fs::write(scratch.path("out/mine"), "mine").unwrap();
    let line = refused(&scratch, 2, &run_with(&["--out", "out"]));
    assert!(line.contains("out exists already"), "{line}");
    assert_eq!(fs::read_dir(scratch.path("out")).unwrap().count(), 1);
}

#[test]
fn an_output_inside_a_receipt_is_refused() {
    let scratch = scratch(TWO);
    let select = ["--arms", "none", "--steps", "roce-host"];
    let first = scratch.output(&run_with(&[&["--out", "out"], &select[..]].concat()));
    assert_eq!(first.status.code(), Some(0), "{}", text(&first.stderr));
    for inside in ["out/second", "out/logs/second", "out/../out/second"] {
        let line = refused(&scratch, 2, &run_with(&["--out", inside]));
        assert!(line.contains("lies inside the receipt"), "{line}");
    }
    assert_eq!(
        scratch.output(&["receipt", "verify", "out"]).status.code(),
        Some(0)
    );
}

#[test]
fn an_output_that_cannot_be_written() {
    let scratch = scratch(TWO);
    fs::write(scratch.path("file"), "").unwrap();
    let line = refused(&scratch, 2, &run_with(&["--out", "file/out"]));
    assert!(line.contains("file"), "{line}");
    // Who may write everywhere cannot be refused by a mode.
    if !nix::unistd::Uid::effective().is_root() {
        fs::create_dir(scratch.path("closed")).unwrap();
        fs::set_permissions(scratch.path("closed"), fs::Permissions::from_mode(0o555)).unwrap();
        let line = refused(&scratch, 2, &run_with(&["--out", "closed/out"]));
        assert!(line.contains("closed/out"), "{line}");
    }
    assert_eq!(
        fs::read_dir(scratch.tmp()).unwrap().count(),
        0,
        "no working file is left"
    );
}

#[test]
fn a_facts_file_that_is_not_there() {
    let scratch = scratch(&twins().replace("twin-b.toml", "twin-z.toml"));
    let line = refused(&scratch, 2, &RUN);
    assert!(line.contains("twin-z.toml"), "{line}");
    assert!(!scratch.path("receipts").exists());
}

#[test]
fn words_that_name_nothing() {
    let scratch = scratch(TWO);
    let line = refused(&scratch, 2, &run_with(&["--arms", "none,rocce"]));
    assert_eq!(
        line,
        "tp-orchestrate: --arms: `rocce` is unknown; did you mean `roce`?"
    );
    let line = refused(&scratch, 2, &run_with(&["--steps", "suite-nccl"]));
    assert!(
        line.contains("--steps: `suite-nccl` matches no step; steps here: roce-host, suite-host"),
        "{line}"
    );
    let line = refused(&scratch, 2, &run_with(&["--backends", "gloo"]));
    assert!(
        line.contains("--backends: `gloo` is unknown; known: host, nccl, mailbox, roce"),
        "{line}"
    );
    let line = refused(&scratch, 3, &run_with(&["--backends", "nccl"]));
    assert!(
        line.contains("--backends: nccl cannot run here: rank 0 has no GPU"),
        "{line}"
    );
    let line = refused(&scratch, 2, &run_with(&["--repeat", "0"]));
    assert!(line.contains("--repeat"), "{line}");
    let line = refused(&scratch, 2, &["runn"]);
    assert!(line.contains("runn"), "{line}");
    let line = refused(&scratch, 2, &[]);
    assert!(line.contains("a command is missing"), "{line}");
}

#[test]
fn a_runner_that_is_not_there_or_does_not_answer() {
    let scratch = scratch(TWO);
    let line = refused(&scratch, 3, &["run", "inventory.toml", "--runner", "./nobody"]);
    assert!(
        line.contains("the runner ./nobody cannot be used: No such file"),
        "{line}"
    );
    fs::write(
        scratch.path("fake-runner"),
        "#!/bin/sh\necho broken >&2\nexit 1\n",
    )
    .unwrap();
    let line = refused(&scratch, 3, &RUN);
    assert!(line.contains("--version failed and said: broken"), "{line}");
}

#[test]
fn every_launcher_can_be_planned() {
    for (launcher, via) in [("ssh", "ssh here"), ("slurm", "srun")] {
        let scratch = scratch(&TWO.replace("\"local\"", &format!("\"{launcher}\"")));
        if launcher == "slurm" {
            // Without a controller, or without Slurm at all, there are no nodes; Slurm itself would look for its configuration
            // for a minute.
            let began = std::time::Instant::now();
            let output = scratch
                .command(&RUN)
                .env("SLURM_CONF", scratch.path("none"))
                .output()
                .unwrap();
            let line = text(&output.stderr);
            assert_eq!(output.status.code(), Some(3), "{line}");
            assert!(line.contains("nodes") && line.lines().count() == 1, "{line}");
            assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
        }
        let output = scratch.output(&["plan", "inventory.toml"]);
        assert_eq!(output.status.code(), Some(0));
        assert!(
            text(&output.stdout).contains(&format!("rank 0 on here by {via}")),
            "{}",
            text(&output.stdout)
        );
    }
}

#[test]
fn json_is_json_also_on_refusal() {
    let scratch = scratch(TWO);
    for (code, arguments) in [
        (2, &["plan", "nowhere.toml", "--json"][..]),
        (2, &["hca", "nowhere.toml", "--json"]),
        (2, &["run", "nowhere.toml", "--json"]),
        (2, &["run", "inventory.toml", "--json", "--arms", "nobody"]),
        (3, &["run", "inventory.toml", "--json", "--runner", "./nobody"]),
        (2, &["doctor", "nowhere.toml", "--json"]),
        (2, &["env", "nowhere.toml", "--json"]),
        (2, &["receipt", "show", "nowhere", "--json"]),
        (2, &["receipt", "verify", "nowhere", "--json"]),
        (2, &["receipt", "--json"]),
        (2, &["nonsense", "--json"]),
    ] {
        let output = scratch.output(arguments);
        let said = text(&output.stdout);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        let document: serde_json::Value =
            serde_json::from_str(&said).unwrap_or_else(|e| panic!("{arguments:?}: {e}: {said}"));
        assert_eq!(
            (&document["ok"], &document["error"]["exit"]),
            (&false.into(), &code.into()),
            "{arguments:?}"
        );
        assert!(
            output.stderr.is_empty(),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    }
}

#[test]
fn the_pick_of_the_inventory_in_a_table_and_as_json() {
    let scratch = scratch(&twins());
    let output = scratch.output(&["hca", "inventory.toml", "--runner", "./fake-runner"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{said}{}", text(&output.stderr));
    assert!(said.starts_with("model: "), "{said}");
    let output = scratch.output(&["hca", "inventory.toml", "--runner", "./fake-runner", "--json"]);
    let document: tp_hca::PickDocument = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document.ok);
    let devices: Vec<_> = document.ranks[0]
        .rails
        .iter()
        .map(|rail| rail.device.as_str())
        .collect();
    assert_eq!(
        devices,
        ["rocep1s0f1", "roceP2p1s0f1"],
        "the first two ports do not reach the peer"
    );
}

#[test]
fn what_is_no_receipt() {
    let scratch = scratch(TWO);
    for arguments in [
        &["receipt", "show", "."][..],
        &["receipt", "verify", "nowhere"],
        &["report", "."],
    ] {
        let line = refused(&scratch, 2, arguments);
        assert!(line.contains("receipt"), "{line}");
    }
    let line = refused(&scratch, 2, &run_with(&["--resume", "nowhere"]));
    assert!(line.contains("--resume: nowhere is no receipt"), "{line}");
}

#[test]
fn a_receipt_is_shown_reported_and_verified() {
    let scratch = scratch(TWO);
    let output = scratch.output(&run_with(&[
        "--arms",
        "none",
        "--steps",
        "roce-host",
        "--out",
        "out",
    ]));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = scratch.output(&["receipt", "show", "out"]);
    assert!(
        text(&shown.stdout).starts_with("PASSED (host)"),
        "{}",
        text(&shown.stdout)
    );
    assert!(text(&scratch.output(&["report", "out"]).stdout).contains("PASSED"));
    let verified = scratch.output(&["receipt", "verify", "out"]);
    assert_eq!(verified.status.code(), Some(0), "{}", text(&verified.stdout));
    let compared = scratch.output(&["receipt", "diff", "out", "out", "--fail-on-regression", "5"]);
    assert_eq!(compared.status.code(), Some(0), "{}", text(&compared.stderr));
    assert!(
        text(&compared.stdout).contains("every step came out the same"),
        "{}",
        text(&compared.stdout)
    );
    let path = scratch.path("out/receipt.md");
    fs::write(
        &path,
        fs::read_to_string(&path).unwrap().replace("PASSED", "passed"),
    )
    .unwrap();
    let verified = scratch.output(&["receipt", "verify", "out"]);
    assert_eq!(verified.status.code(), Some(1), "{}", text(&verified.stdout));
    assert!(
        text(&verified.stdout).contains("receipt.md"),
        "{}",
        text(&verified.stdout)
    );
}

#[test]
fn completions_man_pages_and_version() {
    let scratch = scratch(TWO);
    for shell in ["bash", "zsh", "fish"] {
        let output = scratch.output(&["completions", shell]);
        assert!(
            output.status.success() && text(&output.stdout).contains("tp-orchestrate"),
            "{shell}"
        );
    }
    assert!(scratch.output(&["man", "pages"]).status.success());
    let pages = fs::read_dir(scratch.path("pages")).unwrap().count();
    assert!(pages >= 8, "{pages} pages");
    let output = scratch.output(&["--version", "--runner", "./fake-runner"]);
    let said = text(&output.stdout);
    assert!(
        said.contains("revision: ") && said.contains("tf-tp-test 0.0.0-fake"),
        "{said}"
    );
    assert!(
        Command::new(ORCHESTRATE)
            .arg("--help")
            .output()
            .unwrap()
            .status
            .success()
    );
}

#[test]
fn a_run_is_not_taken_up_again_with_another_runner() {
    let scratch = scratch(TWO);
    let select = ["--arms", "none", "--steps", "roce-host"];
    let out = scratch.output(&run_with(&[&["--out", "out"], &select[..]].concat()));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    let before = fs::read_to_string(scratch.path("out/events.jsonl")).unwrap();
    scratch.fake_runner("hello; summary; ended 0\n# another build");
    let line = refused(
        &scratch,
        2,
        &run_with(&[&["--resume", "out"], &select[..]].concat()),
    );
    assert!(
        line.contains("--resume: out began with a runner of SHA-256 "),
        "{line}"
    );
    let hashes = line
        .split([' ', ';'])
        .filter(|word| word.len() == 64 && word.chars().all(|c| c.is_ascii_hexdigit()));
    assert_eq!(
        hashes.collect::<std::collections::BTreeSet<_>>().len(),
        2,
        "{line}"
    );
    assert_eq!(
        fs::read_to_string(scratch.path("out/events.jsonl")).unwrap(),
        before
    );
}

#[test]
fn a_signature_that_is_wanted_and_not_there_is_broken() {
    let scratch = scratch(TWO);
    let select = ["--arms", "none", "--steps", "roce-host", "--out", "out"];
    let out = scratch.output(&run_with(&select));
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    fs::write(scratch.path("signers"), "").unwrap();
    let verify = ["receipt", "verify", "out"];
    assert_eq!(scratch.output(&verify).status.code(), Some(0));
    let wanted = [&verify[..], &["--allowed-signers", "signers", "--signer", "me"]].concat();
    let output = scratch.output(&wanted);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    assert!(
        text(&output.stdout).contains("SHA256SUMS.sig"),
        "{}",
        text(&output.stdout)
    );
    let line = refused(&scratch, 2, &[&verify[..], &["--signer", "me"]].concat());
    assert!(line.contains("--allowed-signers"), "{line}");
    let shown = text(&scratch.output(&["receipt", "show", "out"]).stdout);
    assert!(shown.contains("not run: backend nccl: "), "{shown}");
}
