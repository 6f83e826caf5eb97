//! The receiving end of one connection: takes what has arrived, straight into the region.

use super::frame::{Frame, HEAD};
use crate::region::layout::{NOTICE, SLOTS};
use crate::region::{Bay, Header, Region, Word, Words};
use crate::types::Rank;
use std::io::{ErrorKind, Read};

/// Heads, and small payloads with them, are read through a buffer of this size in one call; the rest of a larger
/// payload goes straight into its slot.
const BUFFER: usize = 4096;

/// What has come from one peer so far.
pub(super) struct Reader {
    source: Rank,
    buffer: Box<[u8; BUFFER]>,
    /// Bytes of `buffer` that are read and not used yet.
    from: usize,
    to: usize,
    /// Number of the last message that was begun.
    begun: u64,
    /// A message whose payload is not all there.
    open: Option<Open>,
}

#[derive(Clone, Copy)]
struct Open {
    seq: u64,
    header: Header,
    got: usize,
}

impl Reader {
    pub(super) fn new(source: Rank) -> Self {
        Self {
            source,
            buffer: Box::new([0; BUFFER]),
            from: 0,
            to: 0,
            begun: 0,
            open: None,
        }
    }

    /// Takes what has arrived, without waiting. `Ok(true)` where anything did; an error says why nothing more will.
    pub(super) fn take(&mut self, mut stream: impl Read, region: &Region) -> Result<bool, String> {
        let mut moved = false;
        loop {
            let (got, wanted) = match self.open {
                Some(open) => {
                    // SAFETY: nobody else touches these bytes now.
                    let rest = unsafe { &mut *self.rest(&open, region) };
                    (stream.read(rest), rest.len())
                }
                None => {
                    self.buffer.copy_within(self.from..self.to, 0);
                    (self.to, self.from) = (self.to - self.from, 0);
                    (stream.read(&mut self.buffer[self.to..]), BUFFER - self.to)
                }
            };
            let got = match got {
                Ok(0) => return Err("it has closed its connection".to_owned()),
                Ok(got) => got,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(moved),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(format!("its connection broke: {e}")),
            };
            moved = true;
            match &mut self.open {
                Some(open) => open.got += got,
                None => self.to += got,
            }
            self.use_up(region)?;
            // A short read took all there was; asking again would only be told so.
            if got < wanted {
                return Ok(true);
            }
        }
    }

    /// The part of an open message's payload that is not there yet: within its bay, which `begin` found free, and which
    /// nobody else touches until the flag is stored.
    fn rest(&self, open: &Open, region: &Region) -> *mut [u8] {
        let len = open.header.len as usize;
        let at = region.payload(Bay::of(self.source, open.seq), len);
        // SAFETY: `payload` checked that `len` bytes lie in the bay, and `got` is at most `len`.
        std::ptr::slice_from_raw_parts_mut(unsafe { at.add(open.got) }, len - open.got)
    }

    /// Uses what is in the buffer, frame by frame.
    fn use_up(&mut self, region: &Region) -> Result<(), String> {
        loop {
            if let Some(mut open) = self.open {
                // SAFETY: nobody else touches these bytes now.
                let rest = unsafe { &mut *self.rest(&open, region) };
                let take = rest.len().min(self.to - self.from);
                rest[..take].copy_from_slice(&self.buffer[self.from..self.from + take]);
                self.from += take;
                open.got += take;
                if open.got < open.header.len as usize {
                    self.open = Some(open);
                    return Ok(());
                }
                self.open = None;
                // SAFETY: this reader is the bay's one writer, the bay is free, and the payload is in place.
                unsafe { region.publish(Bay::of(self.source, open.seq), open.seq, &open.header) };
            }
            let Some(head) = self.buffer[self.from..self.to].first_chunk::<HEAD>() else {
                return Ok(());
            };
            match Frame::decode(head, region.layout())? {
                Frame::Message { seq, header } => self.begin(seq, header, region)?,
                Frame::Answer { consumed } => region.store(Word::Acked { peer: self.source }, consumed),
                Frame::Notice { culprit, len } => {
                    debug_assert!(len < NOTICE && HEAD + len <= BUFFER);
                    let Some(text) = self.buffer[self.from + HEAD..self.to].get(..len) else {
                        return Ok(());
                    };
                    region.leave_notice(self.source, culprit, &String::from_utf8_lossy(text));
                    self.from += len;
                }
            }
            self.from += HEAD;
        }
    }

    /// Begins a message, if it is the next one and its slot was consumed.
    fn begin(&mut self, seq: u64, header: Header, region: &Region) -> Result<(), String> {
        let consumed = region.load(Word::Consumed { source: self.source });
        if seq != self.begun + 1 {
            return Err(format!("it sent message {seq} where {} was due", self.begun + 1));
        }
        if seq > consumed + SLOTS {
            return Err(format!(
                "it sent message {seq} with only {consumed} consumed: its slot is in use"
            ));
        }
        self.begun = seq;
        self.open = Some(Open { seq, header, got: 0 });
        Ok(())
    }
}
