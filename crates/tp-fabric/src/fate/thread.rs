//! The fate channel's thread: polls, reads, writes what fits, and leaves all decisions to [`Watch`].

use super::FateReport;
use super::frame::Frame;
use super::handle::Shared;
use super::watch::{Watch, merge};
use crate::os;
use crate::types::Rank;
use nix::poll::{PollFd, PollFlags};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Reads of one connection before the others have their turn; what is left is found at the next one.
const READS_PER_TURN: usize = 64;

/// A connection and what could not be sent yet. The outbox is bounded: heartbeats are dropped while it is not empty.
struct Link {
    socket: TcpStream,
    outbox: Vec<u8>,
    open: bool,
}

pub(super) struct Loop {
    shared: Arc<Shared>,
    links: Vec<Link>,
    wake: File,
    watch: Watch,
    next_beat: Instant,
    next_memory: Instant,
    /// The phase that the last beat named.
    phase_told: String,
    stop_sent: bool,
    bye_sent: bool,
    close_by: Option<Instant>,
}

/// What one turn of the loop came to.
enum Turn {
    GoOn,
    Failed(FateReport),
    Closed,
}

impl Loop {
    pub fn new(shared: Arc<Shared>, links: Vec<TcpStream>, wake: File) -> Self {
        let now = Instant::now();
        let link = |socket| Link {
            socket,
            outbox: Vec::new(),
            open: true,
        };
        Self {
            watch: Watch::new(&shared.config, now),
            links: links.into_iter().map(link).collect(),
            shared,
            wake,
            next_beat: now,
            next_memory: now,
            phase_told: String::new(),
            stop_sent: false,
            bye_sent: false,
            close_by: None,
        }
    }

    fn turn(&mut self) -> Turn {
        let before = Instant::now();
        let readable = match self.wait() {
            Ok(readable) => readable,
            Err(error) => {
                return Turn::Failed(self.own(&format!("failed to poll the fate channel: {error}")));
            }
        };
        let (mut said, mut seen) = (Vec::new(), Vec::new());
        for index in readable {
            self.read(index, &mut said, &mut seen);
        }
        let now = Instant::now();
        if now.saturating_duration_since(before.max(self.next_beat)) > self.shared.config.limit / 2 {
            self.watch.forgive(now);
        }
        if said.is_empty() && seen.is_empty() {
            seen.extend(self.watch.tick(now));
        }
        let told = said.len();
        said.append(&mut seen);
        let first: Vec<Rank> = said.iter().take(told).map(|report| report.culprit).collect();
        if let Some(report) = merge(said, |report| first.contains(&report.culprit)) {
            return Turn::Failed(report);
        }
        self.orders(now)
    }

    /// Waits for bytes, room, a wake-up or the next beat; gives the links that have something to read.
    fn wait(&mut self) -> std::io::Result<Vec<usize>> {
        let mut deadline = self.next_beat.min(self.next_memory);
        if let Some(close_by) = self.close_by {
            deadline = deadline.min(close_by);
        }
        // A silence is over its limit between two beats.
        if let Some(silent) = self.watch.deadline() {
            deadline = deadline.min(silent + Duration::from_micros(1));
        }
        let mut which = Vec::with_capacity(self.links.len());
        let mut fds = Vec::with_capacity(self.links.len() + 1);
        fds.push(PollFd::new(self.wake.as_fd(), PollFlags::POLLIN));
        for (index, link) in self.links.iter().enumerate().filter(|(_, link)| link.open) {
            let room = if link.outbox.is_empty() {
                PollFlags::empty()
            } else {
                PollFlags::POLLOUT
            };
            fds.push(PollFd::new(link.socket.as_fd(), PollFlags::POLLIN | room));
            which.push(index);
        }
        os::poll(&mut fds, Some(deadline))?;
        let mut fds = fds.iter();
        let woken = fds.next().is_some_and(os::want_read);
        let readable = which
            .into_iter()
            .zip(fds)
            .filter(|(_, fd)| os::want_read(fd))
            .map(|(index, _)| index);
        let readable: Vec<usize> = readable.collect();
        if woken {
            let mut sink = [0; 64];
            while matches!(self.wake.read(&mut sink), Ok(n) if n == sink.len()) {}
        }
        Ok(readable)
    }

    // protocol 4.7
    /// Reads what is there. What was sent before an end counts before the end.
    fn read(&mut self, index: usize, said: &mut Vec<FateReport>, seen: &mut Vec<FateReport>) {
        let mut buffer = [0; 4096];
        for _ in 0..READS_PER_TURN {
            let Some(link) = self.links.get_mut(index).filter(|link| link.open) else {
                return;
            };
            let end = match link.socket.read(&mut buffer) {
                Ok(0) => "end of stream".to_owned(),
                Ok(n) => {
                    let bytes = buffer.get(..n).unwrap_or_default();
                    if let Some(report) = self.watch.bytes(index, bytes, Instant::now()) {
                        said.push(report);
                        link.open = false;
                    }
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => error.to_string(),
            };
            link.open = false;
            seen.extend(self.watch.end(index, &end));
        }
    }

    /// Does what the handles asked for, then sends what is due.
    fn orders(&mut self, now: Instant) -> Turn {
        let shared = Arc::clone(&self.shared);
        let mut state = shared.lock();
        if let Some(report) = state.wanted.clone() {
            return Turn::Failed(report);
        }
        if state.quit && !state.close {
            return Turn::Closed;
        }
        if state.expect_stop || state.close {
            self.watch.expect_stop();
        }
        state.stop_seen = self.watch.stop_seen();
        state.memory = self.watch.memory(now);
        state.memory_at = now;
        let (stop, close, phase) = (state.announce_stop, state.close, state.phase.clone());
        drop(state);

        let leads = shared.config.rank == Rank(0);
        // protocol 4.9
        if leads && (stop || close) && !self.stop_sent {
            self.stop_sent = true;
            self.queue(&Frame::Stop);
        }
        if close && self.close_by.is_none() {
            self.close_by = Some(now + shared.config.limit);
        }
        self.periodic(now, &phase, leads);
        let closed = self.closing(now, leads);
        self.flush();
        if closed && self.links.iter().all(|link| link.outbox.is_empty() || !link.open) {
            return Turn::Closed;
        }
        Turn::GoOn
    }

    fn periodic(&mut self, now: Instant, phase: &str, leads: bool) {
        let config = &self.shared.config;
        let (every, memory_every) = (config.heartbeat, config.memory_every);
        // protocol 4.3
        let due = now >= self.next_beat;
        if due {
            self.next_beat = now + every;
            // The last beat had a whole interval to be acknowledged, by a system that does so within a round trip.
            for (index, link) in self.links.iter().enumerate() {
                if os::unacknowledged(&link.socket).is_none_or(|bytes| bytes == 0) {
                    self.watch.taken(index, now);
                }
            }
        }
        // A new phase does not wait for its turn, so that a rank which dies in it is reported to have died in it.
        if due || self.phase_told != phase {
            phase.clone_into(&mut self.phase_told);
            let beat = Frame::Beat {
                phase: phase.to_owned(),
            }
            .encode();
            // A peer that takes nothing in needs no second heartbeat behind the first.
            for link in self
                .links
                .iter_mut()
                .filter(|link| link.open && link.outbox.is_empty())
            {
                link.outbox.extend_from_slice(&beat);
            }
        }
        // protocol 4.12
        if now >= self.next_memory {
            self.next_memory = now
                + if leads {
                    Duration::from_secs(3600)
                } else {
                    memory_every
                };
            let room = self.links.iter().all(|link| link.outbox.len() < 4096);
            if let Some(available) = os::available_memory().filter(|_| !leads && room) {
                self.queue(&Frame::Memory { available });
            }
        }
    }

    // protocol 4.10
    /// Whether this rank may go. Rank 0 waits for the others' bye, so that one which dies in the drain is noticed.
    fn closing(&mut self, now: Instant, leads: bool) -> bool {
        let Some(close_by) = self.close_by else {
            return false;
        };
        let late = now >= close_by;
        if leads && !late && !self.watch.all_left() {
            return false;
        }
        if late && !self.bye_sent && leads {
            let ranks: Vec<String> = self.watch.still_here().iter().map(Rank::to_string).collect();
            if !ranks.is_empty() {
                tracing::warn!("rank 0 leaves without the bye of rank {}", ranks.join(", "));
            }
        }
        if !self.bye_sent {
            self.bye_sent = true;
            self.queue(&Frame::Bye);
        }
        if late {
            // A rank that is only slow must not take this end for a death; one that takes nothing in is not waited for.
            self.flush();
            for link in &mut self.links {
                link.outbox.clear();
            }
        }
        true
    }

    fn queue(&mut self, frame: &Frame) {
        let bytes = frame.encode();
        for link in self.links.iter_mut().filter(|link| link.open) {
            link.outbox.extend_from_slice(&bytes);
        }
    }

    // protocol 4.13
    /// Sends what fits, never waits.
    fn flush(&mut self) {
        for link in self
            .links
            .iter_mut()
            .filter(|link| link.open && !link.outbox.is_empty())
        {
            match link.socket.write(&link.outbox) {
                Ok(n) => drop(link.outbox.drain(..n)),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                // What the peer sent before it ended is still to be read; that read finds the end too.
                Err(_) => link.outbox.clear(),
            }
        }
    }

    fn own(&self, reason: &str) -> FateReport {
        let config = &self.shared.config;
        let host = config
            .hosts
            .get(config.rank.index())
            .cloned()
            .unwrap_or_else(|| "?".to_owned());
        let phase = self.shared.lock().phase.clone();
        FateReport {
            culprit: config.rank,
            host,
            phase,
            reason: reason.to_owned(),
            own: true,
        }
    }

    // protocol 4.6
    /// Tells every rank that can still be told, then leaves.
    fn fail(&mut self, report: &FateReport) {
        for link in &mut self.links {
            link.open = true;
        }
        self.queue(&Frame::from(report));
        self.flush();
        self.shared.leave(report);
    }
}

/// The thread's body.
pub(super) fn run(mut this: Loop) {
    loop {
        match this.turn() {
            Turn::GoOn => {}
            Turn::Failed(report) => {
                this.fail(&report);
                break;
            }
            Turn::Closed => break,
        }
    }
    for link in &this.links {
        let _ = link.socket.shutdown(Shutdown::Both);
    }
    this.shared.lock().over = true;
    this.shared.changed.notify_all();
}
