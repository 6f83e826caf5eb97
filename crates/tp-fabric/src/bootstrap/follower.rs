//! The other ranks of the bootstrap: find rank 0, connect twice, prove and be proved to.

use super::auth;
use super::handshake::{Connecting, Connector};
use super::hello::{Hello, Role};
use super::{BootConfig, BootError, Met, Visitors};
use crate::os;
use crate::types::Rank;
use nix::poll::{PollFd, PollFlags};
use socket2::{Domain, Protocol, Socket, Type};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// First and longest limit of one attempt to connect: short first, so that a dead first address costs little.
const ATTEMPT: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// First and longest pause between rounds.
const PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(50));
/// A name is looked up anew this often.
const LOOK_UP_EVERY: Duration = Duration::from_secs(5);
/// What rank 0 has to answer a handshake.
const ANSWER: Duration = Duration::from_secs(10);

/// Why one attempt came to nothing.
enum Attempt {
    /// Nobody there, or not yet: try again.
    Again(String),
    /// Trying again would not help.
    Final(BootError),
}

/// Meets rank 0.
pub(super) fn meet(config: &BootConfig, deadline: Instant) -> Result<Met, BootError> {
    let instance = hex::encode(auth::nonce()?.get(..16).unwrap_or_default());
    // protocol 1.1
    let (control, host) = connect(config, Role::Control, &instance, deadline)?;
    let (plan, _) = connect(config, Role::Plan, &instance, deadline)?;
    let address = control
        .local_addr()
        .ok()
        .map(|address| address.ip().to_canonical());
    let hosts = config.world.ranks().map(|rank| match rank {
        Rank(0) => host.clone(),
        rank if rank == config.rank => config.host.clone(),
        _ => "?".to_owned(),
    });
    let hosts = hosts.collect();
    Ok(Met {
        hosts,
        control: vec![control],
        plan: vec![plan],
        address,
        visitors: Visitors::default(),
    })
}

fn connect(
    config: &BootConfig,
    role: Role,
    instance: &str,
    deadline: Instant,
) -> Result<(TcpStream, String), BootError> {
    let (mut limit, mut pause) = (ATTEMPT.0, PAUSE.0);
    let mut addresses = Vec::new();
    let mut looked_up: Option<Instant> = None;
    let mut seen: Vec<(SocketAddr, String)> = Vec::new();
    loop {
        if looked_up.is_none_or(|at| at.elapsed() > LOOK_UP_EVERY) {
            addresses = resolve(config, deadline, &addresses)?;
            looked_up = Some(Instant::now());
        }
        // protocol 1.3
        for address in &addresses {
            let until = deadline.min(Instant::now() + limit);
            match attempt(config, role, instance, *address, until, deadline) {
                Ok(met) => return Ok(met),
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Again(reason)) => {
                    seen.retain(|(other, _)| other != address);
                    seen.push((*address, reason));
                }
            }
        }
        if Instant::now() + pause >= deadline {
            let each = seen
                .iter()
                .map(|(address, reason)| format!("{}: {reason}", address.ip()));
            let reason = each.collect::<Vec<_>>().join("; ");
            let (master, port) = (config.master.clone(), config.port);
            return Err(BootError::Unreachable {
                master,
                port,
                seconds: config.timeout.into(),
                reason,
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(PAUSE.1);
        limit = (limit * 2).min(ATTEMPT.1);
    }
}

/// All addresses of the master. The system's resolver knows no deadline, so it runs on a thread that may outlive this
/// call; `known` is what an earlier look-up gave, good enough where a later one fails.
fn resolve(
    config: &BootConfig,
    deadline: Instant,
    known: &[SocketAddr],
) -> Result<Vec<SocketAddr>, BootError> {
    let (master, port) = (config.master.clone(), config.port);
    if let Ok(address) = master.parse() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let mut pause = PAUSE.0;
    loop {
        let (send, receive) = mpsc::channel();
        let name = master.clone();
        let look_up = move || {
            let found = (name.as_str(), port)
                .to_socket_addrs()
                .map(Iterator::collect::<Vec<_>>);
            // Nobody listens any more where the deadline has passed.
            let _ = send.send(found.map_err(|e| e.to_string()));
        };
        let thread = std::thread::Builder::new().name("resolve".into());
        thread
            .spawn(look_up)
            .map_err(|e| BootError::system("start the resolver's thread", &e))?;
        let left = deadline.saturating_duration_since(Instant::now());
        let reason = match receive.recv_timeout(left) {
            Ok(Ok(found)) if !found.is_empty() => {
                let mut unique = Vec::new();
                for address in found {
                    if !unique.contains(&address) {
                        unique.push(address);
                    }
                }
                return Ok(unique);
            }
            Ok(Ok(_)) => "it has no address".to_owned(),
            Ok(Err(reason)) => reason,
            Err(_) => "the resolver does not answer".to_owned(),
        };
        if !known.is_empty() {
            return Ok(known.to_vec());
        }
        if Instant::now() + pause >= deadline {
            return Err(BootError::Resolve {
                master,
                reason,
                seconds: config.timeout.into(),
            });
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_secs(1));
    }
}

fn attempt(
    config: &BootConfig,
    role: Role,
    instance: &str,
    address: SocketAddr,
    until: Instant,
    deadline: Instant,
) -> Result<(TcpStream, String), Attempt> {
    let socket = open(address, until).map_err(|error| Attempt::Again(explain(&error)))?;
    let until = deadline.min(Instant::now() + ANSWER);
    let host = shake_hands(config, role, instance, address, &socket, until)?;
    Ok((socket, host))
}

/// Connects without blocking, so that packets which nobody answers cost no more than the attempt's limit.
fn open(address: SocketAddr, until: Instant) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {
            let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
            if os::poll(&mut fds, Some(until))? == 0 {
                return Err(ErrorKind::TimedOut.into());
            }
            if let Some(error) = socket.take_error()? {
                return Err(error);
            }
        }
        Err(error) => return Err(error),
    }
    socket.set_tcp_nodelay(true)?;
    let stream: TcpStream = socket.into();
    // Linux connects a socket to itself when it happens to pick the wanted port as its own.
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        return Err(ErrorKind::ConnectionRefused.into());
    }
    Ok(stream)
}

fn shake_hands(
    config: &BootConfig,
    role: Role,
    instance: &str,
    address: SocketAddr,
    socket: &TcpStream,
    until: Instant,
) -> Result<String, Attempt> {
    let hello = Hello {
        world: config.world,
        rank: config.rank,
        role,
        instance: instance.to_owned(),
        session: config.session.clone(),
        host: config.host.clone(),
        pid: std::process::id(),
    };
    let nonce = auth::nonce().map_err(Attempt::Final)?;
    let (mut machine, first) = Connector::new(config.secret.clone(), nonce, &hello);
    send(socket, &first, until)?;
    let host = address.ip().to_string();
    let mut buffer = [0; 4096];
    loop {
        let wants = machine.wants().min(buffer.len());
        let bytes = match receive(socket, buffer.get_mut(..wants).unwrap_or_default(), until) {
            Ok(n) => buffer.get(..n).unwrap_or_default(),
            Err(reason) => {
                return Err(match machine.hopeless() {
                    Some(why) => refused(address, &host, why.to_owned(), false),
                    None => Attempt::Again(reason),
                });
            }
        };
        match machine.push(bytes) {
            Connecting::More => {}
            Connecting::Send(bytes) => send(socket, &bytes, until)?,
            Connecting::Welcome { host } => return Ok(host),
            Connecting::Over { why } => return Err(Attempt::Final(BootError::Over { reason: why })),
            Connecting::Refused { why, proved } => return Err(refused(address, &host, why, proved)),
        }
    }
}

fn refused(address: SocketAddr, host: &str, reason: String, proved: bool) -> Attempt {
    Attempt::Final(if proved {
        BootError::Refused {
            host: host.to_owned(),
            reason,
        }
    } else {
        BootError::NotRankZero {
            place: address.to_string(),
            reason,
        }
    })
}

fn send(mut socket: &TcpStream, bytes: &[u8], until: Instant) -> Result<(), Attempt> {
    let mut left = bytes;
    while !left.is_empty() {
        match socket.write(left) {
            Ok(n) => left = left.get(n..).unwrap_or_default(),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLOUT)];
                match os::poll(&mut fds, Some(until)) {
                    Ok(0) => return Err(Attempt::Again("takes no bytes".to_owned())),
                    Ok(_) => {}
                    Err(error) => return Err(Attempt::Again(error.to_string())),
                }
            }
            // It may have said why before it closed; the read that follows finds it.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn receive(mut socket: &TcpStream, buffer: &mut [u8], until: Instant) -> Result<usize, String> {
    loop {
        match socket.read(buffer) {
            Ok(0) => return Err("closed the connection before its verdict".to_owned()),
            Ok(n) => return Ok(n),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                let mut fds = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
                match os::poll(&mut fds, Some(until)) {
                    Ok(0) => {
                        return Err(
                            "accepts connections but does not answer: is another program on that port?"
                                .to_owned(),
                        );
                    }
                    Ok(_) => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            Err(error) => return Err(format!("broke the connection: {error}")),
        }
    }
}

/// What an attempt's failure usually means.
fn explain(error: &io::Error) -> String {
    let hint = match error.kind() {
        ErrorKind::ConnectionRefused => "closed (refused): rank 0 is not started, or listens on another port",
        ErrorKind::TimedOut => "filtered (no answer): a firewall drops it, or the host is down",
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
            "no route: check the address and this host's network"
        }
        _ => return error.to_string(),
    };
    hint.to_owned()
}
