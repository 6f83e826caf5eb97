//! Copying payloads.

/// From this size on, the C library may copy by `REP MOVSB`, which falls to a tenth of its speed on some processors where
/// the target's offset within a page is just above the source's. Payloads come at any offset, so from here on they are
/// copied by plain vector moves, as fast at every alignment.
#[cfg(target_arch = "x86_64")]
const OWN_FROM: usize = 2048;

/// Copies `len` bytes.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`].
#[inline]
pub(crate) unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(target_arch = "x86_64")]
    if len >= OWN_FROM && std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, and the instructions are there.
        unsafe { copy_avx2(from, to, len) };
        return;
    }
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
}

/// # Safety
/// As [`copy`]; the processor has AVX2, and `len` is at least 32.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn copy_avx2(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m256i, _mm256_loadu_si256, _mm256_storeu_si256};
    const STEP: usize = size_of::<__m256i>();
    let step = |at: usize| {
        // SAFETY: `at + STEP <= len` at every call below.
        unsafe { _mm256_storeu_si256(to.add(at).cast(), _mm256_loadu_si256(from.add(at).cast())) };
    };
    let mut at = 0;
    while at + 4 * STEP <= len {
        step(at);
        step(at + STEP);
        step(at + 2 * STEP);
        step(at + 3 * STEP);
        at += 4 * STEP;
    }
    while at + STEP <= len {
        step(at);
        at += STEP;
    }
    if at < len {
        // The last bytes, some of them for the second time.
        step(len - STEP);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fill::{self, Pattern};
    use crate::types::{DType, Rank};

    #[test]
    fn every_length_and_alignment_is_copied_whole_and_nothing_else() {
        let source = fill::bytes(8192, DType::U8, 3, Rank(0), Pattern::Uniform);
        for len in (0..200).chain(2040..2200).chain([4095, 4096, 4097, 8000]) {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (31, 33)] {
                let mut target = vec![0u8; 8192 + 64];
                // SAFETY: both ranges lie within their vectors.
                unsafe { copy(source.as_ptr().add(from), target.as_mut_ptr().add(to), len) };
                assert!(
                    target[to..to + len] == source[from..from + len],
                    "{len} B from {from} to {to}"
                );
                assert!(
                    target[..to].iter().chain(&target[to + len..]).all(|b| *b == 0),
                    "{len} B from {from} to {to}"
                );
            }
        }
    }
}
