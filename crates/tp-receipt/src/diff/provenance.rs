//! Where two receipts come from, and in what that differs.

use crate::receipt::{Receipt, SettingRow};
use std::collections::{BTreeMap, BTreeSet};

/// What a difference is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The project itself: source, runner, kernel image.
    Subject,
    /// What it ran in: hosts, versions, settings, world.
    Environment,
    /// What was asked: the plan.
    Plan,
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Subject => "project",
            Self::Environment => "environment",
            Self::Plan => "plan",
        })
    }
}

/// One thing that differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What it is about.
    pub part: Part,
    /// What differs.
    pub name: String,
    /// In A.
    pub a: String,
    /// In B.
    pub b: String,
}

/// Versions of the project's own parts, which are not the environment.
const OWN: &[&str] = &["runner", "revision", "version", "kernels"];

pub(super) fn compare(a: &Receipt, b: &Receipt) -> Vec<Difference> {
    let mut out = Vec::new();
    let mut both = |part, name: &str, a: String, b: String| {
        if a != b {
            out.push(Difference {
                part,
                name: name.to_owned(),
                a,
                b,
            });
        }
    };
    let source = crate::render::source_text;
    both(Part::Subject, "source", source(a), source(b));
    both(
        Part::Subject,
        "runner",
        set(a, |h| h.binary_sha256.clone()),
        set(b, |h| h.binary_sha256.clone()),
    );
    both(
        Part::Subject,
        "kernel image",
        set(a, |h| h.image_sha256.clone()),
        set(b, |h| h.image_sha256.clone()),
    );
    both(Part::Plan, "plan", a.plan_sha256.clone(), b.plan_sha256.clone());
    both(
        Part::Environment,
        "world",
        a.world.to_string(),
        b.world.to_string(),
    );
    both(
        Part::Environment,
        "hosts",
        set(a, |h| vec![h.name.clone()]),
        set(b, |h| vec![h.name.clone()]),
    );
    let (in_a, in_b) = (versions(a), versions(b));
    for name in in_a.keys().chain(in_b.keys()).collect::<BTreeSet<_>>() {
        let part = if OWN.contains(&name.as_str()) {
            Part::Subject
        } else {
            Part::Environment
        };
        both(part, name, joined(in_a.get(name)), joined(in_b.get(name)));
    }
    let (in_a, in_b) = (settings(a), settings(b));
    for name in in_a.keys().chain(in_b.keys()).collect::<BTreeSet<_>>() {
        both(
            Part::Environment,
            name,
            joined(in_a.get(name)),
            joined(in_b.get(name)),
        );
    }
    out
}

fn joined(values: Option<&BTreeSet<String>>) -> String {
    match values {
        None => "not given".into(),
        Some(values) => values.iter().cloned().collect::<Vec<_>>().join(", "),
    }
}

fn set(receipt: &Receipt, of: impl Fn(&crate::receipt::Host) -> Vec<String>) -> String {
    let all: BTreeSet<String> = receipt.hosts.iter().flat_map(of).collect();
    if all.is_empty() {
        "none".into()
    } else {
        all.into_iter().collect::<Vec<_>>().join(", ")
    }
}

fn versions(receipt: &Receipt) -> BTreeMap<String, BTreeSet<String>> {
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (name, version) in receipt.hosts.iter().flat_map(|h| &h.versions) {
        out.entry(name.clone()).or_default().insert(version.clone());
    }
    out
}

/// Settings that can change what is measured. Addresses, ports and files change with every run and do not.
fn settings(receipt: &Receipt) -> BTreeMap<String, BTreeSet<String>> {
    const OF_THE_RUN: &[&str] = &[
        "MASTER", "PORT", "RANK", "SESSION", "HOST_ID", "HOSTID", "FILE", "PATH", "SECRET",
    ];
    let matters = |row: &&SettingRow| !OF_THE_RUN.iter().any(|word| row.name.contains(word));
    let mut out: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in receipt.settings.iter().filter(matters) {
        out.entry(row.name.clone()).or_default().insert(row.value.clone());
    }
    out
}
