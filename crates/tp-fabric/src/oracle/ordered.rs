//! The ordered reduction that backends on host memory use: the oracle's result, a block of elements at a time in a form
//! that compilers turn into vector instructions.

use super::{OracleError, canonical_nan, defined};
use crate::types::{DType, ReduceOp};

/// Elements whose running combination stays in the first-level cache.
const BLOCK: usize = 512;

/// Writes the reduction of `sources`, in that order, to `out`: `count` elements each, unaligned, native-endian.
///
/// # Safety
///
/// Every source is readable and `out` writable for `count` elements. `out` may be one of the sources, and otherwise
/// overlaps none.
pub unsafe fn reduce(
    sources: &[*const u8],
    out: *mut u8,
    count: usize,
    dtype: DType,
    op: ReduceOp,
) -> Result<(), OracleError> {
    if !defined(dtype, op) {
        return Err(OracleError::Undefined { dtype, op });
    }
    if sources.is_empty() {
        return Err(OracleError::Shape);
    }
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the caller's promise, and the instructions are there.
        unsafe { reduce_avx2(sources, out, count, dtype, op) };
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { reduce_any(sources, out, count, dtype, op) };
    Ok(())
}

/// # Safety
/// As [`reduce`]; the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn reduce_avx2(sources: &[*const u8], out: *mut u8, count: usize, dtype: DType, op: ReduceOp) {
    // SAFETY: the caller's promise. The same code, compiled for wider vectors; no instruction of it rounds otherwise.
    unsafe { reduce_any(sources, out, count, dtype, op) }
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn reduce_any(sources: &[*const u8], out: *mut u8, count: usize, dtype: DType, op: ReduceOp) {
    // SAFETY: the caller's promise, handed on with the type that `dtype` names.
    unsafe {
        match dtype {
            DType::U8 => by_op::<u8>(sources, out, count, op),
            DType::I32 => by_op::<i32>(sources, out, count, op),
            DType::I64 => by_op::<i64>(sources, out, count, op),
            DType::F16 => by_op::<Half>(sources, out, count, op),
            DType::Bf16 => by_op::<Brain>(sources, out, count, op),
            DType::F32 => by_op::<f32>(sources, out, count, op),
            DType::F64 => by_op::<f64>(sources, out, count, op),
        }
    }
}

/// # Safety
/// As [`reduce`], for elements of type `T`.
#[inline(always)]
unsafe fn by_op<T: Lane>(sources: &[*const u8], out: *mut u8, count: usize, op: ReduceOp) {
    // SAFETY: the caller's promise.
    unsafe {
        match op {
            ReduceOp::Sum => blocks::<T>(sources, out, count, T::Acc::add),
            ReduceOp::Max => blocks::<T>(sources, out, count, T::Acc::max),
            ReduceOp::Min => blocks::<T>(sources, out, count, T::Acc::min),
        }
    }
}

/// # Safety
/// As [`reduce`], for elements of type `T`.
#[inline(always)]
unsafe fn blocks<T: Lane>(
    sources: &[*const u8],
    out: *mut u8,
    count: usize,
    combine: impl Fn(T::Acc, T::Acc) -> T::Acc,
) {
    let out = out.cast::<T>();
    let mut acc = [T::Acc::default(); BLOCK];
    for from in (0..count).step_by(BLOCK) {
        let n = BLOCK.min(count - from);
        let acc = &mut acc[..n];
        // SAFETY: `from + n <= count`, and every pointer is good for `count` elements. A block of `out` is written only
        // after the same block of every source was read.
        unsafe {
            let at = |source: &*const u8| source.cast::<T>().add(from);
            match sources {
                [only] => each(acc, at(only), |_, b| b),
                [first, second, rest @ ..] => {
                    let (a, b) = (at(first), at(second));
                    for (i, acc) in acc.iter_mut().enumerate() {
                        *acc = combine(
                            a.add(i).read_unaligned().widen(),
                            b.add(i).read_unaligned().widen(),
                        );
                    }
                    for source in rest {
                        each(acc, at(source), &combine);
                    }
                }
                [] => {}
            }
            for (i, acc) in acc.iter().enumerate() {
                out.add(from + i).write_unaligned(T::narrow(*acc));
            }
        }
    }
}

/// # Safety
/// `source` is readable for `acc.len()` elements.
#[inline(always)]
unsafe fn each<T: Lane>(acc: &mut [T::Acc], source: *const T, combine: impl Fn(T::Acc, T::Acc) -> T::Acc) {
    for (i, acc) in acc.iter_mut().enumerate() {
        // SAFETY: `i < acc.len()`.
        *acc = combine(*acc, unsafe { source.add(i).read_unaligned() }.widen());
    }
}

/// An element as it lies in memory.
trait Lane: Copy {
    /// What it is combined as.
    type Acc: Number;
    fn widen(self) -> Self::Acc;
    fn narrow(acc: Self::Acc) -> Self;
}

/// What is combined.
trait Number: Copy + Default {
    fn add(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
}

macro_rules! integers {
    ($($ty:ty),*) => {$(
        impl Lane for $ty {
            type Acc = Self;
            #[inline(always)]
            fn widen(self) -> Self { self }
            #[inline(always)]
            fn narrow(acc: Self) -> Self { acc }
        }
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn max(self, other: Self) -> Self { if self > other { self } else { other } }
            #[inline(always)]
            fn min(self, other: Self) -> Self { if self < other { self } else { other } }
        }
    )*};
}
integers!(u8, i32, i64);

macro_rules! floats {
    ($($ty:ty, $bits:ty, $signed:ty, $nan:expr;)*) => {$(
        impl Lane for $ty {
            type Acc = Self;
            #[inline(always)]
            fn widen(self) -> Self { self }
            #[inline(always)]
            fn narrow(acc: Self) -> Self { if acc.is_nan() { <$ty>::from_bits($nan) } else { acc } }
        }
        impl Number for $ty {
            #[inline(always)]
            fn add(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn max(self, other: Self) -> Self {
                let larger = if key(self) > key(other) { self } else { other };
                return if self.is_nan() | other.is_nan() { <$ty>::from_bits($nan) } else { larger };

                /// Orders like the value, −0 below +0: the bits of negative values, which grow downwards, turned.
                #[inline(always)]
                fn key(value: $ty) -> $signed {
                    let bits = value.to_bits() as $signed;
                    bits ^ (((bits >> (<$signed>::BITS - 1)) as $bits) >> 1) as $signed
                }
            }
            #[inline(always)]
            fn min(self, other: Self) -> Self { -Number::max(-self, -other) }
        }
    )*};
}
floats! {
    f32, u32, i32, 0x7fc0_0000;
    f64, u64, i64, 0x7ff8_0000_0000_0000;
}

/// The bits of a bf16.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Brain(u16);

impl Lane for Brain {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }
    #[inline(always)]
    fn narrow(acc: f32) -> Self {
        let bits = acc.to_bits();
        let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
        Self(if acc.is_nan() { 0x7fc0 } else { rounded as u16 })
    }
}

/// The bits of an f16.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Half(u16);

impl Lane for Half {
    type Acc = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        let magnitude = u32::from(self.0 & 0x7fff) << 13;
        // The exponent is biased by 15 where f32's is by 127: times 2^112, which also makes subnormals right.
        let scaled = (f32::from_bits(magnitude) * f32::from_bits(0x7780_0000)).to_bits();
        let magnitude = if self.0 & 0x7c00 == 0x7c00 {
            magnitude | 0x7f80_0000
        } else {
            scaled
        };
        f32::from_bits(magnitude | (u32::from(self.0 & 0x8000) << 16))
    }
    #[inline(always)]
    fn narrow(acc: f32) -> Self {
        let sign = (acc.to_bits() >> 16) & 0x8000;
        let magnitude = acc.to_bits() & 0x7fff_ffff;
        // Below 2^-14 the last place is 2^-24, that of f32 values from 0.5 on: the sum with 0.5 rounds as wanted.
        let subnormal = (f32::from_bits(magnitude) + 0.5)
            .to_bits()
            .wrapping_sub(0x3f00_0000);
        let kept_odd = (magnitude >> 13) & 1;
        let normal = magnitude.wrapping_sub(112 << 23).wrapping_add(0xfff + kept_odd) >> 13;
        let rounded = if magnitude < 0x3880_0000 {
            subnormal
        } else {
            normal
        };
        // 0x477f_f000 is 65520, from which on the nearest is infinity.
        let finite = if magnitude >= 0x477f_f000 { 0x7c00 } else { rounded };
        Self(if acc.is_nan() {
            0x7e00
        } else {
            (sign | finite) as u16
        })
    }
}

const _: () = {
    // The literals above are the oracle's NaNs.
    assert!(matches!(canonical_nan(DType::F32), Some(0x7fc0_0000)));
    assert!(matches!(canonical_nan(DType::F64), Some(0x7ff8_0000_0000_0000)));
    assert!(matches!(canonical_nan(DType::Bf16), Some(0x7fc0)));
    assert!(matches!(canonical_nan(DType::F16), Some(0x7e00)));
};

#[cfg(test)]
pub(super) mod lanes {
    //! The conversions, for comparison with the oracle's.
    use super::{Brain, Half, Lane};

    pub fn f16_to_f32(bits: u16) -> f32 {
        Half(bits).widen()
    }
    pub fn f16_from_f32(value: f32) -> u16 {
        Half::narrow(value).0
    }
    pub fn bf16_from_f32(value: f32) -> u16 {
        Brain::narrow(value).0
    }
}
