//! The field's cases, replayed: `tests/cases/NN-NAME.toml` is what the program was given, `NN-NAME.answer.toml` the right
//! answer. Every number that the table below names must have a file, and every file is run.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read its own fixtures has failed"
)]

use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tp_hca::pick::{End, Probe, ProbeKey};
use tp_hca::{Document, Options, PickDocument, PortNum, pick};

/// The cases that this crate answers, by number, with what each stands for.
const CASES: &[(u32, &str)] = &[
    (
        1,
        "ports that reach the peer are not the first active ones, and differ by host",
    ),
    (
        4,
        "subnets decide, not last octets; down ports are listed as such",
    ),
    (
        5,
        "both functions of a cage in one subnet: paired, with a warning",
    ),
    (7, "the vendor's own addressing is accepted with a warning"),
    (
        8,
        "one wide subnet over everything: proposals only, a probe decides",
    ),
    (10, "inventory and live address differ: stop with both values"),
    (
        11,
        "pairs cross PCI domains; management lies between the fabric subnets",
    ),
    (14, "a switchless ring needs subnet-aware routing in NCCL"),
    (16, "host routes instead of subnets"),
    (20, "a port cabled to a machine that is no rank"),
    (23, "a twin with link-local addresses only"),
    (26, "DOWN beside LINK_UP is down"),
    (31, "one cable, two devices"),
    (32, "same names, other hardware, disabled ports"),
    (34, "all ports in one subnet"),
    (35, "eight rails pair inside their subnets only"),
    (37, "rails that do not interconnect"),
    (38, "rails in several subnets, listed in any order"),
    (40, "real prefix lengths, not /24"),
    (41, "container bridges and non-RDMA interfaces never count"),
    (43, "two networks in opposite order"),
    (44, "port state from sysfs, not from a tool"),
    (46, "link layers never mix"),
    (47, "a name that is the prefix of another"),
    (49, "a value is parsed before it becomes a path"),
    (50, "one text in both variables"),
    (52, "any device name"),
    (53, "netdev from the link, not from the name"),
    (55, "empty GID slots and unreadable types"),
    (56, "IPv4 before link-local"),
    (58, "GID index per port"),
    (59, "GID index per host"),
    (62, "IPv6 in a second pass"),
    (64, "no version 1 rows"),
    (65, "version 1 before version 2"),
    (67, "devices without a netdev"),
    (68, "a bond is one device"),
    (70, "bonds without a switch"),
    (71, "virtual functions and a bond's netdev"),
    (73, "software devices"),
    (74, "sysfs without device files"),
    (136, "/31 and /30"),
    (139, "a prefix that also matches down ports"),
];

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct Answer {
    error: Option<String>,
    error_rank: Option<u32>,
    error_text: Option<String>,
    /// `RANK DEVICE:PORT PEER DEVICE:PORT BY`, lower rank first, in rail order.
    rails: Vec<String>,
    /// `RANK DEVICE:PORT INDEX`.
    gid_indexes: Vec<String>,
    /// `RANK CODE`, each must be there.
    warnings: Vec<String>,
    /// Codes that no rank may have.
    no_warnings: Vec<String>,
    /// `RANK NAME=VALUE`.
    nccl_env: Vec<String>,
    /// `RANK NAME`, must not be set.
    no_nccl_env: Vec<String>,
    reason: Vec<Reason>,
    probe: Vec<ProbeRow>,
    expected: Vec<Expected>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Reason {
    rank: u32,
    port: String,
    says: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ProbeRow {
    low: String,
    high: String,
    failed: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Expected {
    rank: u32,
    address: std::net::IpAddr,
}

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// `RANK DEVICE:PORT`.
fn end(text: &str) -> End {
    let (rank, port) = text.split_once(' ').unwrap();
    let (device, port) = port.split_once(':').unwrap();
    End {
        rank: rank.parse().unwrap(),
        device: device.into(),
        port: PortNum(port.parse().unwrap()),
    }
}

fn options(answer: &Answer) -> Options {
    let mut options = Options::default();
    for row in &answer.probe {
        let key = ProbeKey {
            low: end(&row.low),
            high: end(&row.high),
        };
        options
            .probes
            .insert(key, row.failed.clone().map_or(Probe::Passed, Probe::Failed));
    }
    for row in &answer.expected {
        options
            .expected_addresses
            .entry(row.rank)
            .or_default()
            .push(row.address);
    }
    options
}

/// What differs from the answer, one line each.
fn differences(answer: &Answer, got: &PickDocument) -> String {
    let mut out = String::new();
    let error = got.error.as_ref();
    if answer.error.as_deref() != error.map(|error| error.code.as_str()) {
        writeln!(out, "error is {error:?}, not {:?}", answer.error).unwrap();
    }
    if let (Some(rank), Some(error)) = (answer.error_rank, error)
        && error.rank != Some(rank)
    {
        writeln!(out, "error names rank {:?}, not {rank}: {error}", error.rank).unwrap();
    }
    if let (Some(text), Some(error)) = (&answer.error_text, error)
        && !error.text.contains(text)
    {
        writeln!(out, "error does not say `{text}`: {error}").unwrap();
    }
    if rails(got) != answer.rails {
        writeln!(out, "rails are {:#?}\nnot {:#?}", rails(got), answer.rails).unwrap();
    }
    let warnings: Vec<String> = got
        .ranks
        .iter()
        .flat_map(|rank| rank.warnings.iter().map(|w| format!("{} {}", rank.rank, w.code)))
        .collect();
    for wanted in answer.warnings.iter().filter(|wanted| !warnings.contains(wanted)) {
        writeln!(out, "warning {wanted} is missing; there are {warnings:?}").unwrap();
    }
    for code in &answer.no_warnings {
        if warnings
            .iter()
            .any(|warning| warning.ends_with(&format!(" {code}")))
        {
            writeln!(out, "warning {code} should not be there").unwrap();
        }
    }
    details(answer, got, &mut out);
    out
}

fn details(answer: &Answer, got: &PickDocument, out: &mut String) {
    let env: BTreeSet<String> = got
        .ranks
        .iter()
        .flat_map(|rank| {
            rank.nccl_env
                .iter()
                .map(|(name, value)| format!("{} {name}={value}", rank.rank))
        })
        .collect();
    for wanted in answer.nccl_env.iter().filter(|wanted| !env.contains(*wanted)) {
        writeln!(out, "{wanted} is not in {env:?}").unwrap();
    }
    for name in &answer.no_nccl_env {
        if env.iter().any(|entry| entry.starts_with(&format!("{name}="))) {
            writeln!(out, "{name} should not be in {env:?}").unwrap();
        }
    }
    let indexes: Vec<String> = got
        .ranks
        .iter()
        .flat_map(|r| {
            r.rails
                .iter()
                .map(|rail| format!("{} {}:{} {}", r.rank, rail.device, rail.port, rail.gid_index))
        })
        .collect();
    for wanted in answer
        .gid_indexes
        .iter()
        .filter(|wanted| !indexes.contains(wanted))
    {
        writeln!(out, "GID index {wanted} is not in {indexes:?}").unwrap();
    }
    for Reason { rank, port, says } in &answer.reason {
        let found = got.rank(*rank).and_then(|rank| {
            rank.ports
                .iter()
                .find(|row| format!("{}:{}", row.device, row.port) == *port)
                .map(|row| row.reason.clone())
        });
        if !found.as_deref().is_some_and(|reason| reason.contains(says)) {
            writeln!(out, "rank {rank} {port}: reason {found:?} does not say `{says}`").unwrap();
        }
    }
}

/// Every rail once, from the lower rank, in order; both ends must agree.
fn rails(got: &PickDocument) -> Vec<String> {
    let mut lines = Vec::new();
    for rank in &got.ranks {
        for rail in rank.rails.iter().filter(|rail| rail.peer > rank.rank) {
            let by = serde_json::to_value(rail.by).unwrap();
            lines.push(format!(
                "{} {}:{} {} {}:{} {}",
                rank.rank,
                rail.device,
                rail.port,
                rail.peer,
                rail.peer_device,
                rail.peer_port,
                by.as_str().unwrap()
            ));
        }
    }
    let mirrored: usize = got
        .ranks
        .iter()
        .flat_map(|r| r.rails.iter().filter(|rail| rail.peer < r.rank))
        .count();
    assert_eq!(mirrored, lines.len(), "both ends must name the same rails");
    lines
}

#[test]
fn every_case_has_its_right_answer() {
    let mut seen: BTreeMap<u32, u32> = BTreeMap::new();
    let mut failures = String::new();
    let mut files: Vec<PathBuf> = std::fs::read_dir(cases())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    for path in files {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.ends_with(".answer.toml") {
            continue;
        }
        let number: u32 = name.split('-').next().unwrap().parse().unwrap();
        *seen.entry(number).or_default() += 1;
        let answer = path.with_file_name(name.replace(".toml", ".answer.toml"));
        let answer: Answer = toml::from_str(&std::fs::read_to_string(&answer).unwrap()).unwrap();
        let document = Document::load(&path).unwrap();
        let got = pick(&document, &options(&answer));
        let wrong = differences(&answer, &got);
        if !wrong.is_empty() {
            write!(failures, "case {name}:\n{wrong}\n").unwrap();
        }
        assert_eq!(got.ok, got.error.is_none(), "{name}");
    }
    assert!(failures.is_empty(), "{failures}");
    for (number, kind) in CASES {
        assert!(seen.contains_key(number), "case {number} ({kind}) has no file");
    }
    assert_eq!(
        seen.len(),
        CASES.len(),
        "a file's number is not in the table: {:?}",
        seen.keys()
    );
}
