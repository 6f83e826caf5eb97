//! `plan.json` against the record: what was to run, and how it was to end.

use super::Report;
use super::compare::name_some;
use super::record::Read;
use crate::record::{RankStart, StepStart};
use crate::store::{PLAN, files};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The version of the plan's form that this program knows.
const SCHEMA: u64 = 1;
const SIGKILL: i32 = 9;
/// The exit code of a rank that lost a peer or failed on purpose.
const LOST: i32 = 70;

/// What is compared of a plan. A field that a plan lacks is not compared.
#[derive(Deserialize)]
struct Plan {
    arms: Option<Vec<Arm>>,
}

#[derive(Deserialize)]
struct Arm {
    name: String,
    #[serde(default)]
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    name: String,
    scope: Option<String>,
    expect: Option<Expect>,
    #[serde(default)]
    commands: Vec<Command>,
}

#[derive(Deserialize)]
struct Command {
    rank: u32,
}

#[derive(Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Expect {
    AllPass,
    FailFast {
        inject: String,
        victim: u32,
        within_ms: Option<f64>,
    },
    #[serde(other)]
    Unknown,
}

type Steps<'a> = BTreeMap<(&'a str, &'a str), &'a Step>;

/// The plan must be the run's, and the record must have planned and begun what it lists.
pub(super) fn check(dir: &Path, read: &Read, report: &mut Report) {
    let bytes = match files::read(&report.path(dir, PLAN)) {
        Ok(bytes) => bytes,
        Err(e) => return report.unreadable(PLAN, &e),
    };
    let (hash, run) = (files::sha256(&bytes), &read.whole.plan_sha256);
    if hash != *run {
        return report.broken(PLAN, format!("its SHA-256 is {hash}, the run had plan {run}"));
    }
    let plan: Plan = match serde_json::from_slice(&bytes) {
        Ok(plan) => plan,
        Err(e) => {
            let value: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            match value["schema"].as_u64() {
                Some(newer) if newer > SCHEMA => report.notes.push(format!(
                    "{PLAN} has schema {newer}; this program knows {SCHEMA} and does not compare its steps"
                )),
                _ => report.broken(PLAN, format!("is no plan: {e}")),
            }
            return;
        }
    };
    let Some(arms) = &plan.arms else {
        report
            .notes
            .push(format!("{PLAN} lists no arms, so its steps are not compared"));
        return;
    };
    let count: usize = arms.iter().map(|arm| arm.steps.len()).sum();
    let steps: Steps<'_> = arms
        .iter()
        .flat_map(|arm| {
            arm.steps
                .iter()
                .map(|s| ((arm.name.as_str(), s.name.as_str()), s))
        })
        .collect();
    let mut wrong = Vec::new();
    if steps.len() < count {
        wrong.push("it lists a step twice".to_owned());
    }
    planned(&steps, read, &mut wrong);
    for start in &read.steps {
        begun(&steps, start, &mut wrong);
    }
    name_some(PLAN, wrong, report);
}

/// The steps of the record's first line, against those of the plan.
fn planned(steps: &Steps<'_>, read: &Read, wrong: &mut Vec<String>) {
    let recorded: BTreeSet<(&str, &str)> = read
        .planned
        .iter()
        .map(|p| (p.arm.as_str(), p.step.as_str()))
        .collect();
    for (arm, step) in steps.keys().filter(|key| !recorded.contains(*key)) {
        wrong.push(format!("it lists {arm}/{step}, and the record did not plan it"));
    }
    for (arm, step) in recorded.iter().filter(|key| !steps.contains_key(*key)) {
        wrong.push(format!("it does not list {arm}/{step}, which the record planned"));
    }
}

/// An attempt as it began, against its step of the plan.
fn begun(steps: &Steps<'_>, start: &StepStart, wrong: &mut Vec<String>) {
    let key = &start.key;
    let Some(step) = steps.get(&(key.arm.as_str(), key.step.as_str())) else {
        wrong.push(format!("it does not list {key}, which the record began"));
        return;
    };
    if let Some(scope) = step.scope.as_ref().filter(|s| *s != start.scope.as_str()) {
        wrong.push(format!(
            "its scope of {key} is {scope}, the record's {}",
            start.scope
        ));
    }
    let listed: BTreeSet<u32> = step.commands.iter().map(|c| c.rank).collect();
    let ranks: BTreeSet<u32> = start.ranks.iter().map(|r| r.rank).collect();
    if !listed.is_empty() && listed != ranks {
        wrong.push(format!(
            "its ranks of {key} are {listed:?}, the record's {ranks:?}"
        ));
    }
    for rank in &start.ranks {
        let Some((exits, signals)) = step.expect.as_ref().and_then(|e| end_of(e, rank.rank)) else {
            continue;
        };
        if ends(rank) != (exits.clone(), signals.clone()) {
            wrong.push(format!(
                "by it rank {} of {key} is to end with {}, by the record with {}",
                rank.rank,
                words(&exits, &signals),
                words(&rank.exits, &rank.signals)
            ));
        }
    }
    let within = match &step.expect {
        Some(Expect::FailFast { within_ms, .. }) => *within_ms,
        _ => None,
    };
    if within.is_some() && within != start.exit_within_ms {
        wrong.push(format!(
            "its limit for those who survive in {key} is {} ms, the record's {}",
            within.unwrap_or_default(),
            start
                .exit_within_ms
                .map_or("none".to_owned(), |ms| format!("{ms} ms"))
        ));
    }
}

/// The exit codes and signals with which a rank is to end.
fn end_of(expect: &Expect, rank: u32) -> Option<(Vec<i32>, Vec<i32>)> {
    match expect {
        Expect::AllPass => Some((vec![0], vec![])),
        Expect::FailFast { inject, victim, .. } if *victim == rank && inject != "fatal" => {
            Some((vec![], vec![SIGKILL]))
        }
        Expect::FailFast { .. } => Some((vec![LOST], vec![])),
        Expect::Unknown => None,
    }
}

/// The same as the record has it, where none at all means 0.
fn ends(rank: &RankStart) -> (Vec<i32>, Vec<i32>) {
    if rank.exits.is_empty() && rank.signals.is_empty() {
        return (vec![0], vec![]);
    }
    (rank.exits.clone(), rank.signals.clone())
}

fn words(exits: &[i32], signals: &[i32]) -> String {
    let exits = exits.iter().map(|code| format!("exit {code}"));
    let all: Vec<String> = exits
        .chain(signals.iter().map(|signal| format!("signal {signal}")))
        .collect();
    if all.is_empty() {
        "exit 0".into()
    } else {
        all.join(" or ")
    }
}
