//! One command on a connection: a small state machine that its connection's thread moves on whenever something can.

use super::connection::Stuck;
use ssh2::{Channel, ErrorCode, Session};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::time::{Duration, Instant};

/// Bytes read or written in one call.
const CHUNK: usize = 64 * 1024;
/// Bytes of an input that are written before others have their turn.
const TURN: usize = 1 << 20;

/// What goes to a command's standard input.
pub enum Input {
    /// Nothing: it is closed at once.
    Empty,
    /// This, then it is closed.
    Bytes(Vec<u8>),
    /// The rest of a file, then it is closed.
    File(File),
    /// Lines as they come, and one of its own whenever that long has passed without any; open until it is closed.
    Lease {
        /// What is written first.
        first: Vec<u8>,
        /// The line that says that we live.
        beat: &'static str,
        /// How often.
        every: Duration,
    },
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It returned this code.
    Exit(i32),
    /// This signal ended it, named without `SIG`.
    Signal(String),
    /// It could not be started, or its channel ended without a word; why.
    Unknown(String),
}

/// Where a command's output goes; called on the connection's thread, so it must not block.
pub trait Sink: Send {
    /// Bytes of standard output.
    fn stdout(&mut self, bytes: &[u8]);
    /// Bytes of standard error.
    fn stderr(&mut self, bytes: &[u8]);
    /// The command is gone; nothing follows. `lost` is set where the connection was.
    fn ended(&mut self, end: End);
}

enum State {
    Opening,
    Starting(Channel),
    Running(Channel),
    Closing(Channel),
}

/// A command under way.
pub(super) struct Command {
    line: String,
    state: State,
    sink: Box<dyn Sink>,
    file: Option<File>,
    beat: Option<(&'static str, Duration, Instant)>,
    queue: VecDeque<u8>,
    /// Whether the input is closed once everything in it is written.
    close_input: bool,
    input_closed: bool,
    stuck: bool,
    stuck_in_feed: bool,
}

/// What came of moving a command on.
pub(super) enum Moved {
    /// Something happened; there may be more.
    On,
    /// It waits for the other side.
    Waits,
    /// A packet is half sent: nothing else may be sent on the connection before it.
    Stuck,
    /// It is over and has said so.
    Over,
    /// The connection is broken.
    Broken(String),
}

impl Command {
    pub fn new(line: String, input: Input, sink: Box<dyn Sink>) -> Self {
        let mut command = Self {
            line,
            state: State::Opening,
            sink,
            file: None,
            beat: None,
            queue: VecDeque::new(),
            close_input: true,
            input_closed: false,
            stuck: false,
            stuck_in_feed: false,
        };
        match input {
            Input::Empty => {}
            Input::Bytes(bytes) => command.queue = bytes.into(),
            Input::File(file) => command.file = Some(file),
            Input::Lease { first, beat, every } => {
                command.queue = first.into();
                command.beat = Some((beat, every, Instant::now() + every));
                command.close_input = false;
            }
        }
        command
    }

    /// Queues bytes for its input.
    pub fn write(&mut self, bytes: &[u8]) {
        if !self.close_input {
            self.queue.extend(bytes);
        }
    }

    /// Closes its input behind what is queued.
    pub fn close_input(&mut self) {
        self.close_input = true;
        self.beat = None;
    }

    /// Says that the connection is gone.
    pub fn lost(mut self, why: &str) {
        self.sink.ended(End::Unknown(why.to_owned()));
    }

    /// Ends it without waiting for the other side.
    pub fn abandon(&mut self) {
        self.sink.ended(End::Unknown("it was given up".to_owned()));
    }

    /// Whether it still waits for a channel to be opened, which a session does one at a time.
    pub fn opening(&self) -> bool {
        matches!(self.state, State::Opening)
    }

    /// When it next has something to say by itself.
    pub fn next_beat(&self) -> Option<Instant> {
        self.beat.map(|(_, _, due)| due)
    }

    /// Whether a packet of it is half sent.
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// Moves it on as far as it goes without waiting.
    pub fn step(&mut self, session: &Session) -> Moved {
        let moved = self.moved(session);
        self.stuck = matches!(moved, Moved::Stuck);
        moved
    }

    fn moved(&mut self, session: &Session) -> Moved {
        if let Some((line, every, due)) = self.beat
            && Instant::now() >= due
        {
            self.queue.extend(line.as_bytes());
            self.queue.push_back(b'\n');
            self.beat = Some((line, every, Instant::now() + every));
        }
        let state = std::mem::replace(&mut self.state, State::Opening);
        let (state, moved) = match state {
            State::Opening => match session.channel_session() {
                Ok(channel) => (State::Starting(channel), Moved::On),
                Err(error) => (State::Opening, self.failed(session, &error, "open a channel")),
            },
            State::Starting(mut channel) => match channel.exec(&self.line) {
                Ok(()) => (State::Running(channel), Moved::On),
                Err(error) => {
                    let moved = self.failed(session, &error, "start a command");
                    (State::Starting(channel), moved)
                }
            },
            State::Running(mut channel) => {
                let moved = self.pump(session, &mut channel);
                if matches!(moved, Moved::Waits) && channel.eof() {
                    (State::Closing(channel), Moved::On)
                } else {
                    (State::Running(channel), moved)
                }
            }
            State::Closing(mut channel) => match channel.wait_close() {
                Ok(()) => {
                    let end = end_of(&channel);
                    self.sink.ended(end);
                    (State::Closing(channel), Moved::Over)
                }
                Err(error) => {
                    let moved = self.failed(session, &error, "close a channel");
                    (State::Closing(channel), moved)
                }
            },
        };
        self.state = state;
        moved
    }

    fn pump(&mut self, session: &Session, channel: &mut Channel) -> Moved {
        let mut progress = false;
        // A half-sent packet must be finished before reading, which may itself have something to send.
        if self.stuck && self.stuck_in_feed {
            match self.feed(session, channel) {
                Moved::Waits => {}
                Moved::On => progress = true,
                moved => return moved,
            }
        }
        let mut buffer = vec![0; CHUNK];
        for is_error in [false, true] {
            loop {
                let result = if is_error {
                    channel.stderr().read(&mut buffer)
                } else {
                    channel.read(&mut buffer)
                };
                match result {
                    Ok(0) => break,
                    Ok(n) if is_error => self.sink.stderr(&buffer[..n]),
                    Ok(n) => self.sink.stdout(&buffer[..n]),
                    Err(error) => match waits(session, &error) {
                        Some(Moved::Waits) => break,
                        Some(moved) => return moved,
                        None => return self.broken(session, &error.to_string()),
                    },
                }
                progress = true;
            }
        }
        let moved = self.feed(session, channel);
        self.stuck_in_feed = matches!(moved, Moved::Stuck);
        match moved {
            Moved::Waits if progress => Moved::On,
            moved => moved,
        }
    }

    /// Writes what there is to write.
    fn feed(&mut self, session: &Session, channel: &mut Channel) -> Moved {
        let mut written = 0;
        while !self.input_closed && !channel.eof() {
            if self.queue.is_empty() && !self.refill() {
                if !self.close_input {
                    break;
                }
                match channel.send_eof() {
                    Ok(()) => self.input_closed = true,
                    Err(error) => return self.write_failed(session, &error.into()),
                }
                return Moved::On;
            }
            let (front, _) = self.queue.as_slices();
            let turn = front.len().min(CHUNK);
            match channel.write(&front[..turn]) {
                Ok(n) => {
                    self.queue.drain(..n);
                    written += n;
                }
                Err(error) => return self.write_failed(session, &error),
            }
            if written >= TURN {
                return Moved::On;
            }
        }
        if written > 0 { Moved::On } else { Moved::Waits }
    }

    fn write_failed(&mut self, session: &Session, error: &std::io::Error) -> Moved {
        match waits(session, error) {
            Some(moved) => moved,
            None if is_of_channel(session) => {
                // The command has closed its input or is gone; its output and its end are still to come.
                self.input_closed = true;
                Moved::On
            }
            None => self.broken(session, &error.to_string()),
        }
    }

    /// More of the file, where there is one; whether there is anything to write.
    fn refill(&mut self) -> bool {
        let Some(file) = &mut self.file else { return false };
        let mut chunk = vec![0; 4 * CHUNK];
        match file.read(&mut chunk) {
            Ok(n) if n > 0 => {
                self.queue.extend(&chunk[..n]);
                true
            }
            // A file that cannot be read further ends here; the hash at the other end tells.
            _ => {
                self.file = None;
                false
            }
        }
    }

    fn failed(&mut self, session: &Session, error: &ssh2::Error, what: &str) -> Moved {
        match error.code() {
            ErrorCode::Session(AGAIN) => Stuck::of(session).map_or(Moved::Waits, |_| Moved::Stuck),
            ErrorCode::Session(code) if CHANNEL_ERRORS.contains(&code) => {
                let text = format!("the server refused to {what}: {error}");
                self.sink.ended(End::Unknown(text));
                Moved::Over
            }
            _ => self.broken(session, &error.to_string()),
        }
    }

    fn broken(&self, session: &Session, error: &str) -> Moved {
        let last =
            ssh2::Error::last_session_error(session).map_or(error.to_owned(), |e| e.message().to_owned());
        Moved::Broken(last)
    }
}

/// LIBSSH2_ERROR_EAGAIN.
const AGAIN: i32 = -37;
/// Errors that concern one channel: FAILURE, REQUEST_DENIED, UNKNOWN, CLOSED, EOF_SENT.
const CHANNEL_ERRORS: [i32; 5] = [-21, -22, -23, -26, -27];

fn is_of_channel(session: &Session) -> bool {
    matches!(ssh2::Error::last_session_error(session).map(|e| e.code()), Some(ErrorCode::Session(code)) if CHANNEL_ERRORS.contains(&code))
}

/// What an error that only asks for patience means; `None` for any other.
fn waits(session: &Session, error: &std::io::Error) -> Option<Moved> {
    (error.kind() == ErrorKind::WouldBlock).then(|| Stuck::of(session).map_or(Moved::Waits, |_| Moved::Stuck))
}

fn end_of(channel: &Channel) -> End {
    if let Ok(signal) = channel.exit_signal()
        && let Some(name) = signal.exit_signal
    {
        return End::Signal(name);
    }
    match channel.exit_status() {
        Ok(code) => End::Exit(code),
        Err(error) => End::Unknown(error.to_string()),
    }
}
