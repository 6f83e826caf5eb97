//! Where everything lies in the memory that a rank registers: its region, and behind it what this wire needs.
//!
//! | part | size | who writes it |
//! |---|---|---|
//! | region | as [`Layout`] says | as it says |
//! | landing lines | world × 2 slots × rails × line | the source |
//! | words | world × rails × 64 B | the peer: its beats and its goodbye |
//! | outgoing lines | world × rails × 16 × line | this rank, for its own requests |
//! | bounce slots | as many as asked for × slot | this rank, for payloads that lie elsewhere |

use super::cells::LINE;
use crate::region::Layout;
use crate::region::layout::{Bay, PAGE, SLOTS};
use crate::types::Rank;

/// Outgoing lines of one rail, and so puts that are under way on it at most.
pub(super) const LINES: usize = 16;
/// Bytes between two words.
const WORD: usize = 64;

/// Offsets within a rank's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Extent {
    layout: Layout,
    rails: usize,
    bounces: usize,
}

impl Extent {
    /// For pairs of ranks with up to `rails` rails.
    pub fn new(layout: Layout, rails: usize, bounces: usize) -> Self {
        let rails = rails.max(1);
        Self {
            layout,
            rails,
            bounces,
        }
    }

    pub fn bounces(&self) -> usize {
        self.bounces
    }

    fn world(&self) -> usize {
        self.layout.world().size()
    }

    /// Where the line of a message lands.
    pub fn landing(&self, bay: Bay, rail: usize) -> usize {
        let line = (bay.source.index() * SLOTS as usize + bay.slot) * self.rails + rail;
        self.layout.total() + line * LINE
    }

    fn words(&self) -> usize {
        self.landing(
            Bay {
                source: Rank(self.layout.world().0),
                slot: 0,
            },
            0,
        )
        .next_multiple_of(PAGE)
    }

    /// Where `peer`'s beats over a rail land; nobody reads them.
    pub fn beat(&self, peer: Rank, rail: usize) -> usize {
        self.words() + (peer.index() * self.rails + rail) * WORD
    }

    /// Where `peer` says that it goes in good order.
    pub fn bye(&self, peer: Rank) -> usize {
        self.beat(peer, 0) + 8
    }

    fn lines(&self) -> usize {
        (self.words() + self.world() * self.rails * WORD).next_multiple_of(PAGE)
    }

    /// The `number`-th outgoing line of a rail; numbers wrap.
    pub fn outgoing(&self, peer: Rank, rail: usize, number: u64) -> usize {
        let place = (number % LINES as u64) as usize;
        self.lines() + ((peer.index() * self.rails + rail) * LINES + place) * LINE
    }

    /// A bounce slot.
    pub fn bounce(&self, number: usize) -> usize {
        let lines = self.world() * self.rails * LINES * LINE;
        (self.lines() + lines).next_multiple_of(PAGE) + number * self.layout.slot()
    }

    /// Bytes in all, whole pages.
    pub fn total(&self) -> usize {
        self.bounce(self.bounces)
    }

    /// Bytes that a peer may write into.
    pub fn total_without_bounces(&self) -> usize {
        self.bounce(0)
    }

    /// What peers must share, as readable names and values.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        let mut all = self.layout.describe();
        all.push(("rails of a pair", self.rails.to_string()));
        all.push(("line bytes", LINE.to_string()));
        all.push(("words at", self.words().to_string()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::World;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        #[test]
        fn nothing_overlaps_and_lines_are_aligned(world in 1u32..9, rails in 1usize..5, bounces in 0usize..4, slot in 1usize..50_000) {
            let layout = Layout::new(World(world), slot).unwrap();
            let extent = Extent::new(layout, rails, bounces);
            let mut parts = vec![(0, layout.total())];
            for peer in layout.world().ranks() {
                for rail in 0..rails {
                    parts.push((extent.beat(peer, rail), WORD));
                    parts.extend((0..SLOTS as usize).map(|slot| (extent.landing(Bay { source: peer, slot }, rail), LINE)));
                    parts.extend((0..LINES as u64).map(|line| (extent.outgoing(peer, rail, line), LINE)));
                }
                prop_assert_eq!(extent.outgoing(peer, 0, 1), extent.outgoing(peer, 0, 1 + LINES as u64));
                prop_assert!(extent.bye(peer) + 8 <= extent.beat(peer, 0) + WORD);
            }
            parts.extend((0..bounces).map(|number| (extent.bounce(number), layout.slot())));
            parts.sort_unstable();
            for pair in parts.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?} overlaps {:?}", pair[0], pair[1]);
            }
            prop_assert!(parts.iter().all(|(at, _)| at % 64 == 0));
            let (at, len) = parts[parts.len() - 1];
            prop_assert!(at + len <= extent.total());
            prop_assert_eq!(extent.total() % PAGE, 0);
        }
    }
}
