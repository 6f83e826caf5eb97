//! Rank 0 of the bootstrap: a loop around `poll` that serves every connection at its own pace.

use super::auth;
use super::handshake::{Accepting, Acceptor, Verdict};
use super::hello::{Hello, Role};
use super::roster::{Denied, Roster};
use super::{BootConfig, BootError, Met, Visitors, gather, listen};
use crate::os;
use crate::types::Rank;
use nix::poll::{PollFd, PollFlags};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// What a connection has for its whole handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);
/// Handshakes under way at once, besides two for every rank; beyond it the one that has waited longest goes.
const STRANGERS_AT_ONCE: usize = 256;
/// Connections accepted in one turn, so that a flood does not starve those already here.
const ACCEPTED_PER_TURN: usize = 64;
/// Pieces of 4 KiB that are read of one who is turned away; no rank sends more than two before it has an answer.
const LEFTOVERS: usize = 4;
/// How often ranks that are in are looked at, so that one which dies while others are awaited is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How long rank 0 stays to tell late ranks that the boot has failed; without the word they would wait for their own deadline.
const LINGER: Duration = Duration::from_millis(300);

/// A connection in its handshake.
struct Visitor {
    socket: TcpStream,
    from: String,
    machine: Acceptor,
    until: Instant,
}

struct Leader {
    config: BootConfig,
    listeners: Vec<TcpListener>,
    visitors: Vec<Visitor>,
    roster: Roster,
    control: Vec<Option<TcpStream>>,
    plan: Vec<Option<TcpStream>>,
}

/// Listens until all ranks are in or the deadline has passed.
pub(super) fn meet(mut config: BootConfig, deadline: Instant) -> Result<Met, BootError> {
    let listeners = match config.listener.take() {
        Some(listener) => {
            listener
                .set_nonblocking(true)
                .map_err(|e| BootError::system("prepare the listener", &e))?;
            vec![listener]
        }
        None => listen::listen(&config.master, config.port)?,
    };
    os::raise_open_files(4 * u64::from(config.world.0) + STRANGERS_AT_ONCE as u64 + 128);
    let none = |_| None;
    let mut leader = Leader {
        roster: Roster::new(config.world, &config.session),
        control: config.world.ranks().map(none).collect(),
        plan: config.world.ranks().map(none).collect(),
        visitors: Vec::new(),
        listeners,
        config,
    };
    match leader.run(deadline) {
        Ok(()) => leader.finish(),
        Err(error) => {
            // Those who are in and wait are told what they wait for in vain.
            let waiting: Vec<&TcpStream> = leader.plan.iter().flatten().collect();
            gather::announce_failure(&waiting, &error);
            if matches!(error, BootError::Lost { .. }) {
                leader.linger(&error);
            }
            Err(error)
        }
    }
}

impl Leader {
    fn run(&mut self, deadline: Instant) -> Result<(), BootError> {
        let mut look = Instant::now() + LOOK_EVERY;
        while !self.roster.is_full() {
            let now = Instant::now();
            // protocol 1.8
            if now >= deadline {
                let ranks = self.roster.missing();
                let seconds = self.config.timeout.into();
                return Err(BootError::Missing {
                    ranks,
                    seconds,
                    seen: self.roster.seen(),
                });
            }
            let (arrivals, ready) = self.wait(look.min(deadline))?;
            // From the back, since a served one may leave the list.
            for index in ready.into_iter().rev() {
                self.serve(index);
            }
            for index in arrivals {
                self.accept(index)?;
            }
            let now = Instant::now();
            self.drop_late(now);
            if now >= look {
                self.look_after_the_seated()?;
                look = Instant::now() + LOOK_EVERY;
            }
        }
        self.look_after_the_seated()
    }

    // protocol 1.10
    fn linger(&mut self, error: &BootError) {
        self.roster.close(&error.to_string());
        let until = Instant::now() + LINGER;
        while Instant::now() < until && !self.roster.all_told() {
            let Ok((arrivals, ready)) = self.wait(until) else {
                return;
            };
            for index in ready.into_iter().rev() {
                self.serve(index);
            }
            for index in arrivals {
                if self.accept(index).is_err() {
                    return;
                }
            }
            self.drop_late(Instant::now());
        }
    }

    /// Waits for something to do; gives the listeners with arrivals and the visitors with bytes.
    fn wait(&self, until: Instant) -> Result<(Vec<usize>, Vec<usize>), BootError> {
        let listeners = self.listeners.iter().map(AsFd::as_fd);
        let visitors = self.visitors.iter().map(|visitor| visitor.socket.as_fd());
        let mut fds: Vec<_> = listeners
            .chain(visitors)
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        os::poll(&mut fds, Some(until)).map_err(|e| BootError::system("wait for the other ranks", &e))?;
        let ready = |fds: &[PollFd<'_>]| {
            fds.iter()
                .enumerate()
                .filter(|(_, fd)| os::want_read(fd))
                .map(|(index, _)| index)
                .collect()
        };
        let (listeners, visitors) = fds.split_at(self.listeners.len());
        Ok((ready(listeners), ready(visitors)))
    }

    fn accept(&mut self, index: usize) -> Result<(), BootError> {
        for _ in 0..ACCEPTED_PER_TURN {
            let Some(listener) = self.listeners.get(index) else {
                return Ok(());
            };
            match listener.accept() {
                Ok((socket, from)) => {
                    if socket.set_nonblocking(true).is_err() || socket.set_nodelay(true).is_err() {
                        continue;
                    }
                    // protocol 1.7
                    if self.visitors.len() >= STRANGERS_AT_ONCE + 2 * self.config.world.size() {
                        self.send_one_away();
                    }
                    let machine = Acceptor::new(self.config.secret.clone(), auth::nonce()?);
                    let from = from.ip().to_canonical().to_string();
                    self.visitors.push(Visitor {
                        socket,
                        from,
                        machine,
                        until: Instant::now() + HANDSHAKE,
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                // Out of files or memory: make room among those who wait, or, where nobody waits, give up.
                Err(error) if is_exhaustion(&error) => {
                    if self.visitors.is_empty() {
                        return Err(BootError::system("accept another connection", &error));
                    }
                    self.send_one_away();
                }
                // The connection died before it was taken: not this host's failure.
                Err(_) => {}
            }
        }
        Ok(())
    }

    /// Turns away the visitor that has waited longest, rather one that has not said a word.
    fn send_one_away(&mut self) {
        let silent = self
            .visitors
            .iter()
            .position(|visitor| visitor.machine.is_silent());
        if !self.visitors.is_empty() {
            let visitor = self.visitors.remove(silent.unwrap_or(0));
            self.roster
                .turn_away(&visitor.from, "made room for others", false);
        }
    }

    // protocol 1.6
    fn drop_late(&mut self, now: Instant) {
        let roster = &mut self.roster;
        self.visitors.retain(|visitor| {
            let in_time = visitor.until > now;
            if !in_time {
                roster.turn_away(&visitor.from, "was too slow", false);
            }
            in_time
        });
    }

    /// Reads what a visitor has sent and answers.
    fn serve(&mut self, index: usize) {
        let mut buffer = [0; 4096];
        loop {
            let Some(visitor) = self.visitors.get_mut(index) else {
                return;
            };
            let wants = visitor.machine.wants().min(buffer.len());
            let bytes = match visitor.socket.read(buffer.get_mut(..wants).unwrap_or_default()) {
                Ok(0) => return self.dismiss(index, "went away", false, &[]),
                Ok(n) => buffer.get(..n).unwrap_or_default(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return self.dismiss(index, "went away", false, &[]),
            };
            match visitor.machine.push(bytes) {
                Accepting::More => {}
                // What goes out here is far below what an empty socket buffer holds; one that does not take it is no rank.
                Accepting::Send(reply) => {
                    if !matches!(visitor.socket.write(&reply), Ok(n) if n == reply.len()) {
                        return self.dismiss(index, "takes no answer", false, &[]);
                    }
                }
                Accepting::Hello(hello) => return self.seat(index, &hello),
                Accepting::Reject { reply, why, known } => return self.dismiss(index, &why, known, &reply),
            }
        }
    }

    fn seat(&mut self, index: usize, hello: &Hello) {
        let verdict = self.roster.admit(hello);
        let Some(visitor) = self.visitors.get_mut(index) else {
            return;
        };
        match verdict {
            Err(Denied::Refused(why)) => {
                let reply = visitor.machine.verdict(&Verdict::Refused(&why));
                self.dismiss(index, &why, true, &reply);
            }
            Err(Denied::Over(why)) => {
                let reply = visitor.machine.verdict(&Verdict::Over(&why));
                self.dismiss(index, &why, true, &reply);
            }
            Ok(()) => {
                let reply = visitor.machine.verdict(&Verdict::Welcome {
                    host: &self.config.host,
                });
                // A failed write is an end of stream, which the look after the seated finds.
                let _ = visitor.socket.write(&reply);
                let visitor = self.visitors.swap_remove(index);
                let seats = match hello.role {
                    Role::Control => &mut self.control,
                    Role::Plan => &mut self.plan,
                };
                if let Some(seat) = seats.get_mut(hello.rank.index()) {
                    *seat = Some(visitor.socket);
                }
            }
        }
    }

    fn dismiss(&mut self, index: usize, why: &str, known: bool, reply: &[u8]) {
        let mut visitor = self.visitors.swap_remove(index);
        let _ = visitor.socket.write(reply);
        // What is left unread would turn the close into a reset, which can overtake the reply.
        let _ = visitor.socket.shutdown(std::net::Shutdown::Write);
        // What somebody sends without end is not waited for.
        let mut sink = [0; 4096];
        for _ in 0..LEFTOVERS {
            if !matches!(visitor.socket.read(&mut sink), Ok(n) if n > 0) {
                break;
            }
        }
        self.roster.turn_away(&visitor.from, why, known);
    }

    // protocol 1.9
    /// A rank that is in says nothing until all are; whatever can be read from it is its end.
    fn look_after_the_seated(&self) -> Result<(), BootError> {
        let seats = self.control.iter().zip(self.config.world.ranks());
        let seated: Vec<(&TcpStream, Rank)> =
            seats.filter_map(|(s, rank)| Some((s.as_ref()?, rank))).collect();
        let mut fds: Vec<_> = seated
            .iter()
            .map(|(socket, _)| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
            .collect();
        os::poll(&mut fds, Some(Instant::now()))
            .map_err(|e| BootError::system("look after the ranks", &e))?;
        for (fd, (socket, rank)) in fds.iter().zip(&seated) {
            if !os::want_read(fd) {
                continue;
            }
            let reason = match socket.peek(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
                Ok(0) => "it went away (end of stream): it failed, exited or was killed".to_owned(),
                Ok(_) => "it sent something before all ranks were in".to_owned(),
                Err(error) => format!("it went away ({error}): it failed, exited or was killed"),
            };
            return Err(BootError::Lost {
                rank: *rank,
                host: self.roster.host(*rank),
                reason,
            });
        }
        Ok(())
    }

    fn finish(self) -> Result<Met, BootError> {
        let Self {
            config,
            roster,
            control,
            plan,
            ..
        } = self;
        let hosts = config.world.ranks().map(|rank| match rank {
            Rank(0) => config.host.clone(),
            rank => roster.host(rank),
        });
        let hosts = hosts.collect();
        let control: Vec<TcpStream> = control.into_iter().flatten().collect();
        let plan: Vec<TcpStream> = plan.into_iter().flatten().collect();
        let own: Vec<IpAddr> = control
            .iter()
            .filter_map(|socket| Some(socket.local_addr().ok()?.ip().to_canonical()))
            .collect();
        // Ranks on this host may come by loopback, where nobody else reaches it.
        let address = own
            .iter()
            .find(|address| !address.is_loopback())
            .or(own.first())
            .copied();
        let visitors = Visitors {
            strangers: roster.strangers,
            refused: roster.refused,
        };
        Ok(Met {
            hosts,
            control,
            plan,
            address,
            visitors,
        })
    }
}

fn is_exhaustion(error: &std::io::Error) -> bool {
    use nix::errno::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(
        errno,
        Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM)
    )
}
