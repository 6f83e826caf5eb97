//! The plan link over loopback, within one process.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use tp_fabric::plan::{HOLD_WORDS_MAX, PLAN_WORDS_MAX, PlanConfig, PlanError, PlanLink};
use tp_fabric::settings::Pin;
use tp_fabric::types::{Rank, World};

const CONFIG: PlanConfig = PlanConfig {
    spin: Duration::ZERO,
    pin: Pin::Off,
    avoid_cpu: None,
};

fn sockets() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let two = listener.accept().unwrap().0;
    one.set_nodelay(true).unwrap();
    two.set_nodelay(true).unwrap();
    (one, two)
}

fn link(followers: u32, config: PlanConfig) -> (PlanLink, Vec<PlanLink>) {
    let world = World(followers + 1);
    let (ours, theirs): (Vec<_>, Vec<_>) = (0..followers).map(|_| sockets()).unzip();
    let follower = |(rank, socket)| PlanLink::new(Rank(rank), world, vec![socket], config).unwrap();
    (
        PlanLink::new(Rank(0), world, ours, config).unwrap(),
        (1..).zip(theirs).map(follower).collect(),
    )
}

/// Rank 0 and a raw connection in place of its follower's end, or the other way round.
fn raw_leader() -> (TcpStream, PlanLink) {
    let (raw, socket) = sockets();
    (
        raw,
        PlanLink::new(Rank(1), World(2), vec![socket], CONFIG).unwrap(),
    )
}

fn receive(link: &mut PlanLink) -> Option<Vec<i64>> {
    let mut plan = Vec::new();
    link.recv_grow(&mut plan).unwrap().then_some(plan)
}

#[test]
fn held_plans_come_in_order_with_the_next_one() {
    let (mut zero, mut followers) = link(2, CONFIG);
    zero.hold(&[1]).unwrap();
    zero.hold(&[]).unwrap();
    zero.send(&[i64::MIN, 3]).unwrap();
    zero.hold(&[4]).unwrap();
    zero.stop().unwrap();
    for follower in &mut followers {
        for expected in [
            Some(vec![1]),
            Some(vec![]),
            Some(vec![i64::MIN, 3]),
            Some(vec![4]),
            None,
            None,
        ] {
            assert_eq!(receive(follower), expected);
        }
    }
    assert_eq!(zero.send(&[5]), Err(PlanError::Stopped));
}

#[test]
fn what_is_held_has_a_limit_and_keeps_its_order() {
    let (mut zero, mut followers) = link(1, CONFIG);
    let big = vec![7; HOLD_WORDS_MAX];
    zero.hold(&[1]).unwrap();
    zero.hold(&big).unwrap();
    zero.hold(&vec![8; HOLD_WORDS_MAX + 1]).unwrap();
    zero.flush().unwrap();
    assert_eq!(receive(&mut followers[0]), Some(vec![1]));
    assert_eq!(receive(&mut followers[0]), Some(big));
    assert_eq!(receive(&mut followers[0]), Some(vec![8; HOLD_WORDS_MAX + 1]));
}

#[test]
fn a_plan_that_does_not_fit_is_dropped_and_the_next_one_comes() {
    let (mut zero, mut followers) = link(1, CONFIG);
    zero.send(&[1; 100]).unwrap();
    zero.send(&[2, 2]).unwrap();
    let mut buffer = [0; 3];
    assert_eq!(
        followers[0].recv(&mut buffer),
        Err(PlanError::TooLarge { words: 100, room: 3 })
    );
    assert_eq!(followers[0].recv(&mut buffer), Ok(Some(2)));
    assert_eq!(buffer, [2, 2, 0]);
}

#[test]
fn each_end_keeps_to_its_part() {
    let (mut zero, mut followers) = link(1, CONFIG);
    assert_eq!(followers[0].send(&[1]), Err(PlanError::NotRankZero));
    assert_eq!(zero.recv(&mut [0]), Err(PlanError::NotFollower));
    drop(zero);
    assert!(matches!(
        followers[0].recv(&mut [0]),
        Err(PlanError::PeerClosed { rank: Rank(0), .. })
    ));
    let (mut zero, followers) = link(2, CONFIG);
    drop(followers);
    let gone = (0..1000).find_map(|_| zero.send(&[0; 512]).err());
    assert!(
        matches!(
            gone,
            Some(PlanError::PeerClosed {
                rank: Rank(1 | 2),
                ..
            })
        ),
        "{gone:?}"
    );
}

#[test]
fn garbage_oversized_and_truncated_frames_are_a_lost_link() {
    let frame = |kind: u32, claimed: u32, words: &[i64]| {
        let mut out = b"TPPL".to_vec();
        out.extend(kind.to_le_bytes());
        out.extend(claimed.to_le_bytes());
        out.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        out
    };
    for (bytes, says) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "no plan"),
        (frame(1, u32::MAX, &[]), "claims 4294967295 words"),
        (frame(9, 0, &[]), "unknown kind 9"),
        (frame(3, 1, &[0]), "claims 1 words"),
        (frame(2, 3, &[2, 1, 5]), "garbled batch"),
        (frame(2, 2, &[1, i64::MAX]), "garbled batch"),
        (frame(2, 0, &[]), "garbled batch"),
        (frame(1, 5, &[1, 2]), "end of stream"),
        (frame(1, PLAN_WORDS_MAX as u32, &[1, 2]), "end of stream"),
    ] {
        let (mut raw, mut follower) = raw_leader();
        raw.write_all(&bytes).unwrap();
        drop(raw);
        let error = follower.recv_grow(&mut Vec::new()).unwrap_err();
        assert!(
            matches!(&error, PlanError::PeerClosed { rank: Rank(0), reason } if reason.contains(says)),
            "{error}"
        );
    }
}

#[test]
fn a_plan_far_beyond_every_buffer_comes_whole() {
    // 32 MiB; the full 512 MiB with TP_LONG.
    let words = if std::env::var_os("TP_LONG").is_some() {
        PLAN_WORDS_MAX
    } else {
        4 << 20
    };
    let (mut zero, mut followers) = link(1, CONFIG);
    let plan: Vec<i64> = (0..words as i64)
        .map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15u64 as i64))
        .collect();
    let mut follower = followers.pop().unwrap();
    let receiver = std::thread::spawn(move || receive(&mut follower).unwrap());
    zero.send(&plan).unwrap();
    assert!(receiver.join().unwrap() == plan);
    assert_eq!(
        zero.send(&vec![0; PLAN_WORDS_MAX + 1]),
        Err(PlanError::TooLarge {
            words: PLAN_WORDS_MAX + 1,
            room: PLAN_WORDS_MAX
        })
    );
}

#[test]
fn ten_thousand_plans_arrive_in_order_spinning_or_blocked() {
    const COUNT: usize = 10_000;
    for spin in [Duration::ZERO, Duration::from_millis(5)] {
        let (mut zero, mut followers) = link(1, PlanConfig { spin, ..CONFIG });
        let mut follower = followers.pop().unwrap();
        let clock = Instant::now();
        let receiver = std::thread::spawn(move || {
            let mut lags = Vec::new();
            let mut buffer = [0; 128];
            while follower.recv(&mut buffer).unwrap().is_some() {
                let now = i64::try_from(clock.elapsed().as_nanos()).unwrap();
                assert_eq!(buffer[1], lags.len() as i64);
                lags.push(now - buffer[0]);
            }
            lags.sort_unstable();
            lags
        });
        let mut plan = [0i64; 128];
        for number in 0..COUNT as i64 {
            plan[0] = i64::try_from(clock.elapsed().as_nanos()).unwrap();
            plan[1] = number;
            zero.send(&plan).unwrap();
            let pause = Instant::now();
            while pause.elapsed() < Duration::from_micros(50) {
                std::thread::yield_now();
            }
        }
        zero.stop().unwrap();
        let lags = receiver.join().unwrap();
        assert_eq!(lags.len(), COUNT);
        println!(
            "spin {spin:?}, {COUNT} plans of 1 KiB: median lag {} ns, p99 {} ns",
            lags[COUNT / 2],
            lags[COUNT * 99 / 100]
        );
    }
}
