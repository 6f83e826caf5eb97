//! The two streams of a supervised rank: lines in, bytes out.

use super::News;
use super::child::Input;
use crate::lease::{self, Heard, Lines, RawStdin};
use crate::os;
use crate::sink::Sink;
use std::io::{self, Read, Write};
use std::process::ChildStdout;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};
use tp_receipt::control::{Order, START_LINE_MAX, clock_token};
use tp_receipt::event::{Kind, LINE_MAX};

/// The main loop keeps the lease; the reader only has to wake up now and then.
const WAKE_UP: Duration = Duration::from_secs(3600);

/// Starts the thread that forwards this process's standard input to the rank, a line at a time, and tells what passes.
pub(super) fn input(to: Input, tell: Sender<News>, sink: Sink) -> io::Result<()> {
    std::thread::Builder::new()
        .name("input".to_owned())
        .spawn(move || forward(&to, &tell, &sink))
        .map(drop)
}

fn forward(to: &Input, tell: &Sender<News>, sink: &Sink) {
    let mut lines = Lines::new(RawStdin::new(), START_LINE_MAX);
    let mut first = true;
    loop {
        let mut line = match lines.next(Instant::now() + WAKE_UP) {
            Heard::Line(line) => line,
            Heard::Silence => continue,
            Heard::End | Heard::TooLong => {
                to.close();
                let _ = tell.send(News::End("lease"));
                return;
            }
        };
        let now = os::monotonic_ns();
        let _ = tell.send(News::Alive);
        if let Some(token) = clock_token(&String::from_utf8_lossy(&line)) {
            answer_clock(token, now, sink);
            continue;
        }
        let rank = first.then(|| rank_of(&line)).flatten();
        first = false;
        if let Some(rank) = rank {
            let _ = tell.send(News::Rank(rank));
        }
        let order = Order::parse(&String::from_utf8_lossy(&line));
        line.push(b'\n');
        to.write(&line);
        if order == Some(Order::End) {
            to.close();
            let _ = tell.send(News::End("stop"));
        }
    }
}

/// Says this host's clock. The event is none of the run's: the orchestrator takes it out.
fn answer_clock(token: u64, monotonic_ns: u64, sink: &Sink) {
    let mut map = serde_json::Map::new();
    map.insert("event".to_owned(), "clock".into());
    map.insert("token".to_owned(), token.into());
    map.insert("monotonic_ns".to_owned(), monotonic_ns.into());
    sink.event_as(None, Kind::Unknown(map));
}

/// The rank that a start line sets.
fn rank_of(line: &[u8]) -> Option<u32> {
    lease::parse_start(line)
        .ok()?
        .settings
        .get("TF_TP_RANK")?
        .trim()
        .parse()
        .ok()
}

/// Starts the thread that brings the rank's standard output to ours, unchanged but for a line feed behind a last line
/// that has none, so that what follows begins a line of its own.
pub(super) fn output(from: Option<ChildStdout>, tell: Sender<News>) -> io::Result<()> {
    let thread = std::thread::Builder::new().name("output".to_owned());
    thread
        .spawn(move || {
            if let Some(from) = from
                && copy(from).is_err()
            {
                // Nobody reads us any more: the orchestrator is gone.
                let _ = tell.send(News::End("lease"));
            }
            let _ = tell.send(News::Drained);
        })
        .map(drop)
}

/// Copies whole lines: what this process says itself stands between them, never inside one.
fn copy(mut from: ChildStdout) -> io::Result<()> {
    let mut chunk = vec![0; 64 * 1024];
    let mut kept = Vec::new();
    loop {
        let n = match from.read(&mut chunk) {
            Ok(0) | Err(_) => break,
            Ok(n) => n,
        };
        kept.extend_from_slice(&chunk[..n]);
        let whole = match kept.iter().rposition(|b| *b == b'\n') {
            Some(at) => at + 1,
            // No event is that long: what has no end is passed on in pieces.
            None if kept.len() > LINE_MAX => kept.len(),
            None => continue,
        };
        write(&kept[..whole])?;
        kept.drain(..whole);
    }
    if !kept.is_empty() {
        kept.push(b'\n');
        write(&kept)?;
    }
    Ok(())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes)?;
    out.flush()
}
