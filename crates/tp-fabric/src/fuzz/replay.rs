//! Replays the fuzz targets' corpora, and keeps their seeds in step with what ranks really send.

use super::TARGETS;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fuzz/corpus")
        .join(target)
}

fn inputs(target: &str) -> Vec<(PathBuf, Vec<u8>)> {
    let entries = std::fs::read_dir(corpus(target)).unwrap_or_else(|e| panic!("the corpus of {target}: {e}"));
    let mut all: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    all.sort();
    all.into_iter()
        .map(|path| (path.clone(), std::fs::read(path).unwrap()))
        .collect()
}

#[test]
fn every_corpus_replays() {
    for (name, run) in TARGETS {
        let inputs = inputs(name);
        assert!(inputs.len() >= 3, "{name} has {} inputs", inputs.len());
        for (path, bytes) in inputs {
            let result = std::panic::catch_unwind(|| run(&bytes));
            assert!(result.is_ok(), "{} breaks {name}", path.display());
            // Cut anywhere and with a flipped bit, an input of the corpus is one that the parser did not expect.
            for at in 0..bytes.len().min(512) {
                run(&bytes[..at]);
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                run(&flipped);
            }
        }
    }
}

#[test]
fn the_seeds_are_what_ranks_send() {
    let update = std::env::var_os("UPDATE_CORPUS").is_some();
    for (target, name, bytes) in super::seeds::all() {
        let path = corpus(target).join(format!("seed-{name}"));
        if update {
            std::fs::create_dir_all(corpus(target)).unwrap();
            std::fs::write(&path, &bytes).unwrap();
        }
        let there = std::fs::read(&path).unwrap_or_default();
        assert!(
            there == bytes,
            "{} is stale: run `UPDATE_CORPUS=1 cargo test -p tp-fabric --lib fuzz::`",
            path.display()
        );
    }
}

#[test]
fn every_target_is_a_program_of_the_fuzz_crate() {
    let manifest = include_str!("../../fuzz/Cargo.toml");
    let programs: BTreeSet<&str> = manifest
        .split("[[bin]]")
        .skip(1)
        .filter_map(|bin| bin.split('"').nth(1))
        .collect();
    let targets: BTreeSet<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
    assert_eq!(programs, targets);
    for name in targets {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("fuzz/fuzz_targets/{name}.rs"));
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(
            text.contains(&format!("tp_fabric::fuzz::{name}(data)")),
            "{}",
            path.display()
        );
    }
}
