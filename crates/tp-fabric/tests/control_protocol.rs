//! `docs/protocol.md` and the code name each other: every sentence is cited, and nothing else is.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

fn sentences() -> BTreeSet<String> {
    let page = include_str!("../../../docs/protocol.md");
    let numbered = page
        .lines()
        .filter_map(|line| line.strip_prefix("- **")?.split_once("**"))
        .map(|(n, _)| n.to_owned());
    let all: Vec<String> = numbered.collect();
    let unique: BTreeSet<String> = all.iter().cloned().collect();
    assert_eq!(all.len(), unique.len(), "a number stands twice");
    unique
}

fn citations(directory: &Path, found: &mut BTreeMap<String, Vec<String>>) {
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let path = entry.path();
        if path.is_dir() {
            citations(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            for line in std::fs::read_to_string(&path).unwrap().lines() {
                let Some(list) = line.trim().strip_prefix("// protocol ") else {
                    continue;
                };
                // Other comments may begin with the word; a citation begins with a number.
                let numbers = list
                    .split(", ")
                    .filter(|word| word.starts_with(|c: char| c.is_ascii_digit()));
                for number in numbers {
                    found
                        .entry(number.to_owned())
                        .or_default()
                        .push(path.display().to_string());
                }
            }
        }
    }
}

#[test]
fn every_sentence_is_cited_and_every_citation_is_a_sentence() {
    let sentences = sentences();
    assert!(sentences.len() > 30, "the page's form has changed");
    let mut found = BTreeMap::new();
    citations(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")), &mut found);
    let cited: BTreeSet<String> = found.keys().cloned().collect();
    let uncited: Vec<_> = sentences.difference(&cited).collect();
    assert!(uncited.is_empty(), "no code cites {uncited:?}");
    let unknown: Vec<_> = found
        .iter()
        .filter(|(number, _)| !sentences.contains(*number))
        .collect();
    assert!(unknown.is_empty(), "docs/protocol.md has no {unknown:?}");
}
