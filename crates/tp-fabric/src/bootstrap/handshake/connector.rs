//! A follower's side of a handshake.

use super::{MAGIC, PREFACE, Proved, VERDICT_MAX, preface, proved, read_preface, read_proved};
use crate::bootstrap::PROTOCOL;
use crate::bootstrap::auth::{Nonce, Side, prove, verify};
use crate::bootstrap::hello::Hello;
use crate::secret::Secret;
use crate::text::{field, line};

/// A follower's side of one connection.
pub(in crate::bootstrap) struct Connector {
    secret: Option<Secret>,
    own: Nonce,
    hello: String,
    theirs: Option<Nonce>,
    /// Rank 0 cannot prove anything any more, since versions or secrets differ; only its reason is of interest.
    hopeless: Option<String>,
    buffer: Vec<u8>,
}

/// What a follower is to do after bytes have come.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Connecting {
    /// Wait for more bytes.
    More,
    /// Send this and wait for more.
    Send(Vec<u8>),
    /// In; rank 0's host is named.
    Welcome { host: String },
    /// Not in, since the boot has failed already.
    Over { why: String },
    /// Not in. `proved`: rank 0 itself said so.
    Refused { why: String, proved: bool },
}

impl Connector {
    /// The machine and its first bytes.
    pub fn new(secret: Option<Secret>, own: Nonce, hello: &Hello) -> (Self, Vec<u8>) {
        let first = preface(secret.as_ref(), &own);
        let hello = hello.to_text();
        (
            Self {
                secret,
                own,
                hello,
                theirs: None,
                hopeless: None,
                buffer: Vec::new(),
            },
            first,
        )
    }

    /// How many bytes may be read now.
    pub fn wants(&self) -> usize {
        match self.theirs {
            None => PREFACE - self.buffer.len().min(PREFACE),
            Some(_) => match read_proved(&self.buffer, VERDICT_MAX) {
                Proved::More(n) => n,
                _ => 0,
            },
        }
    }

    pub fn push(&mut self, bytes: &[u8]) -> Connecting {
        self.buffer.extend_from_slice(bytes);
        match self.theirs {
            None => self.preface(),
            Some(theirs) => self.verdict(&theirs),
        }
    }

    fn preface(&mut self) -> Connecting {
        let foreign = || Connecting::Refused {
            why: "another program answers on this port".to_owned(),
            proved: false,
        };
        let seen = self.buffer.len().min(MAGIC.len());
        if self.buffer.get(..seen) != MAGIC.get(..seen) {
            return foreign();
        }
        let Some(bytes) = self.buffer.first_chunk::<PREFACE>() else {
            return Connecting::More;
        };
        let Some(theirs) = read_preface(bytes) else {
            return foreign();
        };
        self.buffer.clear();
        self.theirs = Some(theirs.nonce);
        if theirs.version != PROTOCOL {
            let why = format!(
                "rank 0 speaks protocol {}, this rank speaks {PROTOCOL}",
                theirs.version
            );
            self.hopeless = Some(why);
            return Connecting::More;
        }
        if theirs.has_secret != self.secret.is_some() {
            let why = if theirs.has_secret {
                "rank 0 has a secret, this rank has none"
            } else {
                "rank 0 has no secret, this rank has one"
            };
            self.hopeless = Some(format!("{why}: give the same TF_TP_SECRET to every rank"));
            return Connecting::More;
        }
        let proof = prove(
            self.secret.as_ref(),
            Side::Follower,
            &self.own,
            &theirs.nonce,
            self.hello.as_bytes(),
        );
        Connecting::Send(proved(&proof, &self.hello))
    }

    fn verdict(&mut self, theirs: &Nonce) -> Connecting {
        if let Some(why) = &self.hopeless {
            return Connecting::Refused {
                why: why.clone(),
                proved: false,
            };
        }
        let (proof, text) = match read_proved(&self.buffer, VERDICT_MAX) {
            Proved::More(_) => return Connecting::More,
            Proved::TooLong(length) => {
                let why = format!("its verdict claims {length} bytes");
                return Connecting::Refused { why, proved: false };
            }
            Proved::Whole { proof, text } => (proof, text),
        };
        let genuine = verify(self.secret.as_ref(), Side::Leader, &self.own, theirs, text, proof);
        let text = String::from_utf8_lossy(text);
        let host = field(&text, "host").unwrap_or("?");
        match (field(&text, "verdict"), genuine) {
            (Some("welcome"), true) => Connecting::Welcome {
                host: line(host, 256),
            },
            (Some("over"), true) => Connecting::Over {
                why: line(field(&text, "reason").unwrap_or("no reason given"), 1024),
            },
            (Some("refused"), _) => {
                let why = line(field(&text, "reason").unwrap_or("no reason given"), 1024);
                Connecting::Refused { why, proved: genuine }
            }
            _ => {
                let why =
                    "it does not prove the secret: TF_TP_SECRET differs, or it is not rank 0".to_owned();
                Connecting::Refused { why, proved: false }
            }
        }
    }

    /// Rank 0 closed before its verdict; where that is no surprise, the reason.
    pub fn hopeless(&self) -> Option<&str> {
        self.hopeless.as_deref()
    }
}
