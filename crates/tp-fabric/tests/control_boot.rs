//! The bootstrap within one process: threads play the ranks.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_threads;

use control_threads::{config, follower, leader, listener, met, together};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tp_fabric::bootstrap::{BootConfig, BootError, Bootstrap};
use tp_fabric::meeting::{Meeting, MeetingError};
use tp_fabric::secret::Secret;
use tp_fabric::types::{Rank, World};

#[test]
fn ranks_meet_gather_and_agree() {
    let mut ranks = met(5);
    let all = together(&mut ranks, |rank| {
        let mine = vec![u8::try_from(rank.rank().0).unwrap(); rank.rank().index() * 1000];
        rank.all_gather("blobs", &mine).unwrap()
    });
    for table in &all {
        for (rank, blob) in table.iter().enumerate() {
            assert_eq!(
                (blob.len(), blob.first().copied()),
                (rank * 1000, (rank > 0).then_some(rank as u8))
            );
        }
    }
    for answer in together(&mut ranks, |rank| {
        rank.broadcast("word", format!("from {}", rank.rank()).as_bytes())
    }) {
        assert_eq!(answer.unwrap(), b"from 0");
    }
    together(&mut ranks, |rank| rank.barrier("b").unwrap());
    let fields = [("a".to_owned(), "1".to_owned())];
    together(&mut ranks, |rank| rank.agree("agree", &fields).unwrap());
    assert_eq!(
        ranks[0].hosts(),
        ["host-0", "host-1", "host-2", "host-3", "host-4"]
    );
    assert!(ranks.iter().all(|rank| rank.own_address().unwrap().is_loopback()));
}

#[test]
fn every_rank_names_every_difference_with_both_values() {
    let mut ranks = met(3);
    let errors = together(&mut ranks, |rank| {
        let odd = rank.rank() == Rank(1);
        let fields = [
            ("same", "x"),
            ("slot", if odd { "512" } else { "256" }),
            ("binary", if odd { "bb" } else { "aa" }),
        ];
        let fields = fields.map(|(name, value)| (name.to_owned(), value.to_owned()));
        rank.agree("agree", &fields).unwrap_err()
    });
    for error in errors {
        assert_eq!(error.exit_code(), 2);
        let text = error.to_string();
        assert_eq!(
            text,
            "the ranks differ in slot: `256` (rank 0 on host-0, rank 2 on host-2), `512` (rank 1 on host-1); \
             in binary: `aa` (rank 0 on host-0, rank 2 on host-2), `bb` (rank 1 on host-1)"
        );
    }
}

#[test]
fn one_ranks_bad_verdict_is_every_ranks_error() {
    let mut ranks = met(4);
    let results = together(&mut ranks, |rank| {
        let mine = if rank.rank().0 >= 2 {
            Err(format!("no device on {}", rank.rank()))
        } else {
            Ok(())
        };
        rank.verdict("open the port", mine)
    });
    for result in results {
        let expected = MeetingError::Refused {
            op: "open the port".into(),
            rank: Rank(2),
            reason: "no device on 2".into(),
        };
        assert_eq!(result, Err(expected));
    }
}

#[test]
fn refused_ranks_are_told_why_and_the_others_meet() {
    let (first, port) = leader(3, |_| {});
    let one = follower(1, 3, port);
    std::thread::sleep(Duration::from_millis(100));
    let refused = |change: &dyn Fn(&mut BootConfig)| {
        let mut config = config(1, 3, port);
        change(&mut config);
        let error = Bootstrap::connect(config).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{error}");
        error.to_string()
    };
    type Change = fn(&mut BootConfig);
    let cases: [(Change, &str); 5] = [
        (
            |c| c.world = World(4),
            "this group has a world of 3, rank 1 came with 4",
        ),
        (|_| {}, "rank 1 is already here, from host-1"),
        (
            |c| c.session = "t".into(),
            "this is session `s`, rank 1 came for session `t`",
        ),
        (
            |c| c.secret = Secret::from_text("another secret altogether").ok(),
            "TF_TP_SECRET differs",
        ),
        (|c| c.secret = None, "rank 0 has a secret, this rank has none"),
    ];
    for (change, says) in cases {
        let error = refused(&change);
        assert!(error.contains(says), "{error}");
    }
    let two = follower(2, 3, port);
    let _in = [one, two].map(|thread| thread.join().unwrap().unwrap());
    assert_eq!(first.join().unwrap().unwrap().visitors().refused.len(), 5);
}

#[test]
fn a_rank_that_comes_after_the_boot_has_failed_is_told_at_once() {
    let (first, port) = leader(3, |_| {});
    drop(follower(1, 3, port).join().unwrap().unwrap());
    std::thread::sleep(Duration::from_millis(60));
    let started = Instant::now();
    let late = Bootstrap::connect(config(2, 3, port)).unwrap_err();
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert_eq!(late.exit_code(), 70);
    assert!(
        late.to_string().contains("lost rank 1 on host-1 during the boot"),
        "{late}"
    );
    assert!(matches!(
        first.join().unwrap(),
        Err(BootError::Lost { rank: Rank(1), .. })
    ));
}

#[test]
fn a_follower_without_rank_0_says_what_the_port_did() {
    let (closed, port) = listener();
    drop(closed);
    let mut lonely = config(1, 2, port);
    lonely.timeout = Duration::from_millis(300);
    let error = Bootstrap::connect(lonely).unwrap_err();
    assert_eq!(error.exit_code(), 70);
    assert!(error.to_string().contains("closed (refused)"), "{error}");
}

#[test]
fn dropped_packets_cost_no_more_than_the_deadline() {
    // A listener whose queue is full drops further connection requests, as a firewall would.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket
        .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
        .unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let fill: Vec<_> = (0..4)
        .map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(100)))
        .collect();
    let mut lonely = config(1, 2, address.port());
    lonely.timeout = Duration::from_millis(800);
    let started = Instant::now();
    let error = Bootstrap::connect(lonely).unwrap_err();
    assert!(error.to_string().contains("filtered (no answer)"), "{error}");
    assert!(
        started.elapsed() < Duration::from_secs(3),
        "{:?}",
        started.elapsed()
    );
    drop(fill);
}

#[test]
fn a_dead_first_address_is_passed_over() {
    // `localhost` often has two addresses; rank 0 listens on one of them alone.
    let (first, port) = leader(2, |_| {});
    let mut by_name = config(1, 2, port);
    by_name.master = "localhost".into();
    let _one = Bootstrap::connect(by_name).unwrap();
    first.join().unwrap().unwrap();
}

#[test]
fn a_port_in_use_is_told_at_once() {
    let (taken, port) = listener();
    let error = Bootstrap::connect(config(0, 2, port)).unwrap_err();
    assert_eq!(error, BootError::PortInUse { port });
    assert_eq!(error.exit_code(), 3);
    drop(taken);
}

#[test]
fn a_world_of_one_opens_no_socket() {
    let mut alone = Bootstrap::connect(config(0, 1, 1)).unwrap();
    assert_eq!(alone.all_gather("x", b"me").unwrap(), [b"me".to_vec()]);
    alone.agree("x", &[]).unwrap();
    assert!(alone.take_control().is_empty());
}

#[test]
fn without_a_secret_only_loopback_is_served() {
    let mut open = config(0, 2, 1);
    open.master = "192.0.2.1".into();
    open.secret = None;
    assert!(matches!(
        Bootstrap::connect(open),
        Err(BootError::NoSecret { .. })
    ));
}

#[test]
fn garbage_in_a_meeting_is_blamed_on_its_sender() {
    let mut ranks = met(2);
    let mut raw = ranks.pop().unwrap().into_plan().pop().unwrap();
    raw.write_all(&[0xff; 64]).unwrap();
    let error = ranks[0].barrier("b").unwrap_err();
    assert!(
        matches!(&error, MeetingError::Lost { rank: Rank(1), reason, .. } if reason.contains("no frame")),
        "{error}"
    );
}

#[test]
fn hundreds_of_ranks_meet() {
    // How the time grows with the world stands in the output; what it is depends on the machine.
    for world in [64, 512] {
        let started = Instant::now();
        let mut ranks = met(world);
        let fields = [("a".to_owned(), "1".to_owned())];
        together(&mut ranks, |rank| rank.agree("agree", &fields).unwrap());
        let took = started.elapsed();
        println!("{world} ranks within one process met and agreed in {took:?}");
        assert!(took < Duration::from_secs(30), "{took:?}");
    }
}
