//! The lanes of a group: which memory carries whose bytes to whom.
//!
//! A [`Group`] is what one kind of operation uses: its members, their lanes, and its own count of operations. All ranks
//! take part in every operation of a group, so its two halves suffice; operations of different groups know nothing of
//! each other. Broadcast-like operations, those where each reader gets its own bytes, and the trades of each pair are
//! groups of their own where one of them could otherwise run ahead of the others.

use super::args::MAX_MEMBERS;
use super::device::Device;
use super::error::GpuError;
use super::layout::{InboxKind, LaneShape, TwoShotShape};
use super::memory::{DeviceBytes, OFFER, PeerBytes, SharedHost, offer};
use crate::meeting::Meeting;
use crate::types::{Rank, World};
use std::sync::Arc;

/// What holds the lanes; kept for as long as kernels may run.
#[derive(Debug)]
#[expect(dead_code, reason = "held for their drop")]
enum Backing {
    Pinned(SharedHost),
    Device {
        own: Arc<DeviceBytes>,
        peers: Vec<PeerBytes>,
    },
}

/// The lanes of one group.
#[derive(Clone, Debug)]
pub(crate) struct Group {
    /// Its members' ranks, in order.
    pub(crate) ranks: Vec<Rank>,
    /// This rank's place among them.
    pub(crate) me: usize,
    pub(crate) shape: LaneShape,
    pub(crate) out: [u64; MAX_MEMBERS],
    pub(crate) input: [u64; MAX_MEMBERS],
    /// Lanes to write where all readers get the same bytes.
    pub(crate) outs: usize,
    /// Which counters it uses.
    pub(crate) counters: usize,
}

/// All groups of a rank.
#[derive(Debug)]
pub(crate) struct Lanes {
    /// All ranks, each reader the same bytes.
    pub(crate) same: Group,
    /// All ranks, each reader its own bytes.
    pub(crate) each: Group,
    /// This rank and another, by rank; `None` at this rank's own place, and in a world of two, where `same` does.
    pub(crate) pairs: Vec<Option<Group>>,
    /// All ranks, in two shots.
    pub(crate) two_shot: TwoShotLanes,
    /// Sets of counters that the groups use.
    pub(crate) counters: usize,
    #[expect(dead_code, reason = "held for its drop")]
    backing: Backing,
}

/// The lanes of all-reduces in two shots, by member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TwoShotLanes {
    pub(crate) scatter_out: [u64; MAX_MEMBERS],
    pub(crate) scatter_in: [u64; MAX_MEMBERS],
    /// Where combined packs go: to each reader, or to the one place that all read.
    pub(crate) gather_out: [u64; MAX_MEMBERS],
    pub(crate) gather_in: [u64; MAX_MEMBERS],
    /// The flags that each other member looks at, and this rank's.
    pub(crate) flags_out: [u64; MAX_MEMBERS],
    pub(crate) flags_in: u64,
}

/// Lane shapes: the common one, and the one of lanes that carry parts or belong to pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shapes {
    pub(crate) same: LaneShape,
    pub(crate) side: LaneShape,
    pub(crate) two_shot: TwoShotShape,
    /// Whether readers read one copy of combined packs.
    pub(crate) one_copy: bool,
}

const ALIGN: u64 = 4096;

/// Where lanes begin in the memory that holds them, bytes.
struct Offsets {
    world: u64,
    kind: InboxKind,
    same: u64,
    side: u64,
    /// Two shots: a rank's flags, and a lane, which is also what a rank's combined packs take.
    flags: u64,
    packs: u64,
}

impl Offsets {
    fn new(world: World, kind: InboxKind, shapes: &Shapes) -> Self {
        Self {
            world: u64::from(world.0),
            kind,
            same: shapes.same.bytes().next_multiple_of(ALIGN),
            side: shapes.side.bytes().next_multiple_of(ALIGN),
            flags: shapes.two_shot.flag_bytes().next_multiple_of(ALIGN),
            packs: shapes.two_shot.lane_bytes().next_multiple_of(ALIGN),
        }
    }

    /// In pinned memory one lane a sender, read by all; in device memory one a sender in each reader's memory.
    fn same(&self, sender: u64) -> u64 {
        sender * self.same
    }

    /// Pinned: sender by reader. Device: `same` serves.
    fn each(&self, sender: u64, reader: u64) -> u64 {
        match self.kind {
            InboxKind::PinnedHost => self.world * self.same + (sender * self.world + reader) * self.side,
            InboxKind::Device => self.same(sender),
        }
    }

    fn pair(&self, sender: u64, reader: u64) -> u64 {
        match self.kind {
            InboxKind::PinnedHost => self.each(self.world, 0) + (sender * self.world + reader) * self.side,
            InboxKind::Device => self.world * self.same + sender * self.side,
        }
    }

    fn flags(&self, reader: u64) -> u64 {
        self.one_shot() + reader * self.flags
    }

    fn scatter(&self, sender: u64, reader: u64) -> u64 {
        let place = match self.kind {
            InboxKind::PinnedHost => sender * self.world + reader,
            InboxKind::Device => sender,
        };
        self.flags(self.world) + place * self.packs
    }

    fn combined(&self, sender: u64) -> u64 {
        self.scatter(self.world, 0) + sender * self.packs
    }

    fn total(&self) -> u64 {
        self.combined(self.world)
    }

    /// What all but the two-shot lanes take.
    fn one_shot(&self) -> u64 {
        match (self.kind, self.world) {
            (InboxKind::PinnedHost, 2) => self.each(2, 0),
            (InboxKind::PinnedHost, _) => self.pair(self.world, 0),
            (InboxKind::Device, 2) => self.same(2),
            (InboxKind::Device, _) => self.pair(self.world, 0),
        }
    }
}

impl Lanes {
    /// All ranks call it at once.
    pub(crate) fn open(
        device: &Device,
        meeting: &mut dyn Meeting,
        kind: InboxKind,
        shapes: &Shapes,
    ) -> Result<Self, GpuError> {
        let (world, me) = (meeting.world(), meeting.rank());
        let at = Offsets::new(world, kind, shapes);
        let bytes = at.total() as usize;
        // Base address of each rank's memory, as this rank maps it; in pinned memory there is one.
        let (bases, backing) = match kind {
            InboxKind::PinnedHost => {
                let shared = SharedHost::open(device, meeting, bytes)?;
                (
                    vec![shared.device_address(); world.size()],
                    Backing::Pinned(shared),
                )
            }
            InboxKind::Device => open_device(device, meeting, bytes)?,
        };
        let pairs = world
            .ranks()
            .map(|peer| (peer != me && world.0 > 2).then(|| pair(&at, &bases, me, peer, shapes.side)));
        let counters = match kind {
            InboxKind::PinnedHost => 2,
            InboxKind::Device => 1,
        };
        Ok(Self {
            same: everyone(&at, &bases, world, me, shapes.same, true),
            each: everyone(
                &at,
                &bases,
                world,
                me,
                if kind == InboxKind::Device {
                    shapes.same
                } else {
                    shapes.side
                },
                false,
            ),
            pairs: pairs.collect(),
            two_shot: two_shot(&at, &bases, world, me, shapes.one_copy),
            counters: counters + world.size(),
            backing,
        })
    }
}

fn open_device(
    device: &Device,
    meeting: &mut dyn Meeting,
    bytes: usize,
) -> Result<(Vec<u64>, Backing), GpuError> {
    let own = Arc::new(DeviceBytes::new(device, bytes)?);
    let offered = offer(&own);
    meeting.verdict(
        "export the inboxes",
        offered.as_ref().map(drop).map_err(ToString::to_string),
    )?;
    let handles = meeting.all_gather("inbox handles", &offered?)?;
    let (mut bases, mut peers, mut wrong) = (Vec::new(), Vec::new(), Ok(()));
    for (rank, handle) in meeting.world().ranks().zip(handles) {
        if rank == meeting.rank() {
            bases.push(own.address());
            continue;
        }
        let opened = match <[u8; OFFER]>::try_from(handle.as_slice()) {
            Ok(handle) => PeerBytes::open(device, &handle),
            Err(_) => Err(GpuError::Config(format!(
                "rank {rank} gave an inbox handle of {} bytes, not {OFFER}",
                handle.len()
            ))),
        };
        match opened {
            Ok(peer) => {
                bases.push(peer.address());
                peers.push(peer);
            }
            Err(error) => {
                wrong = Err(format!("inbox of rank {rank}: {error}"));
                break;
            }
        }
    }
    meeting.verdict("open the inboxes", wrong)?;
    Ok((bases, Backing::Device { own, peers }))
}

/// The group of all ranks. In device memory `same` and `each` are one, since every reader has its own lane anyway.
fn everyone(at: &Offsets, bases: &[u64], world: World, me: Rank, shape: LaneShape, same: bool) -> Group {
    let (mut out, mut input) = ([0; MAX_MEMBERS], [0; MAX_MEMBERS]);
    let mine = u64::from(me.0);
    for peer in world.peers(me) {
        let theirs = u64::from(peer.0);
        let to_peer = if same {
            at.same(mine)
        } else {
            at.each(mine, theirs)
        };
        let to_me = if same {
            at.same(theirs)
        } else {
            at.each(theirs, mine)
        };
        out[peer.index()] = bases[peer.index()] + to_peer;
        input[peer.index()] = bases[me.index()] + to_me;
    }
    let one_copy = same && at.kind == InboxKind::PinnedHost;
    if one_copy {
        out = [0; MAX_MEMBERS];
        out[0] = bases[me.index()] + at.same(mine);
    }
    Group {
        ranks: world.ranks().collect(),
        me: me.index(),
        shape,
        out,
        input,
        outs: if one_copy { 1 } else { world.size() },
        counters: usize::from(at.kind == InboxKind::PinnedHost && !same),
    }
}

fn two_shot(at: &Offsets, bases: &[u64], world: World, me: Rank, one_copy: bool) -> TwoShotLanes {
    let none = [0; MAX_MEMBERS];
    let mut lanes = TwoShotLanes {
        scatter_out: none,
        scatter_in: none,
        gather_out: none,
        gather_in: none,
        flags_out: none,
        flags_in: bases[me.index()] + at.flags(u64::from(me.0)),
    };
    let mine = u64::from(me.0);
    for peer in world.peers(me) {
        let (r, theirs) = (peer.index(), u64::from(peer.0));
        lanes.flags_out[r] = bases[r] + at.flags(theirs);
        lanes.scatter_out[r] = bases[r] + at.scatter(mine, theirs);
        lanes.scatter_in[r] = bases[me.index()] + at.scatter(theirs, mine);
        lanes.gather_in[r] = at.combined(theirs) + bases[if one_copy { r } else { me.index() }];
        if !one_copy {
            lanes.gather_out[r] = bases[r] + at.combined(mine);
        }
    }
    if one_copy {
        lanes.gather_out[me.index()] = bases[me.index()] + at.combined(mine);
    }
    lanes
}

fn pair(at: &Offsets, bases: &[u64], me: Rank, peer: Rank, shape: LaneShape) -> Group {
    let ranks = if me < peer { vec![me, peer] } else { vec![peer, me] };
    let (place, other) = (usize::from(me > peer), usize::from(me < peer));
    let (mut out, mut input) = ([0; MAX_MEMBERS], [0; MAX_MEMBERS]);
    out[other] = bases[peer.index()] + at.pair(u64::from(me.0), u64::from(peer.0));
    input[other] = bases[me.index()] + at.pair(u64::from(peer.0), u64::from(me.0));
    let first = if at.kind == InboxKind::PinnedHost { 2 } else { 1 };
    Group {
        ranks,
        me: place,
        shape,
        out,
        input,
        outs: 2,
        counters: first + peer.index(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const SHAPE: LaneShape = LaneShape {
        line_blocks: 4,
        dense_tiles: 2,
        chunk_blocks: 4,
        slot_bytes: 4096,
    };
    const SHAPES: Shapes = Shapes {
        same: SHAPE,
        side: LaneShape {
            line_blocks: 2,
            ..SHAPE
        },
        two_shot: TwoShotShape {
            blocks: 4,
            region_bytes: 1 << 10,
        },
        one_copy: false,
    };

    /// Every lane that some rank writes: (its memory, offset, length, writer, readers' view of it).
    fn written(world: World, kind: InboxKind) -> Vec<(u64, u64)> {
        let at = Offsets::new(world, kind, &SHAPES);
        let bases: Vec<u64> = match kind {
            InboxKind::PinnedHost => vec![1 << 40; world.size()],
            InboxKind::Device => world.ranks().map(|r| u64::from(r.0 + 1) << 40).collect(),
        };
        let mut all = Vec::new();
        for me in world.ranks() {
            let mut groups = vec![everyone(&at, &bases, world, me, SHAPES.same, true)];
            if kind == InboxKind::PinnedHost {
                groups.push(everyone(&at, &bases, world, me, SHAPES.side, false));
            }
            // Readers of one copy are given one address.
            let packs: BTreeSet<u64> = [false, true]
                .into_iter()
                .map(|one_copy| two_shot(&at, &bases, world, me, one_copy))
                .flat_map(|lanes| lanes.scatter_out.into_iter().chain(lanes.gather_out))
                .filter(|lane| *lane != 0)
                .collect();
            all.extend(packs.into_iter().map(|lane| (lane, SHAPES.two_shot.lane_bytes())));
            let flags = two_shot(&at, &bases, world, me, true).flags_in;
            all.push((flags, SHAPES.two_shot.flag_bytes()));
            if world.0 > 2 {
                groups.extend(
                    world
                        .peers(me)
                        .map(|peer| pair(&at, &bases, me, peer, SHAPES.side)),
                );
            }
            for group in groups {
                all.extend(
                    group
                        .out
                        .iter()
                        .filter(|a| **a != 0)
                        .map(|a| (*a, group.shape.bytes())),
                );
            }
        }
        all
    }

    #[test]
    fn no_two_lanes_overlap() {
        for kind in [InboxKind::PinnedHost, InboxKind::Device] {
            for world in 2..=8 {
                let mut lanes = written(World(world), kind);
                lanes.sort_unstable();
                for two in lanes.windows(2) {
                    assert!(two[0].0 + two[0].1 <= two[1].0, "{kind}, world {world}: {two:?}");
                }
            }
        }
    }

    #[test]
    fn every_lane_stays_inside_its_memory() {
        for kind in [InboxKind::PinnedHost, InboxKind::Device] {
            for world in 2..=8 {
                let total = Offsets::new(World(world), kind, &SHAPES).total();
                for (address, bytes) in written(World(world), kind) {
                    assert!(address % (1 << 40) + bytes <= total, "{kind}, world {world}");
                }
            }
        }
    }

    #[test]
    fn what_one_rank_writes_is_what_the_other_reads() {
        for kind in [InboxKind::PinnedHost, InboxKind::Device] {
            let world = World(4);
            let at = Offsets::new(world, kind, &SHAPES);
            let bases: Vec<u64> = match kind {
                InboxKind::PinnedHost => vec![1 << 40; 4],
                InboxKind::Device => (1..=4).map(|r| r << 40).collect(),
            };
            let same: Vec<Group> = world
                .ranks()
                .map(|r| everyone(&at, &bases, world, r, SHAPE, true))
                .collect();
            for one_copy in [false, true] {
                let shots: Vec<TwoShotLanes> = world
                    .ranks()
                    .map(|r| two_shot(&at, &bases, world, r, one_copy))
                    .collect();
                for (a, b) in (0..4)
                    .flat_map(|a| (0..4).map(move |b| (a, b)))
                    .filter(|(a, b)| a != b)
                {
                    let from_a = if one_copy { a } else { b };
                    assert_eq!(
                        shots[a].scatter_out[b], shots[b].scatter_in[a],
                        "{kind}: {a} to {b}"
                    );
                    assert_eq!(
                        shots[a].gather_out[from_a], shots[b].gather_in[a],
                        "{kind}: {a} to {b}"
                    );
                    assert_eq!(shots[a].flags_out[b], shots[b].flags_in, "{kind}: {a} to {b}");
                }
            }
            let each: Vec<Group> = world
                .ranks()
                .map(|r| everyone(&at, &bases, world, r, SHAPE, false))
                .collect();
            for (a, b) in world
                .ranks()
                .flat_map(|a| world.peers(a).map(move |b| (a.index(), b.index())))
            {
                let to_b = if same[a].outs == 1 {
                    same[a].out[0]
                } else {
                    same[a].out[b]
                };
                assert_eq!(to_b, same[b].input[a], "{kind}: {a} to {b}");
                assert_eq!(each[a].out[b], each[b].input[a], "{kind}: {a} to {b}");
                let (rank_a, rank_b) = (Rank(a as u32), Rank(b as u32));
                let (mine, theirs) = (
                    pair(&at, &bases, rank_a, rank_b, SHAPE),
                    pair(&at, &bases, rank_b, rank_a, SHAPE),
                );
                assert_eq!(
                    mine.out[theirs.me], theirs.input[mine.me],
                    "{kind}: pair {a}, {b}"
                );
            }
        }
    }
}
