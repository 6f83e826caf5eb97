//! How a range of bytes is divided among ranks or rails: by 16-byte packs of the slot, whatever the buffers' alignment,
//! so that the side that writes and the side that reads always agree.

use std::ops::Range;

/// Bytes of a pack. Every element's size divides it, so no element is cut.
pub const PACK: usize = 16;

/// Part `index` of `bytes` bytes divided into `parts`: contiguous, in order, whole packs but for the very end. The first
/// `packs mod parts` parts have one pack more.
pub fn part(bytes: usize, parts: usize, index: usize) -> Range<usize> {
    let packs = bytes.div_ceil(PACK);
    let (each, more) = (packs / parts, packs % parts);
    let start = |i: usize| ((each * i + i.min(more)) * PACK).min(bytes);
    start(index)..start(index + 1)
}

/// The largest part of a slot when it is divided among `parts`, in whole packs that all parts can have.
pub fn share(slot: usize, parts: usize) -> usize {
    slot / PACK / parts * PACK
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(256) })]

        #[test]
        fn parts_cover_everything_once_in_whole_packs(bytes in 0usize..100_000, parts in 1usize..65) {
            let all: Vec<_> = (0..parts).map(|i| part(bytes, parts, i)).collect();
            prop_assert_eq!(all[0].start, 0);
            prop_assert_eq!(all[parts - 1].end, bytes);
            for pair in all.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
                prop_assert!(pair[0].end % PACK == 0 || pair[0].end == bytes);
                prop_assert!(pair[0].len() + PACK > pair[1].len());
            }
        }

        #[test]
        fn every_part_of_a_slot_fits_its_share(parts in 1usize..65, pages in 1usize..9) {
            let slot = pages * 4096;
            prop_assert!(share(slot, parts) >= PACK * 4);
            prop_assert!(share(slot, parts) * parts <= slot);
        }
    }
}
