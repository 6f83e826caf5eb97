//! Fuzz targets of the bootstrap's parsers.

use super::agree;
use super::auth::{NONCE, Side, prove};
use super::frame::{GIVE_MAX, Kind, Reader};
use super::gather;
use super::handshake::{Accepting, Acceptor, Connecting, Connector, proved};
use super::hello::{Hello, Role};
use crate::fuzz::{Input, within};
use crate::secret::Secret;
use crate::types::{Rank, World};

/// What a handshake may hold: both machines, a hello and a verdict, each a few times over while it is turned into text.
const HANDSHAKE_LIMIT: usize = 48 << 10;

const OURS: [u8; NONCE] = [1; NONCE];
const THEIRS: [u8; NONCE] = [2; NONCE];

fn hello() -> Hello {
    Hello {
        world: World(4),
        rank: Rank(1),
        role: Role::Control,
        instance: "0123456789abcdef".to_owned(),
        session: "a session".to_owned(),
        host: "beta".to_owned(),
        pid: 4711,
    }
}

/// Either side of a handshake, with or without a secret. Bit 0 of the first byte: rank 0's side; bit 1: there is a secret;
/// bit 2: the other side knows it, and the bytes are the text that it proves; else they are all that comes.
pub fn handshake(data: &[u8]) {
    within("a handshake", HANDSHAKE_LIMIT, || {
        let mut input = Input(data);
        let (how, step) = (input.byte(), input.byte());
        let secret = (how & 2 != 0)
            .then(|| Secret::from_text("a secret for the fuzz targets").ok())
            .flatten();
        let genuine = how & 4 != 0;
        if how & 1 != 0 {
            accept(secret, genuine, input, step);
        } else {
            connect(secret, genuine, input, step);
        }
    });
}

fn accept(secret: Option<Secret>, genuine: bool, input: Input<'_>, step: u8) {
    let mut machine = Acceptor::new(secret.clone(), OURS);
    if genuine {
        let (_, first) = Connector::new(secret.clone(), THEIRS, &hello());
        assert!(matches!(machine.push(&first), Accepting::Send(_)));
        let text = String::from_utf8_lossy(input.0);
        let proof = prove(secret.as_ref(), Side::Follower, &THEIRS, &OURS, text.as_bytes());
        let bytes = proved(&proof, &text);
        return accept_parts(&mut machine, Input(&bytes), step, true);
    }
    accept_parts(&mut machine, input, step, secret.is_none());
}

fn accept_parts(machine: &mut Acceptor, input: Input<'_>, step: u8, may_enter: bool) {
    for mut part in input.parts(step) {
        while !part.is_empty() {
            let wants = machine.wants();
            assert!(wants > 0, "neither decided nor asking for more");
            let (now, rest) = part.split_at(wants.min(part.len()));
            part = rest;
            match machine.push(now) {
                Accepting::More | Accepting::Send(_) => {}
                Accepting::Reject { reply, why, .. } => {
                    assert!(reply.len() < 4096 && why.lines().count() <= 1);
                    return;
                }
                Accepting::Hello(hello) => {
                    assert!(may_enter, "in without the secret: {hello:?}");
                    assert!(hello.host.len() <= 512 && hello.session.len() <= 256);
                    // What was read reads the same again.
                    assert_eq!(Hello::parse(hello.to_text().as_bytes()), Ok(hello));
                    return;
                }
            }
        }
    }
}

fn connect(secret: Option<Secret>, genuine: bool, input: Input<'_>, step: u8) {
    let (mut machine, first) = Connector::new(secret.clone(), OURS, &hello());
    let proved_text;
    let mut parts = input;
    if genuine {
        let mut leader = Acceptor::new(secret.clone(), THEIRS);
        let Accepting::Send(preface) = leader.push(&first) else {
            unreachable!("a good preface was refused")
        };
        assert!(matches!(machine.push(&preface), Connecting::Send(_)));
        let text = String::from_utf8_lossy(parts.0);
        let proof = prove(secret.as_ref(), Side::Leader, &OURS, &THEIRS, text.as_bytes());
        proved_text = proved(&proof, &text);
        parts = Input(&proved_text);
    }
    for mut part in parts.parts(step) {
        while !part.is_empty() {
            let wants = machine.wants();
            assert!(wants > 0, "neither decided nor asking for more");
            let (now, rest) = part.split_at(wants.min(part.len()));
            part = rest;
            match machine.push(now) {
                Connecting::More | Connecting::Send(_) => {}
                Connecting::Welcome { host } => {
                    assert!(genuine || secret.is_none(), "welcomed without the secret");
                    assert!(host.len() <= 512);
                    return;
                }
                Connecting::Over { why } => {
                    assert!(genuine || secret.is_none(), "told so without the secret");
                    assert!(why.lines().count() <= 1);
                    return;
                }
                Connecting::Refused { why, proved } => {
                    assert!(!proved || genuine || secret.is_none());
                    assert!(why.lines().count() <= 1);
                    return;
                }
            }
        }
    }
}

/// Frames of meetings and what is inside of them: a failure's text, a table of answers.
pub fn meeting(data: &[u8]) {
    within("a meeting's frames", 8 * data.len() + (16 << 10), || {
        let mut input = Input(data);
        let (step, world) = (input.byte(), World(u32::from(input.byte() % 64) + 1));
        let mut reader = Reader::default();
        for mut part in input.parts(step) {
            while !part.is_empty() {
                let wants = reader.wants();
                assert!(wants > 0);
                let (now, rest) = part.split_at(wants.min(part.len()));
                part = rest;
                let frame = match reader.push(now) {
                    Ok(None) => continue,
                    Ok(Some(frame)) => frame,
                    Err(why) => {
                        assert!(why.starts_with("sent "));
                        return;
                    }
                };
                assert!(frame.op.len() <= 128 && (frame.kind != Kind::Give || frame.body.len() <= GIVE_MAX));
                let mut again = Reader::default();
                let bytes = frame.encode();
                let (head, rest) = bytes.split_at(again.wants());
                let whole = match again.push(head) {
                    Ok(None) => again.push(rest),
                    early => early,
                };
                assert_eq!(whole.as_ref(), Ok(&Some(frame.clone())));
                let error = gather::told(Rank(1), "op", 3, &frame);
                assert_eq!(error.to_string().lines().count(), 1);
                if let Some(all) = gather::split(&frame.body, world) {
                    assert_eq!(gather::join(&all), frame.body);
                }
            }
        }
    });
}

/// The fields of several ranks, separated by a byte of 0, and the comparison of them.
pub fn agreement(data: &[u8]) {
    // Lossy text is up to three times its bytes; every field stands in a table, and every difference in the answer with all
    // its ranks.
    within("an agreement", 512 * data.len() + (64 << 10), || {
        let all: Vec<Vec<u8>> = data
            .split(|byte| *byte == 0)
            .take(8)
            .map(<[u8]>::to_vec)
            .collect();
        let hosts: Vec<String> = (0..all.len()).map(|rank| format!("host {rank}")).collect();
        let Ok(text) = agree::compare(&all, &hosts) else {
            return;
        };
        let differences = agree::parse(&text).expect("rank 0's own words are understood");
        let equal = all.windows(2).all(|pair| pair[0] == pair[1]);
        assert!(!equal || differences.is_empty());
        for difference in &differences {
            assert!(difference.values.len() > 1);
            let ranks: usize = difference.values.iter().map(|(_, ranks)| ranks.len()).sum();
            assert_eq!(ranks, all.len());
        }
    });
    within("a comparison", 64 * data.len() + (16 << 10), || {
        let _ = agree::parse(&String::from_utf8_lossy(data));
    });
}

#[cfg(test)]
pub use seeds::{agreement_seeds, handshake_seeds, meeting_seeds};

#[cfg(test)]
mod seeds {
    use super::*;
    use crate::bootstrap::frame::Frame;
    use crate::meeting::MeetingError;

    type Seeds = Vec<(&'static str, Vec<u8>)>;

    fn with(head: [u8; 2], rest: &[u8]) -> Vec<u8> {
        [&head, rest].concat()
    }

    pub fn handshake_seeds() -> Seeds {
        let secret = Secret::from_text("a secret for the fuzz targets").ok();
        let (_, follower) = Connector::new(secret.clone(), THEIRS, &hello());
        let mut acceptor = Acceptor::new(secret.clone(), THEIRS);
        let Accepting::Send(leader) = acceptor.push(&follower) else {
            panic!("a good preface was refused")
        };
        let text = hello().to_text();
        let false_proof = proved(&[7; NONCE], &text);
        vec![
            ("hello", with([0b111, 0], text.as_bytes())),
            ("hello-in-parts", with([0b111, 7], text.as_bytes())),
            ("hello-without-secret", with([0b101, 0], text.as_bytes())),
            (
                "follower-false-proof",
                with([0b011, 0], &[follower.clone(), false_proof.clone()].concat()),
            ),
            (
                "follower-bare",
                with([0b001, 5], &[follower, false_proof].concat()),
            ),
            ("welcome", with([0b110, 0], b"verdict=welcome\nhost=alpha\n")),
            (
                "refused",
                with([0b110, 3], b"verdict=refused\nreason=rank 1 is already here\n"),
            ),
            ("over", with([0b100, 0], b"verdict=over\nreason=lost rank 1\n")),
            ("leader", with([0b010, 0], &leader)),
            ("scanner", with([0b011, 0], b"GET / HTTP/1.1\r\n\r\n")),
        ]
    }

    pub fn meeting_seeds() -> Seeds {
        let frame = |kind, op: &str, body: &[u8]| {
            let (op, body) = (op.to_owned(), body.to_vec());
            Frame {
                kind,
                number: 3,
                op,
                body,
            }
            .encode()
        };
        let failed = |error: &MeetingError| frame(Kind::Failed, "agree", gather::describe(error).as_bytes());
        let op = "agree".to_owned();
        let table = gather::join(&[b"a".to_vec(), Vec::new(), b"ccc".to_vec()]);
        vec![
            ("give", with([0, 2], &frame(Kind::Give, "agree", b"slot=256\n"))),
            ("answer", with([9, 2], &frame(Kind::Answer, "open", &table))),
            (
                "two",
                with(
                    [1, 1],
                    &[frame(Kind::Give, "", b""), frame(Kind::Give, "b", b"x")].concat(),
                ),
            ),
            (
                "refused",
                with(
                    [0, 1],
                    &failed(&MeetingError::Refused {
                        op: op.clone(),
                        rank: Rank(2),
                        reason: "no device".to_owned(),
                    }),
                ),
            ),
            (
                "out-of-step",
                with(
                    [0, 1],
                    &failed(&MeetingError::OutOfStep {
                        mine: op.clone(),
                        mine_number: 3,
                        rank: Rank(2),
                        theirs: "warm".to_owned(),
                        theirs_number: 4,
                    }),
                ),
            ),
            (
                "lost",
                with(
                    [0, 1],
                    &failed(&MeetingError::Lost {
                        op,
                        rank: Rank(1),
                        reason: "end of stream".to_owned(),
                    }),
                ),
            ),
        ]
    }

    pub fn agreement_seeds() -> Seeds {
        let all = [
            b"protocol=1\nslot=256\nimage=abc\n".to_vec(),
            b"protocol=1\nslot=512\n".to_vec(),
            b"protocol=1\nslot=512\nimage=abc\nextra=x\n".to_vec(),
        ];
        let hosts = ["alpha", "beta", "gamma"].map(str::to_owned);
        let compared = agree::compare(&all, &hosts).unwrap();
        vec![
            ("different", all.join(&0)),
            ("equal", [all[0].as_slice(), all[0].as_slice()].join(&0)),
            ("compared", compared.into_bytes()),
        ]
    }
}
