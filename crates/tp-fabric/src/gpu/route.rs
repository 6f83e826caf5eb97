//! Which protocol, grid and form a payload takes: by its size, the number of ranks and where the inboxes lie, so that all
//! ranks decide alike. Pure.

use super::layout::{InboxKind, LaneShape, PACK, TILE_PACKS, TILES_A_BLOCK};

/// How bytes and flags travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// A flag inside every 16 bytes.
    Lines,
    /// One flag a block that counts chunks.
    Chunks,
}

impl Protocol {
    /// The word that people use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lines => "lines",
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
    /// Lines: clock cycles between writing a tile and the first poll for it, in the short kernels.
    pub pause: u32,
    /// Payload of this launch, bytes.
    pub bytes: u64,
}

/// The crossovers and grids of one kind of inbox. Ranks must agree on all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Largest payload that travels as lines, bytes.
    pub lines_max: u64,
    /// The same where each reader gets its own bytes, bytes; the lesser of the two holds.
    pub scatter_lines_max: u64,
    /// Warps of a block of lines, 1 to 8; fewer where they carry several tiles.
    pub lines_warps: u32,
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
    /// Warps that send, and as many that receive, in a block of chunks, 1 to 7.
    pub chunk_warps: u32,
    /// Largest chunk, bytes; a multiple of 128.
    pub chunk_max: u64,
    /// Smallest all-reduce of more than two ranks that goes as reduce-scatter and all-gather, bytes.
    pub two_shot_min: u64,
}

impl Tuning {
    /// The values measured on the machine that docs/performance.md names.
    pub fn of(kind: InboxKind) -> Self {
        match kind {
            InboxKind::PinnedHost => Self {
                lines_max: 512 << 10,
                scatter_lines_max: 512 << 10,
                lines_warps: 4,
                two_tiles_min: 96 << 10,
                four_tiles_min: 192 << 10,
                pause: 900,
                pause_a_kib: 45,
                pause_max: 2500,
                chunk_warps: 7,
                chunk_max: 16 << 10,
                two_shot_min: 128 << 10,
            },
            InboxKind::Device => Self {
                lines_max: 4 << 20,
                scatter_lines_max: 512 << 10,
                lines_warps: 4,
                two_tiles_min: u64::MAX,
                four_tiles_min: u64::MAX,
                pause: 0,
                pause_a_kib: 0,
                pause_max: 0,
                chunk_warps: 7,
                chunk_max: 16 << 10,
                two_shot_min: 512 << 10,
            },
        }
    }

    /// Refuses values that the kernels cannot work with.
    pub fn check(&self) -> Result<(), String> {
        if !(1..=TILES_A_BLOCK as u32).contains(&self.lines_warps) {
            return Err(format!(
                "{} warps of lines are not 1 to {TILES_A_BLOCK}",
                self.lines_warps
            ));
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

    /// The launch that carries the first part of `bytes`, all of it where it fits, among `members`.
    pub fn route(&self, shape: &LaneShape, members: usize, bytes: u64) -> Route {
        if bytes <= self.lines_max {
            self.lines(shape, members, bytes.min(shape.line_capacity()))
        } else {
            self.chunks(shape, bytes)
        }
    }

    /// A launch of lines; `bytes` fits [`LaneShape::line_capacity`].
    fn lines(&self, shape: &LaneShape, members: usize, bytes: u64) -> Route {
        let tiles = bytes.div_ceil(PACK).div_ceil(TILE_PACKS).max(1);
        let rounds = match bytes {
            // The kernels for more members carry one tile a warp.
            _ if members > 4 => 1,
            bytes if bytes >= self.four_tiles_min => 4,
            bytes if bytes >= self.two_tiles_min => 2,
            _ => 1,
        };
        // More warps a block where the blocks would not suffice.
        let least = tiles.div_ceil(u64::from(shape.line_blocks)).div_ceil(rounds);
        let warps = u64::from(self.lines_warps)
            .max(least)
            .min(tiles.div_ceil(rounds))
            .min(TILES_A_BLOCK / rounds);
        Route {
            protocol: Protocol::Lines,
            grid: tiles.div_ceil(warps * rounds) as u32,
            threads: 32 * warps as u32,
            rounds: rounds as u32,
            pause: if rounds == 1 {
                let kib = (bytes >> 10).min(u64::from(self.pause_max)) as u32;
                self.pause
                    .saturating_add(kib.saturating_mul(self.pause_a_kib))
                    .min(self.pause_max)
            } else {
                self.pause
            },
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
            pause: 0,
            bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: LaneShape = LaneShape {
        line_blocks: 64,
        chunk_blocks: 32,
        slot_bytes: 1 << 20,
    };

    #[test]
    fn every_size_of_lines_fits_the_blocks_and_covers_the_payload() {
        for (kind, members) in [
            (InboxKind::PinnedHost, 2),
            (InboxKind::PinnedHost, 8),
            (InboxKind::Device, 4),
        ] {
            let tuning = Tuning {
                lines_max: u64::MAX,
                ..Tuning::of(kind)
            };
            for bytes in (1..=SHAPE.line_capacity())
                .step_by(997)
                .chain([SHAPE.line_capacity()])
            {
                let route = tuning.route(&SHAPE, members, bytes);
                assert_eq!((route.protocol, route.bytes), (Protocol::Lines, bytes));
                assert!(
                    route.grid <= SHAPE.line_blocks && route.threads <= 256,
                    "{bytes}: {route:?}"
                );
                assert!(members <= 4 || route.rounds == 1, "{bytes}: {route:?}");
                let a_block = u64::from(route.threads / 32) * u64::from(route.rounds);
                assert!(a_block <= TILES_A_BLOCK, "{bytes}: {route:?}");
                assert!(
                    u64::from(route.grid) * a_block * TILE_PACKS * PACK >= bytes,
                    "{bytes}: {route:?}"
                );
            }
        }
    }

    #[test]
    fn lines_beyond_their_capacity_go_in_parts() {
        let tuning = Tuning {
            lines_max: 4 << 20,
            ..Tuning::of(InboxKind::Device)
        };
        let route = tuning.route(&SHAPE, 2, 1 << 20);
        assert_eq!(
            (route.protocol, route.bytes),
            (Protocol::Lines, SHAPE.line_capacity())
        );
    }

    /// The kernel's `share_of`, in one half of a lane: the first pack of a thread and its first line.
    fn share(route: &Route, block: u64, warp: u64, round: u64, lane: u64) -> (u64, u64) {
        let (warps, rounds) = (u64::from(route.threads / 32), u64::from(route.rounds));
        let in_block = warp + round * warps;
        (
            (block * warps * rounds + in_block) * TILE_PACKS + lane,
            (block * TILES_A_BLOCK + in_block) * 128 + lane,
        )
    }

    #[test]
    fn every_pack_is_carried_once_by_lines_of_its_own() {
        for (kind, members) in [
            (InboxKind::PinnedHost, 2),
            (InboxKind::PinnedHost, 8),
            (InboxKind::Device, 2),
        ] {
            let tuning = Tuning {
                lines_max: u64::MAX,
                ..Tuning::of(kind)
            };
            for bytes in [
                1,
                16,
                1000,
                1536,
                4096,
                65_536,
                98_304,
                200_000,
                262_160,
                524_288,
                SHAPE.line_capacity(),
            ] {
                let route = tuning.route(&SHAPE, members, bytes);
                let packs = bytes.div_ceil(PACK);
                let mut carried = vec![0; packs as usize];
                let mut lines = vec![0; (SHAPE.line_half() / 16) as usize];
                for block in 0..u64::from(route.grid) {
                    for thread in 0..u64::from(route.threads) {
                        for round in 0..u64::from(route.rounds) {
                            let (first, line) = share(&route, block, thread / 32, round, thread % 32);
                            for row in (0..3).filter(|row| first + 32 * row < packs) {
                                carried[(first + 32 * row) as usize] += 1;
                                lines[(line + 32 * row) as usize] += 1;
                            }
                            // Row 3 carries the fourth words, where there is a first pack.
                            if first < packs {
                                lines[(line + 96) as usize] += 1;
                            }
                        }
                    }
                }
                assert!(
                    carried.iter().all(|times| *times == 1),
                    "{kind}, {bytes}: {route:?}"
                );
                assert!(
                    lines.iter().all(|times| *times <= 1),
                    "{kind}, {bytes}: {route:?}"
                );
            }
        }
    }

    #[test]
    fn large_payloads_go_as_chunks_slot_by_slot() {
        let tuning = Tuning::of(InboxKind::PinnedHost);
        let route = tuning.route(&SHAPE, 2, 5 << 20);
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
                lines_warps: 9,
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
