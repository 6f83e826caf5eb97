//! Which protocol, grid and form a payload takes: by the call, its size, the number of ranks and where the inboxes lie, so
//! that all ranks decide alike. Pure.

use super::layout::{DENSE_TILE_PACKS, InboxKind, LaneShape, MAX_WARPS, PACK, TILE_PACKS, TILES_A_BLOCK};
use super::two_shot::TwoShotTuning;

/// Most members of a launch whose warps may carry several tiles, and of one by dense lines.
const SEVERAL_MAX: usize = 4;

/// How bytes and flags travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// A flag of 32 bits inside every 16 bytes.
    Lines,
    /// A flag of 16 bits inside every 16 bytes.
    Dense,
    /// One flag a block that counts chunks.
    Chunks,
}

impl Protocol {
    /// The word that people use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lines => "lines",
            Self::Dense => "dense lines",
            Self::Chunks => "chunks",
        }
    }
}

/// One launch's shape.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// The protocol.
    pub protocol: Protocol,
    /// Blocks.
    pub grid: u32,
    /// Threads of a block.
    pub threads: u32,
    /// Lines: tiles that a warp carries; chunks: packs of a chunk.
    pub rounds: u32,
    /// Lines: tiles that a block owns in each half of a lane.
    pub block_tiles: u16,
    /// Lines: clock cycles between writing a tile and the first poll for it, in the short kernels.
    pub pause: u32,
    /// Dense lines: clock cycles by which each warp writes later than the one before.
    pub stagger: u32,
    /// Payload of this launch, bytes.
    pub bytes: u64,
}

/// How launches of one form of lines are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineTuning {
    /// Warps of a block, 1 to 8; fewer where they carry several tiles.
    pub warps: u32,
    /// Smallest payload whose warps carry two tiles, bytes.
    pub two_tiles_min: u64,
    /// Smallest payload whose warps carry four tiles, bytes.
    pub four_tiles_min: u64,
    /// Clock cycles between writing a tile and the first poll for it: over a link, an early poll costs a whole trip.
    pub pause: u32,
    /// What each KiB of a payload that goes one tile a warp adds to the pause, up to `pause_max` in all.
    pub pause_a_kib: u32,
    /// Longest pause, clock cycles.
    pub pause_max: u32,
    /// Dense lines, for each rank of a GPU: clock cycles by which each warp writes later than the one before, about what
    /// the link needs for a tile. The ranks of one GPU share its link.
    pub stagger: u32,
}

/// The crossovers and grids of one kind of inbox. Ranks must agree on all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Largest payload that travels as lines, bytes.
    pub lines_max: u64,
    /// The same where each reader gets its own bytes, bytes; the lesser of the two holds.
    pub scatter_lines_max: u64,
    /// Smallest payload that travels as dense lines where the call allows it, bytes.
    pub dense_min: u64,
    /// Largest such payload, bytes.
    pub dense_max: u64,
    /// Sparse lines.
    pub sparse: LineTuning,
    /// Dense lines.
    pub dense: LineTuning,
    /// Warps that send, and as many that receive, in a block of chunks, 1 to 7.
    pub chunk_warps: u32,
    /// Largest chunk, bytes; a multiple of 128.
    pub chunk_max: u64,
    /// All-reduces in two shots.
    pub two_shot: TwoShotTuning,
}

impl Tuning {
    /// The values measured on the machine that docs/performance.md names.
    pub fn of(kind: InboxKind) -> Self {
        match kind {
            InboxKind::PinnedHost => Self {
                lines_max: 512 << 10,
                scatter_lines_max: 512 << 10,
                dense_min: 48 << 10,
                dense_max: u64::MAX,
                sparse: LineTuning {
                    warps: 4,
                    two_tiles_min: 96 << 10,
                    four_tiles_min: 192 << 10,
                    pause: 900,
                    pause_a_kib: 45,
                    pause_max: 2500,
                    stagger: 0,
                },
                dense: LineTuning {
                    pause: 900,
                    pause_max: 900,
                    stagger: 180,
                    ..LineTuning::without_pause(1)
                },
                chunk_warps: 7,
                chunk_max: 16 << 10,
                two_shot: TwoShotTuning::of(kind),
            },
            InboxKind::Device => Self {
                lines_max: 4 << 20,
                scatter_lines_max: 512 << 10,
                dense_min: 800 << 10,
                dense_max: u64::MAX,
                sparse: LineTuning::without_pause(4),
                dense: LineTuning::without_pause(1),
                chunk_warps: 7,
                chunk_max: 16 << 10,
                two_shot: TwoShotTuning::of(kind),
            },
        }
    }

    /// Refuses values that the kernels cannot work with.
    pub fn check(&self) -> Result<(), String> {
        for lines in [self.sparse, self.dense] {
            if !(1..=MAX_WARPS as u32).contains(&lines.warps) {
                return Err(format!("{} warps of lines are not 1 to {MAX_WARPS}", lines.warps));
            }
        }
        if !(1..=7).contains(&self.chunk_warps) {
            return Err(format!("{} warps of chunks are not 1 to 7", self.chunk_warps));
        }
        if self.chunk_max == 0 || !self.chunk_max.is_multiple_of(128) || self.chunk_max > 1 << 24 {
            return Err(format!(
                "chunks of {} bytes are not whole 128-byte lines up to 16 MiB",
                self.chunk_max
            ));
        }
        Ok(())
    }

    /// The tuning for calls where each reader gets its own bytes.
    pub fn scattering(self) -> Self {
        Self {
            lines_max: self.lines_max.min(self.scatter_lines_max),
            ..self
        }
    }

    /// The launch that carries the first part of `bytes`, all of it where it fits, among `members`. `plain`: the call is one
    /// that dense lines carry, and its bytes are whole packs.
    pub fn route(&self, shape: &LaneShape, members: usize, bytes: u64, plain: bool) -> Route {
        let dense = plain && members <= SEVERAL_MAX && shape.dense_tiles > 0;
        // What sparse lines cannot carry at once, dense ones carry sooner.
        let least = self.dense_min.min(shape.line_capacity() + 1);
        if dense && (least..=self.dense_max).contains(&bytes) {
            self.dense(shape, bytes.min(shape.dense_capacity()))
        } else if bytes <= self.lines_max {
            self.lines(shape, members, bytes.min(shape.line_capacity()))
        } else {
            self.chunks(shape, bytes)
        }
    }

    /// A launch of sparse lines; `bytes` fits [`LaneShape::line_capacity`].
    fn lines(&self, shape: &LaneShape, members: usize, bytes: u64) -> Route {
        let (grid, threads, rounds) =
            self.sparse
                .cut(shape.line_blocks, TILES_A_BLOCK, TILE_PACKS, members, bytes);
        Route {
            protocol: Protocol::Lines,
            grid,
            threads,
            rounds,
            block_tiles: TILES_A_BLOCK as u16,
            pause: self.sparse.pause_of(rounds, bytes),
            stagger: 0,
            bytes,
        }
    }

    /// A launch of dense lines; `bytes` fits [`LaneShape::dense_capacity`].
    fn dense(&self, shape: &LaneShape, bytes: u64) -> Route {
        let (blocks, tiles) = (shape.line_blocks, u64::from(shape.dense_tiles));
        let (grid, threads, rounds) = self
            .dense
            .cut(blocks, tiles, DENSE_TILE_PACKS, SEVERAL_MAX, bytes);
        Route {
            protocol: Protocol::Dense,
            grid,
            threads,
            rounds,
            block_tiles: shape.dense_tiles as u16,
            pause: self.dense.pause_of(rounds, bytes),
            stagger: self.dense.stagger,
            bytes,
        }
    }

    /// A launch of chunks, of at most the slot.
    pub fn chunks(&self, shape: &LaneShape, bytes: u64) -> Route {
        let bytes = bytes.min(shape.chunk_capacity());
        Route {
            protocol: Protocol::Chunks,
            grid: shape.chunk_blocks,
            threads: 32 * (2 * self.chunk_warps + 2),
            rounds: (self.chunk_max / PACK) as u32,
            block_tiles: 0,
            pause: 0,
            stagger: 0,
            bytes,
        }
    }
}

impl LineTuning {
    /// One tile a warp where the blocks suffice, polled at once: for inboxes that are near.
    pub const fn without_pause(warps: u32) -> Self {
        Self {
            warps,
            two_tiles_min: u64::MAX,
            four_tiles_min: u64::MAX,
            pause: 0,
            pause_a_kib: 0,
            pause_max: 0,
            stagger: 0,
        }
    }

    /// Grid, threads of a block and tiles of a warp, for at most `blocks` blocks of `block_tiles` tiles each.
    fn cut(
        &self,
        blocks: u32,
        block_tiles: u64,
        tile_packs: u64,
        members: usize,
        bytes: u64,
    ) -> (u32, u32, u32) {
        let tiles = bytes.div_ceil(PACK).div_ceil(tile_packs).max(1);
        let rounds = match bytes {
            _ if members > SEVERAL_MAX => 1,
            bytes if bytes >= self.four_tiles_min => 4,
            bytes if bytes >= self.two_tiles_min => 2,
            _ => 1,
        };
        // More tiles a warp, and more warps a block, where the blocks would not suffice.
        let a_block = tiles.div_ceil(u64::from(blocks));
        let rounds = rounds.min(block_tiles).max(a_block.div_ceil(MAX_WARPS));
        let warps = u64::from(self.warps)
            .max(a_block.div_ceil(rounds))
            .min(tiles.div_ceil(rounds))
            .min(MAX_WARPS)
            .min(block_tiles / rounds);
        let grid = tiles.div_ceil(warps * rounds);
        (grid as u32, 32 * warps as u32, rounds as u32)
    }

    fn pause_of(&self, rounds: u32, bytes: u64) -> u32 {
        if rounds > 1 {
            return self.pause;
        }
        let kib = (bytes >> 10).min(u64::from(self.pause_max)) as u32;
        self.pause
            .saturating_add(kib.saturating_mul(self.pause_a_kib))
            .min(self.pause_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LaneShape = LaneShape {
        line_blocks: 64,
        dense_tiles: 8,
        chunk_blocks: 32,
        slot_bytes: 1 << 20,
    };

    /// Both forms of lines alone, each with the packs of its tile, its lines, and what a lane can hold of it.
    fn forms(kind: InboxKind) -> [(Tuning, u64, u64, u64); 2] {
        let tuning = Tuning::of(kind);
        let sparse = Tuning {
            lines_max: u64::MAX,
            dense_max: 0,
            ..tuning
        };
        let dense = Tuning {
            dense_min: 0,
            dense_max: u64::MAX,
            ..tuning
        };
        [
            (sparse, TILE_PACKS, 128, SHAPE.line_capacity()),
            (dense, DENSE_TILE_PACKS, 256, SHAPE.dense_capacity()),
        ]
    }

    #[test]
    fn every_size_of_lines_fits_the_blocks_and_covers_the_payload() {
        for (kind, members) in [
            (InboxKind::PinnedHost, 2),
            (InboxKind::PinnedHost, 8),
            (InboxKind::Device, 4),
        ] {
            for (tuning, packs, lines, capacity) in forms(kind) {
                if lines == 256 && members > SEVERAL_MAX {
                    continue;
                }
                for bytes in (1..=capacity).step_by(997).chain([capacity]) {
                    let route = tuning.route(&SHAPE, members, bytes, true);
                    assert_eq!(
                        (route.protocol == Protocol::Dense, route.bytes),
                        (lines == 256, bytes)
                    );
                    assert!(
                        route.grid <= SHAPE.line_blocks && route.threads <= 256,
                        "{bytes}: {route:?}"
                    );
                    assert!(members <= SEVERAL_MAX || route.rounds == 1, "{bytes}: {route:?}");
                    let a_block = u64::from(route.threads / 32) * u64::from(route.rounds);
                    assert!(a_block <= u64::from(route.block_tiles), "{bytes}: {route:?}");
                    assert!(
                        u64::from(route.grid) * a_block * packs * PACK >= bytes,
                        "{bytes}: {route:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn lines_beyond_their_capacity_go_in_parts() {
        for (tuning, _, _, capacity) in forms(InboxKind::Device) {
            assert_eq!(tuning.route(&SHAPE, 2, 5 << 20, true).bytes, capacity);
        }
    }

    #[test]
    fn dense_lines_carry_what_they_can_and_no_more() {
        let tuning = Tuning {
            dense_min: 1 << 10,
            dense_max: 1 << 20,
            ..Tuning::of(InboxKind::PinnedHost)
        };
        let protocol =
            |shape: &LaneShape, members, bytes, plain| tuning.route(shape, members, bytes, plain).protocol;
        assert_eq!(protocol(&SHAPE, 4, 65_536, true), Protocol::Dense);
        assert_eq!(protocol(&SHAPE, 4, 65_536, false), Protocol::Lines);
        assert_eq!(protocol(&SHAPE, 5, 65_536, true), Protocol::Lines);
        assert_eq!(protocol(&SHAPE, 2, 512, true), Protocol::Lines);
        assert_eq!(protocol(&SHAPE, 2, 2 << 20, true), Protocol::Chunks);
        let without = LaneShape {
            dense_tiles: 0,
            ..SHAPE
        };
        assert_eq!(protocol(&without, 2, 65_536, true), Protocol::Lines);
    }

    /// The kernels' `share_of`, in one half of a lane: the first pack of a thread and its first line.
    fn share(
        route: &Route,
        packs: u64,
        lines: u64,
        (block, warp, round, lane): (u64, u64, u64, u64),
    ) -> (u64, u64) {
        let (warps, rounds) = (u64::from(route.threads / 32), u64::from(route.rounds));
        let in_block = warp + round * warps;
        (
            (block * warps * rounds + in_block) * packs + lane,
            (block * u64::from(route.block_tiles) + in_block) * lines + lane,
        )
    }

    /// How often each pack and each line is carried.
    fn carried(route: &Route, tile_packs: u64, tile_lines: u64, half: u64) -> (Vec<u32>, Vec<u32>) {
        let packs = route.bytes.div_ceil(PACK);
        let mut of_packs = vec![0; packs as usize];
        let mut of_lines = vec![0; (half / 16) as usize];
        let rows = tile_packs / 32;
        for block in 0..u64::from(route.grid) {
            for thread in 0..u64::from(route.threads) {
                for round in 0..u64::from(route.rounds) {
                    let place = (block, thread / 32, round, thread % 32);
                    let (first, line) = share(route, tile_packs, tile_lines, place);
                    for row in (0..rows).filter(|row| first + 32 * row < packs) {
                        of_packs[(first + 32 * row) as usize] += 1;
                        of_lines[(line + 32 * row) as usize] += 1;
                    }
                    // The last row exists where the first does.
                    if first < packs {
                        of_lines[(line + 32 * rows) as usize] += 1;
                    }
                }
            }
        }
        (of_packs, of_lines)
    }

    #[test]
    fn every_pack_is_carried_once_by_lines_of_its_own() {
        for (kind, members) in [
            (InboxKind::PinnedHost, 2),
            (InboxKind::PinnedHost, 8),
            (InboxKind::Device, 2),
        ] {
            for (tuning, tile_packs, tile_lines, capacity) in forms(kind) {
                if tile_lines == 256 && members > SEVERAL_MAX {
                    continue;
                }
                let half = if tile_lines == 256 {
                    SHAPE.dense_half()
                } else {
                    SHAPE.line_half()
                };
                for bytes in [
                    1, 16, 1000, 1536, 4096, 65_536, 98_304, 200_000, 262_160, 524_288, capacity,
                ] {
                    let route = tuning.route(&SHAPE, members, bytes, true);
                    let (packs, lines) = carried(&route, tile_packs, tile_lines, half);
                    assert!(
                        packs.iter().all(|times| *times == 1),
                        "{kind}, {bytes}: {route:?}"
                    );
                    assert!(
                        lines.iter().all(|times| *times <= 1),
                        "{kind}, {bytes}: {route:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn large_payloads_go_as_chunks_slot_by_slot() {
        let tuning = Tuning::of(InboxKind::PinnedHost);
        let route = tuning.route(&SHAPE, 2, 5 << 20, false);
        assert_eq!(
            (route.protocol, route.bytes, route.grid),
            (Protocol::Chunks, 1 << 20, 32)
        );
        assert!(route.threads <= 512);
    }

    #[test]
    fn tunings_are_checked() {
        assert_eq!(Tuning::of(InboxKind::Device).check(), Ok(()));
        let good = Tuning::of(InboxKind::PinnedHost);
        assert!(
            Tuning {
                dense: LineTuning::without_pause(9),
                ..good
            }
            .check()
            .is_err()
        );
        assert!(
            Tuning {
                chunk_warps: 0,
                ..good
            }
            .check()
            .is_err()
        );
        assert!(
            Tuning {
                chunk_max: 100,
                ..good
            }
            .check()
            .is_err()
        );
    }
}
