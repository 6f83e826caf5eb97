//! Which wire the ranks take, decided together, and opening it.

use super::verbs::{self, VerbsConfig};
use super::{Opened, shm, tcp};
use crate::host::{Delivery, HostConfig, OpenError};
use crate::meeting::Meeting;
use crate::rails::{self, Agreed, RdmaConfig};
use crate::region::Layout;
use crate::types::{Rank, WireKind};
use tp_hca::PickError;

/// Opens the wire that is asked for; where none is, `verbs` if all pairs of ranks on different hosts have rails, else
/// `shm` on one host, else `tcp`. Collective over `meeting`; `hosts` has every rank's host, and the ranks have agreed on
/// `layout` and on the wire that is asked for.
pub(crate) fn open(
    meeting: &mut dyn Meeting,
    layout: Layout,
    hosts: &[String],
    cfg: &HostConfig,
) -> Result<Opened, OpenError> {
    let me = meeting.rank();
    let here = &hosts[me.index()];
    let other = meeting.world().ranks().find(|rank| hosts[rank.index()] != *here);
    match (cfg.wire, other) {
        (Some(WireKind::Verbs), _) => {
            open_verbs(meeting, layout, hosts, cfg)?.map_err(|why| why.into_error())
        }
        (Some(WireKind::Shm), Some(other)) => Err(OpenError::NoWire {
            wire: WireKind::Shm,
            reason: format!("rank {other} is on another host than rank {me}; take tcp"),
        }),
        (Some(WireKind::Shm) | None, None) => shm::open(meeting, layout),
        (Some(WireKind::Tcp), _) => tcp::open(meeting, layout, cfg),
        (None, Some(_)) => match open_verbs(meeting, layout, hosts, cfg)? {
            Ok(opened) => Ok(opened),
            Err(NoRails::Pick(error)) if error.exit_code() == 2 => Err(NoRails::Pick(error).into_error()),
            Err(why) => {
                if me == Rank(0) {
                    tracing::info!(code = "wire", "wire tcp, not verbs: {}", why.text());
                }
                tcp::open(meeting, layout, cfg)
            }
        },
    }
}

/// Why the ranks have no rails; the same on all of them.
enum NoRails {
    /// A rank brought no facts.
    NotAsked,
    /// A rank has no library that could open its ports.
    NoLibrary(Rank, String),
    /// The pick refused.
    Pick(PickError),
}

impl NoRails {
    fn text(&self) -> String {
        match self {
            Self::NotAsked => "this caller brings no facts about RDMA ports".to_owned(),
            Self::NoLibrary(rank, why) => format!("rank {rank}: {why}"),
            Self::Pick(error) => error.to_string(),
        }
    }

    fn into_error(self) -> OpenError {
        match self {
            Self::Pick(error) => OpenError::Rails(error),
            other => OpenError::NoWire {
                wire: WireKind::Verbs,
                reason: other.text(),
            },
        }
    }
}

/// Picks and opens. The outer error ends the opening on every rank, the inner one leaves another wire to be taken.
fn open_verbs(
    meeting: &mut dyn Meeting,
    layout: Layout,
    hosts: &[String],
    cfg: &HostConfig,
) -> Result<Result<Opened, NoRails>, OpenError> {
    let asked = meeting.all_gather("look for rails", &[u8::from(cfg.rdma.is_some())])?;
    let Some(rdma) = cfg
        .rdma
        .as_ref()
        .filter(|_| asked.iter().all(|answer| answer == &[1]))
    else {
        return Ok(Err(NoRails::NotAsked));
    };
    let agreed = rails::agree(meeting, rdma)?;
    if let Some(error) = &agreed.document.error {
        // A host whose ports cannot be opened is told why by its library, which says more than the facts.
        if let Some(why) = first_without_library(meeting, &agreed)?
            && matches!(error.exit_code(), 3)
        {
            return Ok(Err(why));
        }
        return Ok(Err(NoRails::Pick(error.clone())));
    }
    if let Some(why) = first_without_library(meeting, &agreed)? {
        return Ok(Err(why));
    }
    announce(meeting.rank(), &agreed, rdma);
    let me = meeting.rank();
    let rails = rails::ends(&agreed.document, me, layout.world().size());
    meeting.verdict(
        "read the picked rails",
        rails.as_ref().map(drop).map_err(String::clone),
    )?;
    let (Ok(rails), Ok(verbs)) = (rails, agreed.verbs) else {
        return Ok(Err(NoRails::NotAsked));
    };
    let lonely = layout
        .world()
        .peers(me)
        .find(|peer| rails[peer.index()].is_empty() && hosts[peer.index()] != hosts[me.index()]);
    let outcome = lonely.map_or(Ok(()), |peer| {
        Err(format!(
            "rank {peer} has this host's name and is on another host: give each host a name of its own, or set TF_TP_HOST_ID"
        ))
    });
    meeting.verdict("find a rail to every other host", outcome)?;
    let neighbours = layout
        .world()
        .ranks()
        .filter(|rank| *rank == me || rails[rank.index()].is_empty())
        .collect();
    let config = VerbsConfig {
        verbs,
        rails,
        most_rails: rails::most_rails(&agreed.document),
        neighbours,
        traffic_class: rdma.traffic_class,
        liveness: rdma.liveness,
        bounce: cfg.delivery == Delivery::Direct,
    };
    let (region, wire) = verbs::open(meeting, layout, &config)?;
    Ok(Ok(Opened {
        region,
        wire: Box::new(wire),
    }))
}

/// The first rank that cannot open its ports, and why.
fn first_without_library(meeting: &mut dyn Meeting, agreed: &Agreed) -> Result<Option<NoRails>, OpenError> {
    let mine = agreed.verbs.as_ref().map_or_else(String::as_bytes, |_| &[]);
    let all = meeting.all_gather("load libibverbs", mine)?;
    let first = meeting.world().ranks().zip(all).find(|(_, why)| !why.is_empty());
    Ok(first.map(|(rank, why)| NoRails::NoLibrary(rank, String::from_utf8_lossy(&why).into_owned())))
}

/// Says which rails are taken.
fn announce(me: Rank, agreed: &Agreed, rdma: &RdmaConfig) {
    for retried in &agreed.retried {
        tracing::warn!(code = "probe-retried", "{retried}");
    }
    let rails = agreed.document.rank(me.0).map_or(&[][..], |pick| &pick.rails);
    for rail in rails {
        tracing::info!(
            code = "rail",
            "rail to rank {}: {} port {} GID {} {} to {} port {}, {}",
            rail.peer,
            rail.device,
            rail.port,
            rail.gid_index,
            rail.address,
            rail.peer_device,
            rail.peer_port,
            if rail.probed { "probed" } else { "unprobed" }
        );
    }
    if let Some(tell) = &rdma.on_pick {
        tell(&agreed.document);
    }
}
