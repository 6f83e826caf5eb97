//! The bootstrap within one process: threads play the ranks, raw sockets play everybody else.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tp_fabric::bootstrap::{BootConfig, BootError, Bootstrap};
use tp_fabric::meeting::{Meeting, MeetingError};
use tp_fabric::secret::Secret;
use tp_fabric::types::{Rank, World};

const SECRET: &str = "a secret for tests alone";

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

fn config(rank: u32, world: u32, port: u16) -> BootConfig {
    BootConfig {
        rank: Rank(rank),
        world: World(world),
        master: "127.0.0.1".into(),
        port,
        timeout: Duration::from_secs(20),
        secret: Some(Secret::from_text(SECRET).unwrap()),
        insecure: false,
        session: "s".into(),
        host: format!("host-{rank}"),
        listener: None,
    }
}

type Boot = JoinHandle<Result<Bootstrap, BootError>>;

/// Rank 0 on a thread, and its port.
fn leader(world: u32, change: impl FnOnce(&mut BootConfig)) -> (Boot, u16) {
    let (listener, port) = listener();
    let mut config = config(0, world, port);
    config.listener = Some(listener);
    change(&mut config);
    (std::thread::spawn(move || Bootstrap::connect(config)), port)
}

fn follower(rank: u32, world: u32, port: u16) -> Boot {
    let config = config(rank, world, port);
    std::thread::spawn(move || Bootstrap::connect(config))
}

fn met(world: u32) -> Vec<Bootstrap> {
    let (first, port) = leader(world, |_| {});
    let all: Vec<_> = std::iter::once(first)
        .chain((1..world).map(|rank| follower(rank, world, port)))
        .collect();
    all.into_iter()
        .map(|thread| thread.join().unwrap().unwrap())
        .collect()
}

/// Runs one call on all ranks at once.
fn together<T: Send>(ranks: &mut [Bootstrap], call: impl Fn(&mut Bootstrap) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter_mut().map(|rank| scope.spawn(|| call(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

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
fn a_thousand_strangers_at_once_delay_nobody() {
    let (first, port) = leader(3, |_| {});
    let address = SocketAddr::from(([127, 0, 0, 1], port));
    let mut strangers = Vec::new();
    for number in 0..1000 {
        let mut socket = TcpStream::connect_timeout(&address, Duration::from_secs(5)).unwrap();
        match number % 4 {
            0 => {}
            1 => drop(socket.write_all(b"GET / HTTP/1.1\r\n\r\n")),
            2 => drop(socket.write_all(b"TPB")),
            _ => drop(socket.write_all(b"TPBS\x01\0\0\0\x01\0\0\0")),
        }
        strangers.push(socket);
    }
    let started = Instant::now();
    let others = [1, 2].map(|rank| follower(rank, 3, port));
    let zero = first.join().unwrap().unwrap();
    for other in others {
        other.join().unwrap().unwrap();
    }
    assert!(
        started.elapsed() < Duration::from_secs(2),
        "{:?}",
        started.elapsed()
    );
    assert!(zero.visitors().strangers > 0);
}

#[test]
fn a_slow_loris_is_cut_off_by_the_deadline_of_the_handshake() {
    let (first, port) = leader(2, |_| {});
    let mut loris = TcpStream::connect(("127.0.0.1", port)).unwrap();
    loris.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let started = Instant::now();
    let mut writer = loris.try_clone().unwrap();
    let drip = std::thread::spawn(move || {
        for byte in b"TPBS\x01\0\0\0\x01\0\0\0".iter().chain(&[7; 100]) {
            if writer.write_all(&[*byte]).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    });
    // It gets nothing before its preface is complete, and the end within the deadline.
    let mut sink = [0; 16];
    assert!(matches!(loris.read(&mut sink), Ok(0) | Err(_)));
    assert!(
        started.elapsed() < Duration::from_secs(4),
        "{:?}",
        started.elapsed()
    );
    drop(loris);
    let _one = follower(1, 2, port).join().unwrap().unwrap();
    first.join().unwrap().unwrap();
    drip.join().unwrap();
}

#[test]
fn a_scanner_is_dropped_at_its_first_wrong_byte() {
    let (first, port) = leader(2, |_| {});
    let mut scanner = TcpStream::connect(("127.0.0.1", port)).unwrap();
    scanner.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    scanner.write_all(b"\x16\x03\x01").unwrap();
    let started = Instant::now();
    assert!(matches!(scanner.read(&mut [0; 16]), Ok(0) | Err(_)));
    assert!(
        started.elapsed() < Duration::from_millis(1500),
        "{:?}",
        started.elapsed()
    );
    let _one = follower(1, 2, port).join().unwrap().unwrap();
    assert_eq!(first.join().unwrap().unwrap().visitors().strangers, 1);
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
fn another_version_is_told_and_rank_0_says_whom_it_turned_away() {
    let (first, port) = leader(2, |config| config.timeout = Duration::from_secs(1));
    let mut old = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut preface = b"TPBS\x63\0\0\0\x01\0\0\0".to_vec();
    preface.extend([7; 32]);
    old.write_all(&preface).unwrap();
    let mut answer = Vec::new();
    old.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("it speaks protocol 99, rank 0 speaks 1"));
    let error = first.join().unwrap().unwrap_err();
    assert_eq!(error.exit_code(), 70);
    let text = error.to_string();
    assert!(
        text.starts_with("rank 1 never came within 1.0 s; refused meanwhile: 127.0.0.1: it speaks"),
        "{text}"
    );
}

#[test]
fn a_replayed_handshake_is_refused() {
    let (first, port) = leader(3, |_| {});
    // A wire-tapper between rank 1 and rank 0.
    let (tap, tap_port) = listener();
    let tapped = std::thread::spawn(move || {
        let (client, _) = tap.accept().unwrap();
        let server = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let (mut from_server, mut to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        std::thread::spawn(move || std::io::copy(&mut from_server, &mut to_client));
        let (mut client, mut server, mut heard, mut buffer) = (client, server, Vec::new(), [0; 4096]);
        while let Ok(n @ 1..) = client.read(&mut buffer) {
            heard.extend_from_slice(&buffer[..n]);
            server.write_all(&buffer[..n]).unwrap();
        }
        server.shutdown(std::net::Shutdown::Both).unwrap();
        heard
    });
    // The tapped process stops after its first connection, as its second finds nobody.
    let mut config_1 = config(1, 3, tap_port);
    config_1.timeout = Duration::from_millis(600);
    assert!(Bootstrap::connect(config_1).is_err());
    let heard = tapped.join().unwrap();
    assert!(heard.len() > 80, "a whole handshake was heard");
    // Rank 1 was in and went away, which ends this boot; the replay meets a new rank 0 with the same secret.
    assert!(matches!(
        first.join().unwrap(),
        Err(BootError::Lost { rank: Rank(1), .. })
    ));

    let (again, port) = leader(3, |config| config.timeout = Duration::from_secs(1));
    let mut replay = TcpStream::connect(("127.0.0.1", port)).unwrap();
    replay.write_all(&heard).unwrap();
    let mut answer = Vec::new();
    replay.read_to_end(&mut answer).unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("it does not know the secret"));
    let BootError::Missing { ranks, .. } = again.join().unwrap().unwrap_err() else {
        panic!()
    };
    assert_eq!(ranks, [Rank(1), Rank(2)]);
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
fn another_program_on_the_port_is_recognised() {
    let (other, port) = listener();
    let program = std::thread::spawn(move || {
        let (mut client, _) = other.accept().unwrap();
        client.write_all(b"SSH-2.0-other\r\n").unwrap();
        let mut sink = Vec::new();
        let _ = client.read_to_end(&mut sink);
    });
    let error = Bootstrap::connect(config(1, 2, port)).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(
        error.to_string().contains("another program answers on this port"),
        "{error}"
    );
    program.join().unwrap();
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
