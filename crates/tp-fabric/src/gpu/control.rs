//! The page through which a rank's host and its kernels speak: the abort word and the failure record.

use super::device::Device;
use super::error::GpuError;
use super::memory::PinnedBytes;
use crate::types::Rank;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const ABORT: usize = 0;
const RECORD: usize = 32;
const WORDS: usize = 1024;
const TIMED_OUT: u32 = 2;
const OUT_OF_STEP: u32 = 3;
/// 32-bit words of a record.
pub(crate) const FIELDS: usize = 7;

/// What a kernel wrote when it gave up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureRecord {
    /// Ranks whose part had not come.
    pub missing: Vec<Rank>,
    /// The bound had passed; else the wait was aborted.
    pub timed_out: bool,
    /// A peer's message was of another call.
    pub out_of_step: bool,
    /// The block that gave up first.
    pub block: u32,
    /// The block's count of operations of this protocol.
    pub sequence: u64,
    /// How long it had waited.
    pub waited: Duration,
}

/// The control page of one rank, in page-locked host memory.
#[derive(Debug)]
pub(crate) struct Control {
    page: PinnedBytes,
}

impl Control {
    pub(crate) fn new(device: &Device) -> Result<Self, GpuError> {
        Ok(Self {
            page: PinnedBytes::new(device, WORDS * 4)?,
        })
    }

    /// Its address for kernels.
    pub(crate) fn device_address(&self) -> u64 {
        self.page.device_address()
    }

    fn word(&self, index: usize) -> &AtomicU32 {
        &self.page.words()[index]
    }

    /// Ends pending and later waits of this rank's kernels.
    pub(crate) fn abort(&self) {
        self.word(ABORT).store(1, Ordering::Release);
    }

    /// The record, where a kernel has given up. `ranks` are the members of the exchanges, by member number.
    pub(crate) fn record(&self, ranks: &[Rank]) -> Option<FailureRecord> {
        FailureRecord::read(&self.page.words()[RECORD..RECORD + FIELDS], ranks)
    }
}

impl FailureRecord {
    /// The record in these words, where a kernel has written one.
    pub(crate) fn read(words: &[AtomicU32], ranks: &[Rank]) -> Option<Self> {
        let field = |at: usize| words[at].load(Ordering::Relaxed);
        if words[0].load(Ordering::Acquire) == 0 {
            return None;
        }
        let mask = field(2);
        let missing = ranks.iter().enumerate().filter(|(i, _)| mask >> i & 1 != 0);
        Some(Self {
            missing: missing.map(|(_, rank)| *rank).collect(),
            timed_out: field(1) == TIMED_OUT,
            out_of_step: field(1) == OUT_OF_STEP,
            block: field(3),
            sequence: u64::from(field(5)) << 32 | u64::from(field(4)),
            waited: Duration::from_micros(u64::from(field(6))),
        })
    }
}
