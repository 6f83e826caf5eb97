//! Conversions between f32 and the two 16-bit floats, by the definition of rounding to nearest even.

use super::canonical_nan;
use crate::types::DType;

/// A bf16's bits as f32: its upper half.
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// The nearest bf16 (ties to even), a NaN made canonical.
pub fn bf16_from_f32(value: f32) -> u16 {
    if value.is_nan() {
        return nan(DType::Bf16);
    }
    let bits = value.to_bits();
    // Half of the last kept place, less one where that place is even already: a tie then stays below the carry.
    let kept_odd = (bits >> 16) & 1;
    ((bits + 0x7fff + kept_odd) >> 16) as u16
}

/// An f16's bits as f32; exact.
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10) & 0x1f;
    let fraction = u32::from(bits & 0x3ff);
    let magnitude = match exponent {
        // Subnormal: a multiple of 2^-24, which f32 holds exactly.
        0 => (fraction as f32 * f32::from_bits(0x3380_0000)).to_bits(),
        0x1f => 0x7f80_0000 | (fraction << 13),
        _ => ((exponent + 112) << 23) | (fraction << 13),
    };
    f32::from_bits(sign | magnitude)
}

/// The nearest f16 (ties to even), a NaN made canonical; beyond the largest finite one, infinity.
pub fn f16_from_f32(value: f32) -> u16 {
    if value.is_nan() {
        return nan(DType::F16);
    }
    let sign = ((value.to_bits() >> 16) & 0x8000) as u16;
    let magnitude = f64::from(value.abs());
    // 65520 lies half-way between the largest finite f16 and the next power of two; the tie goes to the even side, up.
    if magnitude >= 65520.0 {
        return sign | 0x7c00;
    }
    // The last place of the result: 2^-24 for subnormals, else 2^(exponent - 10). f64 divides by it exactly.
    let exponent = ((magnitude.to_bits() >> 52) as i32 - 1023).max(-14);
    let place = 2f64.powi(exponent - 10);
    let units = (magnitude / place).round_ties_even() as u16;
    // Units of a normal number are 1024 and more; the carry into 2048 is the next exponent's 1024.
    sign | ((((exponent + 14) as u16) << 10) + units)
}

fn nan(dtype: DType) -> u16 {
    canonical_nan(dtype).unwrap_or_default() as u16
}
