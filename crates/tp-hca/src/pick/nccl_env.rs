//! What NCCL has to be told so that it uses the picked rails and no other.

use crate::code::WarningCode;
use crate::document::{By, Warning};
use crate::grammar::nccl;
use crate::pick::Options;
use crate::pick::host::{Class, Endpoint, Host, class};
use crate::pick::select::value;
use crate::pick::world::{Pair, World, ends};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// First NCCL with subnet-aware routing.
const SUBNET_AWARE_SINCE: (u32, u32, u32) = (2, 30, 7);
/// Prefix length that NCCL compares subnets by unless told otherwise.
const NCCL_PREFIX_LEN: u8 = 24;

/// The variables of one rank: what follows from its rails, and the user's own value where one is set.
pub(crate) fn derive(
    world: &World<'_>,
    index: usize,
    options: &Options,
    warnings: &mut Vec<Warning>,
) -> BTreeMap<String, String> {
    let host = &world.hosts[index];
    let chosen = world.chosen(index);
    let mut derived: BTreeMap<&'static str, String> = BTreeMap::new();
    if !chosen.is_empty() {
        let names: Vec<String> = chosen.iter().map(|&port| host.name(port)).collect();
        derived.insert(nccl::VARIABLE, format!("={}", names.join(",")));
        if let Some(netdev) = socket_netdev(world, index) {
            derived.insert("NCCL_SOCKET_IFNAME", format!("={netdev}"));
        }
        let shape = &world.shape;
        if shape.ports_differ_by_peer || shape.crosses {
            subnet_aware(shape, options, &mut derived, warnings);
        } else if shape.apart {
            derived.insert("NCCL_CROSS_NIC", "0".to_owned());
        }
        family(world, index, &mut derived, warnings);
    }
    merge(host, derived, warnings)
}

/// The user's own values win; where they differ from what the pick would set, it is said.
fn merge(
    host: &Host<'_>,
    derived: BTreeMap<&'static str, String>,
    warnings: &mut Vec<Warning>,
) -> BTreeMap<String, String> {
    let env = &host.facts.env;
    let mut result = BTreeMap::new();
    for (name, ours) in derived {
        match value(env, name) {
            None => drop(result.insert(name.to_owned(), ours)),
            Some(theirs) => {
                // The HCA list was held against the pick already, and a socket interface is the user's choice.
                if theirs != ours && name != nccl::VARIABLE && name != "NCCL_SOCKET_IFNAME" {
                    let text = format!("{name}={theirs} is set and kept; the pick would set {ours}");
                    warnings.push(Warning {
                        code: WarningCode::EnvKept,
                        text,
                    });
                }
                if name == "NCCL_SOCKET_IFNAME" && names_no_netdev(host, theirs) {
                    let text = format!(
                        "{name}={theirs} is set and kept, and names no interface of {}",
                        host.facts.place()
                    );
                    warnings.push(Warning {
                        code: WarningCode::EnvKept,
                        text,
                    });
                }
                result.insert(name.to_owned(), theirs.to_owned());
            }
        }
    }
    let off = [("NCCL_IB_DISABLE", "1"), ("NCCL_NET", "Socket")];
    for (name, bad) in off
        .into_iter()
        .filter(|(name, bad)| value(env, name) == Some(*bad))
    {
        let text = format!("{name}={bad} is set and kept: NCCL will not use RDMA at all");
        warnings.push(Warning {
            code: WarningCode::EnvKept,
            text,
        });
    }
    result
}

/// Whether a list of interfaces, in NCCL's grammar (prefixes, exact after `=`, all others after `^`), names none that the
/// facts know.
fn names_no_netdev(host: &Host<'_>, list: &str) -> bool {
    let facts = host.facts;
    let mut known = facts
        .addresses
        .iter()
        .filter_map(|entry| entry.netdev.as_deref())
        .peekable();
    if list.starts_with('^') || known.peek().is_none() {
        return false;
    }
    let (exact, names) = match list.strip_prefix('=') {
        Some(names) => (true, names),
        None => (false, list),
    };
    !known.any(|netdev| {
        // NCCL takes `name:port` too.
        let mut names = names
            .split(',')
            .map(|name| name.split(':').next().unwrap_or(name));
        names.any(|name| {
            if exact {
                netdev == name
            } else {
                netdev.starts_with(name)
            }
        })
    })
}

/// What the rails of all ranks together look like to NCCL.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    ports_differ_by_peer: bool,
    crosses: bool,
    apart: bool,
    /// See [`common_len`].
    prefix_len: Option<u8>,
}

impl Shape {
    pub fn of(world: &World<'_>) -> Self {
        Self {
            ports_differ_by_peer: ports_differ_by_peer(world),
            crosses: crosses(world),
            apart: apart(world),
            prefix_len: common_len(world),
        }
    }
}

/// Whether some rank uses different ports for different peers.
fn ports_differ_by_peer(world: &World<'_>) -> bool {
    (0..world.hosts.len()).any(|index| {
        let mut sets = world.pairs_of(index).map(|(pair, own, _)| -> BTreeSet<usize> {
            pair.rails
                .iter()
                .map(|rail| own.endpoints[ends(pair, rail, index).0].port)
                .collect()
        });
        let first = sets.next();
        sets.any(|set| Some(&set) != first.as_ref())
    })
}

/// Whether, in some pair, the PCI order in which NCCL numbers the ports pairs other ports than the rails do. Not known
/// without PCI addresses, and then not assumed.
fn crosses(world: &World<'_>) -> bool {
    world.pairs.iter().any(|pair| {
        let order = |index: usize| -> Option<Vec<usize>> {
            let host = &world.hosts[index];
            let mut keyed: Vec<(&str, usize)> = Vec::new();
            for (position, rail) in pair.rails.iter().enumerate() {
                let port = host.endpoints[ends(pair, rail, index).0].port;
                keyed.push((host.facts.ports[port].pci.as_deref()?, position));
            }
            keyed.sort_unstable();
            Some(keyed.into_iter().map(|(_, position)| position).collect())
        };
        matches!((order(pair.low), order(pair.high)), (Some(low), Some(high)) if low != high)
    })
}

/// Whether there are several rails and each has a subnet of its own.
fn apart(world: &World<'_>) -> bool {
    world.pairs.iter().any(|pair| pair.rails.len() > 1)
        && world.pairs.iter().all(|pair| {
            let host = &world.hosts[pair.low];
            let nets: BTreeSet<_> = pair
                .rails
                .iter()
                .map(|rail| host.endpoints[rail.low].subnet())
                .collect();
            pair.rails.iter().all(|rail| rail.by == By::Subnet) && nets.len() == pair.rails.len()
        })
}

fn subnet_aware(
    shape: &Shape,
    options: &Options,
    derived: &mut BTreeMap<&'static str, String>,
    warnings: &mut Vec<Warning>,
) {
    if let Some((major, minor, patch)) = options
        .nccl_version
        .filter(|&version| version < SUBNET_AWARE_SINCE)
    {
        let text = format!(
            "ranks need different ports for different peers, and NCCL {major}.{minor}.{patch} cannot choose by subnet; use \
             2.30.7 or later"
        );
        warnings.push(Warning {
            code: WarningCode::NcclTooOld,
            text,
        });
        return;
    }
    derived.insert("NCCL_IB_SUBNET_AWARE_ROUTING", "1".to_owned());
    match shape.prefix_len {
        Some(len) => drop(derived.insert("NCCL_IB_SUBNET_PREFIX_LEN", len.to_string())),
        None => {
            let text = format!(
                "NCCL tells the peers' ports apart by one prefix length for all (NCCL_IB_SUBNET_PREFIX_LEN, {NCCL_PREFIX_LEN} \
                 unless set), and none tells these rails apart; check its choice in its log"
            );
            warnings.push(Warning {
                code: WarningCode::NcclPairing,
                text,
            });
        }
    }
}

/// A prefix length under which the two ends of every rail agree and different subnets stay different.
fn common_len(world: &World<'_>) -> Option<u8> {
    let mut nets: BTreeSet<ipnet::IpNet> = BTreeSet::new();
    for pair in &world.pairs {
        for rail in &pair.rails {
            let net = world.hosts[pair.low].endpoints[rail.low]
                .subnet()
                .filter(|_| rail.by == By::Subnet)?;
            nets.insert(net);
        }
    }
    let len = nets.iter().map(ipnet::IpNet::prefix_len).min()?;
    let cut: BTreeSet<ipnet::IpNet> = nets
        .iter()
        .filter_map(|net| ipnet::IpNet::new(net.addr(), len).ok())
        .map(|net| net.trunc())
        .collect();
    (cut.len() == nets.len()).then_some(len)
}

/// Tells NCCL the family, and the range where that is what keeps it from another GID of a port.
fn family(
    world: &World<'_>,
    index: usize,
    derived: &mut BTreeMap<&'static str, String>,
    warnings: &mut Vec<Warning>,
) {
    let host = &world.hosts[index];
    let in_use: BTreeSet<usize> = world.endpoints_in_use(index).into_iter().collect();
    let used: Vec<&Endpoint> = in_use.iter().map(|&endpoint| &host.endpoints[endpoint]).collect();
    let v6 = used.iter().filter(|endpoint| endpoint.ip.is_ipv6()).count();
    if v6 > 0 && v6 < used.len() {
        return;
    }
    // Other GIDs of the picked ports that NCCL could take instead.
    let others: Vec<&Endpoint> = world
        .chosen(index)
        .iter()
        .flat_map(|&port| &host.ports[port].endpoints)
        .filter(|endpoint| !in_use.contains(endpoint))
        .map(|&endpoint| &host.endpoints[endpoint])
        .filter(|other| !other.link_local && other.ip.is_ipv6() == (v6 > 0))
        .collect();
    if v6 == 0 && others.is_empty() {
        return;
    }
    derived.insert(
        "NCCL_IB_ADDR_FAMILY",
        if v6 > 0 { "AF_INET6" } else { "AF_INET" }.to_owned(),
    );
    let Some(range) = range_of(&used) else { return };
    if others.iter().any(|other| range.contains(&other.ip)) {
        let text =
            format!("a picked port has several GIDs in {range}, and NCCL may choose another than the pick");
        warnings.push(Warning {
            code: WarningCode::NcclPairing,
            text,
        });
    }
    derived.insert("NCCL_IB_ADDR_RANGE", range.to_string());
}

/// The narrowest range that holds the subnets of all endpoints.
fn range_of(used: &[&Endpoint]) -> Option<ipnet::IpNet> {
    let whole = |endpoint: &Endpoint| {
        endpoint
            .subnet()
            .or_else(|| ipnet::IpNet::new(endpoint.ip, full(endpoint.ip)).ok())
    };
    let mut range = whole(used.first()?)?;
    for endpoint in used {
        let net = whole(endpoint)?;
        while !range.contains(&net.addr()) || range.prefix_len() > net.prefix_len() {
            range = range.supernet()?;
        }
    }
    Some(range)
}

fn full(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

/// The netdev for NCCL's own connections: the first rail's where one rail reaches every peer, else one in a subnet that
/// every rank has and in which no two ranks have one address (as on container bridges).
fn socket_netdev<'a>(world: &World<'a>, index: usize) -> Option<&'a str> {
    let host = &world.hosts[index];
    let firsts: Option<BTreeSet<usize>> = world
        .pairs_of(index)
        .map(|(pair, _, _)| first_rail(pair, index))
        .collect();
    if let Some(&endpoint) = firsts
        .as_ref()
        .filter(|set| set.len() == 1)
        .and_then(BTreeSet::first)
        && !world.shape.ports_differ_by_peer
    {
        return host.endpoints[endpoint].netdev.as_deref();
    }
    let held = host.facts.addresses.iter().filter_map(|entry| {
        let (netdev, address) = (entry.netdev.as_deref()?, entry.address?);
        let net = ipnet::IpNet::new(address.ip, address.prefix_len?).ok()?.trunc();
        let usable = class(address.ip) == Class::Usable && net.prefix_len() < full(address.ip);
        (usable && held_by_all(world, net)).then_some((net, address.ip, netdev))
    });
    held.min().map(|(_, _, netdev)| netdev)
}

fn first_rail(pair: &Pair, index: usize) -> Option<usize> {
    pair.rails.first().map(|rail| ends(pair, rail, index).0)
}

/// Whether every rank's host has its own address in a subnet.
fn held_by_all(world: &World<'_>, net: ipnet::IpNet) -> bool {
    let mut seen: BTreeMap<IpAddr, usize> = BTreeMap::new();
    world.hosts.iter().enumerate().all(|(index, host)| {
        let mut own = host
            .facts
            .addresses
            .iter()
            .filter_map(|entry| entry.address)
            .filter(|a| net.contains(&a.ip));
        let Some(address) = own.next() else { return false };
        let first = *seen.entry(address.ip).or_insert(index);
        first == index || crate::pick::world::same_host(&world.hosts[first], host)
    })
}
