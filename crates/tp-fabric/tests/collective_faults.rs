//! What happens when a rank does not come, fails, aborts, or is in another call.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

mod collective_support;

use collective_support::{WAIT, config, on_ranks};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};
use tp_fabric::collective::{CollectiveError, Collectives, Failure, HostSlices, Stream};
use tp_fabric::host::{self, Delivery, HostConfig, OpenError};
use tp_fabric::local::LocalMeeting;
use tp_fabric::meeting::{Meeting, MeetingError};
use tp_fabric::types::{DType, Rank, ReduceOp, WireKind, World};

/// Every wire and delivery.
fn everywhere(act: impl Fn(HostConfig)) {
    for wire in [WireKind::Shm, WireKind::Tcp] {
        for delivery in [Delivery::Direct, Delivery::Doorbell] {
            act(HostConfig {
                delivery,
                ..config(wire)
            });
        }
    }
}

fn failure(result: Result<(), CollectiveError>) -> Failure {
    match result {
        Err(CollectiveError::Failed(failure)) => failure,
        other => panic!("{other:?} is no failure"),
    }
}

/// Case 121: a peer that never arrives ends the wait in bounded time, as an error that names it.
#[test]
fn case_121_peers_that_stop_are_named_after_the_wait_and_the_transport_is_poisoned() {
    everywhere(|cfg| {
        let cfg = HostConfig {
            wait: Duration::from_millis(150),
            ..cfg
        };
        on_ranks(4, &cfg, |backend, meeting| {
            let mut recv = [0u8; 4 * 16];
            for _ in 0..20 {
                backend.all_gather_slice(&[1u8; 16], &mut recv).unwrap();
            }
            // Ranks 1 and 3 stop here.
            if backend.rank().0 % 2 == 0 {
                let begun = Instant::now();
                recv.fill(7);
                let error = failure(backend.all_gather_slice(&[1u8; 16], &mut recv));
                let waited = begun.elapsed();
                assert!(waited < WAIT / 2, "{waited:?}");
                match &error {
                    Failure::Timeout { missing, waited, .. } => {
                        assert_eq!(*missing, [Rank(1), Rank(3)]);
                        assert!(*waited >= cfg.wait);
                    }
                    // The other rank's notice may come first; it names a missing rank as well.
                    Failure::PeerFailed { rank, reason, .. } => {
                        assert_eq!(*rank, Rank(1));
                        assert!(reason.contains("timed out"), "{reason}");
                    }
                    other => panic!("{other}"),
                }
                // What was recorded stays, and later calls change nothing.
                assert_eq!(failure(backend.check()), error);
                let before = recv;
                let later = backend.all_gather_slice(&[2u8; 16], &mut recv).unwrap_err();
                assert_eq!(later, CollectiveError::Poisoned(error));
                assert_eq!(recv, before);
                assert!(backend.close().is_err());
            }
            meeting.barrier("end").unwrap();
        });
    });
}

#[test]
fn abort_ends_a_wait_at_once_and_tells_the_peers() {
    everywhere(|cfg| {
        on_ranks(3, &cfg, |backend, meeting| {
            meeting.barrier("start").unwrap();
            let begun = Instant::now();
            match backend.rank() {
                Rank(0) => {
                    // Rank 2 never calls; another thread aborts.
                    let handle = backend.abort_handle();
                    thread::scope(|scope| {
                        scope.spawn(move || {
                            thread::sleep(Duration::from_millis(30));
                            handle.abort("rank 2 is on fire");
                        });
                        let error = failure(backend.barrier());
                        assert_eq!(
                            error,
                            Failure::Aborted {
                                reason: "rank 2 is on fire".to_owned()
                            }
                        );
                    });
                }
                Rank(1) => match failure(backend.barrier()) {
                    Failure::PeerFailed { rank, reason, .. } => {
                        assert_eq!(rank, Rank(0));
                        assert!(reason.contains("on fire"), "{reason}");
                    }
                    other => panic!("{other}"),
                },
                _ => {}
            }
            assert!(begun.elapsed() < WAIT / 4, "{:?}", begun.elapsed());
            meeting.barrier("end").unwrap();
        });
    });
}

#[test]
fn a_peer_that_is_gone_is_noticed_over_tcp_at_once() {
    on_ranks(3, &config(WireKind::Tcp), |backend, meeting| {
        meeting.barrier("start").unwrap();
        if backend.rank() == Rank(1) {
            // Ends its connections without a word of failure, as the kernel does for a killed process.
            backend.close().unwrap();
        } else {
            let begun = Instant::now();
            let mut recv = vec![0; 3 << 20];
            let error = failure(backend.all_gather_bytes(&vec![0; 1 << 20], &mut recv, DType::U8));
            assert!(begun.elapsed() < WAIT / 4);
            assert_eq!(error.culprits(), [Rank(1)], "{error}");
        }
        meeting.barrier("end").unwrap();
    });
}

#[test]
fn ranks_in_different_calls_are_told_both() {
    type Act = fn(&host::HostBackend) -> Result<(), CollectiveError>;
    let sum: Act = |b| b.all_reduce_in_place(&mut [1f32; 250], ReduceOp::Sum);
    let pairs: [(Act, Act, &str, &str); 7] = [
        (
            sum,
            |b| b.all_reduce_in_place(&mut [1f32; 250], ReduceOp::Max),
            "sum f32 1000 B",
            "max f32 1000 B",
        ),
        (
            sum,
            |b| b.all_reduce_in_place(&mut [1f32; 251], ReduceOp::Sum),
            "1000 B",
            "1004 B",
        ),
        (
            sum,
            |b| b.all_reduce_in_place(&mut [1i32; 250], ReduceOp::Sum),
            "f32",
            "i32",
        ),
        (sum, |b| b.barrier(), "all_reduce", "barrier"),
        (
            sum,
            |b| b.recv_slice(&mut [0f32; 250], Rank(0)),
            "all_reduce",
            "send/recv",
        ),
        (
            |b| b.broadcast_slice(&mut [1u8; 9], Rank(0)),
            |b| b.broadcast_slice(&mut [1u8; 9], Rank(1)),
            "broadcast u8 9 B from rank",
            "barrier",
        ),
        (
            |b| b.all_gather_v_bytes(&[0; 8], &mut [0; 16], 8, &[5, 8], DType::U8),
            |b| b.all_gather_v_bytes(&[0; 8], &mut [0; 16], 8, &[6, 8], DType::U8),
            "all_gather_v",
            "5 B",
        ),
    ];
    everywhere(|cfg| {
        let cfg = HostConfig {
            wait: Duration::from_secs(5),
            ..cfg
        };
        for (zero, one, mine, theirs) in &pairs {
            let errors = on_ranks(2, &cfg, |backend, meeting| {
                let act = if backend.rank() == Rank(0) { zero } else { one };
                let begun = Instant::now();
                // A root sends without waiting; the next call then finds out.
                let error = act(backend)
                    .and_then(|()| backend.barrier())
                    .and_then(|()| backend.barrier());
                assert!(begun.elapsed() < cfg.wait, "{mine} / {theirs}: {error:?}");
                let error = error.unwrap_err().to_string();
                meeting.barrier("end").unwrap();
                error
            });
            assert!(errors.iter().any(|e| e.contains("out of step")), "{errors:?}");
            // Two roots are in their next call by the time one of them finds out.
            let all = errors.join("; ");
            assert!(
                all.contains(mine) && all.contains(theirs),
                "{mine} / {theirs}: {all}"
            );
        }
    });
}

#[test]
fn a_second_thread_and_a_second_stream_are_refused_and_harm_nothing() {
    on_ranks(2, &config(WireKind::Shm), |backend, meeting| {
        backend.barrier().unwrap();
        let other = unsafe {
            // SAFETY: empty buffers.
            backend.all_gather(
                std::ptr::dangling(),
                std::ptr::dangling_mut(),
                0,
                DType::U8,
                Stream::from_raw(9),
            )
        };
        assert!(
            matches!(
                other,
                Err(CollectiveError::SecondStream {
                    given: 9,
                    bound: 0,
                    ..
                })
            ),
            "{other:?}"
        );
        if backend.rank() == Rank(0) {
            // Rank 1 comes only when one of these two threads has been refused; the other one is inside meanwhile.
            let (tell, first) = std::sync::mpsc::channel();
            thread::scope(|scope| {
                for _ in 0..2 {
                    let tell = tell.clone();
                    scope.spawn(move || tell.send(backend.barrier()).unwrap());
                }
                let refused = first.recv().unwrap().unwrap_err();
                assert!(
                    matches!(refused, CollectiveError::Busy { .. }) && refused.is_refusal(),
                    "{refused}"
                );
                meeting.barrier("now").unwrap();
                first.recv().unwrap().unwrap();
            });
        } else {
            meeting.barrier("now").unwrap();
            backend.barrier().unwrap();
        }
        backend.barrier().unwrap();
    });
}

#[test]
fn bad_arguments_are_refused_before_anything_is_sent() {
    on_ranks(2, &config(WireKind::Shm), |backend, _| {
        let refused = [
            backend.all_reduce_bytes(&[0; 8], &mut [0; 4], DType::F32, ReduceOp::Sum),
            backend.all_reduce_bytes(&[0; 6], &mut [0; 6], DType::F32, ReduceOp::Sum),
            backend.all_reduce_bytes(&[0; 6], &mut [0; 6], DType::U8, ReduceOp::Sum),
            backend.all_gather_bytes(&[0; 8], &mut [0; 8], DType::U8),
            backend.exchange_bytes(&[0; 8], &mut [0; 8], DType::U8, backend.rank()),
            backend.exchange_bytes(&[0; 8], &mut [0; 8], DType::U8, Rank(2)),
            backend.broadcast_bytes(&mut [0; 8], DType::U8, Rank(7)),
            backend.all_gather_v_bytes(&[0; 4], &mut [0; 16], 8, &[8, 8], DType::U8),
        ];
        for result in refused {
            assert!(
                result.as_ref().is_err_and(CollectiveError::is_refusal),
                "{result:?}"
            );
        }
        let mut data = [0u8; 12];
        let at = data.as_mut_ptr();
        // SAFETY: both ranges lie within `data`; that they overlap is what is refused.
        let overlap =
            unsafe { backend.all_reduce(at, at.add(4), 2, DType::F32, ReduceOp::Sum, Stream::HOST) };
        assert!(overlap.is_err_and(|e| e.is_refusal() && e.to_string().contains("overlap")));
        backend.barrier().unwrap();
    });
}

/// Opens on every rank with its own configuration; what each got.
fn open_each(configs: &[HostConfig]) -> Vec<Result<(), OpenError>> {
    thread::scope(|scope| {
        let ends = LocalMeeting::group(World(configs.len() as u32), WAIT);
        let ranks = ends
            .into_iter()
            .zip(configs)
            .map(|(mut meeting, cfg)| scope.spawn(move || host::open(&mut meeting, cfg).map(drop)));
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn another_layout_is_refused_on_every_rank_with_both_values() {
    let (first, mut second) = (config(WireKind::Shm), config(WireKind::Shm));
    second.slot_bytes = 8192;
    for result in open_each(&[first.clone(), second, first]) {
        let error = result.unwrap_err().to_string();
        assert!(
            error.contains("slot bytes") && error.contains("8192") && error.contains("262144"),
            "{error}"
        );
    }
}

#[test]
fn what_one_rank_cannot_do_ends_the_opening_on_all() {
    let mut bad = config(WireKind::Shm);
    bad.slot_bytes = 17 << 20;
    let results = open_each(&[config(WireKind::Shm), bad]);
    assert!(
        matches!(&results[1], Err(OpenError::Config { .. })),
        "{results:?}"
    );
    let refused =
        |e: &OpenError| matches!(e, OpenError::Meeting(MeetingError::Refused { rank: Rank(1), .. }));
    assert!(results[0].as_ref().is_err_and(refused), "{results:?}");

    // An address that is not this host's.
    let mut away = config(WireKind::Tcp);
    away.address = [192, 0, 2, 1].into();
    for result in open_each(&[config(WireKind::Tcp), away]) {
        let error = result.unwrap_err().to_string();
        assert!(error.contains("192.0.2.1") && error.contains("rank 1"), "{error}");
    }

    let mut far = config(WireKind::Shm);
    far.host_id = "another host".to_owned();
    for result in open_each(&[config(WireKind::Shm), far]) {
        assert!(
            matches!(
                result,
                Err(OpenError::NoWire {
                    wire: WireKind::Shm,
                    ..
                })
            ),
            "{result:?}"
        );
    }
}

#[test]
fn unset_takes_shm_on_one_host_and_tcp_between_hosts() {
    for (hosts, wire) in [(["a", "a"], WireKind::Shm), (["a", "b"], WireKind::Tcp)] {
        thread::scope(|scope| {
            for (mut meeting, host) in LocalMeeting::group(World(2), WAIT).into_iter().zip(hosts) {
                scope.spawn(move || {
                    let cfg = HostConfig {
                        wire: None,
                        host_id: host.to_owned(),
                        ..config(WireKind::Shm)
                    };
                    let backend = host::open(&mut meeting, &cfg).unwrap();
                    assert_eq!(backend.wire(), Some(wire));
                    backend.barrier().unwrap();
                    backend.close().unwrap();
                });
            }
        });
    }
}

#[test]
fn the_tcp_wire_goes_over_ipv6() {
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        eprintln!("skipped: this machine has no IPv6 loopback");
        return;
    }
    let cfg = HostConfig {
        address: std::net::Ipv6Addr::LOCALHOST.into(),
        ..config(WireKind::Tcp)
    };
    on_ranks(3, &cfg, |backend, _| {
        let mut data = [backend.rank().0 as i32; 1000];
        backend.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [3; 1000]);
    });
}

/// A meeting that shows what is said in it: strangers hear the address of a rank's listener.
struct Overheard(LocalMeeting, std::sync::mpsc::Sender<SocketAddr>);

impl Meeting for Overheard {
    fn rank(&self) -> Rank {
        self.0.rank()
    }
    fn world(&self) -> World {
        self.0.world()
    }
    fn all_gather(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError> {
        if let Ok(address) = String::from_utf8_lossy(mine).parse() {
            self.1.send(address).unwrap();
            // Time for the strangers to be first in the queue.
            thread::sleep(Duration::from_millis(50));
        }
        self.0.all_gather(op, mine)
    }
}

#[test]
fn strangers_and_wrong_secrets_neither_get_in_nor_delay() {
    use std::io::Write;
    let (tell, heard) = std::sync::mpsc::channel();
    let stranger = thread::spawn(move || {
        let mut kept = Vec::new();
        while let Ok(address) = heard.recv() {
            // One is silent, one talks nonsense.
            kept.push(TcpStream::connect(address).unwrap());
            let mut loud = TcpStream::connect(address).unwrap();
            let _ = loud.write_all(&[0x47; 4096]);
            kept.push(loud);
        }
        kept
    });
    let begun = Instant::now();
    thread::scope(|scope| {
        for meeting in LocalMeeting::group(World(2), WAIT) {
            let tell = tell.clone();
            scope.spawn(move || {
                let cfg = HostConfig {
                    secret: b"sixteen bytes or more".to_vec().into(),
                    ..config(WireKind::Tcp)
                };
                let backend = host::open(&mut Overheard(meeting, tell), &cfg).unwrap();
                backend.barrier().unwrap();
                backend.close().unwrap();
            });
        }
    });
    drop(tell);
    stranger.join().unwrap();
    // Less than the silent ones are given to prove themselves.
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());

    let mut other = HostConfig {
        setup: Duration::from_millis(500),
        ..config(WireKind::Tcp)
    };
    other.secret = b"another secret altogether".to_vec().into();
    let ours = HostConfig {
        secret: b"sixteen bytes or more".to_vec().into(),
        ..other.clone()
    };
    for result in open_each(&[ours, other]) {
        assert!(result.is_err());
    }
}

/// A rank that leaves right after a barrier, without closing, must not keep the others in it: what the doorbell was rung
/// for is still handed over.
#[test]
fn a_rank_that_only_drops_its_backend_hands_over_what_it_posted() {
    everywhere(|cfg| {
        for _ in 0..50 {
            let cfg = &HostConfig {
                wait: Duration::from_secs(10),
                ..cfg.clone()
            };
            thread::scope(|scope| {
                for mut meeting in LocalMeeting::group(World(2), WAIT) {
                    scope.spawn(move || {
                        let backend = host::open(&mut meeting, cfg).unwrap();
                        backend.barrier().unwrap();
                        drop(backend);
                    });
                }
            });
        }
    });
}
