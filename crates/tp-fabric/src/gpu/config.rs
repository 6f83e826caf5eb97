//! [`MailboxConfig`]: where the inboxes lie, how large they are, and how they are used.

use super::error::GpuError;
use super::layout::{InboxKind, LaneShape, TwoShotShape};
use super::route::{LineTuning, Tuning};
use std::time::Duration;

/// What ranks must agree on to share inboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxConfig {
    /// Where the inboxes lie.
    pub inbox: InboxKind,
    /// The lanes that carry whole payloads.
    pub shape: LaneShape,
    /// The lanes that carry each reader its own part, and those of pairs, where these are lanes of their own.
    pub side: LaneShape,
    /// Largest payload of which each of several readers gets a copy of its own in pinned memory, bytes; beyond, they
    /// read one. Reads of one line over a link by ranks of one GPU wait for each other.
    pub copies_max: u64,
    /// The lanes of all-reduces in two shots.
    pub two_shot: TwoShotShape,
    /// Whether all readers read one copy of a rank's combined packs, which lies in its own memory.
    pub one_copy: bool,
    /// Ranks of one GPU, which share its link.
    pub ranks_a_gpu: u32,
    /// Bound of every wait inside a kernel.
    pub wait: Duration,
    /// Crossovers and grids.
    pub tuning: Tuning,
}

impl MailboxConfig {
    /// The measured values for one kind of inbox, for ranks that are spread evenly, `ranks_a_gpu` on each GPU of
    /// `multiprocessors`.
    ///
    /// Every block waits for its like on the other ranks, so a grid that does not fit beside theirs would wait for ever:
    /// no rank takes more blocks than its share of the multiprocessors.
    pub fn of(inbox: InboxKind, ranks_a_gpu: u32, multiprocessors: u32, wait: Duration) -> Self {
        let blocks = multiprocessors / ranks_a_gpu.max(1);
        let most = 1 << blocks.max(1).ilog2();
        let chunk_blocks = most.min(match inbox {
            InboxKind::PinnedHost => 16,
            InboxKind::Device => 64,
        });
        let line_blocks = most.min(64);
        // One launch carries 5 MiB of a rank that has half a GPU's multiprocessors.
        let dense_tiles = 24;
        let mut tuning = Tuning::of(inbox);
        tuning.dense.stagger *= ranks_a_gpu.max(1);
        Self {
            inbox,
            shape: LaneShape {
                line_blocks,
                dense_tiles,
                chunk_blocks,
                slot_bytes: 1 << 20,
            },
            side: LaneShape {
                line_blocks: line_blocks.min(32),
                dense_tiles: 0,
                chunk_blocks,
                slot_bytes: 256 << 10,
            },
            copies_max: if inbox == InboxKind::PinnedHost && ranks_a_gpu > 2 {
                32 << 10
            } else {
                0
            },
            two_shot: TwoShotShape {
                blocks: most.min(match inbox {
                    InboxKind::PinnedHost => 16,
                    InboxKind::Device => 64,
                }),
                region_bytes: match inbox {
                    InboxKind::PinnedHost => 96 << 10,
                    InboxKind::Device => 48 << 10,
                },
            },
            one_copy: inbox == InboxKind::PinnedHost || ranks_a_gpu > 1,
            ranks_a_gpu: ranks_a_gpu.max(1),
            wait,
            tuning,
        }
    }

    /// Refuses what the kernels cannot work with.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        let shapes = self
            .shape
            .check()
            .and(self.side.check())
            .and(self.two_shot.check())
            .and(self.tuning.two_shot.check(&self.two_shot));
        shapes
            .and(self.tuning.check())
            .map_err(|reason| GpuError::Config(format!("refused the mailbox: {reason}")))
    }

    /// What ranks compare: one `name=value` a line.
    pub(crate) fn agreed(&self) -> String {
        let lane = |name: &str, shape: &LaneShape| {
            let LaneShape {
                line_blocks,
                dense_tiles,
                chunk_blocks,
                slot_bytes,
            } = shape;
            format!(
                "{name}_lane={line_blocks} blocks of lines, {dense_tiles} dense tiles each, {chunk_blocks} blocks of chunks, \
                 slot {slot_bytes} B"
            )
        };
        let cut = |name: &str, lines: &LineTuning| {
            format!(
                "{name}={} warps, 2 tiles from {} B, 4 from {} B",
                lines.warps, lines.two_tiles_min, lines.four_tiles_min
            )
        };
        let t = &self.tuning;
        let lines = [
            format!("inbox={}", self.inbox),
            lane("shared", &self.shape),
            lane("side", &self.side),
            format!("copies_max={}", self.copies_max),
            format!("lines_max={}", t.lines_max),
            format!("scatter_lines_max={}", t.scatter_lines_max),
            format!("dense_min={}", t.dense_min),
            format!("dense_max={}", t.dense_max),
            cut("sparse", &t.sparse),
            cut("dense", &t.dense),
            format!("chunk_warps={}", t.chunk_warps),
            format!("chunk_max={}", t.chunk_max),
            format!(
                "two_shot={} blocks of {} B, from {} B, chunks of {} B, {}",
                self.two_shot.blocks,
                self.two_shot.region_bytes,
                t.two_shot.min,
                t.two_shot.chunk_max,
                if self.one_copy {
                    "one copy"
                } else {
                    "a copy a reader"
                }
            ),
        ];
        lines.join("\n")
    }

    /// The settings in which `theirs` differs, with both values; `None` where all agree. How long a rank waits and when it
    /// polls is its own affair.
    pub(crate) fn differs(&self, theirs: &str) -> Option<String> {
        let mine = self.agreed();
        let pairs = mine.lines().zip(theirs.lines()).filter(|(m, t)| m != t);
        let named: Vec<String> = pairs.map(|(m, t)| format!("here {m}, there {t}")).collect();
        match (named.is_empty(), mine.lines().count() == theirs.lines().count()) {
            (true, true) => None,
            (true, false) => Some("settings of another version".to_owned()),
            (false, _) => Some(named.join("; ")),
        }
    }

    /// Words of all counters: a set for each of `groups`, then one a block of two shots.
    pub(crate) fn all_counters(&self, groups: u64) -> u64 {
        groups * self.counters() + u64::from(self.two_shot.blocks)
    }

    /// Words of one set of counters: one a block of sparse lines, one a block of dense ones, one a block of chunks.
    pub(crate) fn counters(&self) -> u64 {
        2 * self.line_counters() + u64::from(self.shape.chunk_blocks.max(self.side.chunk_blocks))
    }

    /// How many of them are those of one form of lines.
    pub(crate) fn line_counters(&self) -> u64 {
        u64::from(self.shape.line_blocks.max(self.side.line_blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_that_differ_are_told_every_setting_with_both_values() {
        let wait = Duration::from_secs(1);
        let mine = MailboxConfig::of(InboxKind::Device, 2, 132, wait);
        let mut theirs = MailboxConfig::of(InboxKind::Device, 2, 132, 2 * wait);
        assert_eq!(mine.differs(&theirs.agreed()), None);
        (theirs.inbox, theirs.tuning.lines_max) = (InboxKind::PinnedHost, 7);
        let told = mine.differs(&theirs.agreed()).unwrap_or_default();
        assert_eq!(
            told,
            "here inbox=device, there inbox=pinned; here lines_max=4194304, there lines_max=7"
        );
        assert!(mine.differs("inbox=device").is_some());
    }

    #[test]
    fn the_blocks_of_all_ranks_of_a_gpu_fit_on_it() {
        for ranks in 1..=8 {
            for inbox in [InboxKind::PinnedHost, InboxKind::Device] {
                let config = MailboxConfig::of(inbox, ranks, 132, Duration::from_secs(1));
                assert!(config.check().is_ok(), "{ranks} ranks, {inbox}");
                assert!(
                    config
                        .shape
                        .line_blocks
                        .max(config.shape.chunk_blocks)
                        .max(config.two_shot.blocks)
                        * ranks
                        <= 132,
                    "{ranks} ranks, {inbox}"
                );
            }
        }
    }
}
