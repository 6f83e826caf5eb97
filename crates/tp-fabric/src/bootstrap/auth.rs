//! Challenge and response with HMAC-SHA-256.

use super::BootError;
use crate::secret::Secret;
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// Bytes of a nonce and of a proof.
pub(super) const NONCE: usize = 32;

/// A number used once.
pub(super) type Nonce = [u8; NONCE];

// protocol 2.8
/// A new nonce from the system's random source.
pub(super) fn nonce() -> Result<Nonce, BootError> {
    let mut nonce = [0; NONCE];
    getrandom::fill(&mut nonce).map_err(|e| BootError::system("get random bytes for a handshake", &e))?;
    Ok(nonce)
}

/// Who proves: a proof of one side is none of the other, so it cannot be sent back.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Follower,
    Leader,
}

/// The authentication code over both nonces and what the side says with it. Without a secret the key is empty, and the
/// code proves nothing.
fn code(
    secret: Option<&Secret>,
    side: Side,
    follower: &Nonce,
    leader: &Nonce,
    said: &[u8],
) -> Option<Hmac<Sha256>> {
    // HMAC takes keys of any length.
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.map_or(&[], Secret::key)).ok()?;
    mac.update(match side {
        Side::Follower => b"tp-bringup bootstrap 1 follower\0",
        Side::Leader => b"tp-bringup bootstrap 1 leader\0\0\0",
    });
    mac.update(follower);
    mac.update(leader);
    mac.update(said);
    Some(mac)
}

/// What this side sends as its proof.
pub(super) fn prove(
    secret: Option<&Secret>,
    side: Side,
    follower: &Nonce,
    leader: &Nonce,
    said: &[u8],
) -> Nonce {
    let code = code(secret, side, follower, leader, said);
    code.map_or([0; NONCE], |code| code.finalize().into_bytes().into())
}

/// Whether a proof is good; compares in constant time.
pub(super) fn verify(
    secret: Option<&Secret>,
    side: Side,
    follower: &Nonce,
    leader: &Nonce,
    said: &[u8],
    proof: &[u8],
) -> bool {
    code(secret, side, follower, leader, said).is_some_and(|code| code.verify_slice(proof).is_ok())
}
