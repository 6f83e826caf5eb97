//! All-reduces of more than two ranks in two shots: each rank combines its shard of everybody's bytes and hands it on, in
//! one launch. How the payload is cut, as `kernels/exchange_two_shot.cu` assumes, and at what pace it goes. Pure.

use super::layout::{InboxKind, PACK, TwoShotShape};

/// Warps of a block that move packs.
const WARPS: u64 = 14;
/// Most chunks of a block's part: a flag counts them in 16 bits.
const MAX_CHUNKS: u64 = (1 << 16) - 1;
/// Threads of a block: those warps, one that tells and one that watches.
pub const THREADS: u32 = 32 * (WARPS as u32 + 2);

/// How all-reduces in two shots go. Ranks must agree on the smallest payload and the chunk; who sends, and at what pace, is a
/// rank's own affair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoShotTuning {
    /// Smallest payload, bytes.
    pub min: u64,
    /// Largest chunk, bytes; a multiple of 16.
    pub chunk_max: u64,
    /// Warps of a block that do nothing but send, up to 13; 0: all send before they do anything else.
    pub senders: u32,
    /// The pace of payloads below `large_min`.
    pub pace: Pace,
    /// Smallest payload that goes at `large_pace`, bytes: there, more is read than written, and reads are what takes long.
    pub large_min: u64,
    /// The pace of such payloads.
    pub large_pace: Pace,
}

/// What of a link's time each direction takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Clock cycles that the GPU's link is given for each KiB that the sending warps write; 0: they do not wait. Reads wait
    /// behind writes in the link's queue, so writes must not fill it.
    pub write: u32,
    /// Clock cycles between two looks at the flags: they take from the other reads what those could carry.
    pub poll: u32,
}

impl Pace {
    /// For inboxes that are near.
    pub const AT_ONCE: Self = Self { write: 0, poll: 0 };
}

/// How one launch is cut, in packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoShotCut {
    /// Of each rank's shard; the last ones may have fewer.
    pub shard: u32,
    /// Of a block's part of a shard.
    pub share: u32,
    /// Of a chunk.
    pub chunk: u32,
    /// Chunks of a part.
    pub chunks: u32,
    /// Rows of 32 packs of a chunk, modulo the warps that send.
    pub send_turn: u32,
    /// The same modulo the warps that do the rest.
    pub work_turn: u32,
}

impl TwoShotTuning {
    /// The values measured on the machine that docs/performance.md names.
    pub const fn of(kind: InboxKind) -> Self {
        match kind {
            InboxKind::PinnedHost => Self {
                min: 64 << 10,
                chunk_max: 2 << 10,
                senders: 10,
                pace: Pace { write: 40, poll: 500 },
                large_min: 384 << 10,
                large_pace: Pace {
                    write: 60,
                    poll: 1000,
                },
            },
            InboxKind::Device => Self {
                min: 640 << 10,
                chunk_max: 16 << 10,
                senders: 0,
                pace: Pace::AT_ONCE,
                large_min: u64::MAX,
                large_pace: Pace::AT_ONCE,
            },
        }
    }

    /// How a launch of `packs` packs is cut; they fit [`TwoShotShape::capacity`].
    pub fn cut(&self, shape: &TwoShotShape, members: usize, packs: u64) -> TwoShotCut {
        // Whole 128-byte lines, so that no two blocks or shards write into one.
        let shard = packs.div_ceil(members as u64).next_multiple_of(8);
        let share = shard.div_ceil(u64::from(shape.blocks)).next_multiple_of(8);
        let chunk = (self.chunk_max / PACK).min(share);
        let rows = chunk.div_ceil(32);
        let (send, work) = match u64::from(self.senders) {
            0 => (WARPS, WARPS),
            senders => (senders, WARPS - senders),
        };
        TwoShotCut {
            shard: shard as u32,
            share: share as u32,
            chunk: chunk as u32,
            chunks: share.div_ceil(chunk) as u32,
            send_turn: (rows % send) as u32,
            work_turn: (rows % work) as u32,
        }
    }

    /// The pace of a payload.
    pub fn pace_of(&self, bytes: u64) -> Pace {
        if bytes >= self.large_min {
            self.large_pace
        } else {
            self.pace
        }
    }

    /// Clock cycles between two rows of one sending warp, for `ranks` ranks of a GPU. A row is 512 bytes to each other
    /// member.
    pub fn row_pace(&self, shape: &TwoShotShape, members: usize, ranks: u32, pace: Pace) -> u32 {
        let warps = u64::from(shape.blocks) * u64::from(self.senders) * u64::from(ranks);
        let row = 512 * (members as u64 - 1);
        u32::try_from(warps * row * u64::from(pace.write) / 1024).unwrap_or(u32::MAX)
    }

    /// Refuses values that the kernel cannot work with: also so many chunks of a block's part that a flag could not count
    /// them.
    pub fn check(&self, shape: &TwoShotShape) -> Result<(), String> {
        if u64::from(self.senders) >= WARPS || self.chunk_max < PACK || self.chunk_max > 1 << 24 {
            return Err(format!(
                "{} warps that only send and chunks of {} bytes: at most {}, and 16 bytes to 16 MiB",
                self.senders,
                self.chunk_max,
                WARPS - 1
            ));
        }
        let chunks = (shape.region_bytes / PACK).div_ceil(self.chunk_max / PACK);
        if chunks > MAX_CHUNKS {
            return Err(format!(
                "chunks of {} bytes cut a block's {} bytes into {chunks}: at most {MAX_CHUNKS}",
                self.chunk_max, shape.region_bytes
            ));
        }
        Ok(())
    }
}

impl TwoShotCut {
    /// First pack and packs of a rank's shard of a payload of `packs`.
    pub fn shard_of(&self, rank: usize, packs: u64) -> (u32, u32) {
        let first = rank as u64 * u64::from(self.shard);
        let left = packs.saturating_sub(first).min(u64::from(self.shard));
        (first as u32, left as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: TwoShotShape = TwoShotShape {
        blocks: 16,
        region_bytes: 96 << 10,
    };

    fn tunings() -> impl Iterator<Item = TwoShotTuning> {
        let kinds = [InboxKind::PinnedHost, InboxKind::Device];
        kinds.into_iter().flat_map(|kind| {
            [0, 1, 4, 13].map(|senders| TwoShotTuning {
                senders,
                ..TwoShotTuning::of(kind)
            })
        })
    }

    /// The kernel's rows: those of a chunk that a warp carries, by `Turn` and the steps of `warps` rows.
    fn rows(chunk: u64, rows: u64, turn: u64, warps: u64, warp: u64) -> Vec<u64> {
        let mut first = warp;
        for _ in 0..chunk {
            first = if first >= turn {
                first - turn
            } else {
                first + warps - turn
            };
        }
        (first..rows).step_by(warps as usize).collect()
    }

    #[test]
    fn shards_and_parts_cover_every_pack_once_and_fit_their_regions() {
        for tuning in tunings() {
            for members in 2..=8 {
                let most = SHAPE.capacity(members) / PACK;
                for packs in [1, 7, 8, 9, 255, 4097, 65_536, most - 1, most] {
                    let cut = tuning.cut(&SHAPE, members, packs);
                    assert!(
                        u64::from(cut.share) * PACK <= SHAPE.region_bytes,
                        "{packs}: {cut:?}"
                    );
                    assert!(u64::from(cut.share) * u64::from(SHAPE.blocks) >= u64::from(cut.shard));
                    assert!(cut.chunk > 0 && cut.chunks * cut.chunk >= cut.share && cut.chunks < 1 << 16);
                    let mut next = 0;
                    for rank in 0..members {
                        let (first, length) = cut.shard_of(rank, packs);
                        assert!(length == 0 || u64::from(first) == next, "{packs}: rank {rank}");
                        next += u64::from(length);
                    }
                    assert_eq!(next, packs, "{members} members: {cut:?}");
                }
            }
        }
    }

    #[test]
    fn the_warps_carry_each_row_of_every_chunk_once() {
        for tuning in tunings() {
            let cut = tuning.cut(&SHAPE, 4, 65_536);
            let all = u64::from(cut.chunk).div_ceil(32);
            let senders = u64::from(tuning.senders);
            let parts = [
                (if senders == 0 { WARPS } else { senders }, cut.send_turn),
                (WARPS - senders, cut.work_turn),
            ];
            for (warps, turn) in parts {
                for chunk in 0..u64::from(cut.chunks) {
                    let mut carried: Vec<u64> = (0..warps)
                        .flat_map(|warp| rows(chunk, all, u64::from(turn), warps, warp))
                        .collect();
                    carried.sort_unstable();
                    assert!(carried.iter().copied().eq(0..all), "{warps} warps, chunk {chunk}");
                }
            }
        }
    }

    /// At its pace the sending warps of all ranks together write a KiB in the cycles that the link is given for it.
    #[test]
    fn all_senders_of_a_gpu_together_keep_the_pace() {
        let tuning = TwoShotTuning::of(InboxKind::PinnedHost);
        let pace = Pace { write: 50, poll: 0 };
        for (members, ranks) in [(4, 4), (4, 1), (2, 2), (8, 8)] {
            let row = u64::from(tuning.row_pace(&SHAPE, members, ranks, pace));
            let warps = u64::from(SHAPE.blocks * tuning.senders * ranks);
            let kib_a_row = (members as u64 - 1) * 512;
            assert_eq!(row * 1024 / (warps * kib_a_row), 50, "{members} members");
        }
    }

    #[test]
    fn what_the_kernel_cannot_work_with_is_refused() {
        let good = TwoShotTuning::of(InboxKind::PinnedHost);
        assert_eq!(good.check(&SHAPE), Ok(()));
        // One pack a chunk, and 2^16 packs: the last count would run into the sequence.
        let fine = TwoShotTuning {
            chunk_max: PACK,
            ..good
        };
        let region = |region_bytes| TwoShotShape {
            region_bytes,
            ..SHAPE
        };
        assert_eq!(fine.check(&region((1 << 20) - 128)), Ok(()));
        assert!(fine.check(&region(1 << 20)).is_err());
        for bad in [
            TwoShotTuning { senders: 14, ..good },
            TwoShotTuning { chunk_max: 8, ..good },
        ] {
            assert!(bad.check(&SHAPE).is_err(), "{bad:?}");
        }
    }
}
