//! All pairs of ranks at once, and whether every one got its rails.

use crate::code::ErrorCode;
use crate::document::{Mode, PickError, RailPick};
use crate::grammar::MAX_ENTRIES;
use crate::pick::host::Host;
use crate::pick::nccl_env::Shape;
use crate::pick::pair::{Family, Rail, Side, rails};
use crate::pick::reasons;
use crate::pick::select::Selection;
use crate::pick::{Probe, ProbeKey};
use std::collections::{BTreeMap, BTreeSet};

/// The rails of one pair of ranks, as indexes into the hosts.
pub(crate) struct Pair {
    pub low: usize,
    pub high: usize,
    /// What was picked.
    pub rails: Vec<Rail>,
    /// How many more there are beyond the limit.
    pub beyond_limit: Vec<Rail>,
    /// What there would be without the variables, where a variable narrows either end.
    pub unrestricted: Option<Vec<Rail>>,
}

/// The solved pick.
pub(crate) struct World<'a> {
    pub hosts: &'a [Host<'a>],
    pub selections: &'a [Selection],
    pub probes: &'a BTreeMap<ProbeKey, Probe>,
    pub pairs: Vec<Pair>,
    /// The families in use: one, unless pairs differ.
    pub families: Vec<Family>,
    /// The pairs that each rank is in.
    by_rank: Vec<Vec<usize>>,
    /// What the rails of all look like to NCCL.
    pub shape: Shape,
}

impl<'a> World<'a> {
    /// Solves all pairs.
    pub fn solve(
        hosts: &'a [Host<'a>],
        selections: &'a [Selection],
        probes: &'a BTreeMap<ProbeKey, Probe>,
    ) -> Self {
        let (pairs, families) = solve_families(hosts, selections, probes);
        let mut by_rank = vec![Vec::new(); hosts.len()];
        for (position, pair) in pairs.iter().enumerate() {
            by_rank[pair.low].push(position);
            by_rank[pair.high].push(position);
        }
        let mut world = Self {
            hosts,
            selections,
            probes,
            pairs,
            families,
            by_rank,
            shape: Shape::default(),
        };
        world.shape = Shape::of(&world);
        world
    }

    /// The rails of one rank, by peer.
    pub fn rails_of(&self, index: usize) -> Vec<RailPick> {
        let mut found: Vec<(u32, usize, RailPick)> = Vec::new();
        for (pair, own, other) in self.pairs_of(index) {
            for (position, rail) in pair.rails.iter().enumerate() {
                let (mine, theirs) = ends(pair, rail, index);
                let (own_end, other_end) = (&own.endpoints[mine], &other.endpoints[theirs]);
                let (port, peer_port) = (&own.facts.ports[own_end.port], &other.facts.ports[other_end.port]);
                found.push((
                    other.rank(),
                    position,
                    RailPick {
                        peer: other.rank(),
                        device: port.device.clone(),
                        port: port.port,
                        gid_index: own_end.gid_index,
                        address: own_end.ip.to_string(),
                        peer_device: peer_port.device.clone(),
                        peer_port: peer_port.port,
                        by: rail.by,
                        probed: rail.probed,
                    },
                ));
            }
        }
        found.sort_by_key(|(peer, position, _)| (*peer, *position));
        found.into_iter().map(|(_, _, rail)| rail).collect()
    }

    /// The pairs that a rank is in, with its own host and the other's.
    pub fn pairs_of(&self, index: usize) -> impl Iterator<Item = (&Pair, &'a Host<'a>, &'a Host<'a>)> {
        self.by_rank[index].iter().map(move |&position| {
            let pair = &self.pairs[position];
            let other = if pair.low == index { pair.high } else { pair.low };
            (pair, &self.hosts[index], &self.hosts[other])
        })
    }

    /// The ports that any rail of a rank uses, in rail order.
    pub fn chosen(&self, index: usize) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let mut ports = Vec::new();
        for endpoint in self.endpoints_in_use(index) {
            let port = self.hosts[index].endpoints[endpoint].port;
            if seen.insert(port) {
                ports.push(port);
            }
        }
        ports
    }

    /// The endpoints that the rails of a rank use, in rail order.
    pub fn endpoints_in_use(&self, index: usize) -> Vec<usize> {
        let mut seen = BTreeSet::new();
        let rails = self
            .pairs_of(index)
            .flat_map(|(pair, _, _)| pair.rails.iter().map(move |rail| (pair, rail)));
        rails
            .map(|(pair, rail)| ends(pair, rail, index).0)
            .filter(|&endpoint| seen.insert(endpoint))
            .collect()
    }

    /// Why this is no pick, if it is none.
    pub fn verdict(&self) -> Option<PickError> {
        let apart = |index: usize| self.pairs_of(index).next().is_some();
        let automatic: Vec<&Host<'_>> = (0..self.hosts.len())
            .filter(|&index| apart(index) && self.selections[index].mode == Mode::Auto)
            .map(|index| &self.hosts[index])
            .collect();
        if let Some(error) = reasons::no_usable_ports(&automatic) {
            return Some(error);
        }
        self.pairs
            .iter()
            .filter(|pair| pair.rails.is_empty())
            .map(|pair| reasons::no_rail(self, pair))
            .chain(
                (0..self.hosts.len())
                    .filter(|&index| apart(index))
                    .filter_map(|index| self.left_over(index)),
            )
            .chain((0..self.hosts.len()).filter_map(|index| self.too_many(index)))
            .next()
    }

    /// A named port that no rail can use.
    fn left_over(&self, index: usize) -> Option<PickError> {
        let named = self.selections[index].named.as_ref()?;
        let host = &self.hosts[index];
        let uses = |rails: &[Rail], pair: &Pair, port: usize| {
            rails
                .iter()
                .any(|rail| host.endpoints[ends(pair, rail, index).0].port == port)
        };
        // NCCL takes every port that the user's own list names for it, limit or not; a list derived from ours follows.
        let limit_excuses = self.selections[index].mode == Mode::Roce;
        let port = *named.iter().find(|&&port| {
            !self.pairs_of(index).any(|(pair, _, _)| {
                uses(&pair.rails, pair, port) || (limit_excuses && uses(&pair.beyond_limit, pair, port))
            })
        })?;
        let peer = self.pairs_of(index).find_map(|(pair, _, other)| {
            pair.unrestricted
                .as_deref()
                .is_some_and(|rails| uses(rails, pair, port))
                .then(|| other.rank())
        });
        Some(reasons::left_over(self, index, port, peer))
    }

    fn too_many(&self, index: usize) -> Option<PickError> {
        let count = self.chosen(index).len();
        (count > MAX_ENTRIES).then(|| {
            let host = &self.hosts[index];
            let text = format!(
                "{} needs {count} ports for its rails to all peers, NCCL reads {MAX_ENTRIES}; name fewer in TF_TP_ROCE_HCA",
                host.facts.place()
            );
            PickError::new(ErrorCode::TooManyPorts, host.rank(), text)
        })
    }
}

/// Own and other endpoint of a rail, seen from a rank of the pair.
pub(crate) fn ends(pair: &Pair, rail: &Rail, index: usize) -> (usize, usize) {
    if pair.low == index {
        (rail.low, rail.high)
    } else {
        (rail.high, rail.low)
    }
}

/// Whether two ranks are on one host, as far as their names say.
pub(crate) fn same_host(a: &Host<'_>, b: &Host<'_>) -> bool {
    a.facts.host.is_some() && a.facts.host == b.facts.host
}

/// IPv4 for all, else IPv6 for all, else for each pair what it has: NCCL takes one family for all ports of a rank.
fn solve_families<'a>(
    hosts: &'a [Host<'a>],
    selections: &'a [Selection],
    probes: &BTreeMap<ProbeKey, Probe>,
) -> (Vec<Pair>, Vec<Family>) {
    let mut pairs = pass(hosts, selections, probes, Family::V4);
    if pairs.iter().all(|pair| !pair.rails.is_empty()) {
        return (pairs, vec![Family::V4]);
    }
    let v6 = pass(hosts, selections, probes, Family::V6);
    if v6.iter().all(|pair| !pair.rails.is_empty()) {
        return (v6, vec![Family::V6]);
    }
    let mut families = vec![Family::V4];
    for (four, six) in pairs.iter_mut().zip(v6) {
        let open = |pair: &Pair| pair.unrestricted.as_ref().is_some_and(|rails| !rails.is_empty());
        if four.rails.is_empty() && (!six.rails.is_empty() || open(&six) && !open(four)) {
            *four = six;
            if !families.contains(&Family::V6) {
                families.push(Family::V6);
            }
        }
    }
    (pairs, families)
}

/// All pairs on different hosts, in one family.
fn pass<'a>(
    hosts: &'a [Host<'a>],
    selections: &'a [Selection],
    probes: &BTreeMap<ProbeKey, Probe>,
    family: Family,
) -> Vec<Pair> {
    let sides: Vec<Side<'a>> = hosts
        .iter()
        .zip(selections)
        .map(|(host, selection)| Side::new(host, Some(selection), family))
        .collect();
    let open: Vec<Side<'a>> = match selections.iter().any(|selection| selection.named.is_some()) {
        true => hosts.iter().map(|host| Side::new(host, None, family)).collect(),
        false => Vec::new(),
    };
    let mut pairs = Vec::new();
    for low in 0..hosts.len() {
        for high in low + 1..hosts.len() {
            if same_host(&hosts[low], &hosts[high]) {
                continue;
            }
            let mut found = rails(&sides[low], &sides[high], probes);
            let limit = selections[low].limit.min(selections[high].limit);
            let beyond_limit = found.split_off(limit.min(found.len()));
            let narrowed = selections[low].named.is_some() || selections[high].named.is_some();
            let unrestricted = narrowed.then(|| rails(&open[low], &open[high], probes));
            pairs.push(Pair {
                low,
                high,
                rails: found,
                beyond_limit,
                unrestricted,
            });
        }
    }
    pairs
}
