//! Fuzz targets of what wires read from peers.

pub use super::tcp::fuzz::{mesh, wire};

use super::shm::fuzz::place;
use super::tcp::fuzz::address;
use super::verbs::fuzz::record;
use crate::fuzz::{Input, within};
use crate::{host, rails};

/// What ranks trade when a backend opens: where the shared memory is, addresses, the layout's fields, RDMA memory and queue
/// pairs, what probes came to.
pub fn texts(data: &[u8]) {
    within(
        "a text of a backend's opening",
        32 * data.len() + (8 << 10),
        || {
            let mut input = Input(data);
            match input.byte() % 5 {
                0 => place(input.0),
                1 => address(input.0),
                2 => host::fuzz::fields(input.0),
                3 => record(input.0),
                _ => rails::fuzz::probes(input.0),
            }
        },
    );
}

#[cfg(test)]
pub use seeds::{mesh_seeds, text_seeds, wire_seeds};

#[cfg(test)]
mod seeds {
    pub use crate::wire::tcp::fuzz::{mesh_seeds, wire_seeds};

    pub fn text_seeds() -> Vec<(&'static str, Vec<u8>)> {
        let with = |head: u8, text: &str| [&[head], text.as_bytes()].concat();
        vec![
            ("descriptor", with(0, "4711 5 26 1234567")),
            ("name", with(0, "/tf-tp-0123456789abcdef01234567")),
            ("ipv4", with(1, "192.0.2.1:29500")),
            ("ipv6", with(1, "[2001:db8::7]:29500")),
            ("same-fields", with(2, "world=2\nslot bytes=4096\nhost=beta")),
            (
                "record",
                [vec![3], crate::wire::verbs::fuzz::record_seed()].concat(),
            ),
            (
                "probes",
                b"\x04\x01\0\0\0\x01\x02\0\x07\x07\x02\0\0\0\0\x01\0x".to_vec(),
            ),
            ("other-fields", with(2, "world=3\nslot bytes=8192\nhost=beta")),
        ]
    }
}
