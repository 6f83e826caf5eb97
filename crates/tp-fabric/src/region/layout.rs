//! Where everything lies in a rank's region, as a function of the world and the slot size alone.
//!
//! | part | size | who writes it |
//! |---|---|---|
//! | control words | 4096 B | this rank: doorbell, counters, failure record |
//! | arrival lines | 2 slots × world × 128 B | the source: flag, header, a small payload |
//! | answer lines | world × 128 B | the peer: how many of this rank's messages it has consumed, its notice of failure |
//! | post lines | 2 entries × world × 256 B | this rank's kernel, for its proxy |
//! | staging slots | 2 × slot | this rank's kernel, for its proxy |
//! | receive slots | world × 2 × slot | the source |
//!
//! Each part begins on a page of 4096 bytes, each line on a multiple of 128 bytes, so that no two writers share a
//! cache line or the pair of lines that a prefetcher fetches together.

use crate::types::{Rank, World};

/// Bytes of a line.
pub const LINE: usize = 128;
/// Slots for each ordered pair of ranks, and entries of the doorbell: that many messages are in flight at most.
pub const SLOTS: u64 = 2;
/// Bytes of a message's header, which stands in its line after the flag.
pub const HEADER: usize = 32;
/// The largest payload that travels inside the line, bytes.
pub const INLINE: usize = LINE - 8 - HEADER;
/// The largest world.
pub const MAX_WORLD: u32 = 64;
/// The largest slot, bytes.
pub const MAX_SLOT: usize = 16 << 20;
/// Slots are multiples of this, and every part begins on one.
pub const PAGE: usize = 4096;
/// Version of the layout and of the protocol on it.
pub const VERSION: u32 = 1;

/// Offsets of a region's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    world: World,
    slot: usize,
}

/// One receive slot and its line: those of the messages from `source` with this parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bay {
    /// Who writes it.
    pub source: Rank,
    /// Which of the two.
    pub slot: usize,
}

impl Bay {
    /// Where message number `seq` from `source` goes.
    pub fn of(source: Rank, seq: u64) -> Self {
        Self {
            source,
            slot: (seq % SLOTS) as usize,
        }
    }
}

/// A word of the region that one side stores with release and the other loads with acquire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Number of the last entry that the kernel has rung.
    Doorbell,
    /// Number of the last entry whose staging slot the wire no longer needs.
    Completed,
    /// Not 0: the proxy has failed.
    ProxyFailed,
    /// Not 0: this rank has aborted or failed. A GPU kernel's failure record lies on the line behind it.
    Abort,
    /// Which peers an entry of the doorbell is for, one bit a rank.
    Mask {
        /// The entry's parity.
        entry: usize,
    },
    /// Number of the last message in a bay.
    Arrival(Bay),
    /// How many of this rank's messages `peer` has consumed; written by the peer.
    Acked {
        /// The peer.
        peer: Rank,
    },
    /// Not 0: one more than the rank that `peer` knows to have failed; the line's text says why. Written by the peer.
    Notice {
        /// The peer.
        peer: Rank,
    },
    /// How many messages of `source` this rank has consumed; for the wire's own check.
    Consumed {
        /// The source.
        source: Rank,
    },
}

impl Layout {
    /// The layout for a world of up to [`MAX_WORLD`] ranks and slots of `slot` bytes (rounded up to a multiple of
    /// [`PAGE`]); `None` outside the ranges.
    pub fn new(world: World, slot: usize) -> Option<Self> {
        let fits = (1..=MAX_WORLD).contains(&world.0) && (1..=MAX_SLOT).contains(&slot);
        fits.then(|| Self {
            world,
            slot: slot.next_multiple_of(PAGE),
        })
    }

    /// Number of ranks.
    pub fn world(&self) -> World {
        self.world
    }

    /// Bytes of a slot.
    pub fn slot(&self) -> usize {
        self.slot
    }

    fn ranks(&self) -> usize {
        self.world.size()
    }

    fn arrivals(&self) -> usize {
        PAGE
    }

    fn answers(&self) -> usize {
        self.arrivals() + (SLOTS as usize * self.ranks() * LINE).next_multiple_of(PAGE)
    }

    fn posts(&self) -> usize {
        self.answers() + (self.ranks() * LINE).next_multiple_of(PAGE)
    }

    fn staging_at(&self) -> usize {
        self.posts() + (SLOTS as usize * self.ranks() * 2 * LINE).next_multiple_of(PAGE)
    }

    fn inbox(&self) -> usize {
        self.staging_at() + SLOTS as usize * self.slot
    }

    /// Bytes of a region.
    pub fn total(&self) -> usize {
        self.inbox() + self.ranks() * SLOTS as usize * self.slot
    }

    /// Offset of a bay's line: the flag, then the header, then a small payload.
    pub fn line(&self, bay: Bay) -> usize {
        self.arrivals() + (bay.slot * self.ranks() + bay.source.index()) * LINE
    }

    /// Offset of a bay's slot.
    pub fn receive(&self, bay: Bay) -> usize {
        self.inbox() + (bay.source.index() * SLOTS as usize + bay.slot) * self.slot
    }

    /// Offset of the text that `peer` leaves when it fails; [`NOTICE`] bytes.
    pub fn notice(&self, peer: Rank) -> usize {
        self.answers() + peer.index() * LINE + 16
    }

    /// Offset of what the proxy is to send to `peer` for an entry of this parity.
    pub fn post(&self, entry: usize, peer: Rank) -> usize {
        self.posts() + (entry * self.ranks() + peer.index()) * 2 * LINE
    }

    /// Offset of the staging slot for entries of this parity.
    pub fn staging(&self, entry: usize) -> usize {
        self.staging_at() + entry * self.slot
    }

    /// Offset of a word.
    pub fn word(&self, word: Word) -> usize {
        match word {
            // Each on a line of its own: the kernel and the proxy write them at the same time.
            Word::Doorbell => 0,
            Word::Completed => LINE,
            Word::ProxyFailed => 2 * LINE,
            Word::Abort => 3 * LINE,
            // The line in between is the kernel's failure record.
            Word::Mask { entry } => 5 * LINE + entry * 8,
            Word::Consumed { source } => PAGE / 2 + source.index() * 8,
            Word::Arrival(bay) => self.line(bay),
            Word::Acked { peer } => self.answers() + peer.index() * LINE,
            Word::Notice { peer } => self.answers() + peer.index() * LINE + 8,
        }
    }

    /// What must be equal on all ranks, as readable names and values.
    pub fn describe(&self) -> Vec<(&'static str, String)> {
        vec![
            ("region layout version", VERSION.to_string()),
            ("world", self.world.to_string()),
            ("slot bytes", self.slot.to_string()),
            ("region bytes", self.total().to_string()),
            ("receive slots at", self.inbox().to_string()),
            (
                "byte order",
                if cfg!(target_endian = "big") {
                    "big"
                } else {
                    "little"
                }
                .to_owned(),
            ),
        ]
    }
}

/// Bytes of text in a notice of failure: a length byte, then UTF-8.
pub const NOTICE: usize = LINE - 16;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn worlds_and_slots_outside_the_ranges_have_no_layout() {
        assert!(Layout::new(World(0), 4096).is_none());
        assert!(Layout::new(World(65), 4096).is_none());
        assert!(Layout::new(World(2), 0).is_none());
        assert!(Layout::new(World(2), MAX_SLOT + 1).is_none());
        assert_eq!(Layout::new(World(2), 1).unwrap().slot(), 4096);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

        #[test]
        fn nothing_overlaps_and_everything_is_aligned(world in 1u32..=MAX_WORLD, slot in 1usize..200_000) {
            let layout = Layout::new(World(world), slot).unwrap();
            let mut parts = vec![(0, PAGE)];
            for peer in layout.world().ranks() {
                let answers = layout.word(Word::Acked { peer });
                parts.push((answers, LINE));
                prop_assert_eq!(layout.notice(peer) + NOTICE, answers + LINE);
                for slot in 0..SLOTS as usize {
                    let bay = Bay { source: peer, slot };
                    parts.push((layout.line(bay), LINE));
                    parts.push((layout.receive(bay), layout.slot()));
                    parts.push((layout.post(slot, peer), 2 * LINE));
                    prop_assert_eq!(layout.receive(bay) % PAGE, 0);
                }
                let consumed = layout.word(Word::Consumed { source: peer });
                prop_assert!(consumed + 8 <= PAGE);
            }
            parts.push((layout.staging(0), layout.slot()));
            parts.push((layout.staging(1), layout.slot()));
            parts.sort_unstable();
            for pair in parts.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?} overlaps {:?}", pair[0], pair[1]);
            }
            prop_assert!(parts.iter().all(|(at, _)| at % LINE == 0));
            let (at, len) = parts[parts.len() - 1];
            prop_assert_eq!(at + len, layout.total());
        }
    }
}
