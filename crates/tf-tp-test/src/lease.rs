//! The lease: the orchestrator's first line and its beats on standard input. A rank whose input closes, that is told to
//! end, or that hears nothing for [`LEASE_LIMIT_S`] leaves with exit 70, so that a lost workstation or network leaves no
//! orphan.

use crate::exit_code::Refusal;
use crate::os;
use std::io::Read;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};
use tp_receipt::control::{LEASE_LIMIT_S, Order, SCHEMA, START_LINE_MAX, Start};

/// Longest line after the first that is looked at, bytes; a longer one is no word of ours and is dropped.
const ORDER_MAX: usize = 4096;

/// How long a rank waits for a sign of life.
pub fn limit() -> Duration {
    Duration::from_secs_f64(LEASE_LIMIT_S)
}

/// Reads lines from a stream with a deadline for each.
pub struct Lines<R> {
    input: R,
    buffer: Vec<u8>,
    max: usize,
}

/// What came of waiting for a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    /// A whole line without its end.
    Line(Vec<u8>),
    /// The stream is at its end.
    End,
    /// Nothing came in time.
    Silence,
    /// A line longer than allowed.
    TooLong,
}

impl<R: Read + AsFd> Lines<R> {
    /// Lines of at most `max` bytes.
    pub fn new(input: R, max: usize) -> Self {
        Self {
            input,
            buffer: Vec::new(),
            max,
        }
    }

    /// The next line, waiting at most until `deadline`. An error of the stream counts as its end.
    pub fn next(&mut self, deadline: Instant) -> Heard {
        loop {
            if let Some(at) = self.buffer.iter().position(|b| *b == b'\n') {
                let rest = self.buffer.split_off(at + 1);
                let mut line = std::mem::replace(&mut self.buffer, rest);
                line.pop();
                return Heard::Line(line);
            }
            if self.buffer.len() > self.max {
                return Heard::TooLong;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match os::wait_readable(self.input.as_fd(), left) {
                Ok(true) => {}
                Ok(false) => return Heard::Silence,
                Err(_) => return Heard::End,
            }
            let mut chunk = [0; 4096];
            match self.input.read(&mut chunk) {
                Ok(0) => return Heard::End,
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::End,
            }
        }
    }
}

/// Standard input without the standard library's buffer, which would hide bytes from `poll`.
pub struct RawStdin(std::io::Stdin);

impl RawStdin {
    /// Standard input of this process.
    pub fn new() -> Self {
        Self(std::io::stdin())
    }
}

impl Default for RawStdin {
    fn default() -> Self {
        Self::new()
    }
}

impl AsFd for RawStdin {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Read for RawStdin {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        nix::unistd::read(self.0.as_fd(), buf).map_err(Into::into)
    }
}

/// The first line of `lines`, checked. A stream that ends or stays silent is a lost lease (70); a line that is no start
/// line is a usage error (2).
pub fn read_start<R: Read + AsFd>(lines: &mut Lines<R>) -> Result<Start, Refusal> {
    let line = match lines.next(Instant::now() + limit()) {
        Heard::Line(line) => line,
        Heard::End => {
            return Err(Refusal::lost(
                "lost the lease: standard input closed before the start line came",
            ));
        }
        Heard::Silence => {
            return Err(Refusal::lost(format!(
                "lost the lease: no start line on standard input for {LEASE_LIMIT_S} s"
            )));
        }
        Heard::TooLong => {
            return Err(Refusal::usage(format!(
                "the start line on standard input is over {START_LINE_MAX} bytes"
            )));
        }
    };
    parse_start(&line)
}

/// Parses and checks a start line.
pub fn parse_start(line: &[u8]) -> Result<Start, Refusal> {
    // The error of the parser would quote nothing secret: it names a position, never a value.
    let start: Start = serde_json::from_slice(line).map_err(|e| {
        let (line, column) = (e.line(), e.column());
        Refusal::usage(format!(
            "the start line on standard input is not one: {:?} error at {line}:{column}",
            e.classify()
        ))
    })?;
    if start.schema != SCHEMA {
        return Err(Refusal::usage(format!(
            "the start line has schema {}, this runner reads {SCHEMA}: use orchestrator and runner of one version",
            start.schema
        )));
    }
    let names = start.settings.keys().chain(&start.unset);
    if let Some(bad) = names.into_iter().find(|n| !crate::start::is_a_name(n)) {
        return Err(Refusal::usage(format!(
            "the start line names a variable {bad:?}, which no environment can hold"
        )));
    }
    Ok(start)
}

/// Follows the lease until it is lost and says why. `first` bytes may have been read with the start line already.
pub fn follow<R: Read + AsFd>(lines: &mut Lines<R>) -> String {
    lines.max = ORDER_MAX;
    let mut deadline = Instant::now() + limit();
    loop {
        match lines.next(deadline) {
            Heard::Line(line) => match Order::parse(&String::from_utf8_lossy(&line)) {
                Some(Order::Beat) => deadline = Instant::now() + limit(),
                Some(Order::End) => return "the orchestrator said end".to_owned(),
                None => {}
            },
            Heard::End => return "lost the lease: standard input closed".to_owned(),
            Heard::Silence => return format!("lost the lease: no beat for {LEASE_LIMIT_S} s"),
            Heard::TooLong => lines.buffer.clear(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    fn lines_of(text: &[u8]) -> Lines<UnixStream> {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        theirs.write_all(text).unwrap();
        Lines::new(ours, START_LINE_MAX)
    }

    #[test]
    fn the_start_line_is_read_and_the_beats_behind_it_kept() {
        let mut lines = lines_of(b"{\"schema\":1,\"session\":\"s\"}\nbeat\nsomething new\nend\n");
        assert_eq!(read_start(&mut lines).unwrap().session, "s");
        assert_eq!(follow(&mut lines), "the orchestrator said end");
    }

    #[test]
    fn a_closed_stream_is_a_lost_lease() {
        let mut lines = lines_of(b"{\"schema\":1,\"session\":\"s\"}\nbeat\nhalf a li");
        read_start(&mut lines).unwrap();
        assert!(follow(&mut lines).contains("closed"));
        assert_eq!(
            read_start(&mut lines_of(b"")).unwrap_err().code,
            crate::exit_code::LOST
        );
    }

    #[test]
    fn a_line_that_is_no_start_line_is_a_usage_error_that_shows_no_secret() {
        for bad in [
            "",
            "beat",
            "[1]",
            r#"{"schema":1}"#,
            r#"{"schema":2,"session":"s"}"#,
        ] {
            let refusal = parse_start(bad.as_bytes()).unwrap_err();
            assert_eq!(refusal.code, crate::exit_code::USAGE, "{bad}");
            assert!(!refusal.text.contains('\n'), "{bad}");
        }
        let secret = r#"{"schema":1,"session":"s","secret":{"deadbeef":1}}"#;
        assert!(
            !parse_start(secret.as_bytes())
                .unwrap_err()
                .text
                .contains("deadbeef")
        );
        let name = r#"{"schema":1,"session":"s","settings":{"A=B":"x"}}"#;
        assert!(parse_start(name.as_bytes()).unwrap_err().text.contains("A=B"));
    }
}
