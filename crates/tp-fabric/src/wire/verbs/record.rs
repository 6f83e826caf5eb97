//! What ranks tell each other before they connect: where their memory is, and the ends of their queue pairs.

use super::extent::Extent;
use crate::types::Rank;
use tp_verbs::{Gid, Mtu};

/// First bytes of a record.
const MAGIC: &[u8; 4] = b"TPVR";
/// Version of the record and of the lines on the wire.
const VERSION: u32 = 1;
/// The longest description, bytes.
const DESCRIPTION: usize = 4096;
/// Bytes of an end.
const END: usize = 4 * 5 + 2 + 1 + 16;

/// One end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct End {
    /// Who is to connect to it.
    pub peer: Rank,
    /// Which rail of the pair.
    pub rail: u32,
    pub queue_pair: u32,
    pub first_packet: u32,
    /// What a peer needs to write into this rank's memory over this rail's device.
    pub key: u32,
    pub lid: u16,
    pub mtu: Mtu,
    pub gid: Gid,
}

/// What one rank tells all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Names and values that must be equal on all ranks, one a line.
    pub description: String,
    /// Address of the first registered byte.
    pub start: u64,
    /// Registered bytes.
    pub length: u64,
    pub ends: Vec<End>,
}

impl Record {
    pub fn new(extent: &Extent, start: u64, ends: Vec<End>) -> Self {
        Self {
            description: describe(extent),
            start,
            length: extent.total() as u64,
            ends,
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((self.description.len() as u32).to_le_bytes());
        out.extend(self.description.as_bytes());
        out.extend(self.start.to_le_bytes());
        out.extend(self.length.to_le_bytes());
        out.extend((self.ends.len() as u32).to_le_bytes());
        for end in &self.ends {
            for word in [end.peer.0, end.rail, end.queue_pair, end.first_packet, end.key] {
                out.extend(word.to_le_bytes());
            }
            out.extend(end.lid.to_le_bytes());
            out.push(end.mtu.code() as u8);
            out.extend(end.gid.0);
        }
        out
    }

    /// Reads what a peer sent. The error says what is wrong with it.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let mut rest = Reader(bytes);
        if rest.take(4)? != MAGIC {
            return Err("it is no record of this wire".to_owned());
        }
        let version = rest.u32()?;
        if version != VERSION {
            return Err(format!("its record has version {version}, this one {VERSION}"));
        }
        let length = rest.u32()? as usize;
        if length > DESCRIPTION {
            return Err(format!(
                "its description claims {length} bytes, {DESCRIPTION} are the most"
            ));
        }
        let description =
            std::str::from_utf8(rest.take(length)?).map_err(|_| "its description is no text")?;
        let (start, length, count) = (rest.u64()?, rest.u64()?, rest.u32()? as usize);
        if count > rest.0.len() / END {
            return Err(format!(
                "its record claims {count} ends in {} bytes",
                rest.0.len()
            ));
        }
        let ends = (0..count).map(|_| rest.end()).collect::<Result<Vec<_>, _>>()?;
        if !rest.0.is_empty() {
            return Err(format!("its record has {} bytes too many", rest.0.len()));
        }
        if start.checked_add(length).is_none() {
            return Err("its memory goes beyond the end of all addresses".to_owned());
        }
        Ok(Self {
            description: description.to_owned(),
            start,
            length,
            ends,
        })
    }

    /// Refuses a peer whose memory is laid out otherwise than this rank's, and names the first field that differs.
    pub fn fits(&self, own: &Extent) -> Result<(), String> {
        let mine = describe(own);
        let mut theirs = self.description.lines();
        for line in mine.lines() {
            let other = theirs.next().unwrap_or("nothing");
            if line != other {
                return Err(format!("its layout has `{other}`, this rank's `{line}`"));
            }
        }
        // Bounce slots come last and are each rank's own affair.
        let least = own.total_without_bounces() as u64;
        if self.length < least {
            return Err(format!(
                "it registered {} bytes where {least} are needed",
                self.length
            ));
        }
        Ok(())
    }

    /// The end of a rail to `peer`.
    pub fn end(&self, peer: Rank, rail: usize) -> Option<&End> {
        self.ends
            .iter()
            .find(|end| end.peer == peer && end.rail as usize == rail)
    }
}

fn describe(extent: &Extent) -> String {
    let fields = extent.describe();
    let lines = fields.iter().map(|(name, value)| format!("{name}={value}"));
    lines.collect::<Vec<_>>().join("\n")
}

/// What is left of a message; every read is checked.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], String> {
        let (head, tail) = self
            .0
            .split_at_checked(length)
            .ok_or_else(|| format!("its record ends {} bytes early", length - self.0.len()))?;
        self.0 = tail;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut out = [0; N];
        out.copy_from_slice(self.take(N)?);
        Ok(out)
    }

    fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    fn end(&mut self) -> Result<End, String> {
        let (peer, rail) = (Rank(self.u32()?), self.u32()?);
        let (queue_pair, first_packet, key) = (self.u32()?, self.u32()?, self.u32()?);
        let lid = self.array().map(u16::from_le_bytes)?;
        let [mtu] = self.array()?;
        let mtu =
            Mtu::from_code(mtu.into()).ok_or_else(|| format!("its MTU code is {mtu}, 1 to 5 are known"))?;
        Ok(End {
            peer,
            rail,
            queue_pair,
            first_packet,
            key,
            lid,
            mtu,
            gid: Gid(self.array()?),
        })
    }
}

#[cfg(any(test, fuzzing))]
impl Record {
    pub fn has_replaced_text(&self) -> bool {
        self.description.contains(char::REPLACEMENT_CHARACTER)
    }
}

/// A record of three ranks, for tests.
#[cfg(test)]
pub(super) fn sample(rails: usize) -> (Extent, Record) {
    use crate::types::World;
    let layout = crate::region::Layout::new(World(3), 4096).expect("a layout");
    let extent = Extent::new(layout, rails, 2);
    let end = |rail| End {
        peer: Rank(2),
        rail,
        queue_pair: 17,
        first_packet: 0x12_3456,
        key: 99,
        lid: 0,
        mtu: Mtu::from_code(3).expect("an MTU"),
        gid: Gid([5; 16]),
    };
    let record = Record::new(&extent, 0x7000_0000, (0..rails as u32).map(end).collect());
    (extent, record)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Layout;
    use crate::types::World;
    use proptest::prelude::*;

    #[test]
    fn a_record_reads_back_and_another_layout_is_refused_by_the_field() {
        let (extent, one) = sample(2);
        let read = Record::decode(&one.encode()).unwrap();
        assert_eq!(read, one);
        assert_eq!(read.fits(&extent), Ok(()));
        assert_eq!(read.end(Rank(2), 1).unwrap().rail, 1);
        assert_eq!(read.end(Rank(1), 0), None);
        let other = Extent::new(Layout::new(World(3), 8192).unwrap(), 2, 2);
        let error = read.fits(&other).unwrap_err();
        assert!(
            error.contains("slot bytes=4096") && error.contains("slot bytes=8192"),
            "{error}"
        );
        let short = Record {
            length: read.length / 2,
            ..read
        };
        assert!(short.fits(&extent).unwrap_err().contains("registered"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

        #[test]
        fn no_bytes_make_it_panic(cut in 0usize..400, at in 0usize..400, to in any::<u8>()) {
            let mut bytes = sample(3).1.encode();
            let len = bytes.len();
            bytes[at % len] = to;
            bytes.truncate(cut.max(1).min(len));
            if let Ok(read) = Record::decode(&bytes) {
                prop_assert!(read.has_replaced_text() || read.encode().len() == bytes.len());
            }
        }
    }
}
