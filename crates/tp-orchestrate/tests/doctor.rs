//! `doctor`, `env` and `init` on this machine, with the real runner.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{Scratch, TWO, processes_with, runner, text, twins};
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};
use tp_hca::{Document, Options};

fn doctor(scratch: &Scratch, extra: &[&str]) -> Output {
    let runner = runner().display().to_string();
    let mut arguments = vec!["doctor", "inventory.toml", "--runner", &runner];
    arguments.extend(extra);
    scratch.output(&arguments)
}

fn document(output: &Output) -> Value {
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", text(&output.stdout)))
}

fn findings<'a>(document: &'a Value, name: &str) -> Vec<&'a Value> {
    document["findings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|f| f["name"] == name)
        .collect()
}

#[test]
fn this_machine_is_sound_and_ends_with_a_real_collective() {
    let scratch = Scratch::new(TWO);
    let output = doctor(&scratch, &["--json"]);
    let document = document(&output);
    assert_eq!(output.status.code(), Some(0), "{document:#}");
    assert_eq!((&document["ok"], &document["exit"]), (&true.into(), &0.into()));
    let collective = &document["collectives"][0];
    assert_eq!(
        (&collective["backend"], &collective["passed"]),
        (&"host".into(), &true.into())
    );
    assert!(
        collective["text"]
            .as_str()
            .unwrap()
            .contains("on 2 ranks, bit for bit"),
        "{collective}"
    );
    // What was left out is said.
    assert!(
        document["not_tested"]
            .as_array()
            .unwrap()
            .iter()
            .any(|t| t.as_str().unwrap().contains("GPU"))
    );
    assert!(document["hosts"][0]["clock"]["error_ms"].as_f64().unwrap() < 10_000.0);
    let people = doctor(&scratch, &["--no-collective"]);
    let said = text(&people.stdout);
    assert_eq!(people.status.code(), Some(0), "{said}");
    assert!(
        said.contains("not tested  any collective: --no-collective was given"),
        "{said}"
    );
    assert!(
        processes_with("doctor-")
            .iter()
            .all(|(_, line)| !line.contains("--session")),
        "a rank is left"
    );
}

/// The session that is actually used: inside `run_prefix`, with the inventory's variables. Case 25: every source.
#[test]
fn it_looks_inside_run_prefix_and_at_every_source_of_nccls_settings() {
    let inventory = format!(
        "{TWO}run_prefix = [\"sh\", \"-c\", 'ulimit -l 8; exec \"$@\"', \"sh\"]\n\
         env = {{ NCCL_CONF_FILE = \"nccl.conf\", NCCL_DEBUG = \"WARN\" }}\n"
    );
    let scratch = Scratch::new(&inventory);
    fs::write(scratch.path("nccl.conf"), "NCCL_DEBUG=TRACE\n").unwrap();
    let output = doctor(&scratch, &["--json", "--no-collective"]);
    let document = document(&output);
    assert_eq!(output.status.code(), Some(0), "{document:#}");
    let report = &document["hosts"][0]["report"];
    assert_eq!(report["host"]["memlock"], 8 * 1024, "{}", report["host"]);
    let sources: Vec<_> = report["nccl_settings"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|s| s["name"] == "NCCL_DEBUG")
        .map(|s| (s["value"].as_str().unwrap(), s["source"].as_str().unwrap()))
        .collect();
    assert_eq!(sources, [("WARN", "environment"), ("TRACE", "nccl.conf")]);
    let finding = findings(&document, "NCCL_DEBUG");
    assert!(
        finding[0]["fix"].as_str().unwrap().contains("nccl.conf"),
        "{finding:?}"
    );
}

#[test]
fn a_host_that_does_not_answer_is_3_and_a_fault_is_1() {
    let scratch = Scratch::new(&format!("{TWO}run_prefix = [\"false\"]\n"));
    let output = doctor(&scratch, &["--json"]);
    let silent = document(&output);
    assert_eq!(output.status.code(), Some(3), "{silent:#}");
    assert_eq!(findings(&silent, "unanswered").len(), 1);
    assert!(silent["collectives"].as_array().unwrap().is_empty());

    let scratch = Scratch::new(&format!("{TWO}machine_id = \"0000\"\n"));
    let output = doctor(&scratch, &["--no-collective"]);
    let said = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("the inventory says 0000, the machine that answers has"),
        "{said}"
    );
    assert!(said.contains("1 fault to mend"), "{said}");
}

/// Case 119: everything looks well and the ranks do not come through.
#[test]
fn a_collective_that_fails_is_a_fault_with_what_the_rank_said() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("echo 'no way' >&2; ended 1");
    let output = scratch.output(&["doctor", "inventory.toml", "--runner", "./fake-runner", "--json"]);
    let fake = fs::read_to_string(scratch.path("fake-runner")).unwrap();
    assert!(fake.contains("doctor"));
    let document = document(&output);
    assert_eq!(output.status.code(), Some(1), "{document:#}");
    let finding = findings(&document, "collective");
    let said = finding[0]["text"].as_str().unwrap();
    assert!(said.contains("rank 0: exit 1, it said: no way"), "{said}");
}

fn env(scratch: &Scratch, extra: &[&str]) -> Output {
    let mut arguments = vec!["env", "inventory.toml"];
    arguments.extend(extra);
    scratch.output(&arguments)
}

/// The variables that a shell has after reading `script`, less those it has without.
fn sourced(script: &str) -> Vec<(String, String)> {
    let output = Command::new("sh")
        .args([
            "-c",
            &format!("NCCL_IB_GID_INDEX=3; export NCCL_IB_GID_INDEX\n{script}\nenv"),
        ])
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
        .lines()
        .filter_map(|line| line.split_once('='))
        .filter(|(name, _)| !["PWD", "_", "SHLVL", "OLDPWD"].contains(name))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// Sourced, it makes the runner and NCCL's grammar choose exactly the proved ports. Case 22: each host its own.
#[test]
fn what_env_prints_chooses_exactly_the_picked_ports() {
    let scratch = Scratch::new(&twins());
    let root = common::root();
    let files = ["twin-a.toml", "twin-b.toml"].map(|name| root.join("hosts/facts").join(name));
    let mut facts = Document::from_host_files(&files).unwrap();
    for rank in &mut facts.ranks {
        rank.env.clear();
    }
    let proved = tp_hca::pick(&facts, &Options::default());
    assert!(proved.ok);
    for (rank, host) in [(0, "twin-a"), (1, "twin-b")] {
        let output = env(&scratch, &["--host", host]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let variables = sourced(&text(&output.stdout));
        assert!(
            variables.iter().all(|(name, _)| name != "NCCL_IB_GID_INDEX"),
            "{variables:?}"
        );
        let value = |name: &str| &variables.iter().find(|(n, _)| n == name).unwrap().1;
        // NCCL's own reading of its variable.
        let list = tp_hca::grammar::nccl::parse(value("NCCL_IB_HCA"));
        let rails = &proved.rank(rank).unwrap().rails;
        let own = facts.ranks.iter().find(|facts| facts.rank == rank).unwrap();
        let chosen: Vec<_> = own
            .ports
            .iter()
            .filter(|p| list.selects(&p.device, p.port))
            .map(|p| &p.device)
            .collect();
        assert_eq!(chosen.len(), rails.len(), "{host}: {chosen:?}");
        assert!(
            rails.iter().all(|rail| chosen.contains(&&rail.device)),
            "{host}: {chosen:?}"
        );
        // What the runner reads, for the pick below.
        let own = facts.rank_mut(rank).unwrap();
        for (name, value) in variables {
            own.set_env(&name, Some(&value));
        }
    }
    // The real runner on both hosts' facts with those variables: the same rails, none refused.
    fs::write(scratch.path("with.toml"), facts.to_toml().unwrap()).unwrap();
    let output = Command::new(runner())
        .args(["hca", "--facts", "with.toml", "--json"])
        .current_dir(scratch.dir.path())
        .output()
        .unwrap();
    let again: tp_hca::PickDocument = serde_json::from_slice(&output.stdout).unwrap();
    assert!(again.ok, "{:?}", again.error);
    for (before, after) in proved.ranks.iter().zip(&again.ranks) {
        assert_eq!(before.rails, after.rails);
    }
}

#[test]
fn env_in_every_form_and_only_for_one_host_at_a_time() {
    let scratch = Scratch::new(&twins());
    let output = env(&scratch, &[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("name one by --host (twin-a, twin-b)"),
        "{}",
        text(&output.stderr)
    );
    let output = env(&scratch, &["--json"]);
    let document = document(&output);
    assert_eq!(document["model"], true);
    assert_eq!(document["hosts"][1]["set"]["TF_TP_ROCE_HCA"], "mlx5_2,mlx5_3");
    let output = env(&scratch, &["--into", "files", "--format", "dotenv"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let file = fs::read_to_string(scratch.path("files/twin-a.env")).unwrap();
    assert!(
        file.contains("\nNCCL_IB_HCA==rocep1s0f1:1,roceP2p1s0f1:1\n"),
        "{file}"
    );
    for wrong in [&["--host", "nobody"][..], &["--rank", "2"]] {
        assert_eq!(env(&scratch, wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn env_is_proved_by_a_receipt_of_the_same_ports_and_by_no_other() {
    let scratch = Scratch::new(&twins());
    let runner = runner().display().to_string();
    let run = [
        "run",
        "inventory.toml",
        "--runner",
        &runner,
        "--out",
        "out",
        "--arms",
        "none",
        "--steps",
        "hca",
    ];
    let output = scratch.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let proved = ["--host", "twin-a", "--proved-by", "out"];
    let output = env(&scratch, &proved);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    // The cable moves to the other cage: the receipt proves nothing of it any more.
    let facts = fs::read_to_string(common::root().join("hosts/facts/twin-a.toml")).unwrap();
    fs::write(
        scratch.path("moved.toml"),
        facts.replace("rocep1s0f1", "rocep9s0f1"),
    )
    .unwrap();
    let path = common::root()
        .join("hosts/facts/twin-a.toml")
        .display()
        .to_string();
    fs::write(
        scratch.path("inventory.toml"),
        twins().replace(&path, "moved.toml"),
    )
    .unwrap();
    let output = env(&scratch, &proved);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("rank 0 was proved on rocep1s0f1:1 to rank 1"),
        "{said}"
    );
    assert_eq!(
        env(&scratch, &["--host", "twin-a", "--proved-by", "nowhere"])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn init_writes_an_inventory_that_runs_and_never_over_another() {
    let scratch = Scratch::new(TWO);
    let runner = runner().display().to_string();
    let init = [
        "init",
        "--local",
        "2",
        "--name",
        "mine",
        "--runner",
        &runner,
        "--out",
        "mine.toml",
    ];
    let output = scratch.output(&init);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let again = scratch.output(&init);
    assert_eq!(again.status.code(), Some(2), "{}", text(&again.stdout));
    let written = fs::read_to_string(scratch.path("mine.toml")).unwrap();
    assert!(
        written.contains("name = \"mine\"") && written.contains("ranks = 2"),
        "{written}"
    );
    let run = [
        "run",
        "mine.toml",
        "--runner",
        &runner,
        "--arms",
        "none",
        "--steps",
        "failfast-host-kill-1",
    ];
    let output = scratch.output(&run);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let shown = scratch.output(&["init", "--local", "2", "--runner", &runner, "--json"]);
    let document = document(&shown);
    assert!(
        document["inventory"]
            .as_str()
            .unwrap()
            .starts_with("# Written by"),
        "{document}"
    );
    assert!(
        document["hosts"][0]["system"]
            .as_str()
            .unwrap()
            .ends_with("-linux"),
        "{document}"
    );
}
