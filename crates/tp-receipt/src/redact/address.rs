//! Pseudonyms of addresses that keep the structure of subnets: two addresses that share their first n bits have
//! pseudonyms that share as many, and addresses of one kind stay recognisable as that kind.
//!
//! The pseudonyms lie where no real address does, so they cannot be taken for one: IPv4 in the reserved block 240/4,
//! unique local IPv6 in fc00::/8 (real ones are in fd00::/8), link-local in fec0::/10 (deprecated), global in the
//! documentation block 3fff::/20.

use super::keyed;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The pseudonym of an address; addresses that name nobody (loopback, unspecified, multicast, documentation, and
/// pseudonyms themselves) stay as they are.
pub fn pseudonym(key: &[u8; 32], address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V4(of_v4(key, v4)),
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => IpAddr::V6(of_v4(key, v4).to_ipv6_mapped()),
            None => IpAddr::V6(of_v6(key, v6)),
        },
    }
}

/// The part of `real` that is replaced as it is by `stands_for`, and how many bits of the address that is.
struct Block<T> {
    real: T,
    bits: u32,
    stands_for: T,
}

fn of_v4(key: &[u8; 32], address: Ipv4Addr) -> Ipv4Addr {
    if names_nobody_v4(address) {
        return address;
    }
    let block = |a: [u8; 4], bits, b: [u8; 4]| Block {
        real: u32::from_be_bytes(a),
        bits,
        stands_for: u32::from_be_bytes(b),
    };
    let blocks = [
        block([10, 0, 0, 0], 8, [250, 0, 0, 0]),
        block([172, 16, 0, 0], 12, [251, 16, 0, 0]),
        block([192, 168, 0, 0], 16, [252, 168, 0, 0]),
        block([100, 64, 0, 0], 10, [253, 64, 0, 0]),
        block([169, 254, 0, 0], 16, [254, 254, 0, 0]),
    ];
    let whole = u32::from(address);
    for block in blocks {
        if (whole ^ block.real) >> (32 - block.bits) == 0 {
            let low = permuted(key, u128::from(whole) << 96, block.bits, 32) >> 96;
            return Ipv4Addr::from(block.stands_for | low as u32);
        }
    }
    // Any other: 28 bits of 32 are left, so the first four are only mixed into what follows.
    let low = permuted(key, u128::from(whole) << 96, 4, 32) >> 96;
    let top = 240 + (keyed(key, &[b"v4 top", &[address.octets()[0]]])[0] % 8);
    Ipv4Addr::from((u32::from(top) << 24) | (low as u32 & 0x00ff_ffff))
}

fn of_v6(key: &[u8; 32], address: Ipv6Addr) -> Ipv6Addr {
    if names_nobody_v6(address) {
        return address;
    }
    let whole = u128::from(address);
    let blocks = [
        Block {
            real: 0xfd << 120,
            bits: 8,
            stands_for: 0xfc << 120,
        },
        Block {
            real: 0xfe80 << 112,
            bits: 10,
            stands_for: 0xfec0 << 112,
        },
    ];
    for block in blocks {
        if (whole ^ block.real) >> (128 - block.bits) == 0 {
            // Link-local addresses have nothing but zeros in the first 64 bits; they keep them.
            let from = if block.bits == 10 { 64 } else { block.bits };
            return Ipv6Addr::from(block.stands_for | permuted(key, whole, from, 128));
        }
    }
    Ipv6Addr::from((0x3fff << 112) | permuted(key, whole, 20, 128))
}

/// The bits of `whole` from bit `from` on (0 is the first), each flipped or not as all bits before it decide.
fn permuted(key: &[u8; 32], whole: u128, from: u32, to: u32) -> u128 {
    let mut out = 0u128;
    for bit in from..to {
        let before = if bit == 0 {
            0
        } else {
            whole & (u128::MAX << (128 - bit))
        };
        let flip = keyed(key, &[b"address", &bit.to_be_bytes(), &before.to_be_bytes()])[0] & 1;
        let own = (whole >> (127 - bit)) & 1;
        out |= (own ^ u128::from(flip)) << (127 - bit);
    }
    out
}

fn names_nobody_v4(a: Ipv4Addr) -> bool {
    a.is_loopback() || a.is_multicast() || a.is_documentation() || a.octets()[0] == 0 || a.octets()[0] >= 240
}

fn names_nobody_v6(a: Ipv6Addr) -> bool {
    let first = a.segments()[0];
    let second = a.segments()[1];
    a.is_loopback()
        || a.is_unspecified()
        || a.is_multicast()
        || (first == 0x2001 && second == 0xdb8)
        || (first == 0x3fff && second < 0x1000)
        || (first & 0xff00) == 0xfc00
        || (first & 0xffc0) == 0xfec0
        // Prefixes without anything behind them: `fe80::`, `fd00::`.
        || matches!(u128::from(a), n if n == 0xfe80 << 112 || n == 0xfd00 << 112)
}

/// Clears the bits behind the prefix when the original had none there, so that a network stays a network.
pub fn network(original: IpAddr, pseudonym: IpAddr, prefix: u32) -> IpAddr {
    match (original, pseudonym) {
        (IpAddr::V4(a), IpAddr::V4(b)) if prefix < 32 => {
            let low = u32::MAX >> prefix;
            if u32::from(a) & low == 0 {
                Ipv4Addr::from(u32::from(b) & !low).into()
            } else {
                pseudonym
            }
        }
        (IpAddr::V6(a), IpAddr::V6(b)) if prefix < 128 => {
            let low = u128::MAX >> prefix;
            if u128::from(a) & low == 0 {
                Ipv6Addr::from(u128::from(b) & !low).into()
            } else {
                pseudonym
            }
        }
        _ => pseudonym,
    }
}
