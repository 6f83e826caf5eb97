//! Reductions are bit-equal to the oracle on every rank, at every world, over both wires and by every route.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod collective_support;

use collective_support::{config, on_ranks, over_both};
use tp_fabric::collective::{Collectives, HostSlices, Stream};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::host::{Delivery, HostBackend, HostConfig};
use tp_fabric::oracle;
use tp_fabric::types::{DType, ReduceOp, WireKind};

/// Every reduction that the oracle defines.
fn defined() -> impl Iterator<Item = (DType, ReduceOp)> {
    let all = DType::ALL
        .iter()
        .flat_map(|dtype| ReduceOp::ALL.iter().map(|op| (*dtype, *op)));
    all.filter(|(dtype, op)| oracle::defined(*dtype, *op))
}

fn inputs(backend: &HostBackend, bytes: usize, dtype: DType, seed: u64) -> Vec<Vec<u8>> {
    backend
        .world()
        .ranks()
        .map(|r| fill::bytes(bytes, dtype, seed, r, Pattern::Special))
        .collect()
}

fn wanted(inputs: &[Vec<u8>], dtype: DType, op: ReduceOp) -> Vec<u8> {
    oracle::reduce(&inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(), dtype, op).unwrap()
}

/// One all-reduce, out of place and in place, with buffers `skew` bytes off.
fn all_reduce(backend: &HostBackend, bytes: usize, skew: usize, dtype: DType, op: ReduceOp) {
    let all = inputs(backend, bytes, dtype, bytes as u64);
    let wanted = wanted(&all, dtype, op);
    let mine = &all[backend.rank().index()];
    let what = || {
        format!(
            "{dtype} {op} of {bytes} B, skew {skew}, rank {} of {}",
            backend.rank(),
            backend.world()
        )
    };
    // The receive buffer is off by another amount than the send buffer.
    let mut send = vec![0xa5; skew + bytes];
    send[skew..].copy_from_slice(mine);
    let mut recv = vec![0x5a; 2 * skew + bytes + 3];
    backend
        .all_reduce_bytes(&send[skew..], &mut recv[2 * skew..][..bytes], dtype, op)
        .unwrap();
    assert!(recv[2 * skew..][..bytes] == wanted, "out of place: {}", what());
    assert!(
        recv[..2 * skew]
            .iter()
            .chain(&recv[2 * skew + bytes..])
            .all(|b| *b == 0x5a),
        "around: {}",
        what()
    );
    backend
        .all_reduce_bytes_in_place(&mut send[skew..], dtype, op)
        .unwrap();
    assert!(send[skew..] == wanted, "in place: {}", what());
}

fn reduce_scatter(backend: &HostBackend, bytes: usize, dtype: DType, op: ReduceOp) {
    let world = backend.world().size();
    let all = inputs(backend, bytes * world, dtype, 11);
    let wanted = wanted(&all, dtype, op);
    let at = backend.rank().index() * bytes;
    let mut send = all[backend.rank().index()].clone();
    let mut recv = vec![0; bytes];
    backend.reduce_scatter_bytes(&send, &mut recv, dtype, op).unwrap();
    assert!(
        recv == wanted[at..at + bytes],
        "{dtype} {op} of {bytes} B at world {world}"
    );
    // In place: the result lands in the own block.
    let base = send.as_mut_ptr();
    // SAFETY: `send` has `world` blocks, and the own one is what may be written in place.
    unsafe { backend.reduce_scatter(base, base.add(at), bytes / dtype.size(), dtype, op, Stream::HOST) }
        .unwrap();
    assert!(
        send[at..at + bytes] == wanted[at..at + bytes],
        "in place: {dtype} {op} of {bytes} B at world {world}"
    );
}

fn every_type_and_op(world: u32) {
    // 8 B to several slots of 4 KiB: inline, one slot, and pipelined; 6000 B is above the one-shot limit.
    let change = |cfg: &mut HostConfig| {
        cfg.slot_bytes = 4096;
        cfg.one_shot_max = 5000;
    };
    over_both(world, change, |backend| {
        for (dtype, op) in defined() {
            for elements in [0, 1, 11, 250, 750, 3001] {
                all_reduce(backend, elements * dtype.size(), 1, dtype, op);
            }
            for elements in [1, 129, 1500] {
                reduce_scatter(backend, elements * dtype.size(), dtype, op);
            }
        }
    });
}

#[test]
fn every_type_and_op_at_world_1() {
    every_type_and_op(1);
}

#[test]
fn every_type_and_op_at_world_2() {
    every_type_and_op(2);
}

#[test]
fn every_type_and_op_at_world_3() {
    every_type_and_op(3);
}

#[test]
fn every_type_and_op_at_world_4() {
    every_type_and_op(4);
}

#[test]
fn every_type_and_op_at_worlds_5_and_6() {
    every_type_and_op(5);
    every_type_and_op(6);
}

#[test]
fn every_type_and_op_at_worlds_7_and_8() {
    every_type_and_op(7);
    every_type_and_op(8);
}

/// Off by one element, in place and not, above 16 KiB: where a partition that follows the buffers' alignment goes wrong.
#[test]
fn skewed_buffers_above_16_kib() {
    for delivery in [Delivery::Direct, Delivery::Doorbell] {
        over_both(
            2,
            |cfg| cfg.delivery = delivery,
            |backend| {
                for bytes in [16_384 + 16, 65_536, 262_144, 262_160, 1 << 20] {
                    for (dtype, skew) in [
                        (DType::F32, 4),
                        (DType::Bf16, 2),
                        (DType::F16, 1),
                        (DType::I32, 7),
                    ] {
                        all_reduce(backend, bytes, skew, dtype, ReduceOp::Sum);
                    }
                }
            },
        );
    }
}

/// Case 131: a protocol that marks "not yet" with −0.0 hangs on, or changes, negative subnormals and zeros.
#[test]
fn case_131_negative_subnormals_and_zeros_pass_unchanged() {
    over_both(
        3,
        |_| {},
        |backend| {
            for bits in [0x8001u16, 0x807f, 0x8000, 0x0000, 0xffff, 0x7f81] {
                for elements in [1usize, 44, 45, 2048, 200_000] {
                    let mine = bits.to_ne_bytes().repeat(elements);
                    let all: Vec<&[u8]> = backend.world().ranks().map(|_| mine.as_slice()).collect();
                    let mut recv = vec![0; mine.len()];
                    for op in ReduceOp::ALL {
                        backend
                            .all_reduce_bytes(&mine, &mut recv, DType::Bf16, *op)
                            .unwrap();
                        assert!(
                            recv == oracle::reduce(&all, DType::Bf16, *op).unwrap(),
                            "{bits:#06x} {op} × {elements}"
                        );
                    }
                    let mut gathered = vec![0; mine.len() * 3];
                    backend
                        .all_gather_bytes(&mine, &mut gathered, DType::Bf16)
                        .unwrap();
                    assert!(gathered == mine.repeat(3), "{bits:#06x} × {elements}");
                }
            }
        },
    );
}

/// Case 133: a row has the same bits alone and among 4,096 rows, on either side of every threshold.
#[test]
fn case_133_a_row_has_the_same_bits_whatever_goes_with_it() {
    const ROW: usize = 512;
    over_both(
        4,
        |cfg| cfg.slot_bytes = 65_536,
        |backend| {
            let mine = fill::bytes(4096 * ROW, DType::Bf16, 133, backend.rank(), Pattern::Uniform);
            let mut whole = vec![0; mine.len()];
            backend
                .all_reduce_bytes(&mine, &mut whole, DType::Bf16, ReduceOp::Sum)
                .unwrap();
            for (first, rows) in [
                (0, 1),
                (63, 1),
                (7, 63),
                (64, 64),
                (1000, 65),
                (4095, 1),
                (100, 700),
            ] {
                let range = first * ROW..(first + rows) * ROW;
                let mut part = vec![0; range.len()];
                backend
                    .all_reduce_bytes(&mine[range.clone()], &mut part, DType::Bf16, ReduceOp::Sum)
                    .unwrap();
                assert!(part == whole[range], "{rows} rows from {first}");
            }
        },
    );
}

/// Case 134: equal rows of tensors of different heights, four ranks, f32.
#[test]
fn case_134_equal_rows_of_different_tensors_have_equal_bits() {
    const ROW: usize = 5120 * 4;
    on_ranks(4, &config(WireKind::Shm), |backend, _| {
        let (tall, short) = (2048 / 16, 1664 / 16);
        let mine = fill::bytes(tall * ROW, DType::F32, 134, backend.rank(), Pattern::Uniform);
        let mut first = vec![0; tall * ROW];
        backend
            .all_reduce_bytes(&mine, &mut first, DType::F32, ReduceOp::Sum)
            .unwrap();
        let mut second = vec![0; short * ROW];
        backend
            .all_reduce_bytes(&mine[..short * ROW], &mut second, DType::F32, ReduceOp::Sum)
            .unwrap();
        assert!(second == first[..short * ROW]);
    });
}

#[test]
fn typed_slices_reduce_like_their_bytes() {
    over_both(
        2,
        |_| {},
        |backend| {
            let mine = [1.5f32, -0.0, f32::NAN, backend.rank().0 as f32];
            let mut sum = [0f32; 4];
            backend.all_reduce_slice(&mine, &mut sum, ReduceOp::Sum).unwrap();
            assert_eq!(
                sum.map(f32::to_bits),
                [3f32.to_bits(), (-0f32).to_bits(), 0x7fc0_0000, 1f32.to_bits()]
            );
            let mut most = [i64::MIN, i64::from(backend.rank().0)];
            backend.all_reduce_in_place(&mut most, ReduceOp::Max).unwrap();
            assert_eq!(most, [i64::MIN, 1]);
        },
    );
}
