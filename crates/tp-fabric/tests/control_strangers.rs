//! Everybody else at rank 0's port, played by raw sockets: scanners, silent and slow ones, floods, replays, other programs.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_threads;

use control_threads::{config, follower, leader, listener};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use tp_fabric::bootstrap::{BootError, Bootstrap};
use tp_fabric::types::Rank;

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
