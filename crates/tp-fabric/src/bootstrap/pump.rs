//! Sends to and reads from many connections at once, at the pace of each, until all are done.

use super::frame::{Frame, Reader};
use crate::os;
use nix::poll::{PollFd, PollFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Instant;

/// One connection and what is to happen on it.
pub(super) struct Party<'a> {
    socket: &'a TcpStream,
    out: &'a [u8],
    reader: Option<Reader>,
    pub got: Option<Frame>,
}

/// Why not all were done.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A connection ended or brought what it should not.
    Ended { index: usize, reason: String },
    /// The deadline passed; these were not done.
    Late { indices: Vec<usize> },
    /// The system failed.
    System(String),
}

impl<'a> Party<'a> {
    /// Sends `out` and reads nothing.
    pub fn tell(socket: &'a TcpStream, out: &'a [u8]) -> Self {
        Self {
            socket,
            out,
            reader: None,
            got: None,
        }
    }

    /// Sends `out`, then reads one frame; a frame that comes before all is sent ends the sending.
    pub fn ask(socket: &'a TcpStream, out: &'a [u8]) -> Self {
        Self {
            socket,
            out,
            reader: Some(Reader::default()),
            got: None,
        }
    }

    fn is_done(&self) -> bool {
        if self.reader.is_some() {
            self.got.is_some()
        } else {
            self.out.is_empty()
        }
    }

    fn send(&mut self) -> Result<(), String> {
        while !self.out.is_empty() {
            match self.socket.write(self.out) {
                Ok(n) => self.out = self.out.get(n..).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The peer may have said why before it closed.
                Err(_) if self.reader.is_some() => {
                    self.out = &[];
                    return Ok(());
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }

    fn receive(&mut self, scratch: &mut [u8]) -> Result<(), String> {
        let Some(reader) = &mut self.reader else {
            return Ok(());
        };
        while self.got.is_none() {
            let wants = reader.wants().min(scratch.len());
            match self.socket.read(scratch.get_mut(..wants).unwrap_or_default()) {
                Ok(0) => return Err("end of stream: it failed, exited or was killed".to_owned()),
                Ok(n) => self.got = reader.push(scratch.get(..n).unwrap_or_default())?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(())
    }
}

/// Serves all parties until each is done. The sockets must not block.
pub(super) fn pump(parties: &mut [Party<'_>], deadline: Instant) -> Result<(), Trouble> {
    let mut scratch = vec![0; 64 << 10];
    let mut open: Vec<usize> = (0..parties.len()).collect();
    // Most of what is sent fits at once, and saves a turn of the loop.
    for (index, party) in parties.iter_mut().enumerate() {
        party.send().map_err(|reason| Trouble::Ended { index, reason })?;
    }
    loop {
        open.retain(|index| parties.get(*index).is_some_and(|party| !party.is_done()));
        if open.is_empty() {
            return Ok(());
        }
        let ready = {
            let mut fds: Vec<_> = open
                .iter()
                .filter_map(|index| parties.get(*index))
                .map(poll_fd)
                .collect();
            let ready = os::poll(&mut fds, Some(deadline)).map_err(|e| Trouble::System(e.to_string()))?;
            if ready == 0 && Instant::now() >= deadline {
                return Err(Trouble::Late { indices: open });
            }
            let ready = fds
                .iter()
                .zip(&open)
                .filter(|(fd, _)| os::want_read(fd) || os::want_write(fd));
            ready.map(|(_, index)| *index).collect::<Vec<_>>()
        };
        for index in ready {
            let Some(party) = parties.get_mut(index) else {
                continue;
            };
            party
                .send()
                .and_then(|()| party.receive(&mut scratch))
                .map_err(|reason| Trouble::Ended { index, reason })?;
        }
    }
}

fn poll_fd<'a>(party: &'a Party<'_>) -> PollFd<'a> {
    let mut flags = PollFlags::empty();
    if !party.out.is_empty() {
        flags |= PollFlags::POLLOUT;
    }
    if party.reader.is_some() {
        flags |= PollFlags::POLLIN;
    }
    PollFd::new(party.socket.as_fd(), flags)
}
