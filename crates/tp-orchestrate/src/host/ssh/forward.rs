//! A TCP stream through a jump host: bytes between a channel and one end of a socket pair, whose other end carries the
//! session to the host behind it.

use super::channel::Moved;
use super::connection::Stuck;
use nix::poll::{PollFd, PollFlags};
use ssh2::{Channel, ErrorCode, Session};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;

/// Bytes kept for either direction; behind them the other side waits.
const KEPT: usize = 256 * 1024;
/// LIBSSH2_ERROR_EAGAIN.
const AGAIN: i32 = -37;

pub(super) struct Forward {
    host: String,
    port: u16,
    stream: UnixStream,
    channel: Option<Channel>,
    /// From the stream to the channel.
    out: Vec<u8>,
    /// From the channel to the stream.
    back: Vec<u8>,
    stream_ended: bool,
    over: bool,
    stuck: bool,
    stuck_in_write: bool,
}

impl Forward {
    pub fn new(host: String, port: u16, stream: UnixStream) -> Self {
        Self {
            host,
            port,
            stream,
            channel: None,
            out: Vec::new(),
            back: Vec::new(),
            stream_ended: false,
            over: false,
            stuck: false,
            stuck_in_write: false,
        }
    }

    /// Whether it still waits for its channel.
    pub fn opening(&self) -> bool {
        self.channel.is_none() && !self.over
    }

    /// Whether it is at its end; its stream closes when it is dropped.
    pub fn over(&self) -> bool {
        self.over
    }

    /// Whether a packet of it is half sent.
    pub fn is_stuck(&self) -> bool {
        self.stuck
    }

    /// What its stream is to be waited for.
    pub fn poll_fd(&self) -> Option<PollFd<'_>> {
        let mut events = PollFlags::empty();
        if self.out.len() < KEPT && !self.stream_ended && self.channel.is_some() {
            events |= PollFlags::POLLIN;
        }
        if !self.back.is_empty() {
            events |= PollFlags::POLLOUT;
        }
        (!events.is_empty()).then(|| PollFd::new(self.stream.as_fd(), events))
    }

    /// Moves bytes as far as they go without waiting.
    pub fn step(&mut self, session: &Session) -> Moved {
        self.stuck = false;
        let moved = self.moved(session);
        self.stuck = matches!(moved, Moved::Stuck);
        moved
    }

    fn moved(&mut self, session: &Session) -> Moved {
        let Some(channel) = &mut self.channel else {
            return match session.channel_direct_tcpip(&self.host, self.port, None) {
                Ok(channel) => {
                    self.channel = Some(channel);
                    Moved::On
                }
                Err(error) if error.code() == ErrorCode::Session(AGAIN) => patience(session),
                // The jump host cannot reach the place: the stream closes, and the session on it fails with that.
                Err(_) => {
                    self.over = true;
                    Moved::Over
                }
            };
        };
        let mut progress = false;
        // A half-sent packet must be finished before reading, which may itself have something to send.
        if std::mem::take(&mut self.stuck_in_write) {
            match write_out(session, channel, &mut self.out) {
                Ok(moved) => progress |= moved,
                Err(moved) => {
                    self.stuck_in_write = true;
                    return moved;
                }
            }
        }
        let mut chunk = [0; 32 * 1024];
        while self.back.len() < KEPT {
            match channel.read(&mut chunk) {
                Ok(0) => break,
                Ok(n) => self.back.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if Stuck::of(session).is_some() {
                        return Moved::Stuck;
                    }
                    break;
                }
                Err(e) => return Moved::Broken(e.to_string()),
            }
            progress = true;
        }
        while !self.stream_ended && self.out.len() < KEPT {
            match self.stream.read(&mut chunk) {
                Ok(0) => self.stream_ended = true,
                Ok(n) => {
                    self.out.extend_from_slice(&chunk[..n]);
                    progress = true;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.stream_ended = true,
            }
        }
        match write_out(session, channel, &mut self.out) {
            Ok(moved) => progress |= moved,
            Err(moved) => {
                self.stuck_in_write = true;
                return moved;
            }
        }
        while !self.back.is_empty() {
            match self.stream.write(&self.back) {
                Ok(n) => drop(self.back.drain(..n)),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(_) => {
                    self.over = true;
                    return Moved::Over;
                }
            }
            progress = true;
        }
        if (channel.eof() && self.back.is_empty()) || (self.stream_ended && self.out.is_empty()) {
            self.over = true;
            return Moved::Over;
        }
        if progress { Moved::On } else { Moved::Waits }
    }
}

/// Writes what the channel takes and says whether that was anything; an error where a packet is half sent. What a channel
/// does not take any more is dropped: its other side is gone.
fn write_out(session: &Session, channel: &mut Channel, out: &mut Vec<u8>) -> Result<bool, Moved> {
    let mut progress = false;
    while !out.is_empty() {
        let turn = out.len().min(32 * 1024);
        match channel.write(&out[..turn]) {
            Ok(n) => drop(out.drain(..n)),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if Stuck::of(session).is_some() {
                    return Err(Moved::Stuck);
                }
                break;
            }
            Err(_) => out.clear(),
        }
        progress = true;
    }
    Ok(progress)
}

fn patience(session: &Session) -> Moved {
    Stuck::of(session).map_or(Moved::Waits, |_| Moved::Stuck)
}
