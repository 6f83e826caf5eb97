//! The three streams of a rank: events from standard output, lines from standard error, orders to standard input.

use super::{Message, Said, What};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;
use tp_receipt::control::{BEAT_EVERY_S, Order, Start};
use tp_receipt::event::Event;

/// A line of events longer than this is split there, bytes. The longest ones (settings, refusals) stay far below it.
const LINE_MAX: u64 = 1 << 20;
/// So much of what is for people is passed on at once, bytes.
const CHUNK: usize = 64 << 10;
/// So much of it may wait to be written, bytes a rank.
const WAITING: usize = 4 << 20;

/// Calls `each` with every line of `input`, without the line feed. Ends at the end of the input or at an error, which a
/// dead process makes of it.
fn lines(input: impl Read, mut each: impl FnMut(String)) {
    let mut input = BufReader::new(input);
    let mut line = Vec::new();
    loop {
        line.clear();
        match input.by_ref().take(LINE_MAX).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {
                while line.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
                    line.pop();
                }
                each(text(&line));
            }
        }
    }
}

/// Text of any bytes: what is not UTF-8 stands as `\xNN`.
fn text(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        out.push_str(chunk.valid());
        chunk
            .invalid()
            .iter()
            .for_each(|b| out.push_str(&format!("\\x{b:02x}")));
    }
    out
}

/// Reads events; what is no event is passed on as noise and never interpreted.
pub(super) fn read_events(rank: u32, input: impl Read, messages: &Sender<Message>) {
    lines(input, |line| {
        if let Some(what) = event_of(rank, line) {
            // The receiver is gone only when the step is over.
            let _ = messages.send(Message { rank, what });
        }
    });
}

/// What a line of a rank's standard output says; nothing where it is empty.
pub(super) fn event_of(rank: u32, line: String) -> Option<What> {
    if line.is_empty() {
        return None;
    }
    Some(match Event::parse(&line) {
        Ok(mut event) => {
            event.rank.get_or_insert(rank);
            if event.rank == Some(rank) {
                What::Event(Box::new(event))
            } else {
                let why = format!("rank {rank} spoke for rank {}", event.rank.unwrap_or_default());
                What::Noise { line, why }
            }
        }
        Err(error) => What::Noise {
            why: error.to_string(),
            line,
        },
    })
}

/// Lines of bytes that come in pieces, as [`lines`] gives them.
#[derive(Default)]
pub(super) struct Splitter(Vec<u8>);

impl Splitter {
    /// Takes bytes and calls `each` with every line that they complete.
    pub fn push(&mut self, mut bytes: &[u8], mut each: impl FnMut(String)) {
        while let Some(at) = bytes.iter().position(|b| *b == b'\n') {
            self.0.extend_from_slice(&bytes[..at]);
            bytes = &bytes[at + 1..];
            each(self.take());
        }
        self.0.extend_from_slice(bytes);
        if self.0.len() as u64 >= LINE_MAX {
            each(self.take());
        }
    }

    /// The last line, where it had no end.
    pub fn finish(&mut self, each: impl FnOnce(String)) {
        if !self.0.is_empty() {
            each(self.take());
        }
    }

    fn take(&mut self) -> String {
        let mut line = std::mem::take(&mut self.0);
        while line.last() == Some(&b'\r') {
            line.pop();
        }
        text(&line)
    }
}

/// Reads what is for people: as it comes, in whole lines where they are not longer than [`CHUNK`]. A rank that says more
/// than can be written waits, so that nothing but the receipt grows.
pub(super) fn read_stderr(rank: u32, mut input: impl Read, messages: &Sender<Message>) {
    let waiting = Arc::new(AtomicUsize::new(0));
    let send = |bytes: Vec<u8>| {
        while waiting.load(Ordering::Relaxed) > WAITING {
            std::thread::sleep(Duration::from_millis(1));
        }
        let what = What::Stderr(Said::counted(bytes, &waiting));
        // The receiver is gone only when the step is over.
        let _ = messages.send(Message { rank, what });
    };
    let mut held = Vec::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        let n = match input.read(&mut buffer) {
            Err(e) if e.kind() == ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => break,
            Ok(n) => n,
        };
        held.extend_from_slice(&buffer[..n]);
        let end = held.iter().rposition(|b| *b == b'\n').map(|at| at + 1);
        if let Some(end) = end.or((held.len() >= CHUNK).then_some(held.len())) {
            let rest = held.split_off(end);
            send(std::mem::replace(&mut held, rest));
        }
    }
    if !held.is_empty() {
        send(held);
    }
}

/// Writes the start line, then a beat when one is due, then what is ordered; returns, and so closes the input, when the
/// other end is gone, when `orders` is dropped, or after `end`.
pub(super) fn write_orders(mut output: impl Write, start: &Start, orders: &Receiver<Order>) {
    let Ok(line) = serde_json::to_string(start) else {
        return;
    };
    if write_line(&mut output, &line).is_err() {
        return;
    }
    loop {
        let order = match orders.recv_timeout(Duration::from_secs_f64(BEAT_EVERY_S)) {
            Ok(order) => order,
            Err(RecvTimeoutError::Timeout) => Order::Beat,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        if write_line(&mut output, order.as_line()).is_err() || order == Order::End {
            return;
        }
    }
}

fn write_line(output: &mut impl Write, line: &str) -> std::io::Result<()> {
    output.write_all(format!("{line}\n").as_bytes())?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn garbage_is_noise_and_events_are_events() {
        let (send, receive) = mpsc::channel();
        let input: &[u8] = b"Welcome to host!\n\xff\xfe\n\
            {\"schema\":1,\"t\":0.5,\"event\":\"novelty\",\"x\":1}\n\
            {\"schema\":1,\"t\":1,\"rank\":7,\"event\":\"summary\",\"passed\":9,\"failed\":0,\"skipped\":0}\n\
            {\"schema\":1,\"t\":1,\"event\":\"summary\"}";
        read_events(2, input, &send);
        drop(send);
        let got: Vec<_> = receive.iter().map(|m| m.what).collect();
        assert_eq!(got.len(), 5);
        assert!(matches!(&got[0], What::Noise { line, .. } if line == "Welcome to host!"));
        assert!(matches!(&got[1], What::Noise { line, .. } if line == "\\xff\\xfe"));
        assert!(matches!(&got[2], What::Event(e) if e.name() == "novelty" && e.rank == Some(2)));
        assert!(matches!(&got[3], What::Noise { why, .. } if why.contains("spoke for rank 7")));
        assert!(matches!(&got[4], What::Noise { why, .. } if why.contains("summary")));
    }

    #[test]
    fn what_is_for_people_comes_in_whole_lines_and_never_fills_the_memory() {
        let said = |input: &mut dyn Read| -> Vec<Vec<u8>> {
            let (send, receive) = mpsc::channel();
            read_stderr(0, input, &send);
            drop(send);
            let bytes = |m: Message| match m.what {
                What::Stderr(said) => said.bytes.clone(),
                other => panic!("{other:?}"),
            };
            receive.iter().map(bytes).collect()
        };
        let mut parts = (&b"one\ntw"[..]).chain(&b"o\n\xff thr"[..]);
        assert_eq!(said(&mut parts), [&b"one\n"[..], b"two\n", b"\xff thr"]);
        let endless = said(&mut std::io::repeat(b'x').take(3 * CHUNK as u64));
        assert!(endless.iter().all(|part| part.len() <= 2 * CHUNK));
        assert_eq!(endless.concat().len(), 3 * CHUNK);
    }

    /// Whoever writes faster than the receipt can be written waits; what has been said is not held in memory.
    #[test]
    fn a_flood_waits_for_who_reads_it() {
        let (send, receive) = mpsc::channel();
        let total = 64 << 20;
        let flood = std::io::repeat(b'x').take(total);
        let writer = std::thread::spawn(move || read_stderr(0, flood, &send));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!writer.is_finished(), "all of it waits in memory");
        let size = |m: Message| {
            if let What::Stderr(said) = &m.what {
                said.bytes.len() as u64
            } else {
                0
            }
        };
        assert_eq!(receive.iter().map(size).sum::<u64>(), total);
        writer.join().unwrap();
    }

    #[test]
    fn the_start_line_comes_first_and_end_closes_the_input() {
        let (send, receive) = mpsc::channel();
        send.send(Order::Beat).unwrap();
        send.send(Order::End).unwrap();
        send.send(Order::Beat).unwrap();
        let mut written = Vec::new();
        write_orders(
            &mut written,
            &Start {
                schema: 1,
                session: "s".into(),
                ..Start::default()
            },
            &receive,
        );
        let text = String::from_utf8(written).unwrap();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[0], r#"{"schema":1,"session":"s","settings":{}}"#);
        assert_eq!(lines[1..], ["beat", "end"]);
    }
}
