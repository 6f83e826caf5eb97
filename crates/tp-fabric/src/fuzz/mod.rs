//! What the fuzz targets of `fuzz/` run: every parser of bytes that a peer sends, each with what must hold of it. Built for
//! them (`--cfg fuzzing`) and for the tests, which replay the corpora.
//!
//! Every target also bounds the memory that its parser takes: to a constant, where the parser knows the length beforehand, and
//! to a multiple of what has come otherwise.

mod allocations;

pub use crate::bootstrap::fuzz::{agreement, handshake, meeting};
pub use crate::fate::fuzz::fate;
pub use crate::plan::fuzz::plan;
pub use crate::wire::fuzz::{mesh, texts, wire};
pub(crate) use allocations::within;

/// A target's name and the function that takes an input.
pub type Target = (&'static str, fn(&[u8]));

/// Every target.
pub const TARGETS: &[Target] = &[
    ("handshake", handshake),
    ("meeting", meeting),
    ("agreement", agreement),
    ("fate", fate),
    ("plan", plan),
    ("wire", wire),
    ("mesh", mesh),
    ("texts", texts),
];

/// Takes an input apart: first what decides how the rest is used, then the rest.
pub(crate) struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte; 0 at the end.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self
            .0
            .split_first()
            .map_or((0, self.0), |(first, rest)| (*first, rest));
        self.0 = rest;
        first
    }

    /// At most so many of the next bytes.
    pub fn take(&mut self, most: usize) -> &'a [u8] {
        let (part, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        part
    }

    /// All that is left, in parts of 1 to 255 bytes or, where `step` is 0, at once.
    pub fn parts(self, step: u8) -> impl Iterator<Item = &'a [u8]> {
        let step = if step == 0 {
            self.0.len().max(1)
        } else {
            usize::from(step)
        };
        self.0.chunks(step)
    }
}

#[cfg(test)]
mod replay;
#[cfg(test)]
mod seeds;
