//! `doctor`: every host at once, looked at and not changed, each finding with what would mend it.
//!
//! `ask` gathers what the hosts say, `compare` and `rails` hold it against the inventory and against each other,
//! `smoke` ends with one real collective. What was not tried is said.

mod ask;
mod compare;
mod rails;
mod render;
mod smoke;

pub use ask::{Answer, Clock};
pub use rails::RailEnds;

use crate::host::Host;
use crate::inventory::{Inventory, Launcher};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tp_receipt::doctor::Report as HostReport;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// A run will fail, or run on something else than was meant.
    Bad,
    /// A run may be slow or fail.
    Warn,
    /// Worth knowing.
    Note,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The host; none where it concerns several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// How much it matters.
    pub level: Level,
    /// Stable name.
    pub name: String,
    /// What was found, one line.
    pub text: String,
    /// What would mend it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Finding {
    fn new(level: Level, name: &str, text: impl Into<String>) -> Self {
        Self {
            host: None,
            level,
            name: name.to_owned(),
            text: text.into(),
            fix: None,
        }
    }

    fn on(self, host: &str) -> Self {
        Self {
            host: Some(host.to_owned()),
            ..self
        }
    }

    fn fix(self, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..self
        }
    }
}

/// One attempt to reach rank 0's host from another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reached {
    /// From here.
    pub from: String,
    /// To this host.
    pub host: String,
    /// `ADDRESS:PORT`.
    pub to: String,
    /// `open`, `refused`, `filtered`, `no-route`, `unknown-name`, `failed`.
    pub outcome: String,
    /// The same for people.
    pub text: String,
}

/// A real collective that was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Collective {
    /// The backend.
    pub backend: String,
    /// Whether every rank ended well.
    pub passed: bool,
    /// What came out.
    pub text: String,
    /// How long it took from the first start to the last end, milliseconds.
    pub ms: u64,
}

/// Everything that `doctor` tells; `--json` prints it as it is.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Version of this document.
    pub schema: u32,
    /// Whether nothing was found that must be mended.
    pub ok: bool,
    /// The exit code.
    pub exit: u8,
    /// What each host said, in the order of the inventory.
    pub hosts: Vec<Answer>,
    /// What was found, what must be mended first.
    pub findings: Vec<Finding>,
    /// Both ends of every rail.
    pub rails: Vec<RailEnds>,
    /// Whether rank 0's host can be reached.
    pub reach: Vec<Reached>,
    /// The collectives that were run.
    pub collectives: Vec<Collective>,
    /// What was not tried, and why.
    pub not_tested: Vec<String>,
}

/// Hosts by name; where one could not be connected to, why.
pub type Hosts = BTreeMap<String, Result<Arc<dyn Host>, crate::Error>>;

/// Looks at every host of the inventory. `collective` says whether the ranks are to meet at the end.
pub fn examine(inventory: &Inventory, hosts: &Hosts, collective: bool) -> Report {
    let mut answers = ask::all(inventory, hosts);
    let mut findings = compare::findings(inventory, &answers);
    let picked = rails::pick(inventory, &answers);
    findings.extend(picked.findings);
    let mut not_tested = picked.not_tested;
    let whole = answers.iter().all(|answer| answer.report.is_some());
    let master = master(inventory, hosts, picked.address.as_deref());
    let reach = match &master {
        Some(master) if whole && inventory.hosts.len() > 1 && inventory.launcher != Launcher::Local => {
            ask::reach(inventory, hosts, &answers, master)
        }
        _ => Vec::new(),
    };
    findings.extend(reach.iter().filter_map(unreachable));
    let mut collectives = Vec::new();
    match (collective, whole, &master) {
        (false, ..) => not_tested.push("any collective: --no-collective was given".to_owned()),
        (true, false, _) => {
            not_tested.push("any collective: not every host could be looked at".to_owned());
        }
        (true, true, None) => not_tested.push(
            "any collective: no address of rank 0's host is known; give `fabric` in the inventory".to_owned(),
        ),
        (true, true, Some(master)) => {
            collectives = smoke::run(inventory, hosts, &answers, master, &mut not_tested);
        }
    }
    findings.extend(collectives.iter().filter(|c| !c.passed).map(|c| {
        Finding::new(Level::Bad, "collective", format!("{} backend: {}", c.backend, c.text))
            .fix("look at the findings above first; then tp-orchestrate run with --steps roce-host for the whole log")
    }));
    findings.sort_by_key(|finding| finding.level);
    for answer in &mut answers {
        answer.forget_facts();
    }
    let exit = exit_code(&findings, whole);
    Report {
        schema: 1,
        ok: exit == crate::exit_code::PASSED,
        exit,
        hosts: answers,
        findings,
        rails: picked.rails,
        reach,
        collectives,
        not_tested,
    }
}

/// 3 where a host could not be looked at, 1 where something must be mended, else 0.
fn exit_code(findings: &[Finding], whole: bool) -> u8 {
    if !whole {
        crate::exit_code::REFUSED
    } else if findings.iter().any(|finding| finding.level == Level::Bad) {
        crate::exit_code::FAILED
    } else {
        crate::exit_code::PASSED
    }
}

/// The facts of every rank as its host tells them now.
///
/// # Errors
/// Refused: a host that cannot be looked at, by name.
pub fn facts(inventory: &Inventory, hosts: &Hosts) -> Result<tp_hca::Document, crate::Error> {
    let answers = ask::all(inventory, hosts);
    for answer in &answers {
        if let Some(error) = &answer.error {
            return Err(crate::Error::Refused(format!("host {}: {error}", answer.name)));
        }
    }
    rails::document(inventory, &answers).ok_or_else(|| {
        crate::Error::Refused("the hosts' facts cannot be read: are all runners of one version?".to_owned())
    })
}

/// Where the other ranks would reach rank 0: as the inventory says, else as the pick does, else at the address at which its
/// host is controlled; on one machine loopback.
fn master(inventory: &Inventory, hosts: &Hosts, picked: Option<&str>) -> Option<String> {
    let head = inventory.host_of(0)?;
    if let Some(fabric) = &head.fabric {
        return Some(fabric.clone());
    }
    match inventory.launcher {
        Launcher::Local => Some("127.0.0.1".to_owned()),
        _ if inventory.hosts.len() == 1 => Some("127.0.0.1".to_owned()),
        // Slurm's names of nodes are names of hosts.
        Launcher::Slurm => Some(picked.map_or_else(|| head.name.clone(), str::to_owned)),
        Launcher::Ssh => picked.map(str::to_owned).or_else(|| {
            let host = hosts.get(&head.name)?.as_ref().ok()?;
            host.control_address().map(|address| address.to_string())
        }),
    }
}

fn unreachable(reached: &Reached) -> Option<Finding> {
    let finding = |text: String| Finding::new(Level::Bad, "reach", text).on(&reached.from);
    let text = format!("{} of host {}: {}", reached.to, reached.host, reached.text);
    match reached.outcome.as_str() {
        "open" | "refused" => None,
        "filtered" => Some(finding(text).fix(format!(
            "a firewall drops packets to {}: open TCP ports between the hosts (ufw, nftables, security groups)",
            reached.host
        ))),
        "no-route" => Some(finding(text).fix(format!(
            "look at `ip route get {}` on {}, at cables, and at `fabric` of the inventory",
            reached.to.rsplit_once(':').map_or(reached.to.as_str(), |(host, _)| host),
            reached.from
        ))),
        "unknown-name" => Some(finding(text).fix("give `fabric` as an address, or put the name into /etc/hosts there")),
        _ => Some(finding(text).fix("look at the address in `fabric`")),
    }
}

impl Report {
    /// The report for people; `all` also shows what is well.
    pub fn text(&self, all: bool) -> String {
        render::text(self, all)
    }
}

#[cfg(test)]
mod tests;
