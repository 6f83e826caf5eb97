//! What travels over a connection: frames of a fixed head and, for messages and notices, a payload.
//!
//! | offset | size | content |
//! |---|---|---|
//! | 0 | 4 | magic `TPW1` |
//! | 4 | 1 | kind: 1 message, 2 answer, 3 notice |
//! | 5 | 3 | 0 |
//! | 8 | 8 | message: its number; answer: how many were consumed; notice: the rank that failed; little endian |
//! | 16 | 32 | the message's header; `len` says how long the payload is, 0 for an answer |

use crate::region::layout::{HEADER, NOTICE};
use crate::region::{Header, Layout};
use crate::types::Rank;

/// Bytes of a frame's head.
pub(super) const HEAD: usize = 16 + HEADER;
const MAGIC: [u8; 4] = *b"TPW1";

/// A frame's head, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A message; the payload's length is within a slot.
    Message { seq: u64, header: Header },
    /// An explicit answer.
    Answer { consumed: u64 },
    /// A rank has failed; so many bytes of text follow, at most what a notice can hold.
    Notice { culprit: Rank, len: usize },
}

impl Frame {
    /// The head as it is sent.
    pub(super) fn encode(&self) -> [u8; HEAD] {
        let nothing = Header {
            call: [0; 16],
            part: 0,
            len: 0,
            answer: 0,
        };
        let (kind, number, header) = match *self {
            Self::Message { seq, header } => (1, seq, header),
            Self::Answer { consumed } => (2, consumed, nothing),
            Self::Notice { culprit, len } => (
                3,
                u64::from(culprit.0),
                Header {
                    len: len as u32,
                    ..nothing
                },
            ),
        };
        let mut out = [0; HEAD];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = kind;
        out[8..16].copy_from_slice(&u64::to_le_bytes(number));
        out[16..].copy_from_slice(&header.encode());
        out
    }

    /// Reads a head; an error says what is wrong with it.
    pub(super) fn decode(raw: &[u8; HEAD], layout: &Layout) -> Result<Self, String> {
        let [m0, m1, m2, m3, kind, z0, z1, z2, n @ ..] = raw;
        if [*m0, *m1, *m2, *m3] != MAGIC || [*z0, *z1, *z2] != [0; 3] {
            return Err(format!(
                "a frame begins with {} where TPW1 was due",
                hex::encode(&raw[..8])
            ));
        }
        let (number, header) = n.split_first_chunk().ok_or("a frame's head is cut")?;
        let number = u64::from_le_bytes(*number);
        let header = Header::decode(header.first_chunk().ok_or("a frame's head is cut")?);
        let len = header.len as usize;
        match kind {
            1 if len <= layout.slot() => Ok(Self::Message { seq: number, header }),
            1 => Err(format!(
                "message {number} has {len} bytes where a slot has {}",
                layout.slot()
            )),
            2 if len == 0 => Ok(Self::Answer { consumed: number }),
            2 => Err(format!("an answer carries {len} bytes of payload")),
            3 if len < NOTICE && number < layout.world().size() as u64 => Ok(Self::Notice {
                culprit: Rank(number as u32),
                len,
            }),
            3 => Err(format!(
                "a notice of {len} bytes (at most {}) on rank {number}",
                NOTICE - 1
            )),
            other => Err(format!("a frame of unknown kind {other}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::World;
    use proptest::prelude::*;

    fn layout() -> Layout {
        Layout::new(World(2), 4096).unwrap()
    }

    #[test]
    fn frames_survive_the_way() {
        let header = Header {
            call: [7; 16],
            part: 3,
            len: 4096,
            answer: 1 << 40,
        };
        for frame in [
            Frame::Message { seq: 1 << 50, header },
            Frame::Answer { consumed: 9 },
            Frame::Notice {
                culprit: Rank(1),
                len: 100,
            },
        ] {
            assert_eq!(Frame::decode(&frame.encode(), &layout()), Ok(frame));
        }
    }

    #[test]
    fn lengths_beyond_the_region_are_refused() {
        let header = Header {
            call: [0; 16],
            part: 0,
            len: 4097,
            answer: 0,
        };
        let error = Frame::decode(&Frame::Message { seq: 1, header }.encode(), &layout()).unwrap_err();
        assert!(error.contains("4097") && error.contains("4096"), "{error}");
        assert!(
            Frame::decode(
                &Frame::Notice {
                    culprit: Rank(1),
                    len: NOTICE
                }
                .encode(),
                &layout()
            )
            .is_err()
        );
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_bytes_make_a_frame_that_does_not_fit(mut raw in any::<[u8; HEAD]>(), magic in any::<bool>()) {
            if magic {
                raw[..4].copy_from_slice(&MAGIC);
                raw[4] %= 5;
                raw[5..8].fill(0);
            }
            match Frame::decode(&raw, &layout()) {
                Ok(Frame::Message { header, .. }) => prop_assert!(header.len <= 4096),
                Ok(Frame::Notice { len, .. }) => prop_assert!(len < NOTICE),
                Ok(Frame::Answer { .. }) | Err(_) => {}
            }
        }
    }
}
