//! A rank's region: the memory that its peers (or their wires) write into, and the rules by which they do.

mod copy;
pub mod layout;
mod mapping;
pub mod partition;
pub mod protocol;

pub(crate) use copy::copy;
pub use layout::{Bay, Layout, Word};
pub use mapping::Mapping;
pub use protocol::Words;

use crate::collective::Call;
use crate::types::Rank;
use layout::{HEADER, INLINE, NOTICE};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What stands beside a message's flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The sender's call, encoded.
    pub call: [u8; Call::ENCODED],
    /// Which part of the call this is, from 0; wraps.
    pub part: u32,
    /// Bytes of payload: in the line if at most [`INLINE`], else in the slot.
    pub len: u32,
    /// How many messages of the opposite stream the sender had consumed.
    pub answer: u64,
}

impl Header {
    /// The bytes as they lie in a line and travel over a stream, little endian.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..16].copy_from_slice(&self.call);
        out[16..20].copy_from_slice(&self.part.to_le_bytes());
        out[20..24].copy_from_slice(&self.len.to_le_bytes());
        out[24..].copy_from_slice(&self.answer.to_le_bytes());
        out
    }

    /// Reads what [`encode`](Self::encode) wrote; any bytes are a header.
    pub fn decode(raw: &[u8; HEADER]) -> Self {
        let mut call = [0; Call::ENCODED];
        call.copy_from_slice(&raw[..16]);
        let word = |at: usize| u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]);
        let answer = u64::from(word(24)) | u64::from(word(28)) << 32;
        Self {
            call,
            part: word(16),
            len: word(20),
            answer,
        }
    }
}

/// What the kernel asks its proxy to send to one peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Post {
    /// A message, its payload in the entry's staging slot.
    Message {
        /// Its number.
        seq: u64,
        /// Its header.
        header: Header,
        /// Offset of the payload in the staging slot, bytes.
        offset: u32,
    },
    /// An explicit answer.
    Answer {
        /// How many messages of the peer were consumed.
        consumed: u64,
    },
}

impl Post {
    /// Bytes of a post as it lies in memory: the number, the header, the offset (u32), the kind (u32; 0: a message).
    pub const ENCODED: usize = 48;

    fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        match self {
            Self::Message { seq, header, offset } => {
                out[..8].copy_from_slice(&seq.to_le_bytes());
                out[8..40].copy_from_slice(&header.encode());
                out[40..44].copy_from_slice(&offset.to_le_bytes());
            }
            Self::Answer { consumed } => {
                out[..8].copy_from_slice(&consumed.to_le_bytes());
                out[44] = 1;
            }
        }
        out
    }

    fn decode(raw: &[u8; Self::ENCODED]) -> Self {
        let (mut number, mut header, mut offset) = ([0; 8], [0; HEADER], [0; 4]);
        number.copy_from_slice(&raw[..8]);
        header.copy_from_slice(&raw[8..40]);
        offset.copy_from_slice(&raw[40..44]);
        match raw[44..] {
            [0, 0, 0, 0] => Self::Message {
                seq: u64::from_le_bytes(number),
                header: Header::decode(&header),
                offset: u32::from_le_bytes(offset),
            },
            _ => Self::Answer {
                consumed: u64::from_le_bytes(number),
            },
        }
    }
}

/// A rank's region in mapped memory.
#[derive(Clone, Debug)]
pub struct Region {
    base: NonNull<u8>,
    layout: Layout,
    _mapping: Arc<Mapping>,
}

// SAFETY: the region is shared memory by design; each part has one writer, and the flags of `protocol` say when the
// other side may read it.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// The region at `offset` of a mapping; `None` if it does not lie within, or off a page.
    pub fn new(mapping: &Arc<Mapping>, offset: usize, layout: Layout) -> Option<Self> {
        let end = offset.checked_add(layout.total())?;
        if end > mapping.len() || !offset.is_multiple_of(layout::PAGE) {
            return None;
        }
        // SAFETY: within the mapping, just checked.
        let base = unsafe { mapping.base().add(offset) };
        Some(Self {
            base,
            layout,
            _mapping: Arc::clone(mapping),
        })
    }

    /// Where everything lies.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Its first byte.
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Address of `len` bytes at `offset`, all within the region.
    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.layout.total() && len <= self.layout.total() - offset,
            "outside the region"
        );
        // SAFETY: just checked to lie within.
        unsafe { self.base.add(offset) }.as_ptr()
    }

    fn atomic(&self, word: Word) -> &AtomicU64 {
        let at = self.at(self.layout.word(word), 8).cast();
        // SAFETY: within the region, aligned to 8 bytes by the layout, only ever accessed as an atomic.
        unsafe { AtomicU64::from_ptr(at) }
    }

    /// Writes a message into one of this region's bays and publishes its flag: what a wire does at the receiver's end.
    ///
    /// # Safety
    /// As [`publish`](Self::publish), and `header.len` is `payload.len()`, at most a slot.
    pub unsafe fn deliver(&self, bay: Bay, seq: u64, header: &Header, payload: &[u8]) {
        let data = self.payload(bay, payload.len());
        // SAFETY: within the bay, which is free for us to write by the caller's promise.
        unsafe {
            copy(payload.as_ptr(), data, payload.len());
            self.publish(bay, seq, header);
        }
    }

    /// Publishes a message whose payload is in its place already.
    ///
    /// # Safety
    /// The caller is the one writer of the bay, and the protocol says that the bay is free.
    pub unsafe fn publish(&self, bay: Bay, seq: u64, header: &Header) {
        let line = self.at(self.layout.line(bay), layout::LINE);
        // SAFETY: the header lies within the line, which is free for us to write by the caller's promise.
        unsafe { line.add(8).cast::<[u8; HEADER]>().write(header.encode()) };
        self.store(Word::Arrival(bay), seq);
    }

    /// The header of the message in a bay.
    ///
    /// # Safety
    /// The message has arrived and is not consumed yet.
    pub unsafe fn header(&self, bay: Bay) -> Header {
        let line = self.at(self.layout.line(bay), layout::LINE);
        // SAFETY: within the line, and nobody writes it now.
        Header::decode(&unsafe { line.add(8).cast::<[u8; HEADER]>().read() })
    }

    /// Address of a bay's payload of `len` bytes, at most a slot.
    pub fn payload(&self, bay: Bay, len: usize) -> *mut u8 {
        assert!(len <= self.layout.slot(), "more than a slot");
        if len <= INLINE {
            self.at(self.layout.line(bay) + 8 + HEADER, len)
        } else {
            self.at(self.layout.receive(bay), len)
        }
    }

    /// Address of `len` bytes at `offset` of the staging slot for entries of this parity.
    pub fn staging(&self, entry: usize, offset: usize, len: usize) -> *mut u8 {
        assert!(
            offset <= self.layout.slot() && len <= self.layout.slot() - offset,
            "outside the staging slot"
        );
        self.at(self.layout.staging(entry) + offset, len)
    }

    /// Writes a post.
    ///
    /// # Safety
    /// The entry is free, and the caller is the kernel.
    pub unsafe fn write_post(&self, entry: usize, peer: Rank, post: &Post) {
        let at = self.at(self.layout.post(entry, peer), 2 * layout::LINE);
        // SAFETY: an encoded post is smaller than two lines; nobody else accesses it now.
        unsafe { at.cast::<[u8; Post::ENCODED]>().write(post.encode()) };
    }

    /// Reads a post.
    ///
    /// # Safety
    /// The entry is rung, its mask names the peer, and the caller is the proxy of the process that wrote it.
    pub unsafe fn read_post(&self, entry: usize, peer: Rank) -> Post {
        let at = self.at(self.layout.post(entry, peer), 2 * layout::LINE);
        // SAFETY: written before the doorbell was rung, by `write_post` or a GPU kernel; any bytes are a post.
        Post::decode(&unsafe { at.cast::<[u8; Post::ENCODED]>().read() })
    }

    /// Leaves a notice in this region, as rank `from`: `culprit` failed, and why. Longer text is cut; the first counts.
    pub fn leave_notice(&self, from: Rank, culprit: Rank, text: &str) {
        if self.load(Word::Notice { peer: from }) != 0 {
            return;
        }
        let text = &text.as_bytes()[..text.floor_char_boundary(NOTICE - 1)];
        let at = self.at(self.layout.notice(from), NOTICE);
        // SAFETY: within the line; `from` is its one writer, and writes it once, before the word that publishes it.
        unsafe {
            at.write(text.len() as u8);
            std::ptr::copy_nonoverlapping(text.as_ptr(), at.add(1), text.len());
        }
        self.store(Word::Notice { peer: from }, u64::from(culprit.0) + 1);
    }

    /// The notice that `peer` has left, if it has: who failed, and why.
    pub fn notice(&self, peer: Rank) -> Option<(Rank, String)> {
        let culprit = u32::try_from(self.load(Word::Notice { peer }))
            .unwrap_or(u32::MAX)
            .checked_sub(1)?;
        let at = self.at(self.layout.notice(peer), NOTICE);
        // SAFETY: within the line; written before the word was published, and not again.
        let line = unsafe { at.cast::<[u8; NOTICE]>().read() };
        let text = &line[1..1 + usize::from(line[0]).min(NOTICE - 1)];
        Some((Rank(culprit), String::from_utf8_lossy(text).into_owned()))
    }
}

const _: () = assert!(Post::ENCODED <= 2 * layout::LINE);

impl Words for Region {
    #[inline]
    fn load(&self, word: Word) -> u64 {
        self.atomic(word).load(Ordering::Acquire)
    }

    #[inline]
    fn store(&self, word: Word, value: u64) {
        self.atomic(word).store(value, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn posts_survive_the_way_through_memory() {
        let header = Header {
            call: [7; Call::ENCODED],
            part: 3,
            len: 4096,
            answer: 9,
        };
        for post in [
            Post::Message {
                seq: u64::MAX - 1,
                header,
                offset: 65_536,
            },
            Post::Answer { consumed: 12 },
        ] {
            assert_eq!(Post::decode(&post.encode()), post);
        }
    }
}
