//! Which pairs of ports are worth a probe.

use crate::document::{By, PickError};
use crate::facts::Document;
use crate::ids::GidIndex;
use crate::pick::pair::{Side, key, overlapping};
use crate::pick::world::World;
use crate::pick::{Options, ProbeKey, prepare};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Most proposals for one pair of ranks: one wide subnet over many ports proposes every port for every other.
pub const MAX_PROPOSALS: usize = 256;

/// A pair of ports that addresses or routes propose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proposal {
    /// The two ports.
    pub key: ProbeKey,
    /// GID index at the lower rank.
    pub low_gid: GidIndex,
    /// GID index at the higher rank.
    pub high_gid: GidIndex,
    /// Address at the lower rank.
    pub low_address: IpAddr,
    /// Address at the higher rank.
    pub high_address: IpAddr,
    /// What proposes it.
    pub by: By,
}

/// What to probe before a pick counts: the rails of the pick without probes, and in a subnet that holds several ports of
/// one host every pair, since addresses cannot tell them apart there. Every rank gets the same list in the same order.
pub fn propose(document: &Document, options: &Options) -> Result<Vec<Proposal>, PickError> {
    let hosts = prepare::hosts(document)?;
    let selections = prepare::selections(&hosts, options)?;
    let nothing = BTreeMap::new();
    let world = World::solve(&hosts, &selections, &nothing);
    let mut proposals = Vec::new();
    for pair in &world.pairs {
        let mut ends: Vec<(usize, usize, By)> = pair
            .rails
            .iter()
            .map(|rail| (rail.low, rail.high, rail.by))
            .collect();
        for &family in &world.families {
            let low = Side::new(&hosts[pair.low], Some(&selections[pair.low]), family);
            let high = Side::new(&hosts[pair.high], Some(&selections[pair.high]), family);
            for (net, mine) in &low.by_subnet {
                let same = high.by_subnet.get_key_value(net);
                for (other, theirs) in same.into_iter().chain(overlapping(&high, net)) {
                    let all = mine.iter().flat_map(|&a| theirs.iter().map(move |&b| (a, b)));
                    let (low_ends, high_ends) = (&low.host.endpoints, &high.host.endpoints);
                    ends.extend(
                        all.filter(|&(a, b)| {
                            other.contains(&low_ends[a].ip) && net.contains(&high_ends[b].ip)
                        })
                        .filter(|&(a, b)| low_ends[a].ip != high_ends[b].ip)
                        .map(|(a, b)| (a, b, By::Subnet)),
                    );
                }
            }
        }
        let (low, high) = (&hosts[pair.low], &hosts[pair.high]);
        let mut seen = BTreeSet::new();
        let fresh = ends.into_iter().map(|(a, b, by)| Proposal {
            key: key(low, low.endpoints[a].port, high, high.endpoints[b].port),
            low_gid: low.endpoints[a].gid_index,
            high_gid: high.endpoints[b].gid_index,
            low_address: low.endpoints[a].ip,
            high_address: high.endpoints[b].ip,
            by,
        });
        proposals.extend(
            fresh
                .filter(|proposal| seen.insert(proposal.key.clone()))
                .take(MAX_PROPOSALS),
        );
    }
    Ok(proposals)
}
