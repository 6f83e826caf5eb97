//! The TCP wire: one connection for each pair of ranks, proved with the session's secret. Payloads go from the caller's
//! buffer into the socket and from the socket into the inbox.

mod frame;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
mod mesh;
mod reader;

use super::{Opened, Parcel, Wire, WireError};
use crate::host::{HostConfig, OpenError};
use crate::meeting::Meeting;
use crate::os;
use crate::region::layout::NOTICE;
use crate::region::{Layout, Mapping, Region};
use crate::types::{Rank, WireKind};
use frame::Frame;
use nix::poll::{PollFd, PollFlags};
use reader::Reader;
use std::io::{self, ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Opens the wire. Collective over `meeting`; the ranks must have agreed on `layout`.
pub fn open(meeting: &mut dyn Meeting, layout: Layout, cfg: &HostConfig) -> Result<Opened, OpenError> {
    let deadline = Instant::now() + cfg.setup;
    let me = meeting.rank();
    let bound = TcpListener::bind(SocketAddr::new(cfg.address, 0))
        .and_then(|listener| Ok((listener.local_addr()?, listener)))
        .and_then(|(at, listener)| Ok((at, listener, Mapping::anonymous(layout.total())?, nonce()?)));
    let outcome = bound
        .as_ref()
        .map(drop)
        .map_err(|e| format!("cannot listen at {}: {e}", cfg.address));
    meeting.verdict("listen for the TCP wire", outcome)?;
    let (at, listener, mapping, nonce) = bound.map_err(|e| failed("listen for the TCP wire", &e))?;

    let nonce = meeting.broadcast("key the TCP wire", &nonce)?;
    let addresses = meeting.all_gather("trade the TCP wire's addresses", at.to_string().as_bytes())?;
    let addresses = addresses.iter().map(|raw| read_address(raw));
    let addresses = addresses.collect::<Result<Vec<SocketAddr>, _>>()?;

    let key = mesh::Key::new(&cfg.secret, &nonce).map_err(|e| failed("key the TCP wire", &e))?;
    let streams = mesh::connect_all(me, &addresses, &listener, &key, deadline);
    drop(listener);
    let wire = streams.and_then(|streams| {
        let region = Region::new(&Arc::new(mapping), 0, layout).ok_or("the region is too small")?;
        let wire = Tcp::new(streams, region.clone()).map_err(|e| e.to_string())?;
        Ok((region, wire))
    });
    meeting.verdict(
        "connect the TCP wire",
        wire.as_ref().map(drop).map_err(String::clone),
    )?;
    let (region, wire) = wire.map_err(|e| failed("connect the TCP wire", &e))?;
    Ok(Opened {
        region,
        wire: Box::new(wire),
    })
}

/// An address as a peer gives it.
fn read_address(bytes: &[u8]) -> Result<SocketAddr, OpenError> {
    let text = std::str::from_utf8(bytes).ok().filter(|text| text.len() <= 64);
    let address = text.and_then(|text| text.parse().ok());
    address.ok_or_else(|| {
        let shown = String::from_utf8_lossy(bytes.get(..64).unwrap_or(bytes));
        failed("read an address", &format_args!("`{}`", shown.escape_default()))
    })
}

fn failed(what: &str, reason: &dyn std::fmt::Display) -> OpenError {
    OpenError::Local {
        what: what.to_owned(),
        reason: reason.to_string(),
    }
}

fn nonce() -> io::Result<[u8; 32]> {
    let mut raw = [0; 32];
    getrandom::fill(&mut raw).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(raw)
}

/// All connections of this rank.
struct Tcp {
    region: Region,
    peers: Vec<Option<Peer>>,
    readers: Mutex<Vec<Reader>>,
    wake: (OwnedFd, OwnedFd),
    halted: AtomicBool,
}

struct Peer {
    stream: TcpStream,
    /// Held while a frame is being sent; true while one is half sent.
    sending: Mutex<bool>,
    /// Nothing more will come, and why.
    lost: Mutex<Option<String>>,
    is_lost: AtomicBool,
}

impl Tcp {
    fn new(streams: Vec<Option<TcpStream>>, region: Region) -> io::Result<Self> {
        let peer = |stream: TcpStream| {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
            os::set_keepalive(&stream)?;
            Ok(Peer {
                stream,
                sending: Mutex::new(false),
                lost: Mutex::new(None),
                is_lost: AtomicBool::new(false),
            })
        };
        let readers = region.layout().world().ranks().map(Reader::new).collect();
        let peers = streams
            .into_iter()
            .map(|s| s.map(peer).transpose())
            .collect::<io::Result<Vec<_>>>()?;
        let wake = os::pipe()?;
        Ok(Self {
            region,
            peers,
            readers: Mutex::new(readers),
            wake,
            halted: AtomicBool::new(false),
        })
    }

    /// Sends one frame, and meanwhile takes what arrives, so that two ranks that send to each other get on.
    fn send(
        &self,
        to: Rank,
        head: &[u8],
        payload: &[u8],
        give_up: &dyn Fn() -> bool,
    ) -> Result<(), WireError> {
        let broke = |reason: String| WireError::Peer { peer: to, reason };
        let Some(peer) = &self.peers[to.index()] else {
            return Err(broke("it is this rank".to_owned()));
        };
        let mut half_sent = lock(&peer.sending);
        let total = head.len() + payload.len();
        let mut sent = 0;
        while sent < total {
            let rest = [
                &head[sent.min(head.len())..],
                &payload[sent.saturating_sub(head.len())..],
            ];
            match (&peer.stream).write_vectored(&rest.map(IoSlice::new)) {
                Ok(0) => return Err(broke("its connection takes nothing".to_owned())),
                Ok(n) => sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if give_up() {
                        return Err(WireError::GivenUp { peer: to });
                    }
                    if !self.progress() {
                        self.wait(Some(peer), Duration::from_millis(20));
                    }
                }
                Err(e) => return Err(broke(format!("its connection broke: {e}"))),
            }
            *half_sent = sent > 0 && sent < total;
        }
        Ok(())
    }

    /// Waits until a connection has something to read, `writable` takes bytes, or somebody wakes this thread.
    fn wait(&self, writable: Option<&Peer>, most: Duration) {
        let mut fds = vec![PollFd::new(self.wake.0.as_fd(), PollFlags::POLLIN)];
        let open = self
            .peers
            .iter()
            .flatten()
            .filter(|peer| !peer.is_lost.load(Ordering::Relaxed));
        fds.extend(open.map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLIN)));
        fds.extend(writable.map(|peer| PollFd::new(peer.stream.as_fd(), PollFlags::POLLOUT)));
        // A failed wait is an early return, which is allowed.
        let _ = os::poll(&mut fds, Some(Instant::now() + most));
        if os::want_read(&fds[0]) {
            let mut sink = [0; 64];
            while nix::unistd::read(&self.wake.0, &mut sink).is_ok_and(|n| n == sink.len()) {}
        }
    }

    fn lose(&self, peer: &Peer, reason: String) {
        lock(&peer.lost).get_or_insert(reason);
        peer.is_lost.store(true, Ordering::Release);
    }
}

/// The values under our locks are whole whenever a thread can leave them.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Wire for Tcp {
    fn kind(&self) -> WireKind {
        WireKind::Tcp
    }

    fn put(&self, parcel: &Parcel<'_>, give_up: &dyn Fn() -> bool) -> Result<(), WireError> {
        let head = Frame::Message {
            seq: parcel.seq,
            header: parcel.header,
        }
        .encode();
        self.send(parcel.peer, &head, parcel.payload, give_up)
    }

    fn answer(&self, peer: Rank, consumed: u64, give_up: &dyn Fn() -> bool) -> Result<(), WireError> {
        self.send(peer, &Frame::Answer { consumed }.encode(), &[], give_up)
    }

    fn progress(&self) -> bool {
        let Ok(mut readers) = self.readers.try_lock() else {
            return false;
        };
        let mut moved = false;
        for (peer, reader) in self.peers.iter().zip(readers.iter_mut()) {
            let Some(peer) = peer else { continue };
            if peer.is_lost.load(Ordering::Relaxed) {
                continue;
            }
            match reader.take(&peer.stream, &self.region) {
                Ok(some) => moved |= some,
                Err(reason) => {
                    self.lose(peer, reason);
                    moved = true;
                }
            }
        }
        moved
    }

    fn lost(&self, peer: Rank) -> Option<String> {
        let peer = self.peers[peer.index()].as_ref()?;
        if !peer.is_lost.load(Ordering::Acquire) {
            return None;
        }
        lock(&peer.lost).clone()
    }

    fn idle(&self, most: Duration) {
        self.wait(None, most);
    }

    fn idle_wakes(&self) -> bool {
        true
    }

    fn wake(&self) {
        // A full pipe wakes just as well.
        let _ = nix::unistd::write(&self.wake.1, &[1]);
    }

    fn halt(&self, culprit: Rank, reason: &str) {
        if self.halted.swap(true, Ordering::AcqRel) {
            return;
        }
        let text = &reason.as_bytes()[..reason.floor_char_boundary(NOTICE - 1)];
        let mut frame = Frame::Notice {
            culprit,
            len: text.len(),
        }
        .encode()
        .to_vec();
        frame.extend_from_slice(text);
        for peer in self.peers.iter().flatten() {
            // Into the middle of a frame no notice can go; the end of the connection says enough.
            let sent = match peer.sending.try_lock() {
                Ok(half_sent) if !*half_sent => (&peer.stream).write(&frame).is_ok_and(|n| n == frame.len()),
                _ => false,
            };
            if !sent {
                let _ = peer.stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn close(&self, most: Duration) {
        let until = Instant::now() + most;
        let open = || {
            self.peers
                .iter()
                .flatten()
                .filter(|peer| !peer.is_lost.load(Ordering::Relaxed))
        };
        for peer in open() {
            let _ = peer.stream.shutdown(Shutdown::Write);
        }
        // A socket closed with bytes unread resets the connection, which can take back what the peer has not read yet:
        // so each end reads until the other has said that it is done.
        while open().next().is_some() && Instant::now() < until {
            for peer in open() {
                match (&peer.stream).read(&mut [0; 512]) {
                    Ok(0) => self.lose(peer, "closed".to_owned()),
                    Ok(_) => {}
                    Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                    Err(e) => self.lose(peer, e.to_string()),
                }
            }
            if open().next().is_some() {
                self.wait(None, Duration::from_millis(20));
            }
        }
    }
}
