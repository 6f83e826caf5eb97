//! Pages that are printed from tables stay current. `TP_UPDATE_DOCS=1` writes them again.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use std::fs;

#[test]
fn the_troubleshooting_page_is_the_signature_table() {
    let path = common::root().join("docs/troubleshooting.md");
    let page = tp_orchestrate::diagnosis::page();
    if std::env::var_os("TP_UPDATE_DOCS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let there = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        there, page,
        "write it again: TP_UPDATE_DOCS=1 cargo test -p tp-orchestrate --test docs"
    );
}

#[test]
fn the_orchestrate_page_names_every_command_and_key() {
    let page = fs::read_to_string(common::root().join("docs/orchestrate.md")).unwrap();
    let words = [
        "init",
        "doctor",
        "env",
        "--all",
        "mtu",
        "hca",
        "plan",
        "run",
        "report",
        "receipt show",
        "receipt verify",
        "receipt diff",
        "completions",
        "man",
        "--arms",
        "--steps",
        "--backends",
        "--out",
        "--fail-fast",
        "--repeat",
        "--retries",
        "--json",
        "--no-redact",
        "--resume",
        "--runner",
        "schema",
        "launcher",
        "deploy",
        "step_limit_s",
        "ssh",
        "fabric",
        "user",
        "port",
        "identity",
        "gpus",
        "ranks",
        "rank",
        "run_prefix",
        "env",
        "arms",
        "machine_id",
        "facts",
        "system",
        "dir",
    ];
    for word in words {
        assert!(
            page.contains(&format!("`{word}")),
            "docs/orchestrate.md does not explain `{word}`"
        );
    }
}

#[test]
fn every_example_inventory_is_sound() {
    let mut seen = 0;
    for entry in fs::read_dir(common::root().join("hosts")).unwrap().flatten() {
        if entry.path().extension().is_some_and(|e| e == "toml") {
            let inventory = tp_orchestrate::inventory::Inventory::load(&entry.path());
            let inventory = inventory.unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(
                format!("{}.toml", inventory.name),
                entry.file_name().to_string_lossy()
            );
            seen += 1;
        }
    }
    assert!(seen >= 4);
}
