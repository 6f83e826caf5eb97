//! The handshake of one connection, both sides, as state machines: bytes in, bytes and decisions out. Neither reads more
//! than it asks for, so what follows the handshake stays in the socket.

mod acceptor;
mod connector;

pub(super) use acceptor::{Accepting, Acceptor, Verdict};
pub(super) use connector::{Connecting, Connector};

use super::PROTOCOL;
use super::auth::{NONCE, Nonce};
use crate::secret::Secret;

/// First bytes of a connection, both ways.
const MAGIC: [u8; 4] = *b"TPBS";
/// Magic, version, flags, nonce.
const PREFACE: usize = 12 + NONCE;
/// Proof, length of the text.
const HEADER: usize = NONCE + 4;
/// Longest verdict.
const VERDICT_MAX: usize = 2048;
/// The sender has a secret.
const HAS_SECRET: u32 = 1;

// protocol 2.1
fn preface(secret: Option<&Secret>, nonce: &Nonce) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend_from_slice(&PROTOCOL.to_le_bytes());
    out.extend_from_slice(&if secret.is_some() { HAS_SECRET } else { 0 }.to_le_bytes());
    out.extend_from_slice(nonce);
    out
}

struct Preface {
    version: u32,
    has_secret: bool,
    nonce: Nonce,
}

fn read_preface(bytes: &[u8; PREFACE]) -> Option<Preface> {
    let (magic, rest) = bytes.split_first_chunk::<4>()?;
    let (version, rest) = rest.split_first_chunk::<4>()?;
    let (flags, rest) = rest.split_first_chunk::<4>()?;
    let nonce = *rest.first_chunk::<NONCE>()?;
    let has_secret = u32::from_le_bytes(*flags) & HAS_SECRET != 0;
    (*magic == MAGIC).then_some(Preface {
        version: u32::from_le_bytes(*version),
        has_secret,
        nonce,
    })
}

pub(super) fn proved(proof: &Nonce, text: &str) -> Vec<u8> {
    let mut out = proof.to_vec();
    // Both texts are bounded far below 2^32 by those who make them.
    out.extend_from_slice(&u32::try_from(text.len()).unwrap_or(0).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
    out
}

/// A proof and the text that comes with it, as far as they have come.
enum Proved<'a> {
    More(usize),
    TooLong(usize),
    Whole { proof: &'a [u8], text: &'a [u8] },
}

fn read_proved(bytes: &[u8], max: usize) -> Proved<'_> {
    let Some((header, text)) = bytes.split_first_chunk::<HEADER>() else {
        return Proved::More(HEADER - bytes.len());
    };
    let (proof, length) = header.split_at(NONCE);
    let length = length
        .first_chunk::<4>()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes)) as usize;
    // protocol 1.4
    if length > max {
        return Proved::TooLong(length);
    }
    match text.get(..length) {
        Some(text) => Proved::Whole { proof, text },
        None => Proved::More(length - text.len()),
    }
}

#[cfg(test)]
mod tests;
