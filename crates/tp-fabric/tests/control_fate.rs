//! The fate channel against peers that misbehave: raw sockets play them, and a recorder takes the place of the exit.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tp_fabric::fate::{Exit, Fate, FateActions, FateConfig, FateReport};
use tp_fabric::types::Rank;

struct Recorder(Mutex<Sender<i32>>);

impl Exit for Recorder {
    fn exit(&self, code: i32) {
        let _ = self.0.lock().unwrap().send(code);
    }
}

struct Watched {
    fate: Fate,
    exits: Receiver<i32>,
    reports: Receiver<FateReport>,
}

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (one, listener.accept().unwrap().0)
}

fn start(rank: u32, world: usize, links: Vec<TcpStream>, limit: Duration) -> Watched {
    start_with(rank, world, links, limit, Duration::from_secs(1))
}

fn start_with(rank: u32, world: usize, links: Vec<TcpStream>, limit: Duration, grace: Duration) -> Watched {
    let (exit, exits) = mpsc::channel();
    let (report, reports) = mpsc::channel();
    let report = Mutex::new(report);
    let actions = FateActions {
        on_fate: Some(Arc::new(move |r: &FateReport| {
            drop(report.lock().unwrap().send(r.clone()))
        })),
        exit: Arc::new(Recorder(Mutex::new(exit))),
    };
    let config = FateConfig {
        rank: Rank(rank),
        hosts: (0..world).map(|rank| format!("host-{rank}")).collect(),
        heartbeat: limit / 10,
        limit,
        grace,
        memory_every: Duration::from_millis(20),
    };
    Watched {
        fate: Fate::start(links, config, actions).unwrap(),
        exits,
        reports,
    }
}

/// Rank 0 of two, with a raw peer.
fn with_raw_peer(limit: Duration) -> (Watched, TcpStream) {
    let (ours, theirs) = pair();
    (start(0, 2, vec![ours], limit), theirs)
}

const LONG: Duration = Duration::from_secs(30);

#[track_caller]
fn fails(watched: &Watched, culprit: u32, says: &str) -> FateReport {
    let report = watched
        .reports
        .recv_timeout(Duration::from_secs(10))
        .expect("a report");
    assert_eq!(report.culprit, Rank(culprit), "{report}");
    assert!(report.reason.contains(says), "{report}");
    assert_eq!(watched.exits.recv_timeout(LONG), Ok(70));
    report
}

fn frame(kind: u32, body: &[u8]) -> Vec<u8> {
    let mut out = b"TPFT".to_vec();
    out.extend(kind.to_le_bytes());
    out.extend(u32::try_from(body.len()).unwrap().to_le_bytes());
    out.extend(body);
    out
}

#[test]
fn foreign_oversized_unknown_and_truncated_frames_are_the_senders_failure() {
    let mut oversized = frame(1, b"");
    oversized[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    for (bytes, says) in [
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), "no frame of the fate channel"),
        (oversized, "claims 4294967295 bytes"),
        (frame(77, b""), "kind 77"),
        (frame(2, b"short"), "kind 2 with 5 bytes"),
        (frame(3, b"reason=but who?\n"), "without a culprit"),
        (frame(3, b"culprit=9\n"), "does not exist"),
    ] {
        let (watched, mut raw) = with_raw_peer(LONG);
        raw.write_all(&bytes).unwrap();
        fails(&watched, 1, says);
    }
    let (watched, mut raw) = with_raw_peer(LONG);
    raw.write_all(&frame(1, b"run")[..9]).unwrap();
    drop(raw);
    fails(&watched, 1, "in the middle of a frame");
}

#[test]
fn a_failure_that_a_peer_reports_is_passed_on_to_all_by_name() {
    let (one, mut raw_one) = pair();
    let (two, mut raw_two) = pair();
    let watched = start(0, 3, vec![one, two], LONG);
    raw_one
        .write_all(&frame(
            3,
            b"culprit=1\nhost=beta\nphase=load\nreason=no memory left\n",
        ))
        .unwrap();
    let report = fails(&watched, 1, "no memory left");
    assert_eq!(
        (report.host.as_str(), report.phase.as_str(), report.own),
        ("beta", "load", false)
    );
    drop(watched);
    let mut heard = Vec::new();
    raw_two.read_to_end(&mut heard).unwrap();
    let heard = String::from_utf8_lossy(&heard);
    assert!(
        heard.contains("culprit=1\nhost=beta\nphase=load\nreason=no memory left\n"),
        "{heard}"
    );
}

/// A collective sees its peer stop before the channel has said which rank failed, and why.
#[test]
fn who_blames_waits_for_a_better_word_and_not_for_ever() {
    let word = frame(3, b"culprit=0\nhost=alpha\nphase=close\nreason=injected\n");
    for says in [Some(word), None] {
        for blamed in [0, 1] {
            let (ours, mut raw) = pair();
            let watched = start(1, 2, vec![ours], LONG);
            let handle = watched.fate.handle();
            let began = Instant::now();
            let late = std::thread::spawn({
                let says = says.clone();
                move || {
                    std::thread::sleep(Duration::from_millis(50));
                    if let Some(word) = says {
                        raw.write_all(&word).unwrap();
                    }
                    raw
                }
            });
            handle.blame_peer(Rank(blamed), "close", "the barrier failed");
            assert!(began.elapsed() < LONG / 2);
            match says {
                Some(_) => drop(fails(&watched, 0, "injected")),
                None => drop(fails(&watched, blamed, "the barrier failed")),
            }
            drop(late.join().unwrap());
        }
    }
}

#[test]
fn what_was_sent_before_the_end_counts_before_the_end() {
    let (watched, mut raw) = with_raw_peer(LONG);
    raw.write_all(&frame(
        3,
        b"culprit=1\nhost=beta\nphase=load\nreason=said so itself\n",
    ))
    .unwrap();
    drop(raw);
    fails(&watched, 1, "said so itself");
}

#[test]
fn a_peer_that_reads_nothing_blocks_nobody() {
    let (one, mut deaf) = pair();
    let (two, mut raw_two) = pair();
    let watched = start(0, 3, vec![one, two], Duration::from_millis(400));
    // Both live and beat, one of them never reads. Many announcements and beats later all is still well.
    let until = Instant::now() + Duration::from_millis(900);
    raw_two.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut buffer = [0; 65536];
    while Instant::now() < until {
        deaf.write_all(&frame(1, b"run")).unwrap();
        raw_two.write_all(&frame(1, b"run")).unwrap();
        let _ = raw_two.read(&mut buffer);
    }
    assert!(watched.reports.try_recv().is_err());
    // Its silence is noticed like any other's.
    while watched
        .reports
        .try_recv()
        .map(|report| assert_eq!(report.culprit, Rank(1)))
        .is_err()
    {
        assert!(until.elapsed() < Duration::from_secs(10));
        let _ = raw_two.write_all(&frame(1, b"run"));
        let _ = raw_two.read(&mut buffer);
    }
}

/// Rank 0 waits for the others only so long; those that are merely slow hear its bye and take nothing for a death.
#[test]
fn rank_0_says_its_bye_also_to_ranks_that_it_no_longer_waits_for() {
    let (watched, mut slow) = with_raw_peer(Duration::from_millis(300));
    slow.set_read_timeout(Some(LONG)).unwrap();
    let mut beats = slow.try_clone().unwrap();
    let beating = std::thread::spawn(move || {
        while beats.write_all(&frame(1, b"close")).is_ok() {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let began = Instant::now();
    watched.fate.close();
    assert!(began.elapsed() >= Duration::from_millis(300));
    let mut heard = Vec::new();
    // What was in flight to a closed socket resets the connection.
    let _ = slow.read_to_end(&mut heard);
    assert!(heard.ends_with(&frame(5, b"")), "no bye at the end of {heard:?}");
    assert!(watched.reports.try_recv().is_err());
    beating.join().unwrap();
}

#[test]
fn memory_reports_reach_rank_0() {
    let (ours, theirs) = pair();
    let zero = start(0, 2, vec![ours], LONG);
    let one = start(1, 2, vec![theirs], LONG);
    if cfg!(all(target_os = "linux", not(portable_os))) {
        let started = Instant::now();
        let report = loop {
            if let Some(report) = zero.fate.handle().peer_memory()[1] {
                break report;
            }
            assert!(started.elapsed() < Duration::from_secs(10));
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(report.available > 1 << 20, "{report:?}");
    }
    let (a, b) = (
        std::thread::spawn(|| zero.fate.close()),
        std::thread::spawn(|| one.fate.close()),
    );
    a.join().unwrap();
    b.join().unwrap();
}

#[test]
fn a_new_phase_is_told_at_once() {
    // The next beat would be due in three seconds; the end of the connection comes long before.
    let (ours, theirs) = pair();
    let zero = start(0, 2, vec![ours], LONG);
    let (between, mut raw) = pair();
    let one = start(1, 2, vec![between], LONG);
    one.fate.handle().set_phase("load");
    one.fate.handle().set_phase("suite");
    let mut heard = Vec::new();
    let mut buffer = [0; 4096];
    raw.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
    let whole = frame(1, b"suite");
    while !heard.windows(whole.len()).any(|bytes| bytes == whole) {
        let n = raw.read(&mut buffer).expect("a beat with the new phase");
        heard.extend_from_slice(&buffer[..n]);
    }
    (&theirs).write_all(&heard).unwrap();
    drop(theirs);
    let report = fails(&zero, 1, "went away");
    assert_eq!(report.phase, "suite");
    drop(raw);
    assert_eq!(one.exits.recv_timeout(LONG), Ok(70));
}

#[test]
fn only_the_first_failure_counts_and_late_calls_do_not_hang() {
    let (watched, mut raw) = with_raw_peer(LONG);
    let handle = watched.fate.handle();
    handle.set_phase("run");
    handle.fail("run", "first");
    handle.fail("run", "second");
    let report = fails(&watched, 0, "first");
    assert!(report.own);
    assert_eq!(handle.failure().unwrap().reason, "first");
    raw.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    drop(watched);
    let mut heard = Vec::new();
    raw.read_to_end(&mut heard).unwrap();
    assert!(String::from_utf8_lossy(&heard).contains("reason=first"));
}

#[test]
fn hooks_run_before_the_exit_even_after_one_that_panics() {
    // Writing out a panic can take longer than a usual grace on a busy machine.
    let (ours, raw) = pair();
    let watched = start_with(0, 2, vec![ours], LONG, LONG);
    let (ran, runs) = mpsc::channel();
    watched
        .fate
        .handle()
        .register_hook("panics", Box::new(|| panic!("on purpose")));
    watched
        .fate
        .handle()
        .register_hook("good", Box::new(move || ran.send(()).unwrap()));
    drop(raw);
    fails(&watched, 1, "went away");
    runs.recv_timeout(Duration::ZERO)
        .expect("the second hook ran before the exit");
}
