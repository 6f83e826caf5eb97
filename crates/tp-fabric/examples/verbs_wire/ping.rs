//! A ping-pong over the wire, as a backend uses it: put, progress, and the flag in the own region.

use crate::{Outcome, PATIENCE, apart, open, report};
use std::time::Instant;
use tp_fabric::collective::Call;
use tp_fabric::region::Header;
use tp_fabric::region::protocol::Inbound;
use tp_fabric::types::Rank;
use tp_fabric::wire::{Parcel, Wire};

/// Round trips before the timed ones.
const WARM_UP: usize = 100;

/// Half of each round trip of `bytes` bytes, over one rail.
pub fn wire(bytes: usize, count: usize) -> Outcome {
    let halves = apart(|meeting, library| {
        let (region, wire) = open(meeting, library, 1)?;
        let (me, peer) = (meeting.rank(), Rank(1 - meeting.rank().0));
        let mut inbound = Inbound::default();
        let mut halves = Vec::with_capacity(count);
        let payload: Vec<u8> = (0..bytes).map(|at| at as u8 ^ me.0 as u8).collect();
        for round in 0..WARM_UP + count {
            let seq = round as u64 + 1;
            let began = Instant::now();
            let put = || {
                let header = Header {
                    call: [0; Call::ENCODED],
                    part: 0,
                    len: bytes as u32,
                    answer: seq - 1,
                };
                wire.put(
                    &Parcel {
                        peer,
                        seq,
                        header,
                        payload: &payload,
                    },
                    &|| false,
                )
            };
            if me == Rank(0) {
                put()?;
            }
            let mut turns = 0u32;
            while !inbound.arrived(&region, peer)? {
                wire.progress();
                turns = turns.wrapping_add(1);
                if turns.is_multiple_of(1 << 16) {
                    if let Some(reason) = wire.lost(peer) {
                        return Err(reason.into());
                    }
                    if began.elapsed() > PATIENCE {
                        return Err("the other rank's message did not come".into());
                    }
                }
            }
            inbound.consume();
            if me == Rank(1) {
                put()?;
            } else if round >= WARM_UP {
                halves.push(began.elapsed().as_secs_f64() * 5e5);
            }
        }
        wire.close(PATIENCE);
        Ok(halves)
    })?;
    if let Some(halves) = halves {
        report("wire", bytes, halves);
    }
    Ok(())
}
