//! Which rails the ranks use, decided together: facts are traded, subnets and routes propose, an RDMA write each way over every
//! proposed rail decides.

mod probe;

#[cfg(any(test, fuzzing))]
pub(crate) use probe::fuzz;

pub use probe::{Probed, Retried};

use crate::meeting::{Meeting, MeetingError};
use crate::types::Rank;
use crate::wire::verbs::RailEnd;
use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tp_hca::pick::{Options, Proposal, propose};
use tp_hca::{Document, PickDocument, PickError, RankFacts};
use tp_verbs::{Gid, PortNum, Verbs};

/// Where libibverbs is looked for.
pub use tp_verbs::Search;

/// Bytes in front of a rank's facts: its NCCL's version and whether it can probe.
const HEAD: usize = 13;

/// Called with the pick that a transport is about to use.
pub type OnPick = Arc<dyn Fn(&PickDocument) + Send + Sync>;

/// What a rank brings to the pick.
#[derive(Clone)]
pub struct RdmaConfig {
    /// This host's ports, addresses, routes and variables.
    pub facts: RankFacts,
    /// Version of the NCCL that this rank will use, where it is known.
    pub nccl_version: Option<(u32, u32, u32)>,
    /// Whether this rank writes over what is proposed; no where its facts are not this machine's.
    pub probe: bool,
    /// Where libibverbs is looked for.
    pub search: Search,
    /// Traffic class of all packets.
    pub traffic_class: u8,
    /// How long a peer may leave a write unacknowledged.
    pub liveness: Duration,
    /// Told of the pick once it counts.
    pub on_pick: Option<OnPick>,
}

impl RdmaConfig {
    /// This host's facts as they are now, with the variables that `env` gives.
    pub fn live(env: &dyn Fn(&str) -> Option<String>) -> Self {
        let mut facts = tp_hca::capture(std::path::Path::new("/")).facts;
        facts.take_env(env);
        Self::of(facts, Search::new(&|name| env(name).map(Into::into)))
    }

    /// These facts.
    pub fn of(facts: RankFacts, search: Search) -> Self {
        Self {
            facts,
            nccl_version: None,
            probe: true,
            search,
            traffic_class: 0,
            liveness: Duration::from_secs(3),
            on_pick: None,
        }
    }
}

impl fmt::Debug for RdmaConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaConfig")
            .field("ports", &self.facts.ports.len())
            .field("nccl_version", &self.nccl_version)
            .field("traffic_class", &self.traffic_class)
            .field("liveness", &self.liveness)
            .finish_non_exhaustive()
    }
}

/// What the ranks agreed on; the same on all of them but for the library.
#[derive(Clone, Debug)]
pub struct Agreed {
    /// The pick. Its rails say whether they were probed.
    pub document: PickDocument,
    /// Rails that passed only at the second attempt.
    pub retried: Vec<Retried>,
    /// The library of this rank, or why there is none.
    pub verbs: Result<Arc<Verbs>, String>,
}

/// Trades facts, probes what they propose and picks. Collective over `meeting`; every rank gets the same document.
pub fn agree(meeting: &mut dyn Meeting, cfg: &RdmaConfig) -> Result<Agreed, MeetingError> {
    let verbs = library(cfg);
    let facts = RankFacts {
        rank: meeting.rank().0,
        ..cfg.facts.clone()
    };
    let mut mine = vec![u8::from(cfg.probe && verbs.is_ok())];
    let (major, minor, patch) = cfg.nccl_version.unwrap_or_default();
    mine.extend([major, minor, patch].iter().flat_map(|part| part.to_le_bytes()));
    mine.extend(facts.to_bytes());
    let all = meeting.all_gather("hca facts", &mine)?;
    let refused = |error: PickError| Agreed {
        document: PickDocument::refused(error),
        retried: Vec::new(),
        verbs: verbs.clone(),
    };
    let (document, options, capable) = match read(&all) {
        Ok(read) => read,
        Err(error) => return Ok(refused(error)),
    };
    // Every rank holds the same facts, so all of them turn the same way here.
    let blind = tp_hca::pick(&document, &options);
    let proposals = if blind.ok {
        propose(&document, &options)
    } else {
        Ok(Vec::new())
    };
    let proposals: Vec<Proposal> = match proposals {
        Ok(proposals) => proposals,
        Err(error) => return Ok(refused(error)),
    };
    let can = |rank: u32| capable.get(rank as usize).copied().unwrap_or(false);
    let probed: Vec<Proposal> = proposals
        .into_iter()
        .filter(|proposal| can(proposal.key.low.rank) && can(proposal.key.high.rank))
        .collect();
    if probed.is_empty() {
        return Ok(Agreed {
            document: blind,
            retried: Vec::new(),
            verbs,
        });
    }
    let Probed { probes, retried } = probe::run(meeting, &probed, verbs.as_ref().ok())?;
    let document = tp_hca::pick(&document, &Options { probes, ..options });
    Ok(Agreed {
        document,
        retried,
        verbs,
    })
}

/// The library, where it offers a device at all.
fn library(cfg: &RdmaConfig) -> Result<Arc<Verbs>, String> {
    if cfg.facts.ports.is_empty() {
        return Err("this host has no RDMA port".to_owned());
    }
    let probe = tp_verbs::probe(&cfg.search, std::path::Path::new("/"));
    if !probe.is_usable() {
        let fix = probe.fix().map_or(String::new(), |fix| format!(": {fix}"));
        return Err(format!("{}{fix}", probe.detail()));
    }
    Verbs::load(&cfg.search)
        .map(Arc::new)
        .map_err(|error| error.to_string())
}

type Read = (Document, Options, Vec<bool>);

fn read(all: &[Vec<u8>]) -> Result<Read, PickError> {
    let mut ranks = Vec::with_capacity(all.len());
    let mut capable = Vec::with_capacity(all.len());
    let mut oldest = None;
    for (rank, bytes) in (0u32..).zip(all) {
        let Some((head, facts)) = bytes.split_at_checked(HEAD) else {
            let text = format!("rank {rank} gave {} bytes where its facts belong", bytes.len());
            return Err(PickError::new(tp_hca::ErrorCode::BadFile, rank, text));
        };
        let word = |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        capable.push(head[0] == 1);
        // What the oldest of them cannot do, none is told to do; one that is not known may be any.
        let version = (word(1), word(5), word(9));
        oldest = Some(oldest.map_or(version, |oldest: (u32, u32, u32)| oldest.min(version)));
        let facts = RankFacts::from_bytes(facts)?;
        ranks.push(RankFacts { rank, ..facts });
    }
    let options = Options {
        nccl_version: oldest.filter(|version| *version != (0, 0, 0)),
        ..Options::default()
    };
    Ok((Document::of_ranks(ranks)?, options, capable))
}

/// This rank's ends of the picked rails, by peer.
pub fn ends(document: &PickDocument, me: Rank, world: usize) -> Result<Vec<Vec<RailEnd>>, String> {
    let mut all: Vec<Vec<RailEnd>> = vec![Vec::new(); world];
    let rails = document.rank(me.0).map_or(&[][..], |pick| &pick.rails);
    for rail in rails {
        let to_peer = all
            .get_mut(rail.peer as usize)
            .ok_or_else(|| format!("the pick names rank {}", rail.peer))?;
        let wrong = |what: &str| format!("{} port {}: {what}", rail.device, rail.port);
        let address: IpAddr = rail
            .address
            .parse()
            .map_err(|_| wrong("its address cannot be read"))?;
        let port = u8::try_from(rail.port.0).map_err(|_| wrong("RDMA ports have numbers up to 255"))?;
        let index =
            u8::try_from(rail.gid_index.0).map_err(|_| wrong("a queue pair takes GID indexes up to 255"))?;
        to_peer.push(RailEnd {
            peer: Rank(rail.peer),
            rail: to_peer.len(),
            device: rail.device.clone(),
            port: PortNum(port),
            gid_index: index,
            gid: gid_of(address),
            far: format!("{} port {}", rail.peer_device, rail.peer_port),
        });
    }
    Ok(all)
}

/// The GID of an address.
pub(crate) fn gid_of(address: IpAddr) -> Gid {
    Gid(match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    })
}

/// Most rails of any pair of ranks.
pub fn most_rails(document: &PickDocument) -> usize {
    let mut counts: BTreeMap<(u32, u32), usize> = BTreeMap::new();
    for pick in &document.ranks {
        for rail in &pick.rails {
            *counts.entry((pick.rank, rail.peer)).or_default() += 1;
        }
    }
    counts.values().copied().max().unwrap_or(0)
}
