//! Fuzz targets of the TCP wire: what comes over a connection, before its proof and after.

use super::mesh::{self, Key};
use super::reader::Reader;
use crate::collective::Call;
use crate::fuzz::{Input, within};
use crate::region::layout::{HEADER, SLOTS};
use crate::region::protocol::Inbound;
use crate::region::{Header, Layout, Mapping, Region, Word, Words};
use crate::types::{Rank, World};
use std::io::{self, ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;

/// A connection that has so many bytes now and then would block.
struct Parts<'a>(&'a [u8]);

impl Read for Parts<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.0.is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.0.read(into)
    }
}

/// Frames from rank 1 to rank 0 of three. The first byte is how many bytes come at once; bit by bit the second says after
/// which of them this rank consumes what has arrived.
pub fn wire(data: &[u8]) {
    let layout = Layout::new(World(3), 4096).expect("a layout");
    let region = Mapping::anonymous(layout.total())
        .ok()
        .and_then(|mapping| Region::new(&Arc::new(mapping), 0, layout))
        .expect("a region");
    let source = Rank(1);
    within("the TCP wire's frames", 16 << 10, || {
        let mut input = Input(data);
        let (step, pattern) = (input.byte(), input.byte());
        let mut reader = Reader::new(source);
        let mut inbound = Inbound::default();
        for (number, part) in input.parts(step).enumerate() {
            let taken = reader.take(Parts(part), &region);
            if pattern & (1 << (number % 8)) != 0 {
                consume(&region, &mut inbound, source);
            }
            // What other ranks write is out of this one's reach.
            assert_eq!(region.load(Word::Notice { peer: Rank(2) }), 0);
            assert_eq!(region.load(Word::Acked { peer: Rank(2) }), 0);
            if let Some((culprit, _)) = region.notice(source) {
                assert!(culprit.0 < 3);
            }
            if taken.is_err() {
                return;
            }
        }
    });
}

fn consume(region: &Region, inbound: &mut Inbound, source: Rank) {
    while inbound
        .arrived(region, source)
        .expect("the reader keeps the order of numbers")
    {
        // SAFETY: it has arrived and is not consumed yet.
        let header = unsafe { region.header(inbound.bay(source)) };
        assert!(header.len as usize <= region.layout().slot());
        if let Some(call) = Call::decode(&header.call) {
            assert_eq!(Call::decode(&call.encode()), Some(call));
        }
        assert_eq!(Header::decode(&header.encode()), header);
        let consumed = inbound.consume();
        region.store(Word::Consumed { source }, consumed);
    }
    assert!(inbound.consumed() <= u64::MAX - SLOTS && HEADER == 32);
}

/// An answer to the challenge of a connection that a higher rank opens. Only a proof lets one in.
pub fn mesh(data: &[u8]) {
    within("an answer to a challenge", 4 << 10, || {
        let mut input = Input(data);
        let genuine = input.byte() & 1 != 0;
        let key = Key::new(b"a secret for the fuzz targets", &[3; 32]).expect("any key is one");
        let (me, world) = (Rank(1), World(4));
        let mut answer = [0; mesh::ANSWER];
        let given = input.take(mesh::ANSWER);
        answer[..given.len()].copy_from_slice(given);
        let rank = Rank(u32::from_le_bytes([answer[0], answer[1], answer[2], answer[3]]));
        if genuine {
            key.prove_for_fuzzing(&[5; 32], &mut answer, rank, me);
        }
        let result = mesh::examine(me, world, &key, &[5; 32], &answer);
        let belongs = rank > me && rank.0 < world.0;
        assert_eq!(result.is_ok(), genuine && belongs, "{result:?}");
    });
}

/// An address as a peer gives it.
pub fn address(bytes: &[u8]) {
    if let Ok(address) = super::read_address(bytes) {
        let _: SocketAddr = address;
    }
}

#[cfg(test)]
pub fn wire_seeds() -> Vec<(&'static str, Vec<u8>)> {
    use super::frame::Frame;
    use crate::collective::CallKind;
    use crate::types::DType;
    let message = |seq: u64, payload: &[u8]| {
        let header = Header {
            call: Call::new(CallKind::AllGather, DType::U8, payload.len()).encode(),
            part: 0,
            len: payload.len() as u32,
            answer: seq - 1,
        };
        [Frame::Message { seq, header }.encode().as_slice(), payload].concat()
    };
    let notice = |text: &str| {
        let culprit = Rank(2);
        let len = text.len();
        [
            Frame::Notice { culprit, len }.encode().as_slice(),
            text.as_bytes(),
        ]
        .concat()
    };
    let with = |head: [u8; 2], frames: &[Vec<u8>]| [head.to_vec(), frames.concat()].concat();
    vec![
        ("small", with([0, 0xff], &[message(1, b"abc"), message(2, b"")])),
        (
            "large",
            with(
                [200, 0xff],
                &[message(1, &[9; 500]), message(2, &[8; 300]), message(3, b"z")],
            ),
        ),
        (
            "answer",
            with(
                [48, 0],
                &[Frame::Answer { consumed: 1 }.encode().to_vec(), message(1, b"a")],
            ),
        ),
        (
            "notice",
            with([0, 1], &[message(1, b"a"), notice("rank 2 went away")]),
        ),
    ]
}

#[cfg(test)]
pub fn mesh_seeds() -> Vec<(&'static str, Vec<u8>)> {
    let answer = |how: u8, rank: u32| [&[how], rank.to_le_bytes().as_slice(), &[4; 64]].concat();
    vec![
        ("genuine", answer(1, 3)),
        ("false-proof", answer(0, 3)),
        ("lower-rank", answer(1, 0)),
        ("no-rank", answer(1, 4)),
    ]
}
