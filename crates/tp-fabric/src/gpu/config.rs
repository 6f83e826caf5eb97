//! [`MailboxConfig`]: where the inboxes lie, how large they are, and how they are used.

use super::error::GpuError;
use super::layout::{InboxKind, LaneShape};
use super::route::Tuning;
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
        Self {
            inbox,
            shape: LaneShape {
                line_blocks,
                chunk_blocks,
                slot_bytes: 1 << 20,
            },
            side: LaneShape {
                line_blocks: line_blocks.min(32),
                chunk_blocks,
                slot_bytes: 256 << 10,
            },
            copies_max: if inbox == InboxKind::PinnedHost && ranks_a_gpu > 2 {
                32 << 10
            } else {
                0
            },
            wait,
            tuning: Tuning::of(inbox),
        }
    }

    /// Refuses what the kernels cannot work with.
    pub(crate) fn check(&self) -> Result<(), GpuError> {
        let shapes = self.shape.check().and(self.side.check());
        shapes
            .and(self.tuning.check())
            .map_err(|reason| GpuError::Config(format!("refused the mailbox: {reason}")))
    }

    /// What ranks compare.
    pub(crate) fn agreed(&self) -> String {
        format!("{self:?}")
    }

    /// Words of one set of counters: one a block of lines, one a block of chunks.
    pub(crate) fn counters(&self) -> u64 {
        self.line_counters() + u64::from(self.shape.chunk_blocks.max(self.side.chunk_blocks))
    }

    /// How many of them are the lines'.
    pub(crate) fn line_counters(&self) -> u64 {
        u64::from(self.shape.line_blocks.max(self.side.line_blocks))
    }
}
