//! The handshake of one connection, both sides, as state machines: bytes in, bytes and decisions out. Neither reads more
//! than it asks for, so what follows the handshake stays in the socket.

use super::PROTOCOL;
use super::auth::{NONCE, Nonce, Side, prove, verify};
use super::hello::{HELLO_MAX, Hello};
use crate::secret::Secret;
use crate::text::{field, line};

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

fn proved(proof: &Nonce, text: &str) -> Vec<u8> {
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

/// Rank 0's side of one connection.
pub(super) struct Acceptor {
    secret: Option<Secret>,
    own: Nonce,
    theirs: Option<Nonce>,
    buffer: Vec<u8>,
}

/// What rank 0 is to do after bytes have come.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Accepting {
    /// Wait for more bytes.
    More,
    /// Send this and wait for more.
    Send(Vec<u8>),
    /// The secret is proved: decide, then send [`Acceptor::verdict`].
    Hello(Hello),
    /// Send this, if there is anything, and close. `known`: it speaks our protocol and is told why.
    Reject {
        reply: Vec<u8>,
        why: String,
        known: bool,
    },
}

impl Acceptor {
    pub fn new(secret: Option<Secret>, own: Nonce) -> Self {
        Self {
            secret,
            own,
            theirs: None,
            buffer: Vec::new(),
        }
    }

    /// How many bytes may be read now.
    pub fn wants(&self) -> usize {
        match self.theirs {
            None => PREFACE - self.buffer.len().min(PREFACE),
            Some(_) => match read_proved(&self.buffer, HELLO_MAX) {
                Proved::More(n) => n,
                _ => 0,
            },
        }
    }

    /// Whether anything has come yet.
    pub fn is_silent(&self) -> bool {
        self.theirs.is_none() && self.buffer.is_empty()
    }

    pub fn push(&mut self, bytes: &[u8]) -> Accepting {
        self.buffer.extend_from_slice(bytes);
        match self.theirs {
            None => self.preface(),
            Some(theirs) => self.hello(&theirs),
        }
    }

    fn preface(&mut self) -> Accepting {
        // protocol 2.2
        let seen = self.buffer.len().min(MAGIC.len());
        if self.buffer.get(..seen) != MAGIC.get(..seen) {
            let why = "sent bytes that are no handshake".to_owned();
            return Accepting::Reject {
                reply: Vec::new(),
                why,
                known: false,
            };
        }
        let Some(preface_bytes) = self.buffer.first_chunk::<PREFACE>() else {
            return Accepting::More;
        };
        let Some(preface_read) = read_preface(preface_bytes) else {
            let why = "sent bytes that are no handshake".to_owned();
            return Accepting::Reject {
                reply: Vec::new(),
                why,
                known: false,
            };
        };
        self.buffer.clear();
        // protocol 2.1
        let ours = preface(self.secret.as_ref(), &self.own);
        // protocol 2.3
        if preface_read.version != PROTOCOL {
            let theirs = preface_read.version;
            return self.reject(
                ours,
                format!("it speaks protocol {theirs}, rank 0 speaks {PROTOCOL}"),
            );
        }
        if preface_read.has_secret != self.secret.is_some() {
            let why = if preface_read.has_secret {
                "it has a secret, rank 0 has none"
            } else {
                "it has no secret, rank 0 has one"
            };
            return self.reject(
                ours,
                why.to_owned() + ": give the same TF_TP_SECRET to every rank",
            );
        }
        self.theirs = Some(preface_read.nonce);
        Accepting::Send(ours)
    }

    fn hello(&self, theirs: &Nonce) -> Accepting {
        match read_proved(&self.buffer, HELLO_MAX) {
            Proved::More(_) => Accepting::More,
            Proved::TooLong(length) => {
                let why = format!("sent a hello that claims {length} bytes");
                Accepting::Reject {
                    reply: Vec::new(),
                    why,
                    known: false,
                }
            }
            Proved::Whole { proof, text } => {
                // protocol 2.4
                if !verify(
                    self.secret.as_ref(),
                    Side::Follower,
                    theirs,
                    &self.own,
                    text,
                    proof,
                ) {
                    return self.reject(
                        Vec::new(),
                        "it does not know the secret: TF_TP_SECRET differs".to_owned(),
                    );
                }
                match Hello::parse(text) {
                    Ok(hello) => Accepting::Hello(hello),
                    Err(why) => Accepting::Reject {
                        reply: self.verdict(&Verdict::Refused(&why)),
                        why,
                        known: true,
                    },
                }
            }
        }
    }

    fn reject(&self, mut reply: Vec<u8>, why: String) -> Accepting {
        reply.extend_from_slice(&proved(&[0; NONCE], &refusal(&why)));
        Accepting::Reject {
            reply,
            why,
            known: true,
        }
    }

    /// The last word of rank 0.
    // protocol 2.5
    pub fn verdict(&self, verdict: &Verdict<'_>) -> Vec<u8> {
        let text = match verdict {
            Verdict::Welcome { host } => format!("verdict=welcome\nhost={}\n", line(host, 256)),
            Verdict::Refused(why) => refusal(why),
            Verdict::Over(why) => format!("verdict=over\nreason={}\n", line(why, 1024)),
        };
        let theirs = self.theirs.unwrap_or([0; NONCE]);
        let proof = prove(
            self.secret.as_ref(),
            Side::Leader,
            &theirs,
            &self.own,
            text.as_bytes(),
        );
        proved(&proof, &text)
    }
}

/// What rank 0 thinks of a follower.
pub(super) enum Verdict<'a> {
    /// It is in; rank 0's host is named.
    Welcome { host: &'a str },
    /// It does not belong here, for this reason.
    Refused(&'a str),
    /// It comes too late: the boot has failed, for this reason.
    Over(&'a str),
}

fn refusal(why: &str) -> String {
    format!("verdict=refused\nreason={}\n", line(why, 1024))
}

/// A follower's side of one connection.
pub(super) struct Connector {
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
pub(super) enum Connecting {
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

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
