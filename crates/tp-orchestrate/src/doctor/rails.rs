//! The rails that the hosts' ports would make, and what both ends of each look like.

use super::ask::Answer;
use super::{Finding, Level};
use crate::exec::of_hosts;
use crate::inventory::{Inventory, Launcher};
use serde::Serialize;
use std::net::IpAddr;
use tp_hca::document::RailPick;
use tp_hca::facts::Port;
use tp_hca::{Document, Options, PickDocument, RankFacts, WarningCode};
use tp_receipt::doctor::Look;

/// One rail from both ends; `None` where a host does not say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RailEnds {
    /// The lower rank and the higher.
    pub ranks: [u32; 2],
    /// Their hosts.
    pub hosts: [String; 2],
    /// Device and port, `rocep1s0f1/1`.
    pub ports: [String; 2],
    /// Addresses on the rail.
    pub addresses: [String; 2],
    /// MTU of the network interfaces, bytes.
    pub mtu: [Option<u32>; 2],
    /// MTU of RDMA packets, bytes; a connection takes the smaller.
    pub active_mtu: [Option<u32>; 2],
    /// Speed, Gbit/s.
    pub speed_gbps: [Option<f64>; 2],
}

#[derive(Default)]
pub(super) struct Picked {
    pub rails: Vec<RailEnds>,
    pub findings: Vec<Finding>,
    pub not_tested: Vec<String>,
    /// Rank 0's address on its first rail.
    pub address: Option<String>,
}

/// Picks on the facts of every host.
pub(super) fn pick(inventory: &Inventory, answers: &[Answer]) -> Picked {
    let mut picked = Picked::default();
    if inventory.world() < 2 || inventory.hosts.len() < 2 {
        return picked;
    }
    let Some(document) = document(inventory, answers) else {
        picked
            .not_tested
            .push("rails: not every host said which ports it has".to_owned());
        return picked;
    };
    let ports = document.ranks.iter().map(|rank| rank.ports.len()).sum::<usize>();
    if inventory.launcher == Launcher::Local || ports == 0 {
        let why = if ports == 0 {
            "no host has an RDMA port"
        } else {
            "the ranks are on one machine"
        };
        picked.not_tested.push(format!("rails: {why}"));
        return picked;
    }
    let pick = tp_hca::pick(&document, &Options::default());
    picked.not_tested.push(
        "rails by an RDMA write: the pick is by subnet and route; the `hca` step of a run says what was probed".to_owned(),
    );
    if let Some(error) = &pick.error {
        picked
            .findings
            .push(Finding::new(Level::Bad, "rails", error.to_string()).fix(
            "tp-orchestrate hca shows every port and why it was left out; compare addresses with the cabling",
        ));
    }
    let first = pick.rank(0).and_then(|rank| rank.rails.first());
    picked.address = first.map(|rail| rail.address.clone());
    picked.findings.extend(warnings(inventory, &pick));
    picked.rails = ends(inventory, answers, &document, &pick);
    for rail in &picked.rails {
        picked.findings.extend(of_rail(rail));
    }
    picked.findings.extend(wanted_mtu(inventory, &picked.rails));
    picked.findings.extend(transit(inventory, answers, &document));
    picked
}

/// One entry a rank, each with its host's facts and name.
pub(super) fn document(inventory: &Inventory, answers: &[Answer]) -> Option<Document> {
    let told = answers
        .iter()
        .map(|answer| Some(answer.report.as_ref()?.facts.as_str()));
    of_hosts(inventory, told)
}

/// What the pick warns about, once for each host.
fn warnings(inventory: &Inventory, pick: &PickDocument) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for rank in &pick.ranks {
        let Some(host) = inventory.host_of(rank.rank) else {
            continue;
        };
        // That nothing was probed is said once, among what was not tested; the MTUs with both ends of each rail.
        let said = [WarningCode::Unprobed, WarningCode::MtuMismatch];
        let told = rank.warnings.iter().filter(|w| !said.contains(&w.code));
        for warning in told {
            let finding = Finding::new(Level::Warn, warning.code.as_str(), &warning.text).on(&host.name);
            if !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found
}

fn ends(
    inventory: &Inventory,
    answers: &[Answer],
    document: &Document,
    pick: &PickDocument,
) -> Vec<RailEnds> {
    let mut rails: Vec<RailEnds> = Vec::new();
    for rank in &pick.ranks {
        for rail in rank.rails.iter().filter(|rail| rank.rank < rail.peer) {
            let Some(ends) = rail_ends(inventory, answers, document, pick, rank.rank, rail) else {
                continue;
            };
            // Ranks of the same two hosts share their rails.
            if !rails
                .iter()
                .any(|other| other.hosts == ends.hosts && other.ports == ends.ports)
            {
                rails.push(ends);
            }
        }
    }
    rails
}

fn rail_ends(
    inventory: &Inventory,
    answers: &[Answer],
    document: &Document,
    pick: &PickDocument,
    rank: u32,
    rail: &RailPick,
) -> Option<RailEnds> {
    let sides = [
        (rank, rail.device.as_str(), rail.port.0),
        (rail.peer, rail.peer_device.as_str(), rail.peer_port.0),
    ];
    let port = |(rank, device, number): (u32, &str, u32)| -> Option<&Port> {
        let facts = document.ranks.iter().find(|facts| facts.rank == rank)?;
        facts
            .ports
            .iter()
            .find(|p| p.device == device && p.port.0 == number)
    };
    let host = |(rank, ..): (u32, &str, u32)| inventory.host_of(rank).map(|h| h.name.clone());
    let look = |side: (u32, &str, u32)| -> Option<&Look> {
        let name = host(side)?;
        let report = answers.iter().find(|a| a.name == name)?.report.as_ref()?;
        report
            .ports
            .iter()
            .find(|l| l.device == side.1 && l.port == side.2)
    };
    let back = pick
        .rank(rail.peer)?
        .rails
        .iter()
        .find(|r| r.peer == rank && r.device == rail.peer_device && r.peer_device == rail.device);
    Some(RailEnds {
        ranks: [rank, rail.peer],
        hosts: [host(sides[0])?, host(sides[1])?],
        ports: sides.map(|(_, device, port)| format!("{device}/{port}")),
        addresses: [
            rail.address.clone(),
            back.map_or_else(String::new, |back| back.address.clone()),
        ],
        mtu: sides.map(|side| look(side).and_then(|l| l.netdev_mtu)),
        active_mtu: sides.map(|side| port(side).and_then(|p| p.active_mtu)),
        speed_gbps: sides.map(|side| port(side).and_then(|p| p.speed_gbps)),
    })
}

/// The two ends of a rail ought to be alike.
fn of_rail(rail: &RailEnds) -> Vec<Finding> {
    let name = format!(
        "{} {} to {} {}",
        rail.hosts[0], rail.ports[0], rail.hosts[1], rail.ports[1]
    );
    let mut found = Vec::new();
    if let [Some(a), Some(b)] = rail.mtu
        && a != b
    {
        found.push(
            Finding::new(Level::Bad, "rail MTU", format!("{name}: the interfaces have {a} and {b} B"))
                .fix("give both ends one MTU, and so that it stays after a reboot: packets beyond the smaller one are lost"),
        );
    }
    if let [Some(a), Some(b)] = rail.active_mtu
        && a != b
    {
        found.push(
            Finding::new(
                Level::Warn,
                "rail MTU",
                format!(
                    "{name}: RDMA packets of {a} and {b} B; connections take {} B",
                    a.min(b)
                ),
            )
            .fix("raise the MTU of the interface with the smaller one"),
        );
    }
    if let [Some(a), Some(b)] = rail.speed_gbps
        && (a - b).abs() > f64::EPSILON * a.abs().max(1.0)
    {
        found.push(
            Finding::new(Level::Warn, "rail speed", format!("{name}: {a} and {b} Gbit/s"))
                .fix("look at the cable and at ethtool on both ends: the slower one decides"),
        );
    }
    found
}

/// The MTU that the inventory wants of the picked ports.
fn wanted_mtu(inventory: &Inventory, rails: &[RailEnds]) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for rail in rails {
        for side in 0..2 {
            let host = inventory.hosts.iter().find(|h| h.name == rail.hosts[side]);
            let (Some(wanted), Some(live)) = (host.and_then(|h| h.mtu), rail.mtu[side]) else {
                continue;
            };
            let text = format!(
                "{}: the inventory says MTU {wanted} B, the interface has {live} B",
                rail.ports[side]
            );
            let finding = Finding::new(Level::Bad, "mtu", text)
                .on(&rail.hosts[side])
                .fix("set it again on the host: updates of firmware and reboots reset what is not kept by netplan or nmcli");
            if wanted != live && !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found
}

/// Hosts that forward for others must do so: only they are looked at for it.
fn transit(inventory: &Inventory, answers: &[Answer], document: &Document) -> Vec<Finding> {
    let address_of = |facts: &RankFacts, ip: IpAddr| {
        facts
            .addresses
            .iter()
            .any(|a| a.address.is_some_and(|a| a.ip == ip))
    };
    let mut found: Vec<Finding> = Vec::new();
    for from in &document.ranks {
        for route in &from.routes {
            let (Some(via), Some(to)) = (route.via, route.destination) else {
                continue;
            };
            let owner = document
                .ranks
                .iter()
                .find(|facts| facts.rank != from.rank && address_of(facts, via));
            let Some(owner) = owner.and_then(|facts| inventory.host_of(facts.rank)) else {
                continue;
            };
            // Only a route to another host of the run makes the owner a relay of the run.
            let leads = document.ranks.iter().any(|facts| {
                inventory
                    .host_of(facts.rank)
                    .is_some_and(|h| h.name != owner.name)
                    && facts.rank != from.rank
                    && address_of(facts, to.ip)
            });
            if !leads {
                continue;
            }
            let Some(report) = answers
                .iter()
                .find(|a| a.name == owner.name)
                .and_then(|a| a.report.as_ref())
            else {
                continue;
            };
            let why = match (report.host.forwards, report.host.forward_policy.as_deref()) {
                (Some(false), _) => "it does not forward (net.ipv4.ip_forward is 0)",
                (_, Some("DROP" | "REJECT")) => "its FORWARD policy is DROP, as Docker sets it",
                _ => continue,
            };
            let finding = Finding::new(Level::Bad, "relay", format!("other hosts are routed over it and {why}"))
                .on(&owner.name)
                .fix("sysctl net.ipv4.ip_forward=1, and accept the fabric's subnets in FORWARD (DOCKER-USER where Docker runs)");
            if !found.contains(&finding) {
                found.push(finding);
            }
        }
    }
    found
}
