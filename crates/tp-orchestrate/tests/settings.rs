//! The inventory judges the runner's variables as the runner does, on every kind of text.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use serde_json::Value;
use std::fs;
use std::process::Command;
use tp_orchestrate::inventory::settings::{Table, check, table};

/// What the runner says with these variables set.
fn explain(variables: &[(&str, &str)]) -> Value {
    let mut command = Command::new(common::runner());
    command.args(["explain", "--json"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TF_") || name.starts_with("NCCL_"))
    {
        command.env_remove(name);
    }
    let output = command.envs(variables.iter().copied()).output().unwrap();
    assert!(output.status.success(), "{}", common::text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_table_is_the_runners() {
    let path = common::root().join("crates/tp-orchestrate/src/inventory/settings.json");
    let runners: Table = serde_json::from_value(explain(&[])).unwrap();
    let page = serde_json::to_string_pretty(&runners).unwrap() + "\n";
    if std::env::var_os("TP_UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
        return;
    }
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        page,
        "write it again: TP_UPDATE_DOCS=1 cargo test -p tp-orchestrate --test settings"
    );
}

#[test]
fn every_text_is_judged_as_the_runner_judges_it() {
    let texts = [
        "0",
        "1",
        "2",
        "-1",
        "3",
        "4",
        "7",
        "8",
        "16",
        "17",
        "63",
        "64",
        "255",
        "256",
        "4095",
        "4096",
        "16384",
        "65535",
        "65536",
        "10000000",
        "10000001",
        "99999999999999999999999",
        "0.05",
        "0.001",
        "60",
        "60.1",
        "3600.5",
        "86400",
        "1e3",
        "nan",
        "inf",
        "+1",
        "0x10",
        "1.2.3",
        ".",
        ".5",
        "on",
        "off",
        "auto",
        "true",
        "verbs",
        "tcp",
        "host",
        "nccl",
        "spin",
        "error",
        "localhost",
        "192.0.2.1",
        "192.0.2.1:80",
        "2001:db8::1",
        "[2001:db8::1]",
        "[2001:db8::1]:80",
        "fe80::1%eth0",
        "a b",
        "a/b",
        " 5 ",
        "ü",
        "WARN",
    ];
    let mut refused = 0;
    for text in texts {
        let all: Vec<_> = table()
            .variables
            .iter()
            .map(|v| (v.name.as_str(), text))
            .collect();
        let document = explain(&all);
        for variable in document["variables"].as_array().unwrap() {
            let name = variable["name"].as_str().unwrap();
            // A secret's length is the runner's own affair: an inventory never holds one.
            if name == "TF_TP_SECRET" {
                continue;
            }
            let runner = variable["problem"].as_str();
            let ours = check(name, text);
            assert_eq!(
                ours.is_err(),
                runner.is_some(),
                "{name}={text}: {ours:?}, {runner:?}"
            );
            refused += usize::from(ours.is_err());
        }
    }
    assert!(refused > 500, "{refused}");
}
