//! Ranks that are processes: this test binary, started again, once for each rank and wire.
#![expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")]
#![cfg(unix)]

mod collective_support;

use collective_support::config;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tp_fabric::collective::{Collectives, Failure, HostSlices};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::host::{self, HostConfig};
use tp_fabric::meeting::{Meeting, MeetingError};
use tp_fabric::oracle;
use tp_fabric::types::{DType, Rank, ReduceOp, WireKind, World};

const WORLD: u32 = 3;

/// A meeting over TCP, as small as can be: each rank sends its bytes to the parent, which gives everybody all.
struct Through {
    rank: Rank,
    stream: TcpStream,
    quirk: Quirk,
}

/// What goes wrong in a meeting.
#[derive(Clone, Copy, PartialEq)]
enum Quirk {
    None,
    /// Rank 0 is killed when it has made the shared memory and nobody has opened it.
    KilledMidway,
    /// The other ranks do not see rank 0's process.
    Blind,
}

const NAMED: &str = "name the shared memory";

fn write_blob(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    stream.write_all(&(bytes.len() as u32).to_le_bytes())?;
    stream.write_all(bytes)
}

fn read_blob(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let mut bytes = vec![0; u32::from_le_bytes(len).min(1 << 20) as usize];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

impl Meeting for Through {
    fn rank(&self) -> Rank {
        self.rank
    }
    fn world(&self) -> World {
        World(WORLD)
    }
    fn all_gather(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError> {
        if (self.quirk, op, self.rank) == (Quirk::KilledMidway, NAMED, Rank(0)) {
            nix::sys::signal::raise(nix::sys::signal::Signal::SIGKILL).unwrap();
        }
        let mut trade = || {
            write_blob(&mut self.stream, mine)?;
            let mut all = (0..WORLD)
                .map(|_| read_blob(&mut self.stream))
                .collect::<std::io::Result<Vec<_>>>()?;
            if (self.quirk, op) == (Quirk::Blind, NAMED) && !all[0].starts_with(b"/") {
                all[0] = b"0 0 0 0".to_vec();
            }
            Ok::<_, std::io::Error>(all)
        };
        trade().map_err(|e| MeetingError::Lost {
            op: op.to_owned(),
            rank: Rank(0),
            reason: e.to_string(),
        })
    }
}

/// The parent's side: passes on until every rank has closed.
fn pass_on(listener: &TcpListener) {
    let mut ranks: Vec<TcpStream> = (0..WORLD).map(|_| listener.accept().unwrap().0).collect();
    // They come in any order; each says its rank first.
    ranks.sort_by_cached_key(|stream| read_blob(&mut stream.try_clone().unwrap()).unwrap());
    while let Ok(blobs) = ranks.iter_mut().map(read_blob).collect::<Result<Vec<_>, _>>() {
        for rank in &mut ranks {
            for blob in &blobs {
                let _ = write_blob(rank, blob);
            }
        }
    }
}

struct Started(Vec<Child>);

impl Drop for Started {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn start(role: &str, wire: WireKind) -> (Started, std::thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let children = (0..WORLD).map(|rank| {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "rank_process",
                "--ignored",
                "--nocapture",
                "--test-threads=1",
            ])
            .env(
                "COLLECTIVE_TEST_ROLE",
                format!("{role} {} {rank} {port}", wire.name()),
            )
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let started = Started(children.collect());
    (started, std::thread::spawn(move || pass_on(&listener)))
}

/// What a started process does; ignored otherwise.
#[test]
#[ignore = "started by the other tests as a rank"]
fn rank_process() {
    let Ok(role) = std::env::var("COLLECTIVE_TEST_ROLE") else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let [role, wire, rank, port] = words[..] else {
        panic!("{role}")
    };
    let mut stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    write_blob(&mut stream, rank.as_bytes()).unwrap();
    let mut meeting = Through {
        rank: Rank(rank.parse().unwrap()),
        stream,
        quirk: match role {
            "killed" => Quirk::KilledMidway,
            "blind" => Quirk::Blind,
            _ => Quirk::None,
        },
    };
    let cfg = HostConfig {
        wait: Duration::from_secs(20),
        ..config(wire.parse().unwrap())
    };
    let backend = match host::open(&mut meeting, &cfg) {
        Err(error) if role == "killed" => return println!("\nREFUSED {error}"),
        other => other.unwrap(),
    };
    match role {
        "sum" | "blind" => sum(&backend, &mut meeting),
        "lose" => lose(&backend),
        other => panic!("{other}"),
    }
}

fn sum(backend: &host::HostBackend, meeting: &mut dyn Meeting) {
    for (k, bytes) in [4usize, 88, 92, 4096, 262_144, 262_148, 1 << 20]
        .into_iter()
        .enumerate()
    {
        let inputs: Vec<Vec<u8>> = (0..WORLD)
            .map(|r| fill::bytes(bytes, DType::F32, k as u64, Rank(r), Pattern::Special))
            .collect();
        let wanted = oracle::reduce(
            &inputs.iter().map(Vec::as_slice).collect::<Vec<_>>(),
            DType::F32,
            ReduceOp::Sum,
        );
        let mut data = inputs[backend.rank().index()].clone();
        for _ in 0..20 {
            data.copy_from_slice(&inputs[backend.rank().index()]);
            backend
                .all_reduce_bytes_in_place(&mut data, DType::F32, ReduceOp::Sum)
                .unwrap();
            assert!(Ok(&data) == wanted.as_ref(), "{bytes} B");
        }
    }
    // By now the name is gone, though the memory is in use.
    meeting.barrier("end").unwrap();
    backend.close().unwrap();
    println!("\nSUMS EQUAL");
}

/// Loops until a peer is gone, then says who.
fn lose(backend: &host::HostBackend) {
    println!("\nRUNNING");
    let mut data = [1f32; 1024];
    loop {
        if let Err(error) = backend.all_reduce_in_place(&mut data, ReduceOp::Max) {
            let failure = error.failure().cloned();
            if let Some(Failure::PeerFailed { .. } | Failure::Timeout { .. }) = failure {
                println!("LOST {:?}", failure.unwrap().culprits());
                return;
            }
            panic!("{error}");
        }
    }
}

fn output(child: &mut Child) -> String {
    let mut text = String::new();
    child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
    assert!(child.wait().unwrap().success(), "{text}");
    text
}

fn left_behind() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else {
        return Vec::new();
    };
    let names = entries
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with("tf-tp-")).collect()
}

#[test]
fn three_processes_sum_bit_exactly_over_each_wire() {
    for wire in [WireKind::Shm, WireKind::Tcp] {
        let (mut started, passing) = start("sum", wire);
        for child in &mut started.0 {
            let text = output(child);
            assert!(text.contains("SUMS EQUAL"), "{text}");
        }
        passing.join().unwrap();
    }
}

#[test]
fn a_killed_process_is_named_by_the_others_over_tcp_at_once() {
    let (mut started, passing) = start("lose", WireKind::Tcp);
    let mut lines = BufReader::new(started.0[1].stdout.take().unwrap()).lines();
    while !lines.next().unwrap().unwrap().contains("RUNNING") {}
    let begun = Instant::now();
    started.0[1].kill().unwrap();
    for rank in [0, 2] {
        let text = output(&mut started.0[rank]);
        assert!(text.contains("LOST [Rank(1)]"), "{text}");
    }
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(started);
    passing.join().unwrap();
}

#[test]
fn killed_processes_leave_no_shared_memory() {
    let (mut started, passing) = start("lose", WireKind::Shm);
    for child in &mut started.0 {
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while !lines.next().unwrap().unwrap().contains("RUNNING") {}
        child.kill().unwrap();
        child.wait().unwrap();
    }
    drop(started);
    passing.join().unwrap();
    nothing_stays();
}

/// Names that are there now go within a while: other tests may be between making and removing theirs.
fn nothing_stays() {
    let deadline = Instant::now() + Duration::from_secs(20);
    let before = left_behind();
    while Instant::now() < deadline && left_behind().iter().any(|name| before.contains(name)) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(!left_behind().iter().any(|name| before.contains(name)));
}

#[test]
#[cfg_attr(
    not(target_os = "linux"),
    ignore = "only Linux has shared memory without a name"
)]
fn rank_0_killed_before_anybody_has_opened_the_memory_leaves_nothing() {
    let (mut started, passing) = start("killed", WireKind::Shm);
    assert!(!started.0[0].wait().unwrap().success());
    for rank in [1, 2] {
        let text = output(&mut started.0[rank]);
        assert!(text.contains("REFUSED"), "{text}");
    }
    drop(started);
    passing.join().unwrap();
    nothing_stays();
}

#[test]
fn ranks_that_do_not_see_rank_0s_process_open_the_memory_by_name() {
    let (mut started, passing) = start("blind", WireKind::Shm);
    for child in &mut started.0 {
        let text = output(child);
        assert!(text.contains("SUMS EQUAL"), "{text}");
    }
    passing.join().unwrap();
    nothing_stays();
}
