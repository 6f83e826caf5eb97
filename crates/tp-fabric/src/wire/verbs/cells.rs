//! Lines whose flags are inside: 16-byte cells of 12 bytes of data and a 4-byte flag.
//!
//! A device promises no order among the bytes of one write, only that an aligned store of 16 bytes appears whole. So each
//! cell has its own flag, and the reader takes a line when every cell that belongs to it carries the message's flag. That
//! makes one work request of a message that would need a second one for a flag behind it.

use crate::region::layout::HEADER;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Bytes of a cell.
pub(super) const CELL: usize = 16;
/// Data bytes of a cell.
pub(super) const DATA: usize = 12;
/// The largest payload that travels inside a line, bytes.
pub const SMALL: usize = 256;
/// Cells of the longest line: a header and the largest small payload.
pub(super) const LINE_CELLS: usize = (HEADER + SMALL).div_ceil(DATA);
/// Bytes of a line's place.
pub(super) const LINE: usize = (LINE_CELLS * CELL).next_multiple_of(128);

/// The flag of message `seq`: never 0, which cells hold when nothing is in them.
pub(super) fn flag(seq: u64) -> u32 {
    (seq % u64::from(u32::MAX)) as u32 + 1
}

/// Cells that `bytes` of data take; an empty line still has its flag.
pub(super) fn cells(bytes: usize) -> usize {
    bytes.div_ceil(DATA).max(1)
}

/// Writes a line of `head` and `tail` and returns its bytes.
///
/// # Safety
/// `to` is aligned to a cell, writable for [`LINE`] bytes, and nobody else reads or writes it now; head and tail together
/// have at most [`LINE_CELLS`] cells' data.
pub(super) unsafe fn pack(to: *mut u8, head: &[u8], tail: &[u8], flag: u32) -> usize {
    let mut data = [0u8; LINE_CELLS * DATA];
    data[..head.len()].copy_from_slice(head);
    data[head.len()..][..tail.len()].copy_from_slice(tail);
    let count = cells(head.len() + tail.len());
    for (number, part) in data.chunks_exact(DATA).take(count).enumerate() {
        let mut cell = [0u8; CELL];
        cell[..DATA].copy_from_slice(part);
        cell[DATA..].copy_from_slice(&flag.to_ne_bytes());
        // SAFETY: `count` cells lie within the line's place, which is ours.
        unsafe { to.add(number * CELL).cast::<[u8; CELL]>().write(cell) };
    }
    count * CELL
}

/// Whether these cells of a line all carry `flag`. What they hold may be read after that.
///
/// # Safety
/// `line` is aligned to a cell and readable for [`LINE`] bytes, and `range` lies within [`LINE_CELLS`].
pub(super) unsafe fn carry(line: *mut u8, range: Range<usize>, flag: u32) -> bool {
    range.into_iter().all(|number| {
        // SAFETY: within the line, aligned to 4; a device writes it whole, and we only ever access it as an atomic.
        let word = unsafe { AtomicU32::from_ptr(line.add(number * CELL + DATA).cast()) };
        word.load(Ordering::Acquire) == flag
    })
}

/// Reads the data of the first `count` cells.
///
/// # Safety
/// As [`carry`], which was true for all of them.
pub(super) unsafe fn read(line: *const u8, count: usize, data: &mut [u8; LINE_CELLS * DATA]) {
    for (number, part) in data.chunks_exact_mut(DATA).take(count).enumerate() {
        // SAFETY: within the line; the flag that was seen came with these bytes, and nobody writes them now.
        part.copy_from_slice(&unsafe { line.add(number * CELL).cast::<[u8; DATA]>().read() });
    }
}

/// Empties the first `count` cells, so that no later line takes what is in them for its own.
///
/// # Safety
/// As [`read`].
pub(super) unsafe fn clear(line: *mut u8, count: usize) {
    for number in 0..count {
        // SAFETY: as in `carry`; the sender writes the line again only when it knows that this message was consumed.
        let word = unsafe { AtomicU32::from_ptr(line.add(number * CELL + DATA).cast()) };
        word.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[repr(align(128))]
    struct Place([u8; LINE]);

    #[test]
    fn no_flag_is_ever_nothing_and_neighbours_differ() {
        for seq in [
            1,
            2,
            u64::from(u32::MAX) - 1,
            u64::from(u32::MAX),
            u64::from(u32::MAX) + 1,
            u64::MAX,
        ] {
            assert_ne!(flag(seq), 0);
            assert_ne!(flag(seq), flag(seq - 1));
            assert_ne!(flag(seq), flag(seq.wrapping_sub(2)), "{seq}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

        #[test]
        fn a_line_is_taken_exactly_when_all_its_cells_have_come(
            tail in prop::collection::vec(any::<u8>(), 0..=SMALL),
            old in any::<u8>(),
            order in any::<prop::sample::Index>(),
        ) {
            let head = [7u8; HEADER];
            let (mut sent, mut landed) = (Place([0; LINE]), Place([old; LINE]));
            let line: *mut u8 = landed.0.as_mut_ptr();
            // SAFETY: both places are ours, aligned and long enough; cells are copied whole, as a device writes them.
            unsafe {
                clear(line, LINE_CELLS);
                let bytes = pack(sent.0.as_mut_ptr(), &head, &tail, flag(9));
                let count = bytes / CELL;
                prop_assert_eq!(count, cells(HEADER + tail.len()));
                let missing = order.index(count);
                for number in (0..count).filter(|number| *number != missing) {
                    line.add(number * CELL).copy_from_nonoverlapping(sent.0.as_ptr().add(number * CELL), CELL);
                }
                prop_assert!(!carry(line, 0..count, flag(9)));
                line.add(missing * CELL).copy_from_nonoverlapping(sent.0.as_ptr().add(missing * CELL), CELL);
                prop_assert!(carry(line, 0..count, flag(9)) && !carry(line, 0..count, flag(7)));
                let mut data = [0; LINE_CELLS * DATA];
                read(line, count, &mut data);
                prop_assert_eq!(&data[..HEADER], &head[..]);
                prop_assert_eq!(&data[HEADER..][..tail.len()], &tail[..]);
                clear(line, count);
                prop_assert!(!carry(line, 0..1, flag(9)));
            }
        }
    }
}
