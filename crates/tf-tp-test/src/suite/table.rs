//! Which checks there are. A pure function of backend, world and rank: every rank makes the same calls in the same order.

use std::fmt;
use tp_fabric::oracle;
use tp_fabric::types::{BackendKind, DType, Rank, ReduceOp, World};

/// Bytes per rank of the core checks: below and above a pack, a warp, a slot and the routing threshold.
pub const SIZES: [usize; 8] = [6, 1000, 4096, 65_536, 262_144, 262_160, 1 << 20, 4 << 20];
/// Bytes per rank of the graph checks.
pub const GRAPH_SIZES: [usize; 3] = [4096, 65_536, 1 << 20];
/// Replays of each captured chain.
pub const GRAPH_REPLAYS: usize = 4;
/// Checks of each replay: two of the chain's results and one eager call between replays.
pub const GRAPH_CHECKS: [&str; 3] = ["chain gather", "chain exchange", "eager between replays"];
/// Bytes of the point-to-point check.
pub const POINT_TO_POINT: usize = 65_536;

/// The most bytes of all ranks' inputs together that a check may have: each rank holds them a few times over.
pub const WHOLE_MAX: usize = 64 << 20;

/// Which total a check counts in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Group {
    /// The reference's checks at world 2.
    Core,
    /// What other worlds and newer calls add.
    Extended,
}

impl Group {
    /// The word in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Extended => "extended",
        }
    }
}

/// Where the buffers of a call lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Two buffers, each on a 64-byte boundary.
    Apart,
    /// One buffer on a 64-byte boundary; a gather's own block.
    InPlace,
    /// One buffer, one element behind a boundary.
    InPlaceOffset,
    /// Two buffers, this many elements behind a boundary each.
    ApartOffset {
        /// Of the buffer that is read.
        send: usize,
        /// Of the buffer that is written.
        recv: usize,
    },
}

/// What is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum What {
    /// `all_reduce`.
    AllReduce(ReduceOp),
    /// `reduce_scatter`; the bytes are one rank's block.
    ReduceScatter(ReduceOp),
    /// `all_gather`.
    AllGather,
    /// `all_gather_v`; the bytes are the stride, the lengths differ from rank to rank, 0 among them.
    AllGatherV,
    /// `broadcast` from this rank.
    Broadcast(Rank),
    /// `exchange` with every other rank in turn.
    Exchange,
    /// `send` to the next rank, `recv` from the one before.
    SendRecv,
}

/// What the buffers hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Random numbers in ±4, raw integers.
    Random,
    /// Also −0, NaNs with payloads, infinities, subnormals, and the largest and smallest values.
    Special,
}

/// One check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Case {
    /// Which total it counts in.
    pub group: Group,
    /// What is called.
    pub what: What,
    /// Element type.
    pub dtype: DType,
    /// Bytes per rank, a multiple of the element's size.
    pub bytes: usize,
    /// Where the buffers lie.
    pub place: Place,
    /// What they hold.
    pub fill: Fill,
}

impl Case {
    fn new(group: Group, what: What, dtype: DType, bytes: usize) -> Self {
        let bytes = bytes - bytes % dtype.size();
        Self {
            group,
            what,
            dtype,
            bytes,
            place: Place::Apart,
            fill: Fill::Random,
        }
    }

    fn at(self, place: Place) -> Self {
        Self { place, ..self }
    }

    fn special(self) -> Self {
        Self {
            fill: Fill::Special,
            ..self
        }
    }

    /// Why it is not run in this world, if it is not. A pure function of the world: all ranks leave out the same.
    pub fn not_in(&self, world: World) -> Option<String> {
        let needs_peer = matches!(self.what, What::Exchange | What::SendRecv);
        if needs_peer && world.0 < 2 {
            return Some("needs a second rank; the world is 1".to_owned());
        }
        let whole = self.bytes.saturating_mul(world.size());
        (whole > WHOLE_MAX).then(|| {
            format!(
                "its {} ranks have {} MiB together, the suite stops at {} MiB",
                world,
                whole >> 20,
                WHOLE_MAX >> 20
            )
        })
    }
}

/// The words behind the backend's name.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.what {
            What::AllReduce(op) => write!(f, "all_reduce {op}")?,
            What::ReduceScatter(op) => write!(f, "reduce_scatter {op}")?,
            What::AllGather => f.write_str("all_gather")?,
            What::AllGatherV => f.write_str("all_gather_v")?,
            What::Broadcast(root) => write!(f, "broadcast from {root}")?,
            What::Exchange => f.write_str("exchange")?,
            What::SendRecv => f.write_str("send recv")?,
        }
        write!(f, " {} {} B", self.dtype, self.bytes)?;
        match self.place {
            Place::Apart => {}
            Place::InPlace => f.write_str(" in place")?,
            Place::InPlaceOffset => f.write_str(" in place at offset 1")?,
            Place::ApartOffset { send, recv } => write!(f, " at offsets {send} {recv}")?,
        }
        match self.fill {
            Fill::Random => Ok(()),
            Fill::Special => f.write_str(" special values"),
        }
    }
}

/// A check's whole name, as in events.
pub fn name(backend: BackendKind, case: &Case) -> String {
    format!("{backend} {case}")
}

/// The names of the graph checks.
pub fn graph_names(backend: BackendKind) -> Vec<String> {
    let mut names = Vec::new();
    for bytes in GRAPH_SIZES {
        for replay in 1..=GRAPH_REPLAYS {
            for check in GRAPH_CHECKS {
                names.push(format!("{backend} graph {bytes} B replay {replay} {check}"));
            }
        }
    }
    names
}

/// Every check of a world, core ones first.
pub fn cases(world: World) -> Vec<Case> {
    // At another world the same calls are made, but they are not what the reference counts.
    let group = if world.0 == 2 {
        Group::Core
    } else {
        Group::Extended
    };
    let mut all = Vec::new();
    for bytes in SIZES {
        reference(group, bytes, &mut all);
    }
    all.push(Case::new(group, What::SendRecv, DType::F32, POINT_TO_POINT));
    extended(world, &mut all);
    all
}

/// The 19 checks of one size.
fn reference(group: Group, bytes: usize, all: &mut Vec<Case>) {
    for dtype in [DType::F32, DType::Bf16, DType::F16, DType::I32] {
        let case = Case::new(group, What::AllReduce(ReduceOp::Sum), dtype, bytes);
        all.extend([case, case.at(Place::InPlaceOffset)]);
    }
    for op in [ReduceOp::Max, ReduceOp::Min] {
        all.push(Case::new(group, What::AllReduce(op), DType::F32, bytes));
    }
    for dtype in [DType::U8, DType::Bf16, DType::F32] {
        let gather = Case::new(group, What::AllGather, dtype, bytes);
        all.extend([
            gather,
            gather.at(Place::InPlace),
            Case::new(group, What::Exchange, dtype, bytes),
        ]);
    }
}

/// Every (operation, element type) that is defined.
fn reductions() -> impl Iterator<Item = (ReduceOp, DType)> {
    let pairs = ReduceOp::ALL
        .iter()
        .flat_map(|op| DType::ALL.iter().map(|d| (*op, *d)));
    pairs.filter(|(op, dtype)| oracle::defined(*dtype, *op))
}

fn extended(world: World, all: &mut Vec<Case>) {
    let new = |what, dtype, bytes| Case::new(Group::Extended, what, dtype, bytes);
    // The reductions that the core leaves out, on either side of 16 KiB and of a slot.
    let in_core = |op, dtype| match op {
        ReduceOp::Sum => matches!(dtype, DType::F32 | DType::Bf16 | DType::F16 | DType::I32),
        ReduceOp::Max | ReduceOp::Min => dtype == DType::F32,
    };
    for (op, dtype) in reductions().filter(|(op, dtype)| !in_core(*op, *dtype)) {
        for bytes in [1000, 20_000, 262_160] {
            let case = new(What::AllReduce(op), dtype, bytes);
            all.extend([case, case.at(Place::InPlaceOffset)]);
        }
    }
    for (op, dtype) in reductions() {
        for bytes in [8, 20_008, 262_160] {
            let case = new(What::ReduceScatter(op), dtype, bytes);
            all.extend([case, case.at(Place::InPlace)]);
        }
    }
    // What −0, NaN, infinities and subnormals become, below and above the routing threshold (field cases 131, 133).
    for (op, dtype) in reductions().filter(|(_, d)| !matches!(d, DType::U8 | DType::I32 | DType::I64)) {
        for bytes in [4096, 524_288] {
            all.push(new(What::AllReduce(op), dtype, bytes).special());
        }
        all.push(new(What::ReduceScatter(op), dtype, 4096).special());
    }
    unaligned(all);
    for dtype in [DType::F16, DType::I32, DType::I64, DType::F64] {
        for bytes in [1000, 262_160] {
            let gather = new(What::AllGather, dtype, bytes);
            all.extend([
                gather,
                gather.at(Place::InPlace),
                new(What::Exchange, dtype, bytes),
            ]);
        }
    }
    for dtype in [DType::U8, DType::Bf16, DType::F32] {
        for bytes in [16, 1000, 65_536, 262_160, 1 << 20] {
            let gather = new(What::AllGatherV, dtype, bytes);
            all.extend([gather, gather.at(Place::InPlace)]);
        }
    }
    for root in world.ranks() {
        for (dtype, bytes) in [(DType::U8, 7), (DType::Bf16, 4096), (DType::F32, 262_160)] {
            let from = new(What::Broadcast(root), dtype, bytes);
            all.extend([from, from.at(Place::InPlace)]);
        }
    }
    for (dtype, bytes) in [(DType::U8, 1), (DType::Bf16, 262_160), (DType::F64, 1 << 20)] {
        all.push(new(What::SendRecv, dtype, bytes));
    }
}

/// Buffers that start in the middle of a 16-byte pack, in place and apart, above 16 KiB: where sender and reader that
/// cut their work by the buffer's own alignment read what is not written yet.
fn unaligned(all: &mut Vec<Case>) {
    let sum = What::AllReduce(ReduceOp::Sum);
    for (dtype, bytes) in [
        (DType::Bf16, 16_386),
        (DType::F16, 65_538),
        (DType::F32, 131_076),
        (DType::I32, 262_148),
    ] {
        let case = Case::new(Group::Extended, sum, dtype, bytes);
        all.push(case.at(Place::InPlaceOffset));
        all.push(case.at(Place::ApartOffset { send: 1, recv: 3 }));
        all.push(case.at(Place::ApartOffset { send: 3, recv: 0 }));
    }
    for bytes in [16_387, 262_147] {
        let case = Case::new(Group::Extended, What::AllGather, DType::U8, bytes);
        all.push(case.at(Place::ApartOffset { send: 1, recv: 7 }));
        all.push(
            Case {
                what: What::Exchange,
                ..case
            }
            .at(Place::ApartOffset { send: 5, recv: 2 }),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn world_2_has_the_counts_of_the_reference() {
        let all = cases(World(2));
        let core: Vec<_> = all.iter().filter(|c| c.group == Group::Core).collect();
        assert_eq!(core.len(), 8 * 19 + 1);
        assert_eq!(graph_names(BackendKind::Host).len(), 36);
        assert_eq!(core.len() + graph_names(BackendKind::Host).len(), 189);
        for bytes in SIZES {
            let of_size = core.iter().filter(|c| c.bytes == bytes - bytes % c.dtype.size());
            let point_to_point = usize::from(bytes == POINT_TO_POINT);
            assert_eq!(of_size.count(), 19 + point_to_point, "{bytes}");
        }
    }

    #[test]
    fn names_are_unique_and_sizes_are_whole_elements() {
        for world in [1, 2, 3, 8, 64] {
            let all = cases(World(world));
            let names: HashSet<String> = all.iter().map(|c| name(BackendKind::Host, c)).collect();
            assert_eq!(names.len(), all.len(), "world {world}");
            assert!(all.iter().all(|c| c.bytes % c.dtype.size() == 0 && c.bytes > 0));
        }
    }

    #[test]
    fn every_defined_reduction_is_checked_with_every_placement() {
        let all = cases(World(3));
        for (op, dtype) in reductions() {
            for place in [Place::Apart, Place::InPlaceOffset] {
                let found = |what| {
                    all.iter()
                        .any(|c| c.what == what && c.dtype == dtype && c.place == place)
                };
                let alone = op != ReduceOp::Sum && dtype == DType::F32;
                assert!(found(What::AllReduce(op)) || alone, "{op} {dtype} {place:?}");
            }
        }
        assert_eq!(reductions().count(), 3 * 7 - 1);
    }

    #[test]
    fn only_calls_that_need_a_peer_are_left_out_of_a_world_of_one() {
        let left_out = cases(World(1))
            .iter()
            .filter(|c| c.not_in(World(1)).is_some())
            .count();
        assert!(left_out > 0);
        assert!(cases(World(2)).iter().all(|c| c.not_in(World(2)).is_none()));
    }
}
