//! The fate channel's frames: bytes to messages and back, nothing else.

use super::FateReport;
use crate::text::{cut, field, line};
use crate::types::Rank;

/// First four bytes of every frame.
const MAGIC: [u8; 4] = *b"TPFT";
/// Magic, kind, length of the body.
const HEADER: usize = 12;
/// Longest body.
pub(super) const BODY_MAX: usize = 1024;
/// Longest phase name in a heartbeat, bytes.
pub(super) const PHASE_MAX: usize = 64;

/// What ranks tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// "I live, and this is my phase."
    Beat { phase: String },
    /// Available memory of the sender's host, bytes.
    Memory { available: u64 },
    /// A rank has failed; leave.
    Fail {
        culprit: Rank,
        host: String,
        phase: String,
        reason: String,
    },
    /// A clean stop is coming.
    Stop,
    /// The sender has ended its work; its connection will close, and that is no failure.
    Bye,
}

const BEAT: u32 = 1;
const MEMORY: u32 = 2;
const FAIL: u32 = 3;
const STOP: u32 = 4;
const BYE: u32 = 5;

impl Frame {
    /// The bytes of the frame. Texts are cut to what a frame takes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Beat { phase } => (BEAT, cut(phase, PHASE_MAX).as_bytes().to_vec()),
            Self::Memory { available } => (MEMORY, available.to_le_bytes().to_vec()),
            Self::Fail {
                culprit,
                host,
                phase,
                reason,
            } => {
                let (host, phase, reason) = (line(host, 256), line(phase, PHASE_MAX), line(reason, 640));
                (
                    FAIL,
                    format!("culprit={culprit}\nhost={host}\nphase={phase}\nreason={reason}\n").into_bytes(),
                )
            }
            Self::Stop => (STOP, Vec::new()),
            Self::Bye => (BYE, Vec::new()),
        };
        let mut out = Vec::with_capacity(HEADER + body.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&kind.to_le_bytes());
        // Every body above is bounded far below 2^32.
        out.extend_from_slice(&u32::try_from(body.len()).unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    // protocol 4.2
    fn decode(kind: u32, body: &[u8]) -> Result<Self, String> {
        let text =
            |what: &str| std::str::from_utf8(body).map_err(|_| format!("sent a {what} that is not text"));
        match (kind, body.len()) {
            // What a peer says ends up in reports and logs: one line, nothing that a terminal would obey.
            (BEAT, 0..=PHASE_MAX) => Ok(Self::Beat {
                phase: line(text("phase")?, PHASE_MAX),
            }),
            (MEMORY, 8) => {
                let bytes: [u8; 8] = body
                    .try_into()
                    .map_err(|_| "sent a short memory report".to_owned())?;
                Ok(Self::Memory {
                    available: u64::from_le_bytes(bytes),
                })
            }
            (FAIL, _) => Self::fail(text("failure report")?),
            (STOP, 0) => Ok(Self::Stop),
            (BYE, 0) => Ok(Self::Bye),
            (kind, len) => Err(format!(
                "sent a frame of kind {kind} with {len} bytes, which no rank sends"
            )),
        }
    }

    fn fail(text: &str) -> Result<Self, String> {
        let missing = || "sent a failure report without a culprit".to_owned();
        let culprit = field(text, "culprit")
            .and_then(|text| text.parse().ok())
            .ok_or_else(missing)?;
        let or_unknown = |name, most| line(field(text, name).unwrap_or("?"), most);
        let (host, phase) = (or_unknown("host", 256), or_unknown("phase", PHASE_MAX));
        let reason = or_unknown("reason", 640);
        Ok(Self::Fail {
            culprit: Rank(culprit),
            host,
            phase,
            reason,
        })
    }
}

impl From<&FateReport> for Frame {
    fn from(report: &FateReport) -> Self {
        Self::Fail {
            culprit: report.culprit,
            host: report.host.clone(),
            phase: report.phase.clone(),
            reason: report.reason.clone(),
        }
    }
}

/// Collects bytes and gives whole frames.
#[derive(Debug, Default)]
pub(super) struct Decoder {
    buffer: Vec<u8>,
}

impl Decoder {
    /// Takes bytes as they came. The buffer never grows beyond one frame and what one read brought.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; `None` when more bytes are needed. An error says what the sender did.
    pub fn next(&mut self) -> Result<Option<Frame>, String> {
        let Some((header, rest)) = self.buffer.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let [m0, m1, m2, m3, k0, k1, k2, k3, l0, l1, l2, l3] = *header;
        if [m0, m1, m2, m3] != MAGIC {
            return Err("sent bytes that are no frame of the fate channel".to_owned());
        }
        let kind = u32::from_le_bytes([k0, k1, k2, k3]);
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > BODY_MAX {
            return Err(format!(
                "sent a frame that claims {length} bytes; {BODY_MAX} is the most"
            ));
        }
        let Some(body) = rest.get(..length) else {
            return Ok(None);
        };
        let frame = Frame::decode(kind, body)?;
        self.buffer.drain(..HEADER + length);
        Ok(Some(frame))
    }

    /// Whether a frame has begun and not ended.
    pub fn is_midway(&self) -> bool {
        !self.buffer.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(decoder: &mut Decoder) -> Result<Vec<Frame>, String> {
        let mut frames = Vec::new();
        while let Some(frame) = decoder.next()? {
            frames.push(frame);
        }
        Ok(frames)
    }

    #[test]
    fn frames_survive_any_cut() {
        let frames = vec![
            Frame::Beat { phase: "boot".into() },
            Frame::Memory { available: u64::MAX },
            Frame::Fail {
                culprit: Rank(3),
                host: "b".into(),
                phase: "run".into(),
                reason: "x=y".into(),
            },
            Frame::Stop,
            Frame::Bye,
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        for step in 1..bytes.len() {
            let mut decoder = Decoder::default();
            let mut got = Vec::new();
            for chunk in bytes.chunks(step) {
                decoder.push(chunk);
                got.extend(all(&mut decoder).unwrap());
            }
            assert_eq!(got, frames);
            assert!(!decoder.is_midway());
        }
    }

    #[test]
    fn long_texts_are_cut_between_characters_and_stay_one_line() {
        let reason = "ä\n".repeat(2000);
        let frame = Frame::Fail {
            culprit: Rank(0),
            host: reason.clone(),
            phase: reason.clone(),
            reason,
        };
        let bytes = frame.encode();
        assert!(bytes.len() <= HEADER + BODY_MAX);
        let mut decoder = Decoder::default();
        decoder.push(&bytes);
        let Some(Frame::Fail { reason, .. }) = decoder.next().unwrap() else {
            panic!("no failure report")
        };
        assert!(reason.starts_with("ä ä "), "{reason}");
    }

    #[test]
    fn what_a_peer_says_is_one_line_without_control_characters() {
        let mut decoder = Decoder::default();
        let mut beat = Frame::Beat { phase: "x".repeat(9) }.encode();
        beat.splice(HEADER.., *b"a\nb\x1b[2Jc");
        beat[8] = 8;
        decoder.push(&beat);
        let phase = "a b [2Jc".to_owned();
        assert_eq!(decoder.next(), Ok(Some(Frame::Beat { phase })));
    }

    #[test]
    fn oversized_foreign_and_unknown_frames_are_errors() {
        let mut oversized = Frame::Stop.encode();
        oversized[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        let mut unknown = Frame::Stop.encode();
        unknown[4] = 99;
        for bytes in [oversized, unknown, b"GET / HTTP/1.1\r\n\r\n".to_vec()] {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            assert!(decoder.next().is_err());
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u32..8) {
            let mut framed = MAGIC.to_vec();
            framed.extend(kind.to_le_bytes());
            framed.extend(u32::try_from(bytes.len()).unwrap().to_le_bytes());
            framed.extend(&bytes);
            for input in [bytes, framed] {
                let mut decoder = Decoder::default();
                decoder.push(&input);
                let _ = all(&mut decoder);
            }
        }
    }
}
