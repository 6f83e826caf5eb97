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
    let mut count = 0;
    let mut put = |part: &[u8; DATA]| {
        // SAFETY: the data fits into the line's place, which is ours.
        unsafe {
            let cell = to.add(count * CELL);
            cell.cast::<[u8; DATA]>().write(*part);
            cell.add(DATA).cast::<u32>().write(flag);
        }
        count += 1;
    };
    let (whole, rest) = head.as_chunks::<DATA>();
    whole.iter().for_each(&mut put);
    // The cell that has the end of the one and the beginning of the other.
    let joint = if rest.is_empty() { 0 } else { DATA - rest.len() };
    let (joint, tail) = tail.split_at(joint.min(tail.len()));
    if !rest.is_empty() {
        let mut part = [0; DATA];
        part[..rest.len()].copy_from_slice(rest);
        part[rest.len()..][..joint.len()].copy_from_slice(joint);
        put(&part);
    }
    let (whole, rest) = tail.as_chunks::<DATA>();
    whole.iter().for_each(&mut put);
    if !rest.is_empty() || head.is_empty() && tail.is_empty() {
        let mut part = [0; DATA];
        part[..rest.len()].copy_from_slice(rest);
        put(&part);
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

/// Reads `len` bytes of a line's data, from byte `from` on, to `to`.
///
/// # Safety
/// As [`carry`], which was true for all cells that hold them; `to` is writable for `len` bytes outside of the line.
pub(super) unsafe fn read(line: *const u8, from: usize, to: *mut u8, len: usize) {
    let (mut number, mut at) = (from / DATA, from % DATA);
    let mut done = 0;
    while done < len {
        let bytes = (DATA - at).min(len - done);
        // SAFETY: within the line; the flag that was seen came with these bytes, and nobody writes them now.
        unsafe {
            let (cell, place) = (line.add(number * CELL + at), to.add(done));
            if bytes == DATA {
                // Its length is known: no call for each cell.
                place.cast::<[u8; DATA]>().write(cell.cast::<[u8; DATA]>().read());
            } else {
                place.copy_from_nonoverlapping(cell, bytes);
            }
        }
        done += bytes;
        (number, at) = (number + 1, 0);
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
            let head: [u8; HEADER] = std::array::from_fn(|at| at as u8 + 7);
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
                let mut data = vec![0; HEADER + tail.len()];
                read(line, 0, data.as_mut_ptr(), HEADER);
                let rest = data[HEADER..].as_mut_ptr();
                read(line, HEADER, rest, tail.len());
                prop_assert_eq!(&data[..HEADER], &head[..]);
                prop_assert_eq!(&data[HEADER..], &tail[..]);
                // Any piece of it, too.
                let (from, len) = (missing.min(data.len()), (data.len() - missing.min(data.len())) / 2);
                let mut piece = vec![0; len];
                read(line, from, piece.as_mut_ptr(), len);
                prop_assert_eq!(&piece[..], &data[from..][..len]);
                clear(line, count);
                prop_assert!(!carry(line, 0..1, flag(9)));
            }
        }
    }
}
