//! Relays as processes: a file that grows goes along, a link that breaks is named and replaced, strangers get nothing.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod common;

use common::runner;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use tp_receipt::control::Start;

const SECRET: &str = "5ec2e7ab5ec2e7ab5ec2e7ab5ec2e7ab";
const LIMIT: Duration = Duration::from_secs(60);

struct Relay {
    child: Child,
    input: Option<ChildStdin>,
    events: Receiver<Value>,
    file: PathBuf,
}

impl Relay {
    /// A relay of `bytes` whose file is in `dir`.
    fn start(dir: &Path, bytes: &[u8], secret: &str, source: bool) -> Self {
        std::fs::create_dir_all(dir).unwrap();
        let file = dir.join("file");
        let (path, size) = (file.display().to_string(), bytes.len().to_string());
        let hash: String = Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect();
        let mut words = vec![
            "relay", "--events", "--file", &path, "--sha256", &hash, "--size", &size,
        ];
        if source {
            words.push("--source");
        }
        let mut child = runner(&words).stdin(Stdio::piped()).spawn().unwrap();
        let mut input = child.stdin.take().unwrap();
        let start = Start {
            schema: 1,
            session: "push".to_owned(),
            secret: Some(secret.to_owned()),
            ..Start::default()
        };
        writeln!(input, "{}", serde_json::to_string(&start).unwrap()).unwrap();
        let (send, events) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = send.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self {
            child,
            input: Some(input),
            events,
            file,
        }
    }

    /// What the next event with this field says.
    fn hear(&self, field: &str) -> Value {
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left).unwrap();
            if !event[field].is_null() {
                return event[field].clone();
            }
        }
    }

    fn port(&self) -> u64 {
        self.hear("port").as_u64().unwrap()
    }

    fn order(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn next(&mut self, port: u64) {
        self.order(&format!("next 127.0.0.1 {port}"));
    }

    /// Its exit code and its last words.
    fn end(mut self) -> (Option<i32>, String) {
        let until = Instant::now() + LIMIT;
        let code = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status.code();
            }
            if Instant::now() > until {
                self.child.kill().unwrap();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (code, said)
    }
}

fn bytes() -> Vec<u8> {
    (0..3_000_000u32)
        .flat_map(|i| i.wrapping_mul(2_654_435_761).to_le_bytes())
        .collect()
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A file that arrives at the source in two halves.
fn arriving(dir: &Path, bytes: &[u8]) -> impl FnOnce() + use<> {
    std::fs::create_dir_all(dir).unwrap();
    let (part, file) = (dir.join("file.part"), dir.join("file"));
    let half = bytes.len() / 2;
    std::fs::write(&part, &bytes[..half]).unwrap();
    let rest = bytes[half..].to_vec();
    move || {
        let mut open = std::fs::OpenOptions::new().append(true).open(&part).unwrap();
        open.write_all(&rest).unwrap();
        std::fs::rename(&part, &file).unwrap();
    }
}

#[test]
fn a_next_one_that_cannot_be_reached_is_named_and_another_takes_its_place() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), bytes());
    let of = |name: &str| dir.path().join(name);
    let rest_arrives = arriving(&of("a"), &bytes);
    let mut a = Relay::start(&of("a"), &bytes, SECRET, true);
    let mut b = Relay::start(&of("b"), &bytes, SECRET, false);
    let mut c = Relay::start(&of("c"), &bytes, SECRET, false);
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port();
    a.next(nobody.into());
    let why = a.hear("unsent").to_string();
    assert!(
        why.contains(&format!("sending it to 127.0.0.1 port {nobody}")),
        "{why}"
    );
    let (to_b, to_c) = (b.port(), c.port());
    // A relay of another push gets nothing from b, and keeps nobody from it.
    let mut other = Relay::start(&of("other"), &bytes, "another secret", true);
    other.next(to_b);
    assert!(
        other
            .hear("unsent")
            .to_string()
            .contains("does not know the secret")
    );
    other.order("last");
    let (code, said) = other.end();
    assert_eq!(code, Some(1));
    assert!(
        said.contains("failed to relay") && said.lines().count() == 1,
        "{said}"
    );
    a.next(to_b);
    b.next(to_c);
    c.order("last");
    rest_arrives();
    for relay in [a, b, c] {
        let file = relay.file.clone();
        assert_eq!(relay.end(), (Some(0), String::new()));
        assert!(std::fs::read(&file).unwrap() == bytes);
        assert_eq!(names(file.parent().unwrap()), ["file"]);
    }
}

#[test]
fn a_relay_that_dies_in_the_middle_is_left_out_and_the_one_behind_it_keeps_what_it_has() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), bytes());
    let of = |name: &str| dir.path().join(name);
    let rest_arrives = arriving(&of("a"), &bytes);
    let mut a = Relay::start(&of("a"), &bytes, SECRET, true);
    let mut b = Relay::start(&of("b"), &bytes, SECRET, false);
    let mut c = Relay::start(&of("c"), &bytes, SECRET, false);
    a.next(b.port());
    let to_c = c.port();
    b.next(to_c);
    c.order("last");
    common::eventually(LIMIT, "half of it at c", || {
        std::fs::metadata(of("c").join("file.part")).is_ok_and(|about| about.len() == bytes.len() as u64 / 2)
    });
    b.child.kill().unwrap();
    rest_arrives();
    assert!(
        a.hear("unsent")
            .to_string()
            .contains("sending it to 127.0.0.1 port")
    );
    a.next(to_c);
    assert_eq!(c.hear("done"), true);
    assert!(std::fs::read(of("c").join("file")).unwrap() == bytes);
    for relay in [a, c] {
        assert_eq!(relay.end(), (Some(0), String::new()));
    }
    assert_eq!(b.end().0, None);
}

#[test]
fn a_relay_ends_with_its_lease() {
    let (dir, bytes) = (tempfile::tempdir().unwrap(), bytes());
    let mut relay = Relay::start(dir.path(), &bytes, SECRET, false);
    relay.port();
    drop(relay.input.take());
    assert_eq!(relay.end().0, Some(70));
}
