//! The memory that this rank registers: its region, and behind it lines, words and bounce slots.

use super::extent::Extent;
use crate::region::{Mapping, Region};
use std::sync::Arc;
use tp_verbs::post::Window;

/// A rank's part of a mapping: alone in it, or beside those of the other ranks of its host.
#[derive(Debug)]
pub(super) struct Memory {
    base: *mut u8,
    extent: Extent,
    mapping: Arc<Mapping>,
}

// SAFETY: plain memory; who reads and writes which part when is the protocol's and this wire's affair.
unsafe impl Send for Memory {}
// SAFETY: as above; the pointer itself never changes.
unsafe impl Sync for Memory {}

impl Memory {
    /// The part at `offset`; `None` if it does not lie within the mapping.
    pub fn new(mapping: &Arc<Mapping>, offset: usize, extent: Extent) -> Option<Self> {
        let end = offset.checked_add(extent.total())?;
        if end > mapping.len() {
            return None;
        }
        // SAFETY: within the mapping, just checked.
        let base = unsafe { mapping.base().add(offset) }.as_ptr();
        Some(Self {
            base,
            extent,
            mapping: Arc::clone(mapping),
        })
    }

    pub fn extent(&self) -> &Extent {
        &self.extent
    }

    pub fn base(&self) -> *mut u8 {
        self.base
    }

    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.mapping
    }

    /// Address of `len` bytes at `offset`, all within.
    pub fn at(&self, offset: usize, len: usize) -> *mut u8 {
        let total = self.extent.total();
        assert!(
            offset <= total && len <= total - offset,
            "outside the registered memory"
        );
        // SAFETY: just checked to lie within.
        unsafe { self.base.add(offset) }
    }

    /// Whether all of `bytes` lies within.
    pub fn holds(&self, bytes: &[u8]) -> bool {
        let start = self.base as usize;
        let at = bytes.as_ptr() as usize;
        at >= start && at - start <= self.extent.total() && bytes.len() <= self.extent.total() - (at - start)
    }

    /// The whole, as a device without keys knows it.
    pub fn window(&self, key: u32) -> Window {
        Window {
            start: self.base as u64,
            length: self.extent.total() as u64,
            key,
        }
    }

    /// The region within it.
    pub fn region(&self, offset: usize, layout: crate::region::Layout) -> Option<Region> {
        Region::new(&self.mapping, offset, layout)
    }
}
