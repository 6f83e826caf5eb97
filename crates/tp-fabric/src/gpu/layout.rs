//! Where the bytes of a lane lie: the host's half of what the kernels assume. Pure.

use std::fmt;
use std::str::FromStr;

/// Bytes of a pack, the unit of all partitions.
pub const PACK: u64 = 16;
/// Packs that one warp carries as sparse lines.
pub const TILE_PACKS: u64 = 96;
/// Bytes of a tile's 128 lines.
pub const TILE_BYTES: u64 = 128 * 16;
/// Tiles of sparse lines that one block owns in each half of a lane.
pub const TILES_A_BLOCK: u64 = 8;
/// Packs that one warp carries as dense lines.
pub const DENSE_TILE_PACKS: u64 = 224;
/// Bytes of a tile's 256 dense lines.
pub const DENSE_TILE_BYTES: u64 = 256 * 16;
/// Warps of a block of lines, at most.
pub const MAX_WARPS: u64 = 8;
/// Distance of two blocks' flags.
pub const FLAG_STRIDE: u64 = 128;

/// Where inboxes lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InboxKind {
    /// Page-locked host memory that every rank maps; one copy serves all readers.
    PinnedHost,
    /// The reader's device memory, mapped by the writers.
    Device,
}

impl InboxKind {
    /// The word that people and settings use.
    pub fn name(self) -> &'static str {
        match self {
            Self::PinnedHost => "pinned",
            Self::Device => "device",
        }
    }
}

impl fmt::Display for InboxKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for InboxKind {
    type Err = String;
    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "pinned" => Ok(Self::PinnedHost),
            "device" => Ok(Self::Device),
            other => Err(format!("`{other}` is none of pinned, device")),
        }
    }
}

/// How large a lane is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LaneShape {
    /// Blocks that have lines.
    pub line_blocks: u32,
    /// Tiles of dense lines that each of these blocks owns in each half; 0: the lane has none.
    pub dense_tiles: u32,
    /// Blocks of every chunk launch.
    pub chunk_blocks: u32,
    /// Payload of one half's chunks, bytes; a multiple of `chunk_blocks` * 128.
    pub slot_bytes: u64,
}

impl LaneShape {
    /// Bytes of one half's lines.
    pub fn line_half(&self) -> u64 {
        u64::from(self.line_blocks) * TILES_A_BLOCK * TILE_BYTES
    }

    /// Where the dense lines begin.
    pub fn dense_offset(&self) -> u64 {
        2 * self.line_half()
    }

    /// Bytes of one half's dense lines.
    pub fn dense_half(&self) -> u64 {
        u64::from(self.line_blocks) * u64::from(self.dense_tiles) * DENSE_TILE_BYTES
    }

    /// Where the chunks' flags begin; the two halves' packs follow them.
    pub fn chunk_offset(&self) -> u64 {
        self.dense_offset() + 2 * self.dense_half()
    }

    /// Bytes of the whole lane.
    pub fn bytes(&self) -> u64 {
        self.chunk_offset() + u64::from(self.chunk_blocks) * FLAG_STRIDE + 2 * self.slot_bytes
    }

    /// Most payload that lines can carry in one launch, bytes.
    pub fn line_capacity(&self) -> u64 {
        u64::from(self.line_blocks) * TILES_A_BLOCK * TILE_PACKS * PACK
    }

    /// Most payload that dense lines can carry in one launch, bytes.
    pub fn dense_capacity(&self) -> u64 {
        u64::from(self.line_blocks) * u64::from(self.dense_tiles) * DENSE_TILE_PACKS * PACK
    }

    /// Most payload that chunks can carry in one launch, bytes.
    pub fn chunk_capacity(&self) -> u64 {
        self.slot_bytes
    }

    /// Refuses a shape that the kernels cannot work with.
    pub fn check(&self) -> Result<(), String> {
        if self.line_blocks == 0 || self.chunk_blocks == 0 {
            return Err("a lane needs at least one block of lines and one of chunks".to_owned());
        }
        let dense = u64::from(self.dense_tiles);
        if self.dense_half() > u64::from(u32::MAX) / 2 || dense > 1 << 15 || !dense.is_multiple_of(MAX_WARPS)
        {
            return Err(format!(
                "{dense} tiles of dense lines a block are too many, or not as many for each of {MAX_WARPS} warps"
            ));
        }
        let step = u64::from(self.chunk_blocks) * 128;
        if self.slot_bytes == 0 || !self.slot_bytes.is_multiple_of(step) {
            return Err(format!(
                "a slot of {} bytes is no multiple of {} blocks of 128 bytes",
                self.slot_bytes, self.chunk_blocks
            ));
        }
        Ok(())
    }
}

/// The lanes of all-reduces in two shots ([`TwoShotTuning`](super::two_shot::TwoShotTuning)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoShotShape {
    /// Blocks of every launch.
    pub blocks: u32,
    /// What a block's part of a lane holds, bytes; a multiple of 128.
    pub region_bytes: u64,
}

impl TwoShotShape {
    /// Bytes of the flags that one rank looks at: a line a block.
    pub fn flag_bytes(&self) -> u64 {
        u64::from(self.blocks) * FLAG_STRIDE
    }

    /// Bytes of a lane from one rank to another, and of one rank's combined packs.
    pub fn lane_bytes(&self) -> u64 {
        u64::from(self.blocks) * self.region_bytes
    }

    /// Most payload of one launch among `members`, bytes.
    pub fn capacity(&self, members: usize) -> u64 {
        members as u64 * self.lane_bytes()
    }

    /// Refuses a shape that the kernel cannot work with.
    pub fn check(&self) -> Result<(), String> {
        match self.blocks > 0 && self.region_bytes > 0 && self.region_bytes.is_multiple_of(128) {
            true if self.region_bytes <= 1 << 24 => Ok(()),
            _ => Err(format!(
                "two shots of {} blocks with {} bytes each: there must be some, of whole 128-byte lines up to 16 MiB",
                self.blocks, self.region_bytes
            )),
        }
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

    #[test]
    fn a_lane_holds_two_halves_of_each_form_of_lines_the_flags_and_two_slots() {
        assert_eq!((SHAPE.line_half(), SHAPE.dense_half()), (1 << 20, 2 << 20));
        assert_eq!((SHAPE.dense_offset(), SHAPE.chunk_offset()), (2 << 20, 6 << 20));
        assert_eq!(SHAPE.bytes(), (6 << 20) + 32 * 128 + (2 << 20));
        assert_eq!(SHAPE.line_capacity(), 768 << 10);
        assert_eq!(SHAPE.dense_capacity(), 1792 << 10);
    }

    /// The kernel's partition of a chunk launch: whole 128-byte shares that fit the block's region.
    #[test]
    fn no_block_of_a_chunk_launch_outgrows_its_region() {
        for bytes in [1, 16, 127, 128, 4096, 65_537, (1 << 20) - 15, 1 << 20] {
            let packs = u64::div_ceil(bytes, PACK);
            let share = packs.div_ceil(u64::from(SHAPE.chunk_blocks)).next_multiple_of(8);
            assert!(
                share * PACK <= SHAPE.slot_bytes / u64::from(SHAPE.chunk_blocks),
                "{bytes} bytes"
            );
        }
    }

    #[test]
    fn shapes_that_would_overlap_are_refused() {
        assert_eq!(SHAPE.check(), Ok(()));
        assert!(
            LaneShape {
                slot_bytes: 1000,
                ..SHAPE
            }
            .check()
            .is_err()
        );
        assert!(
            LaneShape {
                chunk_blocks: 0,
                ..SHAPE
            }
            .check()
            .is_err()
        );
        assert!(
            LaneShape {
                dense_tiles: 12,
                ..SHAPE
            }
            .check()
            .is_err()
        );
    }
}
