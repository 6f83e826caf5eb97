//! The rails of one pair of ranks.

use crate::document::By;
use crate::pick::host::{Endpoint, Host};
use crate::pick::matching::matching;
use crate::pick::select::{Selection, pinned};
use crate::pick::{End, Probe, ProbeKey};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// A rail as indexes: endpoints of the lower and of the higher rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rail {
    pub low: usize,
    pub high: usize,
    pub by: By,
    pub probed: bool,
}

/// Which addresses a pass of the pick looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

/// One end of a pair: a host and which of its endpoints may be used.
pub(crate) struct Side<'a> {
    pub host: &'a Host<'a>,
    /// Endpoints by subnet, each list in the order both ends know.
    pub by_subnet: BTreeMap<ipnet::IpNet, Vec<usize>>,
    /// The prefix lengths of those subnets.
    lens: BTreeSet<u8>,
    /// All of them, in that order.
    pub all: Vec<usize>,
    /// Named ports in the user's order, where a variable names some.
    named: Option<&'a [usize]>,
}

impl<'a> Side<'a> {
    /// The endpoints of one family; `selection` narrows them to what the variables name.
    pub fn new(host: &'a Host<'a>, selection: Option<&'a Selection>, family: Family) -> Self {
        let mut all = Vec::new();
        for (port, view) in host.ports.iter().enumerate() {
            if view.link.is_some() || selection.is_some_and(|selection| !selection.allows(port)) {
                continue;
            }
            let pin = selection.and_then(|selection| selection.pins.get(&port));
            match pin {
                Some(&index) => all.extend(pinned(host, port, index)),
                None => all.extend(
                    view.endpoints
                        .iter()
                        .copied()
                        .filter(|&e| !host.endpoints[e].link_local),
                ),
            }
        }
        all.retain(|&e| host.endpoints[e].ip.is_ipv6() == (family == Family::V6));
        all.sort_by(|&a, &b| {
            let (a, b) = (&host.endpoints[a], &host.endpoints[b]);
            (a.ip, host.tie(a.port), a.gid_index).cmp(&(b.ip, host.tie(b.port), b.gid_index))
        });
        let mut by_subnet: BTreeMap<ipnet::IpNet, Vec<usize>> = BTreeMap::new();
        for &endpoint in &all {
            if let Some(net) = host.endpoints[endpoint].subnet() {
                by_subnet.entry(net).or_default().push(endpoint);
            }
        }
        let lens = by_subnet.keys().map(ipnet::IpNet::prefix_len).collect();
        Self {
            host,
            by_subnet,
            lens,
            all,
            named: selection.and_then(|selection| selection.named.as_deref()),
        }
    }

    fn at(&self, endpoint: usize) -> &'a Endpoint {
        &self.host.endpoints[endpoint]
    }

    /// Subnets with endpoints of several ports, and those ports.
    pub fn shared_subnets(&self) -> impl Iterator<Item = (&ipnet::IpNet, Vec<usize>)> {
        self.by_subnet.iter().filter_map(|(net, endpoints)| {
            let ports: BTreeSet<usize> = endpoints.iter().map(|&endpoint| self.at(endpoint).port).collect();
            (ports.len() > 1).then(|| (net, ports.into_iter().collect()))
        })
    }

    /// The endpoint that this side's routes to `to` leave by, among `candidates`; none where they do not say one. Routes
    /// no more specific than `above` bits do not count.
    fn routed(&self, to: IpAddr, candidates: &[usize], above: u8) -> Option<usize> {
        let way = self.host.routes.way(to).filter(|way| way.len > above)?;
        let mut fit = candidates.iter().copied().filter(|&endpoint| {
            self.at(endpoint)
                .netdev
                .as_deref()
                .is_some_and(|netdev| way.netdevs.contains(&netdev))
        });
        fit.next().filter(|_| fit.next().is_none())
    }

    fn leads(&self, endpoint: usize, to: IpAddr) -> bool {
        let Some(netdev) = self.at(endpoint).netdev.as_deref() else {
            return false;
        };
        self.host
            .routes
            .way(to)
            .is_some_and(|way| way.netdevs.contains(&netdev))
    }
}

/// The rails that are still being looked for.
struct Search<'s, 'a> {
    low: &'s Side<'a>,
    high: &'s Side<'a>,
    probes: &'s BTreeMap<ProbeKey, Probe>,
    used_low: BTreeSet<usize>,
    used_high: BTreeSet<usize>,
    rails: Vec<Rail>,
}

/// The rails between two sides, in the order that both ends know. A port serves at most one rail of a pair.
pub(crate) fn rails(low: &Side<'_>, high: &Side<'_>, probes: &BTreeMap<ProbeKey, Probe>) -> Vec<Rail> {
    let mut search = Search {
        low,
        high,
        probes,
        used_low: BTreeSet::new(),
        used_high: BTreeSet::new(),
        rails: Vec::new(),
    };
    search.by_subnet();
    search.by_route();
    search.by_name();
    let mut rails = search.rails;
    rails.sort_by(|a, b| {
        let key = |rail: &Rail| {
            let (low_end, high_end) = (low.at(rail.low), high.at(rail.high));
            (
                low_end.ip,
                high_end.ip,
                low.host.tie(low_end.port),
                high.host.tie(high_end.port),
            )
        };
        key(a).cmp(&key(b))
    });
    rails
}

impl Search<'_, '_> {
    fn take(&mut self, low: usize, high: usize, by: By) {
        self.used_low.insert(self.low.at(low).port);
        self.used_high.insert(self.high.at(high).port);
        let probed = self.probe(low, high) == Some(&Probe::Passed);
        self.rails.push(Rail {
            low,
            high,
            by,
            probed,
        });
    }

    fn probe(&self, low: usize, high: usize) -> Option<&Probe> {
        if self.probes.is_empty() {
            return None;
        }
        self.probes.get(&key(
            self.low.host,
            self.low.at(low).port,
            self.high.host,
            self.high.at(high).port,
        ))
    }

    /// Whether the two could be a rail as far as addresses and probes say.
    fn possible(&self, low: usize, high: usize) -> bool {
        self.low.at(low).ip != self.high.at(high).ip
            && !matches!(self.probe(low, high), Some(Probe::Failed(_)))
    }

    fn free(&self, low: &[usize], high: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let low = low
            .iter()
            .copied()
            .filter(|&e| !self.used_low.contains(&self.low.at(e).port));
        let high = high
            .iter()
            .copied()
            .filter(|&e| !self.used_high.contains(&self.high.at(e).port));
        (low.collect(), high.collect())
    }

    /// Subnets that both ends have by their own prefix lengths.
    fn by_subnet(&mut self) {
        let (low, high) = (self.low, self.high);
        for (net, mine) in &low.by_subnet {
            if let Some(theirs) = high.by_subnet.get(net) {
                self.pair_group(mine, theirs, net.prefix_len());
            }
        }
        // Ends that disagree about the length: each must hold the other's address to be in its own subnet.
        if low.lens.len() == 1 && low.lens == high.lens {
            return;
        }
        for (net, mine) in &low.by_subnet {
            for (other, theirs) in overlapping(high, net) {
                let inside = |endpoint: &Endpoint, net: &ipnet::IpNet| net.contains(&endpoint.ip);
                let mine: Vec<usize> = mine
                    .iter()
                    .copied()
                    .filter(|&e| inside(low.at(e), other))
                    .collect();
                let theirs: Vec<usize> = theirs
                    .iter()
                    .copied()
                    .filter(|&e| inside(high.at(e), net))
                    .collect();
                self.pair_group(&mine, &theirs, net.prefix_len().max(other.prefix_len()));
            }
        }
    }

    /// Pairs the ports of one subnet. What routes say more specifically than the subnet comes first; where one end has
    /// more ports than the other, its routes decide which; the rest pair by position in address order.
    fn pair_group(&mut self, mine: &[usize], theirs: &[usize], prefix_len: u8) {
        if let ([low], [high]) = (mine, theirs) {
            return self.take_if_free(*low, *high);
        }
        let (mut mine, mut theirs) = self.free(mine, theirs);
        one_per_port(self.low, &mut mine);
        one_per_port(self.high, &mut theirs);
        if mine.len() > 1 || theirs.len() > 1 {
            let above = if mine.len() == theirs.len() {
                prefix_len
            } else {
                prefix_len.saturating_sub(1)
            };
            self.pair_routed(&mine, &theirs, above);
            (mine, theirs) = self.free(&mine, &theirs);
        }
        let pairs = matching(&mine, &theirs, |low, high| self.possible(low, high));
        for (low, high) in pairs {
            self.take(low, high, By::Subnet);
        }
    }

    fn pair_routed(&mut self, mine: &[usize], theirs: &[usize], above: u8) {
        for &high in theirs {
            let Some(low) = self.low.routed(self.high.at(high).ip, mine, above) else {
                continue;
            };
            let back = self.high.routed(self.low.at(low).ip, theirs, above);
            if back.is_none_or(|back| back == high) {
                self.take_if_free(low, high);
            }
        }
        for &low in mine {
            if let Some(high) = self.high.routed(self.low.at(low).ip, theirs, above) {
                self.take_if_free(low, high);
            }
        }
    }

    fn take_if_free(&mut self, low: usize, high: usize) {
        let (low_port, high_port) = (self.low.at(low).port, self.high.at(high).port);
        if !self.used_low.contains(&low_port)
            && !self.used_high.contains(&high_port)
            && self.possible(low, high)
        {
            self.take(low, high, By::Subnet);
        }
    }

    /// Ports whose routes lead to each other, where no subnet paired them.
    fn by_route(&mut self) {
        if self.low.host.routes.is_empty() || self.high.host.routes.is_empty() {
            return;
        }
        let (mine, theirs) = self.free(&self.low.all, &self.high.all);
        let mut by_netdev: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
        for &low in &mine {
            if let Some(netdev) = self.low.at(low).netdev.as_deref() {
                by_netdev.entry(netdev).or_default().push(low);
            }
        }
        for &high in &theirs {
            let Some(way) = self.low.host.routes.way(self.high.at(high).ip) else {
                continue;
            };
            let candidates = way
                .netdevs
                .iter()
                .filter_map(|netdev| by_netdev.get(netdev))
                .flatten();
            let fit = candidates.copied().find(|&low| {
                !self.used_low.contains(&self.low.at(low).port)
                    && !self.used_high.contains(&self.high.at(high).port)
                    && self.possible(low, high)
                    && self.high.leads(high, self.low.at(low).ip)
            });
            if let Some(low) = fit {
                self.take(low, high, By::Route);
            }
        }
    }

    /// Ports that both ends name and about which the facts say neither yes nor no: the k-th with the k-th.
    fn by_name(&mut self) {
        let (Some(mine), Some(theirs)) = (self.low.named, self.high.named) else {
            return;
        };
        let unknown = |side: &Side<'_>, port: usize| {
            side.all
                .iter()
                .copied()
                .find(|&e| side.at(e).port == port && side.at(e).prefix_len.is_none())
        };
        let mine: Vec<usize> = mine.iter().filter_map(|&port| unknown(self.low, port)).collect();
        let theirs: Vec<usize> = theirs
            .iter()
            .filter_map(|&port| unknown(self.high, port))
            .collect();
        let (mine, theirs) = self.free(&mine, &theirs);
        if !self.low.host.routes.is_empty() && !self.high.host.routes.is_empty() {
            return;
        }
        for (low, high) in mine.into_iter().zip(theirs) {
            if self.possible(low, high) {
                self.take(low, high, By::Explicit);
            }
        }
    }
}

/// Keeps the first endpoint of every port.
fn one_per_port(side: &Side<'_>, endpoints: &mut Vec<usize>) {
    let mut seen = BTreeSet::new();
    endpoints.retain(|&endpoint| seen.insert(side.at(endpoint).port));
}

/// Subnets of a side that overlap `net` and are not it.
pub(crate) fn overlapping<'n>(
    side: &'n Side<'_>,
    net: &ipnet::IpNet,
) -> impl Iterator<Item = (&'n ipnet::IpNet, &'n Vec<usize>)> {
    let (net, nets) = (*net, &side.by_subnet);
    let wider = side.lens.range(..net.prefix_len()).filter_map(move |&len| {
        let wide = ipnet::IpNet::new(net.addr(), len).ok()?.trunc();
        nets.get_key_value(&wide)
    });
    let narrower = nets
        .range(net..)
        .skip_while(move |(other, _)| **other == net)
        .take_while(move |(other, _)| net.contains(*other));
    wider.chain(narrower)
}

/// The key of a proposed rail.
pub(crate) fn key(low: &Host<'_>, low_port: usize, high: &Host<'_>, high_port: usize) -> ProbeKey {
    let end = |host: &Host<'_>, port: usize| {
        let facts = &host.facts.ports[port];
        End {
            rank: host.rank(),
            device: facts.device.clone(),
            port: facts.port,
        }
    };
    ProbeKey {
        low: end(low, low_port),
        high: end(high, high_port),
    }
}
