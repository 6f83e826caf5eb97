//! The frames of meetings: what a follower gives, what rank 0 answers, and how it tells that a meeting failed.

/// First bytes of every frame.
const MAGIC: [u8; 4] = *b"TPMT";
/// Magic, kind, number, length of the operation's name, length of the body.
const HEADER: usize = 4 + 4 + 8 + 4 + 4;
/// Longest name of an operation, bytes.
pub(super) const OP_MAX: usize = 128;
/// Most that one rank gives to a meeting, bytes.
pub(super) const GIVE_MAX: usize = 4 << 20;
/// Most that rank 0 answers, bytes.
pub(super) const ANSWER_MAX: usize = 256 << 20;
/// Longest text of a failure, bytes.
pub(super) const FAILED_MAX: usize = 8192;

/// Which kind of frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Give,
    Answer,
    Failed,
}

impl Kind {
    fn word(self) -> u32 {
        match self {
            Self::Give => 1,
            Self::Answer => 2,
            Self::Failed => 3,
        }
    }

    fn body_max(self) -> usize {
        match self {
            Self::Give => GIVE_MAX,
            Self::Answer => ANSWER_MAX,
            Self::Failed => FAILED_MAX,
        }
    }
}

/// A whole frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Frame {
    pub kind: Kind,
    pub number: u64,
    pub op: String,
    pub body: Vec<u8>,
}

impl Frame {
    // protocol 3.1
    pub fn encode(&self) -> Vec<u8> {
        let op = crate::text::cut(&self.op, OP_MAX);
        let length = |n: usize| u32::try_from(n).unwrap_or(u32::MAX).to_le_bytes();
        let mut out = Vec::with_capacity(HEADER + op.len() + self.body.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&self.kind.word().to_le_bytes());
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&length(op.len()));
        out.extend_from_slice(&length(self.body.len()));
        out.extend_from_slice(op.as_bytes());
        out.extend_from_slice(&self.body);
        out
    }
}

/// Collects the bytes of one frame and asks for no byte beyond it.
#[derive(Debug, Default)]
pub(super) struct Reader {
    buffer: Vec<u8>,
    head: Option<Head>,
}

#[derive(Clone, Copy, Debug)]
struct Head {
    kind: Kind,
    number: u64,
    op: usize,
    body: usize,
}

impl Reader {
    /// How many bytes are missing for the next step.
    pub fn wants(&self) -> usize {
        let whole = self.head.map_or(HEADER, |head| HEADER + head.op + head.body);
        whole.saturating_sub(self.buffer.len())
    }

    /// Takes bytes, at most as many as it wants; gives the frame when it is whole. An error says what the sender did.
    pub fn push(&mut self, bytes: &[u8]) -> Result<Option<Frame>, String> {
        self.buffer.extend_from_slice(bytes);
        if self.head.is_none() {
            let Some(header) = self.buffer.first_chunk::<HEADER>() else {
                return Ok(None);
            };
            self.head = Some(read_head(header)?);
        }
        let Some(head) = self.head else { return Ok(None) };
        if self.wants() > 0 {
            return Ok(None);
        }
        let body = self.buffer.split_off(HEADER + head.op);
        let op = self.buffer.split_off(HEADER);
        let op = String::from_utf8(op).map_err(|_| "sent an operation name that is not text".to_owned())?;
        // It ends up in messages: one line, nothing that a terminal would obey.
        let op = crate::text::line(&op, OP_MAX);
        *self = Self::default();
        Ok(Some(Frame {
            kind: head.kind,
            number: head.number,
            op,
            body,
        }))
    }
}

// protocol 3.2
fn read_head(header: &[u8; HEADER]) -> Result<Head, String> {
    let word = |at: usize| {
        let bytes = header.get(at..).and_then(|rest| rest.first_chunk::<4>());
        bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
    };
    if header.first_chunk::<4>() != Some(&MAGIC) {
        return Err("sent bytes that are no frame of a meeting".to_owned());
    }
    let kind = match word(4) {
        1 => Kind::Give,
        2 => Kind::Answer,
        3 => Kind::Failed,
        other => return Err(format!("sent a frame of unknown kind {other}")),
    };
    let number = u64::from(word(8)) | u64::from(word(12)) << 32;
    let (op, body) = (word(16) as usize, word(20) as usize);
    if op > OP_MAX || body > kind.body_max() {
        return Err(format!(
            "sent a frame that claims {op} + {body} bytes; {OP_MAX} + {} are the most",
            kind.body_max()
        ));
    }
    Ok(Head {
        kind,
        number,
        op,
        body,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_frame_survives_any_cut_and_leaves_what_follows() {
        let frame = Frame {
            kind: Kind::Give,
            number: u64::MAX - 1,
            op: "agree".into(),
            body: vec![7; 100],
        };
        let mut bytes = frame.encode();
        bytes.extend_from_slice(b"next");
        for step in 1..bytes.len() {
            let (mut reader, mut at, mut got) = (Reader::default(), 0, None);
            while got.is_none() {
                let take = step.min(reader.wants());
                got = reader.push(&bytes[at..at + take]).unwrap();
                at += take;
            }
            assert_eq!(got.unwrap(), frame);
            assert_eq!(&bytes[at..], b"next");
        }
    }

    #[test]
    fn claims_beyond_the_limit_are_refused_before_anything_is_kept() {
        let mut bytes = Frame {
            kind: Kind::Give,
            number: 0,
            op: String::new(),
            body: Vec::new(),
        }
        .encode();
        bytes[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Reader::default().push(&bytes).unwrap_err().contains("claims"));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), framed: bool) {
            let mut input = if framed { MAGIC.to_vec() } else { Vec::new() };
            input.extend(bytes);
            let mut reader = Reader::default();
            for byte in input {
                if reader.push(&[byte]).is_err() {
                    break;
                }
            }
        }
    }
}
