//! What a person should know although the pick stands.

use crate::code::WarningCode;
use crate::document::{By, Warning};
use crate::facts::{PortKind, PortState};
use crate::pick::host::Host;
use crate::pick::pair::{Family, Side};
use crate::pick::reasons::unusable_partner;
use crate::pick::world::{World, ends, same_host};
use std::collections::{BTreeMap, BTreeSet};

/// Adds the warnings of one rank that its rails and ports give cause for.
pub(crate) fn of_rank(world: &World<'_>, index: usize, warnings: &mut Vec<Warning>) {
    let mut add = |code, text: String| warnings.push(Warning { code, text });
    duplicate_subnets(world, index, &mut add);
    rails(world, index, &mut add);
    cables(world, index, &mut add);
    ports(world, index, &mut add);
    others_variables(world, index, &mut add);
    let host = &world.hosts[index];
    let together: Vec<String> = (0..world.hosts.len())
        .filter(|&other| other != index && same_host(host, &world.hosts[other]))
        .map(|other| world.hosts[other].rank().to_string())
        .collect();
    if !together.is_empty() {
        let text = format!(
            "on one host with rank {}: no rail is needed there",
            together.join(", ")
        );
        add(WarningCode::SameHost, text);
    }
    if world.families.len() > 1 {
        let text =
            "some pairs of ranks share only IPv4 and others only IPv6; give all fabric ports one family";
        add(WarningCode::MixedFamilies, text.to_owned());
    }
}

/// Ports of this host in one subnet that a rail uses.
fn duplicate_subnets(world: &World<'_>, index: usize, add: &mut impl FnMut(WarningCode, String)) {
    let host = &world.hosts[index];
    let in_use: BTreeSet<ipnet::IpNet> = world
        .endpoints_in_use(index)
        .into_iter()
        .filter_map(|endpoint| host.endpoints[endpoint].subnet())
        .collect();
    for &family in &world.families {
        let side = Side::new(host, None, family);
        for (net, ports) in side.shared_subnets().filter(|(net, _)| in_use.contains(net)) {
            let mut names: Vec<String> = ports.iter().map(|&port| host.name(port)).collect();
            names.sort();
            let text = format!(
                "{} are all in {net}: addresses cannot tell their rails apart and ARP may answer on the wrong port; rails \
                 pair in address order; give each rail its own subnet",
                names.join(" and ")
            );
            add(WarningCode::DuplicateSubnet, text);
        }
    }
}

fn rails(world: &World<'_>, index: usize, add: &mut impl FnMut(WarningCode, String)) {
    let mut unprobed = 0;
    let mut total = 0;
    for (pair, own, other) in world.pairs_of(index) {
        let mut speeds = BTreeMap::new();
        for rail in &pair.rails {
            let (mine, theirs) = ends(pair, rail, index);
            let (mine, theirs) = (own.endpoints[mine].port, other.endpoints[theirs].port);
            let (port, peer) = (&own.facts.ports[mine], &other.facts.ports[theirs]);
            let between = || {
                format!(
                    "{} and rank {}'s {}",
                    own.name(mine),
                    other.rank(),
                    other.name(theirs)
                )
            };
            if let (Some(a), Some(b)) = (port.active_mtu, peer.active_mtu)
                && a != b
            {
                let text = format!(
                    "{} have active MTU {a} and {b}: the rail uses {}",
                    between(),
                    a.min(b)
                );
                add(WarningCode::MtuMismatch, text);
            }
            if let (Some(a), Some(b)) = (port.speed_gbps, peer.speed_gbps)
                && a != b
            {
                let text = format!(
                    "{} run at {a} and {b} Gbit/s: the slower one sets the pace",
                    between()
                );
                add(WarningCode::SpeedMismatch, text);
            }
            if let Some(speed) = port.speed_gbps {
                speeds
                    .entry(speed.to_bits())
                    .or_insert_with(|| (speed, own.name(mine)));
            }
            if rail.by == By::Explicit {
                let text = format!(
                    "nothing is known of the way between {} but that both are named",
                    between()
                );
                add(WarningCode::UnknownFact, text);
            }
            total += 1;
            unprobed += usize::from(!rail.probed);
        }
        if speeds.len() > 1 {
            let list: Vec<String> = speeds
                .into_values()
                .map(|(speed, name)| format!("{name} {speed} Gbit/s"))
                .collect();
            let text = format!(
                "rails to rank {} run at different speeds: {}",
                other.rank(),
                list.join(", ")
            );
            add(WarningCode::SpeedMismatch, text);
        }
    }
    if unprobed > 0 {
        let text = format!(
            "{unprobed} of {total} rails rest on addresses and routes: no RDMA write has crossed them yet"
        );
        add(WarningCode::Unprobed, text);
    }
}

/// Cages with two PCIe functions, and bonds.
fn cables(world: &World<'_>, index: usize, add: &mut impl FnMut(WarningCode, String)) {
    for (pair, own, other) in world.pairs_of(index) {
        let ports: Vec<usize> = pair
            .rails
            .iter()
            .map(|rail| own.endpoints[ends(pair, rail, index).0].port)
            .collect();
        for (position, &port) in ports.iter().enumerate() {
            if let Some(&twin) = ports[..position]
                .iter()
                .find(|&&before| one_cage(own, before, port))
            {
                let text = format!(
                    "{} and {} are two functions of one cable to rank {}: they share its bandwidth",
                    own.name(twin),
                    own.name(port),
                    other.rank()
                );
                add(WarningCode::SharedCable, text);
            }
        }
        if let [port] = ports[..]
            && own.facts.ports[port].kind == Some(PortKind::Bond)
        {
            let text = format!(
                "{} is a bond: one rail to rank {}, whatever ports are in it",
                own.name(port),
                other.rank()
            );
            add(WarningCode::SingleRail, text);
        }
    }
    let chosen = world.chosen(index);
    let host = &world.hosts[index];
    for twin in (0..host.facts.ports.len()).filter(|twin| !chosen.contains(twin)) {
        let up = host.facts.ports[twin].state == Some(PortState::Active);
        if let Some(&port) = chosen.iter().find(|&&port| up && one_cage(host, port, twin)) {
            let why = host.ports[twin]
                .refusal()
                .map_or("no rail uses it", |refusal| refusal.text.as_str());
            let text = format!(
                "{} is the other function of the cable of {} and not used ({why}): one alone does not carry the full rate",
                host.name(twin),
                host.name(port)
            );
            add(WarningCode::TwinUnused, text);
        }
    }
}

/// Whether two ports are functions of one physical port: same port label, and the same bus and function in another PCI
/// domain. Known only where both say so.
fn one_cage(host: &Host<'_>, a: usize, b: usize) -> bool {
    let (a, b) = (&host.facts.ports[a], &host.facts.ports[b]);
    let slot = |pci: &Option<String>| {
        pci.as_deref()
            .and_then(|pci| pci.split_once(':'))
            .map(|(_, slot)| slot.to_owned())
    };
    a.device != b.device
        && a.phys_port.is_some()
        && a.phys_port == b.phys_port
        && a.pci != b.pci
        && slot(&a.pci).is_some()
        && slot(&a.pci) == slot(&b.pci)
}

fn ports(world: &World<'_>, index: usize, add: &mut impl FnMut(WarningCode, String)) {
    let (host, chosen) = (&world.hosts[index], world.chosen(index));
    for &port in &chosen {
        if host.is_soft(port) {
            let text = format!(
                "{} is a software RDMA device: its figures say nothing about hardware",
                host.name(port)
            );
            add(WarningCode::SoftDevice, text);
        }
        if host.facts.ports[port].carrier.is_none() {
            let text = format!(
                "carrier of {} not known: taken as up since the port is ACTIVE",
                host.name(port)
            );
            add(WarningCode::UnknownFact, text);
        }
    }
    for (port, view) in host
        .ports
        .iter()
        .enumerate()
        .filter(|(_, view)| view.link.is_none())
    {
        let link_local = view
            .endpoints
            .iter()
            .all(|&endpoint| host.endpoints[endpoint].link_local);
        if !view.endpoints.is_empty() && link_local && !world.selections[index].pins.contains_key(&port) {
            add(
                WarningCode::LinkLocal,
                format!(
                    "{} has link-local addresses only and is left out",
                    host.name(port)
                ),
            );
        }
    }
    for port in (0..host.ports.len()).filter(|port| !chosen.contains(port)) {
        let ready = host.ports[port].refusal().is_none() && world.selections[index].allows(port);
        if let Some(partner) = ready.then(|| unusable_partner(world, index, port)).flatten() {
            add(
                WarningCode::LostRail,
                format!(
                    "{} has no rail to rank {}: {}",
                    host.name(port),
                    partner.rank,
                    partner.text()
                ),
            );
        }
    }
    for (port, view) in host.ports.iter().enumerate() {
        if let Some(refusal) = view
            .refusal()
            .filter(|refusal| refusal.code == crate::ErrorCode::UnknownFact)
        {
            add(
                WarningCode::UnknownFact,
                format!("{} is left out: {}", host.name(port), refusal.text),
            );
        }
    }
}

/// Ports that another rank's variable keeps out of the pick.
fn others_variables(world: &World<'_>, index: usize, add: &mut impl FnMut(WarningCode, String)) {
    for (port, peer) in left_out_by_peers(world, index) {
        let other = &world.selections[peer];
        let text = format!(
            "{} is left out: {} on rank {} leaves out its partner",
            world.hosts[index].name(port),
            other.variable(),
            world.hosts[peer].rank()
        );
        add(WarningCode::Disagree, text);
    }
}

/// Ports of this rank that its own variables allow, that would have a rail, and that another's variables leave without.
pub(crate) fn left_out_by_peers(world: &World<'_>, index: usize) -> BTreeMap<usize, usize> {
    let host = &world.hosts[index];
    let chosen = world.chosen(index);
    let mut found = BTreeMap::new();
    for (pair, _, _) in world.pairs_of(index) {
        let peer = if pair.low == index { pair.high } else { pair.low };
        for rail in pair.unrestricted.iter().flatten() {
            let (mine, theirs) = ends(pair, rail, index);
            let (port, partner) = (
                host.endpoints[mine].port,
                world.hosts[peer].endpoints[theirs].port,
            );
            let limited = pair
                .beyond_limit
                .iter()
                .any(|rail| host.endpoints[ends(pair, rail, index).0].port == port);
            if !chosen.contains(&port)
                && !limited
                && world.selections[index].allows(port)
                && !world.selections[peer].allows(partner)
            {
                found.entry(port).or_insert(peer);
            }
        }
    }
    found
}

/// Whether a rank's rails are IPv6.
pub(crate) fn is_v6(world: &World<'_>) -> bool {
    world.families.contains(&Family::V6)
}
