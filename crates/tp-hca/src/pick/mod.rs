//! From the facts of all ranks to the rails between them.
//!
//! Subnets and routes propose, a probe decides. Everything here is a function of the facts: ranks that hold the same
//! document come to the same rails in the same order, whatever order their devices are listed in or what they are
//! called.

mod host;
mod matching;
mod nccl_env;
mod pair;
mod prepare;
mod propose;
mod reasons;
mod routes;
mod select;
mod variables;
mod warn;
mod world;

use crate::document::{PickDocument, PickError, RankPick, SCHEMA};
use crate::facts::Document;
use crate::ids::PortNum;
use host::Host;
use std::collections::BTreeMap;
use std::net::IpAddr;
use world::World;

pub use propose::{MAX_PROPOSALS, Proposal, propose};

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
    let hosts = match prepare::hosts(document) {
        Ok(hosts) => hosts,
        Err(error) => return PickDocument::refused(error),
    };
    let selections = match prepare::selections(&hosts, options) {
        Ok(selections) => selections,
        Err(error) => return blank(&hosts, error),
    };
    let world = World::solve(&hosts, &selections, &options.probes);
    let error = world.verdict();
    let mut ranks: Vec<RankPick> = (0..hosts.len())
        .map(|index| rank_pick(&world, index, options))
        .collect();
    if error.is_some() {
        // Nobody is to set what does not count.
        ranks.iter_mut().for_each(|rank| rank.nccl_env.clear());
    }
    PickDocument {
        schema: SCHEMA,
        ok: error.is_none(),
        error,
        ranks,
    }
}

/// The ranks with their ports and no rails, for a pick that was refused before any rail was looked for.
fn blank(hosts: &[Host<'_>], error: PickError) -> PickDocument {
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
        error: Some(error),
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
