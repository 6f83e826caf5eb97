//! Rank 0's side of a handshake.

use super::{MAGIC, PREFACE, Proved, preface, proved, read_preface, read_proved};
use crate::bootstrap::PROTOCOL;
use crate::bootstrap::auth::{NONCE, Nonce, Side, prove, verify};
use crate::bootstrap::hello::{HELLO_MAX, Hello};
use crate::secret::Secret;
use crate::text::line;

/// Rank 0's side of one connection.
pub(in crate::bootstrap) struct Acceptor {
    secret: Option<Secret>,
    own: Nonce,
    theirs: Option<Nonce>,
    buffer: Vec<u8>,
}

/// What rank 0 is to do after bytes have come.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::bootstrap) enum Accepting {
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
pub(in crate::bootstrap) enum Verdict<'a> {
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
