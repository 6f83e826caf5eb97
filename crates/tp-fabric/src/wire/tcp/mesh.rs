//! Connects every pair of ranks: the higher rank connects, the lower one accepts, and both prove that they belong to the
//! session before a byte of it is believed.

use crate::types::{Rank, World};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

const NONCE: usize = 32;
const PROOF: usize = 32;
/// Bytes of an answer to a challenge: the rank, a nonce, the proof.
pub(super) const ANSWER: usize = 4 + NONCE + PROOF;
/// A connection that has not proved itself after this time is closed; nobody else waits for it.
const PATIENCE: Duration = Duration::from_secs(5);
/// Connections that are being examined at once; more wait in the listener's queue.
const AT_ONCE: usize = 128;

/// The key of one mesh: the session's secret, bound to a nonce of this opening.
pub(super) struct Key(Hmac<Sha256>);

impl Key {
    pub(super) fn new(secret: &[u8], nonce: &[u8]) -> io::Result<Self> {
        let mut mac = keyed(secret)?;
        mac.update(b"tp-bringup wire 1");
        mac.update(nonce);
        Ok(Self(keyed(&mac.finalize().into_bytes())?))
    }

    fn proof(
        &self,
        who: &[u8],
        ours: &[u8; NONCE],
        theirs: &[u8; NONCE],
        from: Rank,
        to: Rank,
    ) -> Hmac<Sha256> {
        let mut mac = self.0.clone();
        mac.update(who);
        mac.update(ours);
        mac.update(theirs);
        mac.update(&from.0.to_le_bytes());
        mac.update(&to.0.to_le_bytes());
        mac
    }
}

#[cfg(any(test, fuzzing))]
impl Key {
    /// Puts the right proof of `from` to `to` into an answer.
    pub(super) fn prove_for_fuzzing(
        &self,
        ours: &[u8; NONCE],
        answer: &mut [u8; ANSWER],
        from: Rank,
        to: Rank,
    ) {
        let (given, proof) = answer.split_at_mut(4 + NONCE);
        if let Some(theirs) = given[4..].first_chunk::<NONCE>() {
            let mac = self.proof(b"connects", ours, theirs, from, to);
            proof.copy_from_slice(&mac.finalize().into_bytes());
        }
    }
}

fn keyed(key: &[u8]) -> io::Result<Hmac<Sha256>> {
    Hmac::new_from_slice(key).map_err(|e| io::Error::other(e.to_string()))
}

/// A connection to every other rank, in rank order (`None` for this one).
pub(super) fn connect_all(
    me: Rank,
    addresses: &[SocketAddr],
    listener: &TcpListener,
    key: &Key,
    deadline: Instant,
) -> Result<Vec<Option<TcpStream>>, String> {
    let world = World(addresses.len() as u32);
    let mut all: Vec<Option<TcpStream>> = addresses.iter().map(|_| None).collect();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| accept_all(me, world, listener, key, deadline));
        for peer in world.ranks().filter(|r| *r < me) {
            let at = addresses[peer.index()];
            let stream = connect_stubbornly(me, peer, at, key, deadline);
            all[peer.index()] =
                Some(stream.map_err(|e| format!("no connection to rank {peer} at {at}: {e}"))?);
        }
        let accepted = accepting
            .join()
            .map_err(|_| "the accepting thread panicked".to_owned())??;
        for (rank, stream) in accepted {
            all[rank.index()] = Some(stream);
        }
        Ok(all)
    })
}

/// Accepts the higher ranks; strangers cost a thread for [`PATIENCE`] at most.
fn accept_all(
    me: Rank,
    world: World,
    listener: &TcpListener,
    key: &Key,
    deadline: Instant,
) -> Result<Vec<(Rank, TcpStream)>, String> {
    let mut missing: Vec<Rank> = world.ranks().filter(|r| *r > me).collect();
    let mut joined = Vec::new();
    let (send, proved) = mpsc::channel();
    listener
        .set_nonblocking(true)
        .map_err(|e| format!("the listener: {e}"))?;
    thread::scope(|scope| {
        let mut examined = Vec::new();
        while !missing.is_empty() {
            while let Ok((rank, stream)) = proved.try_recv() {
                if let Some(at) = missing.iter().position(|r| *r == rank) {
                    missing.swap_remove(at);
                    joined.push((rank, stream));
                }
            }
            examined
                .retain(|(thread, _): &(thread::ScopedJoinHandle<'_, ()>, TcpStream)| !thread.is_finished());
            match listener.accept() {
                Ok((stream, from)) if examined.len() < AT_ONCE => {
                    let send = send.clone();
                    let handle = stream
                        .try_clone()
                        .map_err(|e| format!("a connection from {from}: {e}"))?;
                    let thread = scope.spawn(move || match admit(me, world, stream, key) {
                        // The receiver is gone only when all have joined.
                        Ok(found) => drop(send.send(found)),
                        Err(e) => tracing::warn!(%from, "closed a connection that is no rank's: {e}"),
                    });
                    examined.push((thread, handle));
                }
                Ok((_, from)) => tracing::warn!(%from, "closed a connection: too many unproved ones"),
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if Instant::now() > deadline {
                        missing.sort_unstable();
                        let names: Vec<String> = missing.iter().map(Rank::to_string).collect();
                        return Err(format!("never connected: rank {}", names.join(", ")));
                    }
                    thread::sleep(Duration::from_millis(1));
                }
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {}
                Err(e) => return Err(format!("the listener: {e}")),
            }
        }
        // Whoever is still being examined is no rank, and nobody waits for it.
        let ranks: Vec<_> = joined
            .iter()
            .filter_map(|(_, stream): &(Rank, TcpStream)| stream.peer_addr().ok())
            .collect();
        for (_, stream) in &examined {
            if stream.peer_addr().is_ok_and(|from| !ranks.contains(&from)) {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
        Ok(())
    })?;
    Ok(joined)
}

/// The accepting end of the proof: challenge, answer with counter-challenge, answer.
fn admit(me: Rank, world: World, mut stream: TcpStream, key: &Key) -> io::Result<(Rank, TcpStream)> {
    stream.set_nonblocking(false)?;
    let until = Instant::now() + PATIENCE;
    let ours = nonce()?;
    send_all(&mut stream, &ours, until)?;
    let mut answer = [0; ANSWER];
    receive(&mut stream, &mut answer, until)?;
    let (rank, proof) = examine(me, world, key, &ours, &answer).map_err(io::Error::other)?;
    send_all(&mut stream, &proof, until)?;
    Ok((rank, stream))
}

/// Which rank an answer to our challenge proves, and what proves us to it. An error says what is wrong with the answer.
pub(super) fn examine(
    me: Rank,
    world: World,
    key: &Key,
    ours: &[u8; NONCE],
    answer: &[u8; ANSWER],
) -> Result<(Rank, [u8; PROOF]), &'static str> {
    let [r0, r1, r2, r3, rest @ ..] = answer;
    let (theirs, proof) = rest.split_first_chunk::<NONCE>().ok_or("its answer is cut")?;
    let rank = Rank(u32::from_le_bytes([*r0, *r1, *r2, *r3]));
    key.proof(b"connects", ours, theirs, rank, me)
        .verify_slice(proof)
        .map_err(|_| "its proof is wrong")?;
    if rank <= me || rank.0 >= world.0 {
        return Err("it claims a rank that does not connect here");
    }
    let ours = key.proof(b"accepts", ours, theirs, rank, me).finalize();
    Ok((rank, ours.into_bytes().into()))
}

/// Connects, again after a moment where the other end was too busy with strangers to listen.
fn connect_stubbornly(
    me: Rank,
    peer: Rank,
    at: SocketAddr,
    key: &Key,
    deadline: Instant,
) -> io::Result<TcpStream> {
    let mut pause = Duration::from_millis(20);
    loop {
        let error = match connect(me, peer, at, key, deadline) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if pause > Duration::from_millis(500) || Instant::now() + pause > deadline {
            return Err(error);
        }
        thread::sleep(pause);
        pause *= 2;
    }
}

/// The connecting end.
fn connect(me: Rank, peer: Rank, at: SocketAddr, key: &Key, deadline: Instant) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&at, left(deadline)?)?;
    let mut challenge = [0; NONCE];
    receive(&mut stream, &mut challenge, deadline)?;
    let ours = nonce()?;
    let mut answer = Vec::with_capacity(ANSWER);
    answer.extend_from_slice(&me.0.to_le_bytes());
    answer.extend_from_slice(&ours);
    answer.extend_from_slice(
        &key.proof(b"connects", &challenge, &ours, me, peer)
            .finalize()
            .into_bytes(),
    );
    send_all(&mut stream, &answer, deadline)?;
    let mut proof = [0; PROOF];
    receive(&mut stream, &mut proof, deadline)?;
    let expected = key.proof(b"accepts", &challenge, &ours, me, peer);
    expected
        .verify_slice(&proof)
        .map_err(|_| io::Error::other("it could not prove that it knows the secret"))?;
    Ok(stream)
}

fn nonce() -> io::Result<[u8; NONCE]> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|e| io::Error::other(e.to_string()))?;
    Ok(nonce)
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

fn send_all(stream: &mut TcpStream, bytes: &[u8], until: Instant) -> io::Result<()> {
    stream.set_write_timeout(Some(left(until)?))?;
    stream.write_all(bytes)
}

/// Fills `into` before `until`, however slowly the bytes drip in.
fn receive(stream: &mut TcpStream, into: &mut [u8], until: Instant) -> io::Result<()> {
    let mut got = 0;
    while got < into.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut into[got..]) {
            Ok(0) => {
                return Err(io::Error::other(
                    "it closed the connection before it proved itself",
                ));
            }
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => return Err(ErrorKind::TimedOut.into()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
