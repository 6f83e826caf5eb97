//! The deterministic fill of test buffers: the same bytes for the same (seed, rank, element type, pattern), everywhere.
//!
//! The words come from SplitMix64, seeded with `seed XOR (rank + 1) * 0x9e3779b97f4a7c15` (2^64 over the golden ratio).
//! Element `i` takes the `i`-th word:
//! - integers take its low bytes;
//! - floats take its top 24 bits `u` (53 for f64) as `u / 2^24 * 8 - 4` (2^53 for f64), uniform in [−4, 4), rounded to
//!   nearest even for bf16 and f16;
//! - with [`Pattern::Special`], where the word's low 3 bits are 0, a float instead takes entry `(word >> 3) mod n` of
//!   [`specials`].

use crate::oracle::{bf16_from_f32, f16_from_f32};
use crate::types::{DType, Rank};

/// Which values a buffer is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Ordinary values.
    Uniform,
    /// One float in eight is a special value: ±0, subnormals, the largest finite ones, infinities, NaNs.
    Special,
}

/// A stream of 64-bit words (SplitMix64).
#[derive(Clone, Debug)]
pub struct Words(u64);

impl Words {
    /// The stream of a rank.
    pub fn new(seed: u64, rank: Rank) -> Self {
        Self(seed ^ (u64::from(rank.0) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

impl Iterator for Words {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(z ^ (z >> 31))
    }
}

/// The special values of a float type, as bits; empty for integers.
///
/// +0, −0, the smallest and the largest subnormal of both signs, the smallest normal, the largest finite of both signs,
/// ±infinity, the canonical NaN, a quiet NaN with sign and payload, a signalling NaN.
pub fn specials(dtype: DType) -> &'static [u64] {
    match dtype {
        DType::F16 => &[
            0, 0x8000, 1, 0x8001, 0x03ff, 0x83ff, 0x0400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe5a,
            0x7c01,
        ],
        DType::Bf16 => &[
            0, 0x8000, 1, 0x8001, 0x007f, 0x807f, 0x0080, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffda,
            0x7f81,
        ],
        DType::F32 => &[
            0,
            0x8000_0000,
            1,
            0x8000_0001,
            0x007f_ffff,
            0x807f_ffff,
            0x0080_0000,
            0x7f7f_ffff,
            0xff7f_ffff,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
            0xffc0_005a,
            0x7f80_0001,
        ],
        DType::F64 => &[
            0,
            1 << 63,
            1,
            1 << 63 | 1,
            0x000f_ffff_ffff_ffff,
            0x800f_ffff_ffff_ffff,
            0x0010_0000_0000_0000,
            0x7fef_ffff_ffff_ffff,
            0xffef_ffff_ffff_ffff,
            0x7ff0_0000_0000_0000,
            0xfff0_0000_0000_0000,
            0x7ff8_0000_0000_0000,
            0xfff8_0000_0000_005a,
            0x7ff0_0000_0000_0001,
        ],
        DType::U8 | DType::I32 | DType::I64 => &[],
    }
}

/// Fills `out` with elements of `dtype`; bytes after the last whole element get the next element's first bytes.
pub fn fill(out: &mut [u8], dtype: DType, seed: u64, rank: Rank, pattern: Pattern) {
    // The size is a constant in each, so that an element is one store and not a copy of some bytes.
    match dtype.size() {
        1 => fill_sized::<1>(out, dtype, seed, rank, pattern),
        2 => fill_sized::<2>(out, dtype, seed, rank, pattern),
        4 => fill_sized::<4>(out, dtype, seed, rank, pattern),
        _ => fill_sized::<8>(out, dtype, seed, rank, pattern),
    }
}

fn fill_sized<const SIZE: usize>(out: &mut [u8], dtype: DType, seed: u64, rank: Rank, pattern: Pattern) {
    let table = match pattern {
        Pattern::Special => specials(dtype),
        Pattern::Uniform => &[],
    };
    let mut words = Words::new(seed, rank);
    let mut element = || {
        let word = words.next().unwrap_or_default();
        let bits = if !table.is_empty() && word & 7 == 0 {
            table[(word >> 3) as usize % table.len()]
        } else {
            ordinary(word, dtype)
        };
        // The low bytes, in this machine's order.
        let mut low = [0; SIZE];
        low.copy_from_slice(&bits.to_le_bytes()[..SIZE]);
        if cfg!(target_endian = "big") {
            low.reverse();
        }
        low
    };
    let (whole, rest) = out.as_chunks_mut::<SIZE>();
    whole.fill_with(&mut element);
    if !rest.is_empty() {
        let len = rest.len();
        rest.copy_from_slice(&element()[..len]);
    }
}

/// A new buffer of `len` bytes, filled.
pub fn bytes(len: usize, dtype: DType, seed: u64, rank: Rank, pattern: Pattern) -> Vec<u8> {
    let mut out = vec![0; len];
    fill(&mut out, dtype, seed, rank, pattern);
    out
}

fn ordinary(word: u64, dtype: DType) -> u64 {
    let single = || (word >> 40) as f32 / (1u32 << 24) as f32 * 8.0 - 4.0;
    match dtype {
        DType::U8 | DType::I32 | DType::I64 => word,
        DType::F16 => u64::from(f16_from_f32(single())),
        DType::Bf16 => u64::from(bf16_from_f32(single())),
        DType::F32 => u64::from(single().to_bits()),
        DType::F64 => ((word >> 11) as f64 / (1u64 << 53) as f64 * 8.0 - 4.0).to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_those_of_the_definition() {
        // SplitMix64 from state 0, as published with the generator.
        let mut words = Words(0);
        assert_eq!(words.next(), Some(0xe220_a839_7b1d_cdaf));
        assert_eq!(words.next(), Some(0x6e78_9e6a_a1b9_65f4));
        let once = bytes(64, DType::F32, 1, Rank(0), Pattern::Uniform);
        assert_eq!(once, bytes(64, DType::F32, 1, Rank(0), Pattern::Uniform));
        assert_ne!(once, bytes(64, DType::F32, 1, Rank(1), Pattern::Uniform));
        assert_ne!(once, bytes(64, DType::F32, 2, Rank(0), Pattern::Uniform));
    }

    #[test]
    fn a_buffer_is_the_beginning_of_every_longer_one() {
        for dtype in [DType::U8, DType::Bf16, DType::F32, DType::I64] {
            let long = bytes(64, dtype, 9, Rank(1), Pattern::Special);
            let mut elements = Words::new(9, Rank(1)).zip(long.chunks(dtype.size()));
            assert!(specials(dtype).is_empty() || elements.any(|(word, _)| word & 7 == 0));
            for len in 0..64 {
                assert_eq!(
                    bytes(len, dtype, 9, Rank(1), Pattern::Special),
                    long[..len],
                    "{dtype:?} {len}"
                );
            }
        }
        let words = bytes(24, DType::I64, 5, Rank(0), Pattern::Uniform);
        let wanted = Words::new(5, Rank(0)).take(3).flat_map(u64::to_ne_bytes);
        assert_eq!(words, wanted.collect::<Vec<_>>());
        let low = bytes(3, DType::U8, 5, Rank(0), Pattern::Uniform);
        assert_eq!(
            low,
            Words::new(5, Rank(0))
                .take(3)
                .map(|word| word as u8)
                .collect::<Vec<_>>()
        );
    }

    #[test]
    fn ordinary_floats_lie_in_range_and_specials_occur() {
        let raw = bytes(4 * 4096, DType::F32, 3, Rank(2), Pattern::Special);
        let values: Vec<u32> = raw
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| u32::from_ne_bytes(*b))
            .collect();
        for special in specials(DType::F32) {
            assert!(values.contains(&(*special as u32)), "{special:#x} never occurs");
        }
        let raw = bytes(4 * 4096, DType::F32, 3, Rank(2), Pattern::Uniform);
        let values = raw.as_chunks::<4>().0.iter().map(|b| f32::from_ne_bytes(*b));
        assert!(values.into_iter().all(|v| (-4.0..4.0).contains(&v)));
    }
}
