//! Rank 0's listening sockets.

use super::{BootError, is_loopback};
use nix::errno::Errno;
use socket2::{Domain, Protocol, Socket, Type};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

/// More than the kernel's own bound does no harm.
const BACKLOG: i32 = 4096;

/// Listens for a master that the others name so: on loopback alone where it is loopback, else on every address of the
/// host, IPv6 and IPv4.
pub(super) fn listen(master: &str, port: u16) -> Result<Vec<TcpListener>, BootError> {
    // protocol 1.2
    let addresses: Vec<IpAddr> = match master.parse::<IpAddr>() {
        Ok(address) if is_loopback(master) => vec![address],
        Err(_) if is_loopback(master) => vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()],
        _ => vec![Ipv6Addr::UNSPECIFIED.into()],
    };
    let mut listeners = Vec::new();
    let mut last = None;
    for address in &addresses {
        match one(SocketAddr::new(*address, port)) {
            Ok(listener) => listeners.push(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(BootError::PortInUse { port });
            }
            Err(error) => last = Some((*address, error)),
        }
    }
    // A host without IPv6 still has IPv4.
    if listeners.is_empty() && addresses == [IpAddr::from(Ipv6Addr::UNSPECIFIED)] {
        let address = IpAddr::from(Ipv4Addr::UNSPECIFIED);
        match one(SocketAddr::new(address, port)) {
            Ok(listener) => listeners.push(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                return Err(BootError::PortInUse { port });
            }
            Err(error) => last = Some((address, error)),
        }
    }
    match last {
        Some((address, error)) if listeners.is_empty() => {
            let place = SocketAddr::new(address, port).to_string();
            Err(BootError::Listen {
                place,
                reason: why(&error),
            })
        }
        _ => Ok(listeners),
    }
}

fn one(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // A port whose last run has just ended is free, whatever its closed connections still wait for.
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn why(error: &io::Error) -> String {
    let hint = match error.raw_os_error().map(Errno::from_raw) {
        Some(Errno::EACCES) => "; ports below 1024 belong to the system: choose another TF_TP_PORT",
        Some(Errno::EADDRNOTAVAIL) => {
            "; this host does not have the address: rank 0 must run where TF_TP_MASTER points"
        }
        _ => "",
    };
    format!("{error}{hint}")
}
