//! The oracle: what a reduction's result is, bit for bit, on every rank, backend and route.
//!
//! - Rank 0's value is combined with rank 1's, the result with rank 2's, and so on.
//! - bf16 and f16 are widened to f32, combined there, and rounded **once** at the end, to nearest, ties to even.
//! - f32 and f64 are combined in their own precision; integers wrap.
//! - Any NaN result is the one canonical quiet NaN of its type ([`canonical_nan`]).
//! - max and min propagate NaN and order −0 below +0.
//! - u8 has max and min only.
//!
//! In a world of one the result is the value itself, a NaN made canonical.
//!
//! [`reduce`] here follows these sentences one element at a time. [`ordered`] is the form that backends
//! use; a test keeps the two bit-equal.

mod convert;
pub mod ordered;

pub use convert::{bf16_from_f32, bf16_to_f32, f16_from_f32, f16_to_f32};

use crate::types::{DType, ReduceOp};

/// Whether the oracle defines `op` over `dtype`.
pub fn defined(dtype: DType, op: ReduceOp) -> bool {
    !(dtype == DType::U8 && op == ReduceOp::Sum)
}

/// The canonical quiet NaN's bits: sign clear, exponent all ones, only the top fraction bit set. `None` for integers.
pub const fn canonical_nan(dtype: DType) -> Option<u64> {
    match dtype {
        DType::F16 => Some(0x7e00),
        DType::Bf16 => Some(0x7fc0),
        DType::F32 => Some(0x7fc0_0000),
        DType::F64 => Some(0x7ff8_0000_0000_0000),
        DType::U8 | DType::I32 | DType::I64 => None,
    }
}

/// Why the oracle has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OracleError {
    /// There is no such reduction.
    #[error("{op} over {dtype} is not defined")]
    Undefined {
        /// Element type.
        dtype: DType,
        /// Operation.
        op: ReduceOp,
    },
    /// No inputs, or inputs of different or broken lengths.
    #[error("inputs must be at least one, of one length, in whole elements")]
    Shape,
}

/// The reduction of every rank's bytes, `inputs` in rank order, all of one length: native-endian elements, unaligned.
pub fn reduce(inputs: &[&[u8]], dtype: DType, op: ReduceOp) -> Result<Vec<u8>, OracleError> {
    if !defined(dtype, op) {
        return Err(OracleError::Undefined { dtype, op });
    }
    let size = dtype.size();
    let Some(first) = inputs.first() else {
        return Err(OracleError::Shape);
    };
    if inputs.iter().any(|input| input.len() != first.len()) || !first.len().is_multiple_of(size) {
        return Err(OracleError::Shape);
    }
    let mut out = Vec::with_capacity(first.len());
    for at in (0..first.len()).step_by(size) {
        let values = inputs.iter().map(|input| &input[at..at + size]);
        match dtype {
            DType::U8 => out.push(fold(values.map(|b| b[0]), |a, b| {
                if op == ReduceOp::Max { a.max(b) } else { a.min(b) }
            })),
            DType::I32 => {
                let value = fold(values.map(|b| i32::from_ne_bytes(array(b))), |a, b| match op {
                    ReduceOp::Sum => a.wrapping_add(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                });
                out.extend_from_slice(&value.to_ne_bytes());
            }
            DType::I64 => {
                let value = fold(values.map(|b| i64::from_ne_bytes(array(b))), |a, b| match op {
                    ReduceOp::Sum => a.wrapping_add(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Min => a.min(b),
                });
                out.extend_from_slice(&value.to_ne_bytes());
            }
            DType::F64 => {
                let value = fold(values.map(|b| f64::from_ne_bytes(array(b))), |a, b| {
                    combine_f64(a, b, op)
                });
                let bits = if value.is_nan() {
                    0x7ff8_0000_0000_0000
                } else {
                    value.to_bits()
                };
                out.extend_from_slice(&bits.to_ne_bytes());
            }
            DType::F32 => {
                let value = fold(values.map(|b| f32::from_ne_bytes(array(b))), |a, b| {
                    combine_f32(a, b, op)
                });
                let bits = if value.is_nan() {
                    0x7fc0_0000
                } else {
                    value.to_bits()
                };
                out.extend_from_slice(&bits.to_ne_bytes());
            }
            DType::F16 => {
                let wide = values.map(|b| f16_to_f32(u16::from_ne_bytes(array(b))));
                out.extend_from_slice(&f16_from_f32(fold(wide, |a, b| combine_f32(a, b, op))).to_ne_bytes());
            }
            DType::Bf16 => {
                let wide = values.map(|b| bf16_to_f32(u16::from_ne_bytes(array(b))));
                out.extend_from_slice(&bf16_from_f32(fold(wide, |a, b| combine_f32(a, b, op))).to_ne_bytes());
            }
        }
    }
    Ok(out)
}

/// Combines the first value with the second, the result with the third, …; there is at least one.
fn fold<T: Default>(mut values: impl Iterator<Item = T>, combine: impl FnMut(T, T) -> T) -> T {
    let first = values.next().unwrap_or_default();
    values.fold(first, combine)
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(bytes);
    out
}

macro_rules! combine {
    ($name:ident, $ty:ty) => {
        fn $name(a: $ty, b: $ty, op: ReduceOp) -> $ty {
            match op {
                ReduceOp::Sum => a + b,
                _ if a.is_nan() || b.is_nan() => <$ty>::NAN,
                // Equal values differ at most in the sign of a zero.
                ReduceOp::Max if a == b => {
                    if a.is_sign_negative() {
                        b
                    } else {
                        a
                    }
                }
                ReduceOp::Min if a == b => {
                    if a.is_sign_negative() {
                        a
                    } else {
                        b
                    }
                }
                ReduceOp::Max => {
                    if a > b {
                        a
                    } else {
                        b
                    }
                }
                ReduceOp::Min => {
                    if a < b {
                        a
                    } else {
                        b
                    }
                }
            }
        }
    };
}
combine!(combine_f32, f32);
combine!(combine_f64, f64);

#[cfg(test)]
mod tests;
