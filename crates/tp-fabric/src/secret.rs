//! The session secret: ranks prove it to each other before anything else is read.

use std::fmt;
use zeroize::Zeroizing;

/// A shorter secret could be guessed by whoever sees one handshake, bytes.
pub const MIN_BYTES: usize = 16;

/// A secret that never shows itself in logs; its memory is wiped when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Zeroizing<Vec<u8>>);

impl Secret {
    /// Takes the secret's text as it stands in `TF_TP_SECRET`, spaces around it ignored.
    pub fn from_text(text: &str) -> Result<Self, SecretError> {
        let text = text.trim();
        if text.len() < MIN_BYTES {
            return Err(SecretError::Short { bytes: text.len() });
        }
        Ok(Self(Zeroizing::new(text.as_bytes().to_vec())))
    }

    /// A new secret from the system's random source: 32 bytes, kept as 64 hexadecimal digits.
    pub fn generate() -> Result<Self, SecretError> {
        let mut raw = Zeroizing::new([0u8; 32]);
        getrandom::fill(raw.as_mut_slice()).map_err(|e| SecretError::NoRandom {
            reason: e.to_string(),
        })?;
        Ok(Self(Zeroizing::new(hex::encode(raw.as_slice()).into_bytes())))
    }

    /// The secret itself, for the one place that hands it to a rank. Never log it.
    pub fn reveal(&self) -> Zeroizing<String> {
        Zeroizing::new(String::from_utf8_lossy(&self.0).into_owned())
    }

    /// The key of the proofs.
    pub(crate) fn key(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(set)")
    }
}

/// Why there is no secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretError {
    /// Too short to be one.
    #[error(
        "a secret of {bytes} bytes can be guessed; at least {MIN_BYTES} are needed. Make one with `tf-tp-test secret`"
    )]
    Short {
        /// Its length.
        bytes: usize,
    },
    /// The system has no random numbers.
    #[error("failed to make a secret: the system's random source says: {reason}")]
    NoRandom {
        /// The system's words.
        reason: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_shows_itself() {
        let secret = Secret::from_text("correct horse battery").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(set)");
        assert_eq!(secret.reveal().as_str(), "correct horse battery");
    }

    #[test]
    fn short_secrets_are_refused_and_made_ones_differ() {
        assert_eq!(Secret::from_text(" short "), Err(SecretError::Short { bytes: 5 }));
        let (a, b) = (Secret::generate().unwrap(), Secret::generate().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.reveal().len(), 64);
        assert_eq!(Secret::from_text(&a.reveal()).unwrap(), a);
    }
}
