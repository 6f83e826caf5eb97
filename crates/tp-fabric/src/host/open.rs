//! Opening the host backend: agreement first, then the wire, then the proxy.

use super::backend::HostBackend;
use super::config::{Delivery, HostConfig, OpenError};
use super::shared::Shared;
use crate::meeting::Meeting;
use crate::proxy::Proxy;
use crate::region::{Layout, Mapping, Region, layout};
use crate::text::line;
use crate::types::{Rank, WireKind, World};
use crate::wire::{Opened, choose, shm};
use std::sync::Arc;
use std::time::Duration;

/// Opens the host backend on all ranks. Collective over `meeting`; either every rank gets a backend or every rank gets
/// an error. The world may have 1 to 64 ranks.
pub fn open(meeting: &mut dyn Meeting, cfg: &HostConfig) -> Result<HostBackend, OpenError> {
    let Way {
        opened,
        kind,
        neighbours,
    } = open_way(meeting, cfg)?;
    let me = meeting.rank();
    let delivery = if opened.wire.needs_staging() {
        Delivery::Doorbell
    } else {
        cfg.delivery
    };
    let threads = if delivery == Delivery::Doorbell { 2 } else { 1 };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let crowded = neighbours * threads > processors;
    let shared = Arc::new(Shared::new(me, opened.region, opened.wire, cfg.wait, crowded));
    let proxy = match delivery {
        Delivery::Doorbell => Some(Proxy::start(Arc::clone(&shared))).transpose(),
        Delivery::Direct => Ok(None),
    };
    meeting.verdict(
        "start the proxy",
        proxy.as_ref().map(drop).map_err(ToString::to_string),
    )?;
    let proxy = proxy.map_err(|e| local("start the proxy", &e))?;
    Ok(HostBackend::new(shared, kind, delivery, cfg.one_shot_max, proxy))
}

/// The way to the peers' regions, and how it was chosen.
pub(crate) struct Way {
    pub(crate) opened: Opened,
    /// The wire; `None` in a world of one.
    pub(crate) kind: Option<WireKind>,
    /// Ranks of this host, this one too.
    pub(crate) neighbours: usize,
}

/// Agrees on the region's layout and opens the wire. Collective over `meeting`.
pub(crate) fn open_way(meeting: &mut dyn Meeting, cfg: &HostConfig) -> Result<Way, OpenError> {
    let (me, world) = (meeting.rank(), meeting.world());
    let layout = checked_layout(world, cfg);
    let outcome = layout.as_ref().map(drop).map_err(OpenError::to_string);
    let verdict = meeting.verdict("check the wire's configuration", outcome);
    let layout = layout?;
    verdict?;

    let hosts = agree(meeting, &fields(&layout, cfg))?;
    let neighbours = hosts.iter().filter(|host| **host == hosts[me.index()]).count();
    let opened = if world.size() == 1 {
        alone(layout)?
    } else {
        choose::open(meeting, layout, &hosts, cfg)?
    };

    let kind = (world.size() > 1).then(|| opened.wire.kind());
    Ok(Way {
        opened,
        kind,
        neighbours,
    })
}

fn local(what: &str, reason: &dyn std::fmt::Display) -> OpenError {
    OpenError::Local {
        what: what.to_owned(),
        reason: reason.to_string(),
    }
}

fn checked_layout(world: World, cfg: &HostConfig) -> Result<Layout, OpenError> {
    if world.0 > layout::MAX_WORLD {
        return Err(OpenError::World {
            world,
            most: layout::MAX_WORLD,
        });
    }
    if cfg.wait.is_zero() || cfg.wait > Duration::from_secs(86_400) {
        let value = format!("{:?}", cfg.wait);
        return Err(OpenError::Config {
            what: "the wait for peers",
            value,
            range: "above 0 s and up to 86400 s",
        });
    }
    let slot = (layout::PAGE..=layout::MAX_SLOT).contains(&cfg.slot_bytes);
    let layout = if slot {
        Layout::new(world, cfg.slot_bytes)
    } else {
        None
    };
    layout.ok_or_else(|| OpenError::Config {
        what: "the slot size",
        value: format!("{} B", cfg.slot_bytes),
        range: "4 KiB to 16 MiB",
    })
}

/// What must be equal on all ranks.
fn fields(layout: &Layout, cfg: &HostConfig) -> Vec<(&'static str, String)> {
    let mut fields = layout.describe();
    fields.push(("wire", cfg.wire.map_or("by host", WireKind::name).to_owned()));
    fields.push(("largest one-shot all-reduce", format!("{} B", cfg.one_shot_max)));
    // Last, and not compared: the host.
    fields.push(("host", cfg.host_id.clone()));
    fields
}

/// Compares the fields of all ranks but the last, and returns everybody's last.
fn agree(meeting: &mut dyn Meeting, fields: &[(&'static str, String)]) -> Result<Vec<String>, OpenError> {
    let text: Vec<String> = fields
        .iter()
        .map(|(name, value)| format!("{name}={}", value.escape_default()))
        .collect();
    let all = meeting.all_gather("agree on the region's layout", text.join("\n").as_bytes())?;
    compare(&text, &all)
}

/// This rank's fields against those of all.
pub(super) fn compare(text: &[String], all: &[Vec<u8>]) -> Result<Vec<String>, OpenError> {
    let mut hosts = Vec::with_capacity(all.len());
    let mut differing = None;
    for (rank, theirs) in (0..).map(Rank).zip(all) {
        let theirs = String::from_utf8_lossy(theirs);
        let (theirs, host) = theirs.rsplit_once('\n').unwrap_or(("", &theirs));
        hosts.push(host.to_owned());
        let mut lines = theirs.lines();
        for mine in &text[..text.len().saturating_sub(1)] {
            let theirs = lines.next().unwrap_or("nothing");
            if theirs != mine && differing.is_none() {
                differing = Some(disagreement(rank, mine, &line(theirs, 256)));
            }
        }
    }
    differing.map_or(Ok(hosts), Err)
}

fn disagreement(rank: Rank, mine: &str, theirs: &str) -> OpenError {
    let (field, mine) = mine.split_once('=').unwrap_or((mine, ""));
    let theirs = theirs
        .strip_prefix(field)
        .and_then(|v| v.strip_prefix('='))
        .unwrap_or(theirs);
    OpenError::Disagree {
        field: field.to_owned(),
        mine: mine.to_owned(),
        rank,
        theirs: theirs.to_owned(),
    }
}

/// A world of one needs no peers' memory, only a region that nobody writes to.
fn alone(layout: Layout) -> Result<Opened, OpenError> {
    let mapping = Mapping::anonymous(layout.total()).map_err(|e| local("map the region", &e))?;
    let region =
        Region::new(&Arc::new(mapping), 0, layout).ok_or_else(|| local("map the region", &"too small"))?;
    Ok(Opened {
        region: region.clone(),
        wire: shm::single(region),
    })
}
