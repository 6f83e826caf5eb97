//! Why each port was taken or not, and why there is no pick, in words a person can act on.

use crate::code::ErrorCode;
use crate::document::{By, Mode, PickError, PortPick};
use crate::facts::{IfAddr, RankFacts};
use crate::grammar::{nccl, roce};
use crate::pick::Probe;
use crate::pick::host::{Class, Endpoint, Host, class};
use crate::pick::pair::Rail;
use crate::pick::select::{LIMIT, value};
use crate::pick::warn::left_out_by_peers;
use crate::pick::world::{Pair, World, ends};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// How many addresses or ports a message lists before it only counts them.
const LISTED: usize = 4;

/// Every port of a rank with what became of it, by device and port.
pub(crate) fn ports(world: &World<'_>, index: usize) -> Vec<PortPick> {
    let host = &world.hosts[index];
    let mut taken: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    let mut beyond: BTreeMap<usize, u32> = BTreeMap::new();
    for (pair, _, other) in world.pairs_of(index) {
        for rail in &pair.rails {
            let (mine, theirs) = ends(pair, rail, index);
            let how = how(&host.endpoints[mine], rail.by);
            let text = format!(
                "rail to rank {} ({}), {how}",
                other.rank(),
                other.name(other.endpoints[theirs].port)
            );
            taken.entry(host.endpoints[mine].port).or_default().push(text);
        }
        for rail in &pair.beyond_limit {
            beyond.insert(host.endpoints[ends(pair, rail, index).0].port, other.rank());
        }
    }
    let by_peers = left_out_by_peers(world, index);
    let named_not = |port: usize| !world.selections[index].allows(port);
    listed(host, |port| {
        if let Some(rails) = taken.get(&port) {
            return (true, format!("{}{}", some_of(rails, "; "), host.kind_note(port)));
        }
        let reason = if let Some(refusal) = host.ports[port].refusal() {
            refusal.text.clone()
        } else if named_not(port) {
            format!("not named by {}", world.selections[index].variable())
        } else if let Some(peer) = by_peers.get(&port) {
            let (variable, rank) = (world.selections[*peer].variable(), world.hosts[*peer].rank());
            format!("disagree: {variable} on rank {rank} leaves out its partner")
        } else if let Some(peer) = beyond.get(&port) {
            format!("{LIMIT} allows no further rail to rank {peer}")
        } else {
            idle(world, index, port)
        };
        (false, format!("{reason}{}", host.kind_note(port)))
    })
}

/// The ports of a rank where the pick ended before rails were looked for.
pub(crate) fn ports_unpicked(host: &Host<'_>) -> Vec<PortPick> {
    listed(host, |port| {
        let reason = host.ports[port]
            .refusal()
            .map_or("usable; the pick ended before any rail was looked for", |r| {
                &r.text
            });
        (false, format!("{reason}{}", host.kind_note(port)))
    })
}

fn listed(host: &Host<'_>, say: impl Fn(usize) -> (bool, String)) -> Vec<PortPick> {
    let mut ports: Vec<PortPick> = host
        .facts
        .ports
        .iter()
        .enumerate()
        .map(|(index, port)| {
            let (chosen, reason) = say(index);
            PortPick {
                device: port.device.clone(),
                port: port.port,
                chosen,
                reason,
            }
        })
        .collect();
    ports.sort_by(|a, b| (&a.device, a.port).cmp(&(&b.device, b.port)));
    ports
}

fn how(endpoint: &Endpoint, by: By) -> String {
    let index = endpoint.gid_index;
    match (by, endpoint.subnet()) {
        (By::Subnet, Some(net)) => format!("by subnet {net}, GID {index} is {}", endpoint.ip),
        (By::Subnet, None) => format!("by subnet, GID {index} is {}", endpoint.ip),
        (By::Route, _) => format!("by route, GID {index} is {}", endpoint.ip),
        (By::Explicit, _) => format!("named at both ends, GID {index} is {}", endpoint.ip),
    }
}

/// Why a usable port that the variables allow has no rail.
fn idle(world: &World<'_>, index: usize, port: usize) -> String {
    let host = &world.hosts[index];
    if let Some(text) = failed_probe(world, index, port) {
        return text;
    }
    let endpoints: Vec<&Endpoint> = host.ports[port]
        .endpoints
        .iter()
        .map(|&e| &host.endpoints[e])
        .filter(|e| !e.link_local)
        .collect();
    if !crate::pick::warn::is_v6(world) && endpoints.iter().all(|endpoint| endpoint.ip.is_ipv6()) {
        return "IPv6 only, and the rails are IPv4: NCCL takes one family for all ports; give it an IPv4 address".into();
    }
    if let Some(partner) = unusable_partner(world, index, port) {
        return partner.text();
    }
    let peers = || {
        let others = world.pairs_of(index).map(|(_, _, other)| other);
        others.flat_map(|other| {
            let usable = |peer: &&Endpoint| !peer.link_local && other.ports[peer.port].refusal().is_none();
            other.endpoints.iter().filter(usable)
        })
    };
    for endpoint in &endpoints {
        let Some(net) = endpoint.subnet() else { continue };
        let (mutual, own): (Vec<_>, Vec<_>) = peers()
            .filter(|peer| net.contains(&peer.ip))
            .partition(|peer| peer.subnet().is_some_and(|theirs| theirs.contains(&endpoint.ip)));
        if mutual.iter().any(|peer| peer.ip == endpoint.ip) {
            return format!("a peer has the same address {}: give each its own", endpoint.ip);
        }
        if !mutual.is_empty() {
            return format!(
                "{} shares its subnet with ports that have a rail already",
                with_len(endpoint)
            );
        }
        if let Some(peer) = own.first() {
            let (mine, theirs) = (with_len(endpoint), with_len(peer));
            return format!(
                "the prefix lengths of {mine} and a peer's {theirs} disagree about whether they share a subnet"
            );
        }
    }
    if let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.prefix_len.is_none()) {
        return format!(
            "prefix length of {} not known, and no route leads to a peer and back",
            endpoint.ip
        );
    }
    let nets: Vec<String> = endpoints.iter().map(|endpoint| with_len(endpoint)).collect();
    match world.pairs_of(index).next() {
        Some(_) => format!("no peer shares a subnet or route with {}", some_of(&nets, ", ")),
        None => format!("no rank on another host to reach; has {}", some_of(&nets, ", ")),
    }
}

/// A port of a peer that shares this one's subnet and cannot be used.
pub(crate) struct Partner {
    /// Its rank.
    pub rank: u32,
    name: String,
    code: ErrorCode,
    why: String,
}

impl Partner {
    /// Why the port at this end is left without a rail.
    pub fn text(&self) -> String {
        let Self { rank, name, why, .. } = self;
        format!("its partner {name} on rank {rank} is not usable ({why})")
    }
}

/// What keeps a usable port from having a rail, where that is the state of the port at the other end: nothing there that
/// shares its subnet can be used.
pub(crate) fn unusable_partner(world: &World<'_>, index: usize, port: usize) -> Option<Partner> {
    let host = &world.hosts[index];
    let mut found = None;
    for &endpoint in &host.ports[port].endpoints {
        let endpoint = &host.endpoints[endpoint];
        let Some(net) = endpoint.subnet().filter(|_| !endpoint.link_local) else {
            continue;
        };
        for (_, _, other) in world.pairs_of(index) {
            for peer in other.endpoints.iter().filter(|peer| !peer.link_local) {
                let mutual = peer.subnet().is_some_and(|theirs| theirs.contains(&endpoint.ip));
                if !net.contains(&peer.ip) || !mutual || peer.ip == endpoint.ip {
                    continue;
                }
                let refusal = other.ports[peer.port].refusal()?;
                found.get_or_insert(Partner {
                    rank: other.rank(),
                    name: other.name(peer.port),
                    code: refusal.code,
                    why: refusal.text.clone(),
                });
            }
        }
    }
    found
}

fn failed_probe(world: &World<'_>, index: usize, port: usize) -> Option<String> {
    let host = &world.hosts[index];
    let facts = &host.facts.ports[port];
    world.probes.iter().find_map(|(key, probe)| {
        let (mine, other) = if key.low.rank == host.rank() {
            (&key.low, &key.high)
        } else {
            (&key.high, &key.low)
        };
        let is_mine = mine.rank == host.rank() && mine.device == facts.device && mine.port == facts.port;
        match probe {
            Probe::Failed(why) if is_mine => Some(format!(
                "probe to rank {} ({}:{}) failed: {why}",
                other.rank, other.device, other.port
            )),
            _ => None,
        }
    })
}

fn with_len(endpoint: &Endpoint) -> String {
    IfAddr {
        ip: endpoint.ip,
        prefix_len: endpoint.prefix_len,
    }
    .to_string()
}

fn some_of(items: &[String], separator: &str) -> String {
    let shown = items
        .iter()
        .take(LISTED)
        .cloned()
        .collect::<Vec<_>>()
        .join(separator);
    match items.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown}{separator}and {more} more"),
    }
}

/// Which variables are set, before they are understood.
pub(crate) fn mode_of(env: &BTreeMap<String, String>) -> Mode {
    match (value(env, roce::VARIABLE), value(env, nccl::VARIABLE)) {
        (None, None) => Mode::Auto,
        (Some(_), None) => Mode::Roce,
        (None, Some(_)) => Mode::Nccl,
        (Some(_), Some(_)) => Mode::Both,
    }
}

/// A host that has ports and not one that is usable.
fn no_usable_port(host: &Host<'_>) -> Option<PickError> {
    if host.ports.iter().any(|port| port.refusal().is_none()) {
        return None;
    }
    let place = host.facts.place();
    // The port that is nearest to being usable says what to mend.
    let nearness = |code: ErrorCode| match code {
        ErrorCode::NotOpenable => 0,
        ErrorCode::NoGid => 1,
        ErrorCode::SoftDevice => 2,
        ErrorCode::UnknownFact => 3,
        ErrorCode::PortDown => 4,
        _ => 5,
    };
    let refusals: Vec<_> = host.ports.iter().filter_map(|port| port.refusal()).collect();
    let code = refusals
        .iter()
        .map(|refusal| refusal.code)
        .min_by_key(|&code| nearness(code))?;
    let mut listed: Vec<String> = host
        .ports
        .iter()
        .enumerate()
        .filter_map(|(port, view)| Some(format!("{}: {}", host.name(port), view.refusal()?.text)))
        .collect();
    listed.sort();
    let what = if code == ErrorCode::PortDown {
        "no active RDMA port"
    } else {
        "no usable RDMA port"
    };
    Some(PickError::new(
        code,
        host.rank(),
        format!("{what} on {place}: {}", some_of(&listed, "; ")),
    ))
}

/// One refusal for all hosts that have nothing to offer, so that none is found only after another was mended. The first
/// one's code counts.
pub(crate) fn no_usable_ports(hosts: &[&Host<'_>]) -> Option<PickError> {
    let (bare, others): (Vec<&Host<'_>>, Vec<&Host<'_>>) =
        hosts.iter().partition(|host| host.ports.is_empty());
    let mut errors: Vec<PickError> = others.iter().filter_map(|host| no_usable_port(host)).collect();
    if let Some(first) = bare.first() {
        let places: BTreeSet<String> = bare.iter().map(|host| host.facts.place()).collect();
        let places: Vec<String> = places.into_iter().collect();
        let have = if places.len() == 1 { "has" } else { "have" };
        let text = format!(
            "{} {have} no RDMA port; run where /sys/class/infiniband lists one, or use NCCL alone",
            some_of(&places, " and ")
        );
        errors.push(PickError::new(ErrorCode::NoPort, first.rank(), text));
    }
    errors.sort_by_key(|error| error.rank);
    let mut texts: Vec<String> = errors.iter().map(|error| error.text.clone()).collect();
    texts.dedup();
    let first = errors.into_iter().next()?;
    Some(PickError::new(first.code, first.rank, some_of(&texts, "; and ")))
}

/// A pair without a rail.
pub(crate) fn no_rail(world: &World<'_>, pair: &Pair) -> PickError {
    let (low, high) = (&world.hosts[pair.low], &world.hosts[pair.high]);
    if pair.unrestricted.as_ref().is_some_and(|rails| !rails.is_empty()) {
        return none_left(world, pair);
    }
    let failed = world.probes.iter().find_map(|(key, probe)| match probe {
        Probe::Failed(why) if key.low.rank == low.rank() && key.high.rank == high.rank() => Some(why),
        _ => None,
    });
    let probe = failed
        .map(|why| format!("; every probe failed ({why})"))
        .unwrap_or_default();
    let text = format!(
        "rank {} ({}) and rank {} ({}) share no rail{probe}: {}; {}; put a port of each into one subnet of its own, or give \
         each a route to the other's address over its port",
        low.rank(),
        low.facts.place(),
        high.rank(),
        high.facts.place(),
        has(world, pair.low),
        has(world, pair.high)
    );
    PickError::new(ErrorCode::NoSharedRail, low.rank(), text)
}

/// A pair that would have rails if no variable narrowed it.
fn none_left(world: &World<'_>, pair: &Pair) -> PickError {
    let ranks = [pair.low, pair.high];
    let narrowed: Vec<usize> = ranks
        .into_iter()
        .filter(|&index| world.selections[index].named.is_some())
        .collect();
    let names = |&index: &usize| {
        let ports: Vec<String> = named(world, index);
        let variable = world.selections[index].variable();
        let rank = world.hosts[index].rank();
        format!("{variable} on rank {rank} names {}", some_of(&ports, ", "))
    };
    let said: Vec<String> = narrowed.iter().map(names).collect();
    // A list without a single port that reaches the peer is wrong whatever the other end says.
    let astray: Vec<String> = narrowed
        .iter()
        .filter_map(|&index| {
            let open = open_ports(world, pair, index);
            let reaches = open.iter().any(|&port| world.selections[index].allows(port));
            let rank = world.hosts[index].rank();
            let list = world.selections[index].list(&world.hosts[index], &open);
            (!reaches).then(|| format!("on rank {rank} write {list}, or unset it"))
        })
        .collect();
    let (low, high) = (world.hosts[pair.low].rank(), world.hosts[pair.high].rank());
    let fix = match (link_local_pins(world, &narrowed), astray.is_empty()) {
        (Some(pins), _) => pins,
        (None, true) => "name both ends of the same rails".to_owned(),
        (None, false) => format!("it reaches no port of the other rank; {}", astray.join("; ")),
    };
    let text = format!(
        "ranks {low} and {high} have rails, and none is left by the variables: {}; {fix}",
        said.join(", ")
    );
    let at = narrowed.first().map_or(low, |&index| world.hosts[index].rank());
    PickError::new(ErrorCode::Disagree, at, text)
}

/// What to do about pinned GIDs that are link-local: `:1` was perhaps meant for a port.
fn link_local_pins(world: &World<'_>, narrowed: &[usize]) -> Option<String> {
    narrowed.iter().find_map(|&index| {
        let (host, selection) = (&world.hosts[index], &world.selections[index]);
        let (&port, pin) = selection.pins.iter().find(|&(&port, pin)| {
            let mut own = host.ports[port].endpoints.iter().map(|&at| &host.endpoints[at]);
            own.any(|endpoint| endpoint.gid_index == *pin && endpoint.link_local)
        })?;
        let named = selection.named.as_deref().unwrap_or_default();
        Some(format!(
            "`:{pin}` is a GID index here, no port, and GID {pin} of {} is link-local; on rank {} write {}",
            host.facts.ports[port].device,
            host.rank(),
            selection.list(host, named)
        ))
    })
}

/// The ports that a rank's variable names, as they are called.
fn named(world: &World<'_>, index: usize) -> Vec<String> {
    let named = world.selections[index].named.as_deref().unwrap_or_default();
    named.iter().map(|&port| world.hosts[index].name(port)).collect()
}

/// The ports of a rank that reach the other one where no variable narrows the pair, in rail order.
fn open_ports(world: &World<'_>, pair: &Pair, index: usize) -> Vec<usize> {
    let rails = pair.unrestricted.iter().flatten();
    rails
        .map(|rail| world.hosts[index].endpoints[ends(pair, rail, index).0].port)
        .collect()
}

fn has(world: &World<'_>, index: usize) -> String {
    let host = &world.hosts[index];
    let mut ends: Vec<String> = host
        .endpoints
        .iter()
        .filter(|end| {
            !end.link_local && host.ports[end.port].link.is_none() && world.selections[index].allows(end.port)
        })
        .map(|end| match end.prefix_len {
            Some(_) => format!("{} on {}", with_len(end), host.name(end.port)),
            None => format!("{} (prefix length not known) on {}", end.ip, host.name(end.port)),
        })
        .collect();
    ends.sort();
    match ends.is_empty() {
        true => format!("rank {} has no usable address", host.rank()),
        false => format!("rank {} has {}", host.rank(), some_of(&ends, ", ")),
    }
}

/// A named port that no rail uses; `peer` is a rank whose variable is the cause, if one is.
pub(crate) fn left_over(world: &World<'_>, index: usize, port: usize, peer: Option<u32>) -> PickError {
    let host = &world.hosts[index];
    let variable = world.selections[index].variable();
    let name = host.name(port);
    let at = host.rank();
    let limited = world.pairs_of(index).find_map(|(pair, _, other)| {
        let own = |rail: &Rail| host.endpoints[ends(pair, rail, index).0].port;
        pair.beyond_limit
            .iter()
            .any(|rail| own(rail) == port)
            .then(|| other.rank())
    });
    if let Some(peer) = limited {
        let text = format!(
            "{variable} on rank {at} makes NCCL take {name}, and {LIMIT} there or on rank {peer} allows no further rail \
             between them; name fewer ports or raise it"
        );
        return PickError::new(ErrorCode::Disagree, at, text);
    }
    if let Some(peer) = peer {
        let text = format!(
            "{variable} on rank {at} names {name}, and the variables of rank {peer} leave out its partner there; name both \
             ends of the same rails"
        );
        return PickError::new(ErrorCode::Disagree, at, text);
    }
    if let Some(partner) = unusable_partner(world, index, port) {
        let text = format!(
            "{variable} on rank {at} names {name}, and {}; mend that port, or leave {name} out",
            partner.text()
        );
        return PickError::new(partner.code, partner.rank, text);
    }
    let better: Vec<String> = world.chosen(index).iter().map(|&port| host.name(port)).collect();
    let fix = match (world.selections[index].mode, better.is_empty()) {
        (_, true) => "name ports that reach a peer".to_owned(),
        (Mode::Nccl, false) => format!(
            "write {}",
            world.selections[index].list(host, &world.chosen(index))
        ),
        (_, false) => format!("leave it out, the pick is {}", better.join(", ")),
    };
    let text = format!(
        "{variable} on rank {at} names {name}, which reaches no peer: {}; {fix}",
        idle(world, index, port)
    );
    PickError::new(ErrorCode::Disagree, at, text)
}

/// An address that the inventory gives a rank and its host does not have.
pub(crate) fn address_mismatch(host: &Host<'_>, expected: IpAddr) -> Option<PickError> {
    let live = live_addresses(host.facts);
    if live.is_empty() || live.iter().any(|(_, address)| address.ip == expected) {
        return None;
    }
    let mut usable: Vec<String> = live
        .iter()
        .filter(|(_, address)| {
            class(address.ip) == Class::Usable && address.ip.is_ipv4() == expected.is_ipv4()
        })
        .map(|(netdev, address)| format!("{address} on {}", netdev.unwrap_or("a netdev that is not known")))
        .collect();
    usable.sort();
    let text = format!(
        "the inventory gives rank {} the address {expected}, {} has {}; correct the inventory or the host",
        host.rank(),
        host.facts.place(),
        some_of(&usable, ", ")
    );
    Some(PickError::new(ErrorCode::AddressMismatch, host.rank(), text))
}

fn live_addresses(facts: &RankFacts) -> Vec<(Option<&str>, IfAddr)> {
    facts
        .addresses
        .iter()
        .filter_map(|entry| Some((entry.netdev.as_deref(), entry.address?)))
        .collect()
}
