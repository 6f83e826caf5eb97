//! How two relays prove to each other that they belong to one push: challenge and response with the push's secret, both
//! ways, over the hash of the file. Whoever cannot is dropped before a byte of the file is sent or taken.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use std::io::{self, Read, Write};
use subtle::ConstantTimeEq;

const MAGIC: &[u8; 8] = b"TPRELAY1";
const NONCE: usize = 32;

/// What the two sides must have in common.
pub(super) struct Common {
    /// The push's secret.
    pub secret: Vec<u8>,
    /// SHA-256 of the file, lower-case hex.
    pub sha256: String,
}

fn denied(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, what.to_owned())
}

impl Common {
    fn proof(&self, role: &str, first: &[u8], second: &[u8]) -> io::Result<[u8; 32]> {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.secret).map_err(|_| denied("the secret is no key"))?;
        for part in [role.as_bytes(), first, second, self.sha256.as_bytes()] {
            mac.update(part);
        }
        Ok(mac.finalize().into_bytes().into())
    }

    fn check(&self, role: &str, first: &[u8], second: &[u8], shown: &[u8; 32]) -> io::Result<()> {
        let right = self.proof(role, first, second)?;
        if bool::from(right.ct_eq(shown)) {
            Ok(())
        } else {
            Err(denied("it does not know the secret of this push"))
        }
    }

    /// The side that sends the file.
    pub fn send_side(&self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        let mine = nonce()?;
        stream.write_all(MAGIC)?;
        stream.write_all(&mine)?;
        let (theirs, proof) = (bytes::<NONCE>(stream)?, bytes::<32>(stream)?);
        self.check("take", &mine, &theirs, &proof)?;
        stream.write_all(&self.proof("send", &theirs, &mine)?)
    }

    /// The side that takes it.
    pub fn take_side(&self, stream: &mut (impl Read + Write)) -> io::Result<()> {
        if bytes::<8>(stream)? != *MAGIC {
            return Err(denied("it is no relay"));
        }
        let theirs = bytes::<NONCE>(stream)?;
        let mine = nonce()?;
        let mut answer = mine.to_vec();
        answer.extend(self.proof("take", &theirs, &mine)?);
        stream.write_all(&answer)?;
        let proof = bytes::<32>(stream)?;
        self.check("send", &mine, &theirs, &proof)
    }

    /// Tells the sending side, which has proved itself, that the first `have` bytes are here; the rest is wanted.
    pub fn want(&self, stream: &mut impl Write, have: u64) -> io::Result<()> {
        stream.write_all(&have.to_le_bytes())
    }

    /// The number of bytes that the taking side has already.
    pub fn wanted(&self, stream: &mut impl Read) -> io::Result<u64> {
        Ok(u64::from_le_bytes(bytes::<8>(stream)?))
    }
}

fn bytes<const N: usize>(stream: &mut impl Read) -> io::Result<[u8; N]> {
    let mut out = [0; N];
    stream.read_exact(&mut out)?;
    Ok(out)
}

fn nonce() -> io::Result<[u8; NONCE]> {
    let mut out = [0; NONCE];
    getrandom::fill(&mut out).map_err(|e| io::Error::other(format!("no random bytes: {e}")))?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn common(secret: &str) -> Common {
        Common {
            secret: secret.into(),
            sha256: "00".repeat(32),
        }
    }

    fn meet(sender: &'static str, taker: &'static str) -> (io::Result<()>, io::Result<()>) {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        let taking = std::thread::spawn(move || common(taker).take_side(&mut b));
        let sent = common(sender).send_side(&mut a);
        drop(a);
        (sent, taking.join().unwrap())
    }

    #[test]
    fn one_secret_opens_both_ways_and_another_neither() {
        let (sent, taken) = meet("s", "s");
        assert!(sent.is_ok() && taken.is_ok());
        let (sent, taken) = meet("s", "t");
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert!(taken.is_err());
    }

    #[test]
    fn a_stranger_is_dropped_at_its_first_bytes() {
        let (mut a, mut b) = UnixStream::pair().unwrap();
        a.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let error = common("s").take_side(&mut b).unwrap_err();
        assert!(error.to_string().contains("no relay"), "{error}");
    }
}
