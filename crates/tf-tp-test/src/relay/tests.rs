//! Deadlines of the taking side, with relays made of bare sockets.

use super::hello::Common;
use super::send::send;
use super::take::{There, welcome};
use super::timed::Timed;
use super::*;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

const BYTES: &[u8] = &[7; 300_000];

fn job(dir: &std::path::Path, bytes: &[u8]) -> Arc<Job> {
    let hash = Sha256::digest(bytes);
    Arc::new(Job {
        file: dir.join("file"),
        size: bytes.len() as u64,
        common: Common {
            secret: b"of this push".to_vec(),
            sha256: hash.iter().map(|b| format!("{b:02x}")).collect(),
        },
        fed: Fed::default(),
    })
}

/// A taking side on a thread: its port, and what becomes of it.
fn taking(job: &Arc<Job>, stall: Duration) -> (u16, JoinHandle<std::io::Result<()>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (proved, relays) = channel();
    let (common, job) = (Arc::clone(job), Arc::clone(job));
    std::thread::spawn(move || welcome(&common, &listener, &proved));
    let there = There::open(&job).unwrap();
    (port, std::thread::spawn(move || there.take(&job, &relays, stall)))
}

/// A sending side that has proved itself and was told what is there.
fn sender(job: &Job, port: u16) -> (TcpStream, u64) {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let limit = Duration::from_secs(10);
    job.common.send_side(&mut Timed::new(&stream, limit)).unwrap();
    let have = job.common.wanted(&mut Timed::new(&stream, limit)).unwrap();
    (stream, have)
}

#[test]
fn a_relay_that_nobody_comes_to_gives_up_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (port, taking) = taking(&job(dir.path(), BYTES), Duration::from_millis(300));
    // A stranger who says nothing is nobody.
    let _stranger = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let error = taking.join().unwrap().unwrap_err().to_string();
    let words = "nothing came for 0.3 s with 0 of 300000 bytes here; nobody who knows the secret of this push connected";
    assert_eq!(error, words);
}

#[test]
fn a_relay_that_goes_silent_or_breaks_off_is_replaced_by_the_next_that_comes() {
    let dir = tempfile::tempdir().unwrap();
    let job = job(dir.path(), BYTES);
    let (port, taking) = taking(&job, Duration::from_secs(30));
    let (mut broken, have) = sender(&job, port);
    assert_eq!(have, 0);
    broken.write_all(&BYTES[..1000]).unwrap();
    drop(broken);
    let (mut silent, have) = sender(&job, port);
    assert_eq!(have, 1000);
    silent.write_all(&BYTES[1000..5000]).unwrap();
    let (mut last, have) = sender(&job, port);
    assert_eq!(have, 5000);
    last.write_all(&BYTES[5000..]).unwrap();
    taking.join().unwrap().unwrap();
    assert_eq!(std::fs::read(&job.file).unwrap(), BYTES);
    assert!(!job.part().exists());
}

#[test]
fn strangers_delay_nobody_and_what_has_another_hash_gets_no_name() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("a"), dir.path().join("b"));
    std::fs::create_dir(&from).unwrap();
    let source = job(&from, BYTES);
    let wrong = [8; BYTES.len()];
    std::fs::write(&source.file, wrong).unwrap();
    let target = job(&to, BYTES);
    let (port, taking) = taking(&target, Duration::from_secs(30));
    let began = Instant::now();
    let mut strangers: Vec<_> = (0..8)
        .map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap())
        .collect();
    strangers[0].write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    let error = send(&source, "127.0.0.1", port).unwrap_err().to_string();
    assert!(error.contains("the right hash"), "{error}");
    let error = taking.join().unwrap().unwrap_err().to_string();
    assert!(error.contains("it was changed on the way"), "{error}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert!(!target.file.exists() && !target.part().exists());
}
