use super::*;
use crate::fill::{self, Pattern};
use crate::types::Rank;
use proptest::prelude::*;

fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn fast(inputs: &[&[u8]], dtype: DType, op: ReduceOp) -> Vec<u8> {
    let sources: Vec<*const u8> = inputs.iter().map(|input| input.as_ptr()).collect();
    let mut out = vec![0; inputs[0].len()];
    let count = out.len() / dtype.size();
    // SAFETY: all inputs and the output have `count` elements.
    unsafe { ordered::reduce(&sources, out.as_mut_ptr(), count, dtype, op) }.unwrap();
    out
}

#[test]
fn every_16_bit_float_widens_exactly_and_comes_back() {
    for bits in 0..=u16::MAX {
        let wide = f16_to_f32(bits);
        assert!(same(wide, half::f16::from_bits(bits).to_f32()), "f16 {bits:#06x}");
        assert!(same(wide, ordered::lanes::f16_to_f32(bits)), "f16 {bits:#06x}");
        let back = if wide.is_nan() { 0x7e00 } else { bits };
        assert_eq!(f16_from_f32(wide), back, "f16 {bits:#06x}");
        let wide = bf16_to_f32(bits);
        assert!(
            same(wide, half::bf16::from_bits(bits).to_f32()),
            "bf16 {bits:#06x}"
        );
        assert_eq!(
            bf16_from_f32(wide),
            if wide.is_nan() { 0x7fc0 } else { bits },
            "bf16 {bits:#06x}"
        );
    }
}

/// Checks one narrowing against the fast form and the `half` crate.
fn narrows(value: f32) {
    let (f, b) = (f16_from_f32(value), bf16_from_f32(value));
    assert_eq!(
        f,
        ordered::lanes::f16_from_f32(value),
        "{value:e} {:#010x}",
        value.to_bits()
    );
    assert_eq!(
        b,
        ordered::lanes::bf16_from_f32(value),
        "{value:e} {:#010x}",
        value.to_bits()
    );
    if !value.is_nan() {
        assert_eq!(
            f,
            half::f16::from_f32(value).to_bits(),
            "{value:e} {:#010x}",
            value.to_bits()
        );
        assert_eq!(
            b,
            half::bf16::from_f32(value).to_bits(),
            "{value:e} {:#010x}",
            value.to_bits()
        );
    }
}

#[test]
fn every_tie_and_its_neighbours_round_to_nearest_even() {
    // The f32 values around every f16 and bf16 value and around every midpoint between two neighbours.
    for bits in 0..=u16::MAX {
        for centre in [f16_to_f32(bits).to_bits(), u32::from(bits) << 16] {
            for half_place in [0, 0x1000, 0x8000, 0x0800, 0x0400] {
                for step in [-1i32, 0, 1] {
                    narrows(f32::from_bits(
                        centre.wrapping_add(half_place).wrapping_add_signed(step),
                    ));
                }
            }
        }
    }
}

#[test]
#[ignore = "walks all 2^32 values; run with --release"]
fn every_f32_narrows_alike() {
    for bits in 0..=u32::MAX {
        narrows(f32::from_bits(bits));
    }
}

#[test]
fn ranks_are_combined_in_order_and_rounded_once() {
    // In f32, (1e8 + 1) - 1e8 loses the one; in another order it does not.
    let parts = [1e8f32, 1.0, -1e8].map(f32::to_ne_bytes);
    let inputs: Vec<&[u8]> = parts.iter().map(<[u8; 4]>::as_slice).collect();
    assert_eq!(
        reduce(&inputs, DType::F32, ReduceOp::Sum).unwrap(),
        0f32.to_ne_bytes()
    );
    // 256 + 1 + 1 in bf16: rounding after every step gives 256, once gives 258.
    let parts = [256f32, 1.0, 1.0].map(|v| bf16_from_f32(v).to_ne_bytes());
    let inputs: Vec<&[u8]> = parts.iter().map(<[u8; 2]>::as_slice).collect();
    let sum = reduce(&inputs, DType::Bf16, ReduceOp::Sum).unwrap();
    assert_eq!(bf16_to_f32(u16::from_ne_bytes([sum[0], sum[1]])), 258.0);
}

#[test]
fn integers_wrap_and_bytes_have_no_sum() {
    let (a, b) = (i32::MAX.to_ne_bytes(), 1i32.to_ne_bytes());
    assert_eq!(
        reduce(&[&a, &b], DType::I32, ReduceOp::Sum).unwrap(),
        i32::MIN.to_ne_bytes()
    );
    assert_eq!(reduce(&[&[1], &[2]], DType::U8, ReduceOp::Max).unwrap(), [2]);
    let undefined = OracleError::Undefined {
        dtype: DType::U8,
        op: ReduceOp::Sum,
    };
    assert_eq!(reduce(&[&[1], &[2]], DType::U8, ReduceOp::Sum), Err(undefined));
    assert_eq!(
        reduce(&[&[1], &[2, 3]], DType::U8, ReduceOp::Max),
        Err(OracleError::Shape)
    );
}

#[test]
fn nan_is_canonical_and_minus_zero_is_below_zero() {
    let bits = |v: u32| v.to_ne_bytes();
    let two = |a: u32, b: u32, op| {
        let out = reduce(&[&bits(a), &bits(b)], DType::F32, op).unwrap();
        assert_eq!(out, fast(&[&bits(a), &bits(b)], DType::F32, op));
        u32::from_ne_bytes(array(&out))
    };
    let (zero, minus_zero, one, nan) = (0, 0x8000_0000, 1f32.to_bits(), 0xff80_1234);
    for op in ReduceOp::ALL {
        assert_eq!(two(nan, one, *op), 0x7fc0_0000);
        assert_eq!(two(one, nan, *op), 0x7fc0_0000);
    }
    assert_eq!(
        two(
            f32::INFINITY.to_bits(),
            f32::NEG_INFINITY.to_bits(),
            ReduceOp::Sum
        ),
        0x7fc0_0000
    );
    for (a, b) in [(zero, minus_zero), (minus_zero, zero)] {
        assert_eq!(two(a, b, ReduceOp::Max), zero);
        assert_eq!(two(a, b, ReduceOp::Min), minus_zero);
    }
    assert_eq!(two(minus_zero, minus_zero, ReduceOp::Sum), minus_zero);
}

#[test]
fn one_rank_alone_gets_its_own_value_with_a_canonical_nan() {
    let out = reduce(&[&0x7fff_u16.to_ne_bytes()], DType::Bf16, ReduceOp::Sum).unwrap();
    assert_eq!(out, 0x7fc0_u16.to_ne_bytes());
    assert_eq!(
        fast(&[&0xfc01_u16.to_ne_bytes()], DType::F16, ReduceOp::Min),
        0x7e00_u16.to_ne_bytes()
    );
}

#[test]
fn the_fast_form_equals_the_oracle_on_special_values_at_every_world() {
    for dtype in DType::ALL {
        for op in ReduceOp::ALL.iter().filter(|op| defined(*dtype, **op)) {
            for world in 1..=8 {
                let inputs: Vec<Vec<u8>> = (0..world)
                    .map(|r| fill::bytes(1600 * dtype.size(), *dtype, 7, Rank(r), Pattern::Special))
                    .collect();
                let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                let wanted = reduce(&inputs, *dtype, *op).unwrap();
                assert!(
                    wanted == fast(&inputs, *dtype, *op),
                    "{dtype} {op} at world {world}"
                );
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn the_fast_form_equals_the_oracle(
        count in 0usize..1200,
        world in 1usize..9,
        skew in 0usize..8,
        raw in proptest::collection::vec(any::<u64>(), 64),
        dtype in proptest::sample::select(DType::ALL),
        op in proptest::sample::select(ReduceOp::ALL),
    ) {
        prop_assume!(defined(dtype, op));
        let len = count * dtype.size();
        // Any bits at all, at any alignment; each rank reads the same words from another place.
        let inputs: Vec<Vec<u8>> = (0..world)
            .map(|r| raw.iter().cycle().flat_map(|w| w.rotate_left(r as u32 * 9).to_ne_bytes()).skip(r).take(skew + len).collect())
            .collect();
        let inputs: Vec<&[u8]> = inputs.iter().map(|input| &input[skew..]).collect();
        prop_assert!(reduce(&inputs, dtype, op).unwrap() == fast(&inputs, dtype, op));
    }

    #[test]
    fn narrowing_any_f32_is_alike(bits in any::<u32>()) {
        narrows(f32::from_bits(bits));
    }
}
