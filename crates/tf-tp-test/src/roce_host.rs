//! `roce-host`: the exchange protocol with host memory, a host thread in the kernel's place. 1,000 gathers of 1 B to
//! 256 KiB are compared bit for bit, then latencies are taken.

use crate::bench::row::Row;
use crate::bench::stats::Figures;
use crate::bench::{Measured, Mode};
use crate::exit_code::Refusal;
use crate::group::refusal;
use crate::sink::Sink;
use serde_json::Map;
use std::time::Instant;
use tp_fabric::collective::{CollectiveError, Collectives, HostSlices};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::host::Delivery;
use tp_fabric::rails::RdmaConfig;
use tp_fabric::session::{Group, Session};
use tp_fabric::settings::Settings;
use tp_fabric::types::{DType, Rank};
use tp_receipt::event::{Kind, Outcome, Progress};

/// Gathers that are compared.
pub const GATHERS: usize = 1000;
/// The largest one, bytes a rank: one slot.
pub const LARGEST: usize = 262_144;
/// Sizes whose latency is taken, bytes a rank.
pub const LATENCY_SIZES: [usize; 6] = [16, 4096, 8192, 16_384, 65_536, 262_144];
/// Timed gathers of each size, unless given.
pub const LATENCY_CALLS: usize = 2000;
/// Group of the check in events.
const GROUP: &str = "roce-host";
/// Gathers before the timed ones.
const WARM_UP: usize = 10;
/// The step between lengths: prime, so that all residues come.
const STRIDE: usize = 7919;

/// Length of gather `k`, bytes a rank: 1 to [`LARGEST`].
pub fn length(k: usize) -> usize {
    1 + (k * STRIDE) % LARGEST
}

/// What went wrong.
pub enum Wrong {
    /// Different bytes: everybody still works.
    Bytes(String),
    /// The transport failed.
    Transport(String),
}

impl From<CollectiveError> for Wrong {
    fn from(error: CollectiveError) -> Self {
        Self::Transport(error.to_string())
    }
}

/// Opens the host backend as for a GPU: the calling thread stages into the region and rings the doorbell, a proxy thread
/// hands the messages to the wire.
pub fn open(group: Group, settings: &Settings, rdma: Option<RdmaConfig>) -> Result<Session, Refusal> {
    Session::with_host_by(group, settings, Delivery::Doorbell, rdma).map_err(refusal)
}

/// Gathers, then the latencies of `calls` gathers of each size. `Err` when the transport is broken.
pub fn run(on: &dyn Collectives, calls: usize, sink: &Sink) -> Result<(), String> {
    let name = check_name(on);
    match gathers(on, sink) {
        Ok(()) => sink.check(GROUP, &name, Outcome::Passed, None),
        Err(Wrong::Bytes(why)) => sink.check(GROUP, &name, Outcome::Failed, Some(why)),
        Err(Wrong::Transport(why)) => {
            sink.check(GROUP, &name, Outcome::Failed, Some(why.clone()));
            return Err(why);
        }
    }
    match latencies(on, calls, sink) {
        Ok(()) => Ok(()),
        Err(Wrong::Bytes(why) | Wrong::Transport(why)) => Err(why),
    }
}

/// The check's name, which states how much was proved over what.
pub fn check_name(on: &dyn Collectives) -> String {
    let wire = on.wire().map_or("no wire", |w| w.name());
    format!("roce-host {GATHERS} gathers 1 B to {LARGEST} B over {wire}")
}

/// The compared gathers.
pub fn gathers(on: &dyn Collectives, sink: &Sink) -> Result<(), Wrong> {
    let world = on.world();
    let mut recv = vec![0; LARGEST * world.size()];
    let mut wrong = None;
    for k in 0..GATHERS {
        let len = length(k);
        // Whole words: all bytes are as random as single ones would be, in an eighth of the time.
        let input = |rank: Rank| fill::bytes(len, DType::I64, k as u64, rank, Pattern::Uniform);
        let recv = &mut recv[..len * world.size()];
        on.all_gather_bytes(&input(on.rank()), recv, DType::U8)?;
        for rank in world.ranks() {
            let (got, expected) = (&recv[rank.index() * len..][..len], input(rank));
            // Slices compare at memory speed; where they differ is looked for only then.
            if got != expected && wrong.is_none() {
                let at = (0..len).find(|at| got[*at] != expected[*at]).unwrap_or(0);
                let (is, want) = (got[at], expected[at]);
                wrong = Some(format!(
                    "gather {k} of {len} B: rank {rank}'s part differs first at offset {at}: got {is:02x}, expected {want:02x}"
                ));
            }
        }
        if k % 100 == 99 {
            let (done, total) = (k as u64 + 1, GATHERS as u64);
            sink.event(Kind::Progress(Progress {
                what: "roce-host gathers".to_owned(),
                done,
                total,
            }));
        }
    }
    wrong.map_or(Ok(()), |text| Err(Wrong::Bytes(text)))
}

/// The timed gathers; rank 0 reports.
pub fn latencies(on: &dyn Collectives, calls: usize, sink: &Sink) -> Result<(), Wrong> {
    for bytes in LATENCY_SIZES {
        let send = fill::bytes(bytes, DType::U8, 0, on.rank(), Pattern::Uniform);
        let mut recv = vec![0; bytes * on.world().size()];
        for _ in 0..WARM_UP {
            on.all_gather_bytes(&send, &mut recv, DType::U8)?;
        }
        on.barrier()?;
        let mut times = Vec::with_capacity(calls);
        for _ in 0..calls {
            let began = Instant::now();
            on.all_gather_bytes(&send, &mut recv, DType::U8)?;
            times.push(began.elapsed());
        }
        if let (Rank(0), Some(figures)) = (on.rank(), Figures::of(times)) {
            say(on, bytes, figures, sink);
        }
    }
    Ok(())
}

fn say(on: &dyn Collectives, bytes: usize, times: Figures, sink: &Sink) {
    let op = "all_gather";
    let row = Row {
        backend: "roce-host",
        wire: on.wire().map(|wire| wire.name()),
        op,
        bytes: bytes as u64,
        measured: Measured {
            mode: Mode::Eager,
            times,
            ops_per_graph: 1,
        },
    };
    row.report(on, GROUP, op, Map::new(), sink);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_cover_a_slot_from_one_byte_on() {
        let all: std::collections::BTreeSet<usize> = (0..GATHERS).map(length).collect();
        assert_eq!(all.len(), GATHERS);
        assert_eq!(all.first(), Some(&1));
        assert!(all.iter().all(|len| (1..=LARGEST).contains(len)));
        assert!(all.last().is_some_and(|len| *len > LARGEST - 1000));
    }
}
