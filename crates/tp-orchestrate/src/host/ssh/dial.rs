//! From a target to a session that is logged in: name, TCP, banner, host key, login; each with its own error.

use super::known_hosts::{self, Known, Verdict};
use super::target::{Target, has_passphrase};
use super::{Fault, Trouble};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, recv};
use ssh2::{ErrorCode, MethodType, Session};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Ciphers, the quickest first; what libssh2 was built without is left out by it.
const CIPHERS: &str = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,aes128-ctr,aes256-ctr,aes192-ctr";
/// Keys that are offered: sshd ends the connection after six unless it is set otherwise.
const KEYS_MAX: usize = 6;
/// How long the first wait is before a busy server is tried again; each further one is twice as long.
const BUSY_WAIT: Duration = Duration::from_millis(100);

/// What carries the session.
pub(super) enum Transport {
    /// A connection of our own.
    Tcp(TcpStream),
    /// The end of a channel through a jump host.
    Jump(UnixStream),
}

impl Transport {
    fn fd(&self) -> BorrowedFd<'_> {
        use std::os::fd::AsFd;
        match self {
            Self::Tcp(stream) => stream.as_fd(),
            Self::Jump(stream) => stream.as_fd(),
        }
    }
}

/// How host keys are judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostKeys {
    /// A key that is not known is refused.
    #[default]
    Known,
    /// A key of a host of which nothing is known is added to the user's file; a changed one is refused.
    AcceptNew,
}

/// A connection that is logged in.
pub(super) struct Dialed {
    pub session: Session,
    /// The socket, to wait for.
    pub socket: OwnedFd,
    /// The address at the other end, where the connection is direct.
    pub peer: Option<SocketAddr>,
}

/// Opens a session; `transport` is called for every try, since a server that is busy is tried again until `deadline`.
pub(super) fn dial(
    target: &Target,
    keys: HostKeys,
    deadline: Instant,
    mut transport: impl FnMut() -> Result<Transport, Trouble>,
) -> Result<Dialed, Trouble> {
    let mut wait = BUSY_WAIT;
    loop {
        let result = transport().and_then(|carrier| open(target, keys, deadline, carrier));
        match result {
            Err(trouble) if trouble.fault == Fault::Busy && Instant::now() + wait < deadline => {
                std::thread::sleep(wait);
                wait *= 2;
            }
            other => return other,
        }
    }
}

fn left(deadline: Instant) -> Duration {
    deadline
        .saturating_duration_since(Instant::now())
        .max(Duration::from_millis(1))
}

/// A TCP connection to the target, every address tried.
pub(super) fn tcp(target: &Target, deadline: Instant) -> Result<TcpStream, Trouble> {
    let place = || format!("{}:{}", target.host, target.port);
    let addresses: Vec<SocketAddr> = (target.host.as_str(), target.port)
        .to_socket_addrs()
        .map_err(|e| {
            Trouble::new(
                Fault::Unresolved,
                format!("resolve the name {}: {e}", target.host),
            )
        })?
        .collect();
    let mut last = None;
    for (index, address) in addresses.iter().enumerate() {
        let share = left(deadline) / u32::try_from(addresses.len() - index).unwrap_or(1);
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => {
                // Without it a keystroke of the protocol may wait for an acknowledgement; nothing fails without it.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    let error = last.unwrap_or_else(|| std::io::Error::from(std::io::ErrorKind::AddrNotAvailable));
    let (fault, text) = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => (
            Fault::Refused,
            format!(
                "connect to {}: refused: the host is up and nothing listens there; is sshd running, is the port right?",
                place()
            ),
        ),
        std::io::ErrorKind::TimedOut | std::io::ErrorKind::WouldBlock => (
            Fault::NoAnswer,
            format!(
                "connect to {}: no answer in time: the host is down, or a firewall drops the packets",
                place()
            ),
        ),
        _ => (Fault::NoAnswer, format!("connect to {}: {error}", place())),
    };
    Err(Trouble::new(fault, text))
}

fn open(target: &Target, keys: HostKeys, deadline: Instant, transport: Transport) -> Result<Dialed, Trouble> {
    await_banner(target, &transport, deadline)?;
    let peer = match &transport {
        Transport::Tcp(stream) => stream.peer_addr().ok(),
        Transport::Jump(_) => None,
    };
    let failed = |e: &dyn std::fmt::Display| Trouble::new(Fault::Other, format!("start an SSH session: {e}"));
    let socket = transport.fd().try_clone_to_owned().map_err(|e| failed(&e))?;
    let mut session = Session::new().map_err(|e| failed(&e))?;
    session.set_timeout(u32::try_from(left(deadline).as_millis()).unwrap_or(u32::MAX));
    let known = Known::read(&session, &target.key_name, &target.known_hosts);
    let _ = session.method_pref(MethodType::HostKey, &known.key_types());
    for direction in [MethodType::CryptCs, MethodType::CryptSc] {
        let _ = session.method_pref(direction, CIPHERS);
    }
    match transport {
        Transport::Tcp(stream) => session.set_tcp_stream(stream),
        Transport::Jump(stream) => session.set_tcp_stream(stream),
    }
    session.handshake().map_err(|e| handshake_failed(target, &e))?;
    judge_key(target, keys, &session, &known)?;
    log_in(target, &session)?;
    Ok(Dialed {
        session,
        socket,
        peer,
    })
}

/// Waits for the server's first bytes and tells a server that takes no further connection from one that is none.
fn await_banner(target: &Target, transport: &Transport, deadline: Instant) -> Result<(), Trouble> {
    let fd = transport.fd();
    let timeout = PollTimeout::try_from(left(deadline)).unwrap_or(PollTimeout::MAX);
    let mut polled = [PollFd::new(fd, PollFlags::POLLIN)];
    let ready = loop {
        match poll(&mut polled, timeout) {
            Err(Errno::EINTR) => {}
            other => break other,
        }
    };
    if !matches!(ready, Ok(n) if n > 0) {
        let text = format!(
            "hear from {}: it took the connection and says nothing",
            target.place()
        );
        return Err(Trouble::new(Fault::NoAnswer, text));
    }
    let mut first = [0; 255];
    let busy = |why: &str| {
        let text = format!(
            "log in to {}: the server {why}; it has too many starting sessions (MaxStartups)",
            target.place()
        );
        Trouble::new(Fault::Busy, text)
    };
    match recv(fd.as_raw_fd(), &mut first, MsgFlags::MSG_PEEK) {
        Ok(0) | Err(Errno::ECONNRESET) => Err(busy("closed the connection at once")),
        Ok(n) => {
            let text = String::from_utf8_lossy(&first[..n]);
            if text.contains("MaxStartups") {
                return Err(busy("says so"));
            }
            if text.contains("Not allowed at this time") {
                let text = format!(
                    "log in to {}: the server refuses this address for a while after failed logins",
                    target.place()
                );
                return Err(Trouble::new(Fault::Denied, text));
            }
            Ok(())
        }
        Err(e) => Err(Trouble::new(
            Fault::NoAnswer,
            format!("hear from {}: {e}", target.place()),
        )),
    }
}

fn handshake_failed(target: &Target, error: &ssh2::Error) -> Trouble {
    // LIBSSH2_ERROR_TIMEOUT, _SOCKET_TIMEOUT; the others say that what answers is no SSH server, or one without a method
    // in common.
    let fault = match error.code() {
        ErrorCode::Session(-9 | -30) => Fault::NoAnswer,
        _ => Fault::NotSsh,
    };
    Trouble::new(
        fault,
        format!("agree with the SSH server of {}: {error}", target.place()),
    )
}

fn judge_key(target: &Target, keys: HostKeys, session: &Session, known: &Known) -> Result<(), Trouble> {
    let Some((key, _)) = session.host_key() else {
        return Err(Trouble::new(Fault::NotSsh, "get the host's key: it showed none"));
    };
    let shown = known_hosts::fingerprint(session);
    let name = target.key_name.text();
    match known.judge(session, key) {
        Verdict::Right => Ok(()),
        Verdict::Unknown if keys == HostKeys::AcceptNew => {
            let file = target
                .known_hosts
                .first()
                .ok_or_else(|| Trouble::new(Fault::KeyUnknown, "find a file for known host keys"))?;
            known_hosts::add(session, &target.key_name, file).map_err(|e| Trouble::new(Fault::KeyUnknown, e))
        }
        Verdict::Unknown => Err(Trouble::new(
            Fault::KeyUnknown,
            format!(
                "trust {name}: its host key {shown} is unknown; compare it with the host's own (ssh-keygen -lf \
                 /etc/ssh/ssh_host_ed25519_key.pub), then run `tp-orchestrate push --accept-new-host-keys` or ssh once"
            ),
        )),
        Verdict::Changed(place) => Err(Trouble::new(
            Fault::KeyChanged,
            format!(
                "trust {name}: it shows the host key {shown}, another than {place} says: another machine answers, or it was \
                 installed anew; find out which, then remove that line"
            ),
        )),
        Verdict::Revoked(place) => Err(Trouble::new(
            Fault::KeyChanged,
            format!("trust {name}: its host key {shown} is revoked by {place}"),
        )),
    }
}

/// Offers the agent's keys and the identity files; never a password.
fn log_in(target: &Target, session: &Session) -> Result<(), Trouble> {
    let mut tried = Vec::new();
    let mut hints = Vec::new();
    if with_agent(target, session, &mut tried, &mut hints)
        || with_files(target, session, &mut tried, &mut hints)
    {
        return Ok(());
    }
    let hints = if hints.is_empty() {
        String::new()
    } else {
        format!(" ({})", hints.join("; "))
    };
    Err(if tried.is_empty() {
        let text = format!(
            "log in to {}: there is no key to offer{hints}; ssh-add one, or name it by `identity`",
            target.place()
        );
        Trouble::new(Fault::NoKeys, text)
    } else {
        let text = format!(
            "log in to {}: the host refused {}{hints}; is `user` right, and the key in that user's authorized_keys?",
            target.place(),
            tried.join(", ")
        );
        Trouble::new(Fault::Denied, text)
    })
}

fn with_agent(target: &Target, session: &Session, tried: &mut Vec<String>, hints: &mut Vec<String>) -> bool {
    let Some(socket) = &target.agent else {
        hints.push("no agent: SSH_AUTH_SOCK is not set".to_owned());
        return false;
    };
    let keys = session.agent().and_then(|mut agent| {
        agent.set_identity_path(socket)?;
        agent.connect()?;
        agent.list_identities()?;
        let keys = agent.identities()?;
        Ok((agent, keys))
    });
    let (agent, mut keys) = match keys {
        Ok(found) => found,
        Err(error) => {
            hints.push(format!(
                "the agent at {} does not answer: {error}",
                socket.display()
            ));
            return false;
        }
    };
    if keys.is_empty() {
        hints.push("the agent holds no key".to_owned());
        return false;
    }
    // Keys that were named come first; of others sshd may not hear before it has had enough.
    let named: Vec<Vec<String>> = target
        .identities
        .iter()
        .filter_map(|path| public_key(path))
        .collect();
    let is_named = |key: &ssh2::PublicKey| {
        let text = known_hosts::base64(key.blob());
        named.iter().any(|fields| {
            fields
                .get(1)
                .is_some_and(|blob| blob.trim_end_matches('=') == text)
        })
    };
    keys.sort_by_key(|key| !is_named(key));
    for key in keys.iter().filter(|key| !target.identities_only || is_named(key)) {
        if tried.len() >= KEYS_MAX || session.authenticated() {
            break;
        }
        tried.push(format!("the agent's key {}", key.comment()));
        if agent.userauth(&target.user, key).is_ok() {
            return true;
        }
    }
    session.authenticated()
}

/// The fields of the public key beside an identity file.
fn public_key(path: &Path) -> Option<Vec<String>> {
    let mut file = path.as_os_str().to_owned();
    file.push(".pub");
    let text = std::fs::read_to_string(PathBuf::from(file)).ok()?;
    Some(text.split_whitespace().map(str::to_owned).collect())
}

fn with_files(target: &Target, session: &Session, tried: &mut Vec<String>, hints: &mut Vec<String>) -> bool {
    for path in &target.identities {
        if tried.len() >= KEYS_MAX {
            break;
        }
        if !path.exists() {
            hints.push(format!("{} is not there", path.display()));
        } else if has_passphrase(path) {
            hints.push(format!("{} has a passphrase: ssh-add it", path.display()));
        } else {
            tried.push(path.display().to_string());
            if session
                .userauth_pubkey_file(&target.user, None, path, None)
                .is_ok()
            {
                return true;
            }
        }
    }
    false
}
