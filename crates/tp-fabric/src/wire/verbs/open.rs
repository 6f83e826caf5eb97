//! Opening the verbs wire on all ranks together: memory, devices, records, connections.

use super::extent::Extent;
use super::link::{DEPTH, Device, Link, Losses, Rail};
use super::memory::Memory;
use super::record::{End, Record};
use super::watch::{Watch, Watched};
use super::{Inner, RailEnd, VerbsWire};
use crate::host::OpenError;
use crate::meeting::Meeting;
use crate::region::{Layout, Mapping, Region};
use crate::types::Rank;
use crate::wire::shm;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tp_verbs::post::{MAX_WRITE, Poster, Window};
use tp_verbs::{
    Capacity, CompletionQueue, Context, Far, MemoryRegion, Mtu, Near, Path, ProtectionDomain, QueuePair,
    Verbs,
};

/// Wait for an acknowledgement before a packet is repeated, as the verbs count it: 1.07 s. Lost packets in the middle of a stream
/// are asked for by the peer sooner.
const TIMEOUT: u8 = 18;
/// Repeats; seven would mean for ever to some drivers.
const RETRIES: u8 = 6;
/// Bytes that bounce slots may take, beyond two of them.
const BOUNCE_BYTES: usize = 16 << 20;

/// What the wire is opened with.
#[derive(Clone, Debug)]
pub struct VerbsConfig {
    /// The library.
    pub verbs: Arc<Verbs>,
    /// This rank's rails to each rank, in the order that both ends know; none to itself and to ranks of its host.
    pub rails: Vec<Vec<RailEnd>>,
    /// Most rails of any pair of ranks.
    pub most_rails: usize,
    /// Which ranks are on this host, this one too.
    pub neighbours: Vec<Rank>,
    /// Traffic class of all packets.
    pub traffic_class: u8,
    /// How long a peer may leave a write unacknowledged.
    pub liveness: Duration,
    /// Whether payloads may lie outside the registered memory; they are copied then.
    pub bounce: bool,
}

/// What one rank has before it connects.
struct Local {
    region: Region,
    neighbours: Vec<Option<Region>>,
    memory: Memory,
    devices: Vec<Device>,
    /// By rank.
    pairs: Vec<Vec<Pending>>,
}

/// A queue pair that is not connected yet.
struct Pending {
    pair: QueuePair,
    near: RailEnd,
    device: usize,
    end: End,
}

/// Opens the wire. Collective over `meeting`; the ranks must have agreed on `layout` and on the rails.
pub fn open(
    meeting: &mut dyn Meeting,
    layout: Layout,
    cfg: &VerbsConfig,
) -> Result<(Region, VerbsWire), OpenError> {
    let me = meeting.rank();
    let outcome = check(layout, cfg);
    meeting.verdict(
        "check the verbs wire",
        outcome.as_ref().map(drop).map_err(ToString::to_string),
    )?;
    outcome?;
    let extent = Extent::new(layout, cfg.most_rails, bounces(layout, cfg));
    let shared =
        shm::share(meeting, &cfg.neighbours, extent.total(), extent.total())?.map(|(mapping, _)| mapping);
    let local = local(me, layout, extent, shared, cfg);
    meeting.verdict(
        "open the RDMA devices",
        local.as_ref().map(drop).map_err(String::clone),
    )?;
    let local = local.map_err(|reason| failed("open the RDMA devices", reason))?;

    let ends = local.pairs.iter().flatten().map(|pending| pending.end).collect();
    let record = Record::new(local.memory.extent(), local.memory.base() as u64, ends);
    let all = meeting.all_gather("trade the queue pairs", &record.encode())?;
    let wire = connect(me, &all, local, cfg);
    // Nobody writes before every rank takes what is written.
    meeting.verdict(
        "connect the queue pairs",
        wire.as_ref().map(drop).map_err(String::clone),
    )?;
    let wire = wire.map_err(|reason| failed("connect the queue pairs", reason))?;
    Ok((wire.region.clone(), wire))
}

fn failed(what: &str, reason: String) -> OpenError {
    OpenError::Local {
        what: what.to_owned(),
        reason,
    }
}

/// No write may exceed the cap; with more rails each stripe is smaller.
fn check(layout: Layout, cfg: &VerbsConfig) -> Result<(), OpenError> {
    let rails = cfg.rails.iter().map(Vec::len).filter(|rails| *rails > 0);
    let fewest = rails.min().unwrap_or(1);
    let largest = crate::region::partition::part(layout.slot(), fewest, 0).len();
    if largest <= MAX_WRITE as usize {
        return Ok(());
    }
    Err(OpenError::Config {
        what: "the slot size (TF_TP_MAILBOX_MAX_KB)",
        value: format!(
            "{} KiB, {largest} B in one RDMA write over {fewest} rails",
            layout.slot() >> 10
        ),
        range: "so small that no RDMA write exceeds 1 MiB: at most 1024 KiB for each rail",
    })
}

fn bounces(layout: Layout, cfg: &VerbsConfig) -> usize {
    let remote = cfg.rails.iter().filter(|rails| !rails.is_empty()).count();
    if !cfg.bounce || remote == 0 {
        return 0;
    }
    (2 * remote).min((BOUNCE_BYTES / layout.slot()).max(2))
}

fn local(
    me: Rank,
    layout: Layout,
    extent: Extent,
    shared: Option<Arc<Mapping>>,
    cfg: &VerbsConfig,
) -> Result<Local, String> {
    let world = layout.world();
    let position = |rank: Rank| cfg.neighbours.iter().position(|one| *one == rank);
    let mapping = match shared {
        Some(mapping) => mapping,
        None => Arc::new(
            Mapping::anonymous(extent.total()).map_err(|e| format!("map {} bytes: {e}", extent.total()))?,
        ),
    };
    let offset = position(me).unwrap_or(0) * extent.total();
    let memory = Memory::new(&mapping, offset, extent).ok_or("the shared memory is too small")?;
    let region = memory
        .region(offset, layout)
        .ok_or("the region lies outside its memory")?;
    let neighbours = world
        .ranks()
        .map(|rank| match position(rank) {
            Some(place) if cfg.neighbours.len() > 1 => Region::new(&mapping, place * extent.total(), layout),
            _ => None,
        })
        .collect();
    // SAFETY: this rank's part of the mapping, in whole pages; other ranks' parts are protected by them.
    unsafe { tp_verbs::protect(memory.base(), extent.total()) }
        .map_err(|e| format!("keep the registered memory out of forked children and huge pages: {e}"))?;
    let mut local = Local {
        region,
        neighbours,
        memory,
        devices: Vec::new(),
        pairs: world.ranks().map(|_| Vec::new()).collect(),
    };
    let mut by_name = BTreeMap::new();
    for near in cfg.rails.iter().flatten() {
        let device = match by_name.get(&near.device) {
            Some(device) => *device,
            None => {
                let sharing = cfg
                    .rails
                    .iter()
                    .flatten()
                    .filter(|end| end.device == near.device)
                    .count();
                local
                    .devices
                    .push(device(&local.memory, cfg, &near.device, sharing)?);
                by_name.insert(near.device.clone(), local.devices.len() - 1);
                local.devices.len() - 1
            }
        };
        let pending = pending(me, &local.devices[device], device, near)?;
        local.pairs[near.peer.index()].push(pending);
    }
    Ok(local)
}

fn device(memory: &Memory, cfg: &VerbsConfig, name: &str, queue_pairs: usize) -> Result<Device, String> {
    let open = || -> Result<Device, tp_verbs::Error> {
        let context = Context::open(&cfg.verbs, name)?;
        let domain = ProtectionDomain::new(&context)?;
        // SAFETY: the wire keeps the mapping for as long as the region, and beyond it where it was halted.
        let region = unsafe { MemoryRegion::register_raw(&domain, memory.base(), memory.extent().total()) }?;
        let completions = CompletionQueue::new(&context, DEPTH * queue_pairs as u32)?;
        Ok(Device {
            completions,
            region,
            context,
            outstanding: 0,
        })
    };
    open().map_err(|error| error.to_string())
}

fn pending(me: Rank, device: &Device, number: usize, near: &RailEnd) -> Result<Pending, String> {
    let found = device
        .context
        .gid(near.port, u32::from(near.gid_index))
        .map_err(|error| error.to_string())?;
    if found != near.gid {
        return Err(format!(
            "{near}: GID {} is {found}, it was {} when the rails were picked: start again",
            near.gid_index, near.gid
        ));
    }
    let port = device
        .context
        .port(near.port)
        .map_err(|error| error.to_string())?;
    let mtu = port
        .active_mtu
        .ok_or_else(|| format!("{near}: the driver gives no known MTU"))?;
    let pair = queue_pair(device).map_err(|error| error.to_string())?;
    let mut random = [0; 4];
    getrandom::fill(&mut random).map_err(|e| e.to_string())?;
    let end = End {
        peer: near.peer,
        rail: near.rail as u32,
        queue_pair: pair.number(),
        first_packet: u32::from_ne_bytes(random) & 0xff_ffff,
        key: device.region.remote().key,
        lid: port.lid,
        mtu,
        gid: found,
    };
    debug_assert_ne!(me, near.peer);
    Ok(Pending {
        pair,
        near: near.clone(),
        device: number,
        end,
    })
}

/// With room for whole lines inside requests, where the device has it.
fn queue_pair(device: &Device) -> Result<QueuePair, tp_verbs::Error> {
    let inline = [super::cells::LINE as u32, 128, 64, 0];
    let mut last = None;
    for inline in inline {
        match QueuePair::new(
            device.region.domain(),
            &device.completions,
            Capacity { sends: DEPTH, inline },
        ) {
            Ok(pair) => return Ok(pair),
            Err(error) if error.errno() == Some(libc::EINVAL) => last = Some(error),
            Err(error) => return Err(error),
        }
    }
    match last {
        Some(error) => Err(error),
        None => QueuePair::new(
            device.region.domain(),
            &device.completions,
            Capacity {
                sends: DEPTH,
                inline: 0,
            },
        ),
    }
}

fn connect(me: Rank, all: &[Vec<u8>], local: Local, cfg: &VerbsConfig) -> Result<VerbsWire, String> {
    let Local {
        region,
        neighbours,
        memory,
        devices,
        pairs,
    } = local;
    let mut links = Vec::with_capacity(pairs.len());
    let mut watched: Vec<Watched> = devices
        .iter()
        .map(|device| Watched {
            context: Arc::clone(&device.context),
            uses: Vec::new(),
        })
        .collect();
    for (peer, pairs) in (0..).map(Rank).zip(pairs) {
        if pairs.is_empty() {
            links.push(None);
            continue;
        }
        let record = Record::decode(&all[peer.index()]).map_err(|why| format!("rank {peer}: {why}"))?;
        record
            .fits(memory.extent())
            .map_err(|why| format!("rank {peer}: {why}"))?;
        let mut rails = Vec::with_capacity(pairs.len());
        for pending in pairs {
            watched[pending.device].uses.push((peer, pending.near.clone()));
            rails.push(rail(me, pending, &record, &memory, &devices, cfg)?);
        }
        links.push(Some(Link {
            rails,
            sent: 0,
            expected: 1,
        }));
    }
    let losses = Arc::new(Losses::new(links.len()));
    let watch =
        Watch::start(watched, Arc::clone(&losses)).map_err(|e| format!("watch the devices' events: {e}"))?;
    let bounces = vec![None; memory.extent().bounces()];
    Ok(VerbsWire {
        me,
        watch: Some(watch),
        inner: Mutex::new(Inner {
            links,
            devices,
            bounces,
            next_bounce: 0,
        }),
        losses,
        liveness: cfg.liveness,
        turns: AtomicU32::new(0),
        halted: AtomicBool::new(false),
        report: Mutex::new(None),
        neighbours,
        region,
        memory,
    })
}

/// Connects one queue pair to the peer's end of the same rail.
fn rail(
    me: Rank,
    pending: Pending,
    record: &Record,
    memory: &Memory,
    devices: &[Device],
    cfg: &VerbsConfig,
) -> Result<Rail, String> {
    let Pending {
        pair,
        near,
        device,
        end,
    } = pending;
    let theirs = record
        .end(me, near.rail)
        .ok_or_else(|| format!("{near}: the peer has no such rail; the ranks picked differently"))?;
    let mtu: Mtu = end.mtu.min(theirs.mtu);
    if end.mtu != theirs.mtu {
        tracing::info!(
            code = "mtu-mismatch",
            "{near}: MTU {} here, {} there; {} is used",
            end.mtu.bytes(),
            theirs.mtu.bytes(),
            mtu.bytes()
        );
    }
    let own = Near {
        port: near.port,
        gid_index: near.gid_index,
        gid: near.gid,
        first_packet: end.first_packet,
    };
    let far = Far {
        queue_pair: theirs.queue_pair,
        gid: theirs.gid,
        lid: theirs.lid,
        first_packet: theirs.first_packet,
    };
    let path = Path {
        mtu,
        traffic_class: cfg.traffic_class,
        timeout: TIMEOUT,
        retries: RETRIES,
    };
    pair.connect(&own, &far, &path)
        .map_err(|error| format!("{near}: {error}"))?;
    let poster = Poster {
        local: memory.window(devices[device].region.local().key),
        remote: Window {
            start: record.start,
            length: record.length,
            key: theirs.key,
        },
        max_inline: pair.capacity().inline,
    };
    Ok(Rail::new(pair, poster, near, device))
}
