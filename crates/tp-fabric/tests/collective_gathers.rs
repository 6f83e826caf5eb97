//! Gathers of every length, bit-exact over both wires.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod collective_support;

use collective_support::{config, on_ranks};
use tp_fabric::collective::{Collectives, HostSlices};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::host::{Delivery, HostBackend, HostConfig};
use tp_fabric::types::{DType, Rank, WireKind};

/// The `k`-th length of the gathers: 1 B to 256 KiB, in an order that mixes them.
fn length(k: usize) -> usize {
    1 + k * 7919 % 262_144
}

fn thousand_gathers(backend: &HostBackend) {
    let world = backend.world();
    // One stream of bytes a rank; gather k sends its part from an offset that moves with k, so that parts are of any
    // alignment and differ from call to call.
    let streams: Vec<Vec<u8>> = world
        .ranks()
        .map(|r| fill::bytes(262_144 + 4096, DType::U8, 54, r, Pattern::Uniform))
        .collect();
    let mut recv = vec![0; world.size() * 262_144];
    for k in 0..1000 {
        let (n, from) = (length(k), k * 37 % 4096);
        let recv = &mut recv[..world.size() * n];
        backend
            .all_gather_bytes(&streams[backend.rank().index()][from..from + n], recv, DType::U8)
            .unwrap();
        for rank in world.ranks() {
            let wanted = &streams[rank.index()][from..from + n];
            assert!(
                recv[rank.index() * n..][..n] == *wanted,
                "gather {k} of {n} B from rank {rank}"
            );
        }
    }
}

fn run(wire: WireKind, world: u32, delivery: Delivery) {
    let cfg = HostConfig {
        delivery,
        ..config(wire)
    };
    on_ranks(world, &cfg, |backend, _| thousand_gathers(backend));
}

#[test]
fn thousand_gathers_over_shm_at_2_ranks() {
    run(WireKind::Shm, 2, Delivery::Direct);
}

#[test]
fn thousand_gathers_over_shm_at_3_ranks() {
    run(WireKind::Shm, 3, Delivery::Direct);
}

#[test]
fn thousand_gathers_over_shm_at_4_ranks() {
    run(WireKind::Shm, 4, Delivery::Direct);
}

#[test]
fn thousand_gathers_over_tcp_at_2_ranks() {
    run(WireKind::Tcp, 2, Delivery::Direct);
}

#[test]
fn thousand_gathers_over_tcp_at_3_ranks() {
    run(WireKind::Tcp, 3, Delivery::Direct);
}

#[test]
fn thousand_gathers_over_tcp_at_4_ranks() {
    run(WireKind::Tcp, 4, Delivery::Direct);
}

#[test]
fn thousand_gathers_through_the_doorbell_at_2_ranks() {
    run(WireKind::Shm, 2, Delivery::Doorbell);
    run(WireKind::Tcp, 2, Delivery::Doorbell);
}

#[test]
fn thousand_gathers_through_the_doorbell_at_3_ranks() {
    run(WireKind::Shm, 3, Delivery::Doorbell);
}

/// 2,000 gathers of lengths that differ from rank to rank, 0 and the whole stride among them.
fn variable_gathers(backend: &HostBackend) {
    const STRIDE: usize = 3000;
    let world = backend.world();
    let data: Vec<Vec<u8>> = world
        .ranks()
        .map(|r| fill::bytes(STRIDE, DType::U8, 38, r, Pattern::Uniform))
        .collect();
    for k in 0..2000usize {
        let len = |rank: Rank| match (k + rank.index()) % 5 {
            0 => 0,
            1 => STRIDE,
            _ => (k * 613 + rank.index() * 17) % (STRIDE + 1),
        };
        let lens: Vec<i32> = world.ranks().map(|r| len(r) as i32).collect();
        let mut recv = vec![0xa5; world.size() * STRIDE];
        let mine = &data[backend.rank().index()][..len(backend.rank())];
        backend
            .all_gather_v_bytes(mine, &mut recv, STRIDE, &lens, DType::U8)
            .unwrap();
        for rank in world.ranks() {
            let block = &recv[rank.index() * STRIDE..][..STRIDE];
            assert!(
                block[..len(rank)] == data[rank.index()][..len(rank)],
                "gather {k}, rank {rank}"
            );
            assert!(
                block[len(rank)..].iter().all(|b| *b == 0xa5),
                "gather {k}: wrote past rank {rank}'s length"
            );
        }
    }
}

#[test]
fn two_thousand_variable_gathers() {
    for (wire, world, delivery) in [
        (WireKind::Shm, 3, Delivery::Direct),
        (WireKind::Shm, 2, Delivery::Doorbell),
        (WireKind::Tcp, 3, Delivery::Direct),
    ] {
        let cfg = HostConfig {
            delivery,
            ..config(wire)
        };
        on_ranks(world, &cfg, |backend, _| variable_gathers(backend));
    }
}

#[test]
fn variable_gathers_of_many_slots_differ_in_parts() {
    // Slots of 4 KiB, lengths of 0 to 9 slots: each rank sends another number of parts.
    let lens = [0, 4096 * 9, 5000];
    for wire in [WireKind::Shm, WireKind::Tcp] {
        for delivery in [Delivery::Direct, Delivery::Doorbell] {
            let cfg = HostConfig {
                slot_bytes: 4096,
                delivery,
                ..config(wire)
            };
            on_ranks(3, &cfg, |backend, _| {
                for round in 0..20 {
                    let stride = 40_000;
                    let data = fill::bytes(stride, DType::U8, round, backend.rank(), Pattern::Uniform);
                    let mut recv = vec![0; 3 * stride];
                    backend
                        .all_gather_v_bytes(&data, &mut recv, stride, &lens, DType::U8)
                        .unwrap();
                    for rank in backend.world().ranks() {
                        let n = lens[rank.index()] as usize;
                        let wanted = fill::bytes(stride, DType::U8, round, rank, Pattern::Uniform);
                        assert!(
                            recv[rank.index() * stride..][..n] == wanted[..n],
                            "{wire} {delivery:?} rank {rank}"
                        );
                    }
                }
            });
        }
    }
}
