//! The calls that move bytes: gather in place, broadcast, exchange, send and receive, barrier.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod collective_support;

use collective_support::{config, on_ranks};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tp_fabric::collective::{Collectives, HostSlices};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::host::{Delivery, HostBackend, HostConfig};
use tp_fabric::types::{DType, Rank, WireKind};

/// Nothing, inline, one slot of 4 KiB, and many.
const SIZES: [usize; 8] = [0, 1, 88, 89, 4096, 4097, 12_288, 50_001];

/// Every wire and delivery, with slots of 4 KiB.
fn everywhere(world: u32, act: impl Fn(&HostBackend) + Sync) {
    for wire in [WireKind::Shm, WireKind::Tcp] {
        for delivery in [Delivery::Direct, Delivery::Doorbell] {
            let cfg = HostConfig {
                slot_bytes: 4096,
                delivery,
                ..config(wire)
            };
            on_ranks(world, &cfg, |backend, _| act(backend));
        }
    }
}

fn bytes(n: usize, rank: Rank, seed: u64) -> Vec<u8> {
    fill::bytes(n, DType::U8, seed, rank, Pattern::Uniform)
}

#[test]
fn gathers_in_place_and_out_of_place() {
    everywhere(3, |backend| {
        for n in SIZES {
            let whole: Vec<u8> = backend.world().ranks().flat_map(|r| bytes(n, r, 1)).collect();
            let mut data = vec![0; 3 * n];
            data[backend.rank().index() * n..][..n].copy_from_slice(&bytes(n, backend.rank(), 1));
            backend.all_gather_bytes_in_place(&mut data, DType::U8).unwrap();
            assert!(data == whole, "in place, {n} B");
            let mut recv = vec![0; 3 * n];
            backend
                .all_gather_bytes(&bytes(n, backend.rank(), 1), &mut recv, DType::U8)
                .unwrap();
            assert!(recv == whole, "{n} B");
        }
    });
}

#[test]
fn broadcasts_from_every_root() {
    everywhere(4, |backend| {
        for root in backend.world().ranks() {
            for n in SIZES {
                let mut data = bytes(n, backend.rank(), 2);
                backend.broadcast_bytes(&mut data, DType::U8, root).unwrap();
                assert!(data == bytes(n, root, 2), "{n} B from rank {root}");
            }
        }
    });
}

#[test]
fn pairs_exchange_while_others_do_not_call() {
    everywhere(4, |backend| {
        // 0 with 1 and 2 with 3, then 0 with 3; 1 and 2 do nothing meanwhile.
        let me = backend.rank();
        let trade = |peer: Rank, n: usize| {
            let mut recv = vec![0; n];
            backend
                .exchange_bytes(&bytes(n, me, 3), &mut recv, DType::U8, peer)
                .unwrap();
            assert!(recv == bytes(n, peer, 3), "{n} B with rank {peer}");
        };
        for n in SIZES {
            trade(Rank(me.0 ^ 1), n);
            if matches!(me, Rank(0 | 3)) {
                trade(Rank(3 - me.0), n);
            }
        }
    });
}

#[test]
fn send_and_receive_run_ahead_without_overwriting() {
    everywhere(3, |backend| {
        // Rank 0 sends everything to 1 and 2 before it receives; the receivers are slow at first.
        for round in 0..3 {
            match backend.rank() {
                Rank(0) => {
                    for n in SIZES {
                        for peer in [Rank(1), Rank(2)] {
                            backend
                                .send_bytes(&bytes(n, Rank(0), round), DType::U8, peer)
                                .unwrap();
                        }
                    }
                }
                me => {
                    std::thread::sleep(Duration::from_millis(u64::from(me.0) * 3));
                    for n in SIZES {
                        let mut recv = vec![0; n];
                        backend.recv_bytes(&mut recv, DType::U8, Rank(0)).unwrap();
                        assert!(recv == bytes(n, Rank(0), round), "{n} B");
                    }
                }
            }
        }
        // A ring: small messages fit the slots, so everybody may send first.
        let (next, last) = (Rank((backend.rank().0 + 1) % 3), Rank((backend.rank().0 + 2) % 3));
        for round in 0..50 {
            backend
                .send_bytes(&bytes(1000, backend.rank(), round), DType::U8, next)
                .unwrap();
            let mut recv = vec![0; 1000];
            backend.recv_bytes(&mut recv, DType::U8, last).unwrap();
            assert!(recv == bytes(1000, last, round));
        }
    });
}

#[test]
fn any_mixture_of_calls_keeps_the_streams_in_step() {
    everywhere(3, |backend| {
        let me = backend.rank();
        for k in 0..60u64 {
            let n = (k as usize * 1231) % 9000;
            let mut recv = vec![0; 3 * n];
            backend
                .all_gather_bytes(&bytes(n, me, k), &mut recv, DType::U8)
                .unwrap();
            let mut data = bytes(n, me, k);
            backend
                .broadcast_bytes(&mut data, DType::U8, Rank((k % 3) as u32))
                .unwrap();
            assert!(data == bytes(n, Rank((k % 3) as u32), k));
            match (me.0, k % 2) {
                (0, 0) => backend.send_bytes(&data, DType::U8, Rank(2)).unwrap(),
                (2, 0) => backend.recv_bytes(&mut data, DType::U8, Rank(0)).unwrap(),
                (0 | 1, _) => {
                    let mut other = vec![0; n];
                    if k % 2 == 1 {
                        backend
                            .exchange_bytes(&bytes(n, me, k), &mut other, DType::U8, Rank(1 - me.0))
                            .unwrap();
                        assert!(other == bytes(n, Rank(1 - me.0), k));
                    }
                }
                _ => {}
            }
            if k % 7 == 0 {
                backend.barrier().unwrap();
            }
        }
    });
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for wire in [WireKind::Shm, WireKind::Tcp] {
        let come = AtomicU32::new(0);
        on_ranks(4, &config(wire), |backend, _| {
            for round in 1..=20 {
                come.fetch_add(1, Ordering::SeqCst);
                backend.barrier().unwrap();
                assert!(come.load(Ordering::SeqCst) >= round * 4, "{wire} round {round}");
                backend.barrier().unwrap();
            }
        });
    }
}

#[test]
fn a_world_of_64_gathers_and_meets() {
    let cfg = HostConfig {
        slot_bytes: 4096,
        ..config(WireKind::Shm)
    };
    on_ranks(64, &cfg, |backend, _| {
        let mut recv = vec![0; 64 * 100];
        backend
            .all_gather_bytes(&bytes(100, backend.rank(), 5), &mut recv, DType::U8)
            .unwrap();
        for rank in backend.world().ranks() {
            assert!(recv[rank.index() * 100..][..100] == bytes(100, rank, 5));
        }
        backend.barrier().unwrap();
    });
}
