//! From the facts of all ranks to the rails between them.
//!
//! Subnets and routes propose, a probe decides. Everything here is a function of the facts: ranks that hold the same
//! document come to the same rails in the same order, whatever order their devices are listed in or what they are
//! called.

mod host;
mod nccl_env;
mod pair;
mod reasons;
mod routes;
mod select;
mod warn;
mod world;

use crate::code::ErrorCode;
use crate::document::{PickDocument, PickError, RankPick, SCHEMA};
use crate::facts::Document;
use crate::ids::PortNum;
use host::Host;
use select::Selection;
use std::collections::BTreeMap;
use std::net::IpAddr;
use world::World;

/// What a pick may know beyond the facts.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Version of the NCCL that will be used, where it is known; decides whether subnet-aware routing can be asked for.
    pub nccl_version: Option<(u32, u32, u32)>,
    /// Addresses that the inventory gives the ranks; each must be one of its host's.
    pub expected_addresses: BTreeMap<u32, Vec<IpAddr>>,
    /// What probes of proposed rails found; empty where nothing was probed.
    pub probes: BTreeMap<ProbeKey, Probe>,
}

/// One end of a proposed rail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// The rank.
    pub rank: u32,
    /// Its RDMA device.
    pub device: String,
    /// Its port.
    pub port: PortNum,
}

/// A proposed rail: the lower rank's end, then the higher one's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeKey {
    /// End at the lower rank.
    pub low: End,
    /// End at the higher rank.
    pub high: End,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// One RDMA write each way arrived.
    Passed,
    /// It did not, and why.
    Failed(String),
}

/// Picks the rails of all ranks. A refusal is a document with `ok` false and the error; the ranks are then there as far
/// as the pick got.
pub fn pick(document: &Document, options: &Options) -> PickDocument {
    let mut soft = Vec::with_capacity(document.ranks.len());
    for facts in &document.ranks {
        match select::soft_allowed(&facts.env, facts.rank) {
            Ok(allowed) => soft.push(allowed),
            Err(error) => return PickDocument::refused(error),
        }
    }
    let mut hosts: Vec<Host<'_>> = document
        .ranks
        .iter()
        .zip(soft)
        .map(|(facts, soft)| Host::new(facts, soft))
        .collect();
    hosts.sort_by_key(Host::rank);
    if let Some(pair) = hosts.windows(2).find(|pair| pair[0].rank() == pair[1].rank()) {
        let text = format!("rank {} is given twice", pair[0].rank());
        return PickDocument::refused(PickError::new(ErrorCode::BadFile, pair[0].rank(), text));
    }
    let (selections, wrong) = select_all(&hosts, options);
    let selections = match (selections, wrong) {
        (Some(selections), None) => selections,
        (_, error) => {
            return PickDocument {
                error,
                ..blank(&hosts)
            };
        }
    };
    let world = World::solve(&hosts, &selections, &options.probes);
    let error = world.verdict();
    let ranks: Vec<RankPick> = (0..hosts.len())
        .map(|index| rank_pick(&world, index, options))
        .collect();
    PickDocument {
        schema: SCHEMA,
        ok: error.is_none(),
        error,
        ranks,
    }
}

/// Every rank's variables, or the first thing wrong with one.
fn select_all(hosts: &[Host<'_>], options: &Options) -> (Option<Vec<Selection>>, Option<PickError>) {
    let mut selections = Vec::with_capacity(hosts.len());
    for host in hosts {
        let expected = options
            .expected_addresses
            .get(&host.rank())
            .map_or(&[][..], Vec::as_slice);
        if let Some(error) = expected
            .iter()
            .find_map(|&ip| reasons::address_mismatch(host, ip))
        {
            return (None, Some(error));
        }
        match select::select(host) {
            Ok(selection) => selections.push(selection),
            Err(error) => return (None, Some(error)),
        }
    }
    (Some(selections), None)
}

/// The ranks with their ports and no rails, for a pick that was refused before any rail was looked for.
fn blank(hosts: &[Host<'_>]) -> PickDocument {
    let ranks = hosts
        .iter()
        .map(|host| RankPick {
            rank: host.rank(),
            mode: reasons::mode_of(&host.facts.env),
            rails: Vec::new(),
            nccl_env: BTreeMap::new(),
            ports: reasons::ports_unpicked(host),
            warnings: Vec::new(),
        })
        .collect();
    PickDocument {
        schema: SCHEMA,
        ok: false,
        error: None,
        ranks,
    }
}

fn rank_pick(world: &World<'_>, index: usize, options: &Options) -> RankPick {
    let mut warnings = world.selections[index].warnings.clone();
    let nccl_env = nccl_env::derive(world, index, options, &mut warnings);
    warn::of_rank(world, index, &mut warnings);
    warnings.sort();
    warnings.dedup();
    RankPick {
        rank: world.hosts[index].rank(),
        mode: world.selections[index].mode,
        rails: world.rails_of(index),
        nccl_env,
        ports: reasons::ports(world, index),
        warnings,
    }
}
