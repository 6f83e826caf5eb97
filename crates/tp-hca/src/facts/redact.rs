//! Replacing what names people and places, while everything that the pick depends on stays.

use super::Document;
use crate::capture::VARIABLES;
use sha2::{Digest, Sha256};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl Document {
    /// Replaces host names, addresses and GUIDs by pseudonyms that depend on `seed` alone: equal inputs stay equal, two
    /// addresses share exactly as many leading bits as before, and link-local, loopback, private-use (ULA), documentation and global
    /// addresses stay what they are, so a redacted file gives the same pick. Of the variables only
    /// those stay that a pick reads and that carry no address. Captures of several hosts fit together only under one seed; a seed that is public lets
    /// anybody try all addresses.
    pub fn redact(&mut self, seed: &[u8]) {
        for facts in &mut self.ranks {
            if let Some(host) = &mut facts.host {
                *host = format!("host-{}", short_hash(seed, b"host", host.as_bytes()));
            }
            let keep = |name: &str| VARIABLES.contains(&name) && name != "NCCL_IB_ADDR_RANGE";
            facts.env.retain(|name, _| keep(name));
            for port in &mut facts.ports {
                if let Some(guid) = &mut port.node_guid {
                    *guid = guid_of(&short_hash(seed, b"guid", guid.as_bytes()));
                }
                for gid in port.gids.iter_mut().flatten() {
                    gid.gid = gid.gid.map(|value| match value.to_ipv4_mapped() {
                        Some(v4) => map_v4(seed, v4).to_ipv6_mapped(),
                        None => map_v6(seed, value),
                    });
                }
            }
            for address in facts
                .addresses
                .iter_mut()
                .filter_map(|entry| entry.address.as_mut())
            {
                address.ip = map_ip(seed, address.ip);
            }
            for route in &mut facts.routes {
                if let Some(destination) = &mut route.destination {
                    let len = destination.route_len();
                    destination.ip = truncate(map_ip(seed, destination.ip), len);
                }
                route.via = route.via.map(|ip| map_ip(seed, ip));
                route.source = route.source.map(|ip| map_ip(seed, ip));
            }
        }
    }
}

fn short_hash(seed: &[u8], what: &[u8], value: &[u8]) -> String {
    let digest = Sha256::new()
        .chain_update(seed)
        .chain_update([0])
        .chain_update(what)
        .chain_update(value)
        .finalize();
    digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

fn guid_of(hex: &str) -> String {
    [&hex[0..4], &hex[4..8], &hex[8..12], &hex[12..16]].join(":")
}

fn map_ip(seed: &[u8], ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => map_v4(seed, v4).into(),
        IpAddr::V6(v6) => map_v6(seed, v6).into(),
    }
}

/// Blocks of IPv4 addresses that mean something of their own: private, shared, link-local, documentation, benchmarking. A
/// member stays one, and no other address becomes one.
const BLOCKS_V4: &[([u8; 4], u32)] = &[
    ([10, 0, 0, 0], 8),
    ([100, 64, 0, 0], 10),
    ([169, 254, 0, 0], 16),
    ([172, 16, 0, 0], 12),
    ([192, 0, 2, 0], 24),
    ([192, 168, 0, 0], 16),
    ([198, 18, 0, 0], 15),
    ([198, 51, 100, 0], 24),
    ([203, 0, 113, 0], 24),
];

/// The same of IPv6: link-local with its zeros, documentation.
const BLOCKS_V6: &[([u16; 8], u32)] = &[
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 64),
    ([0x2001, 0xdb8, 0, 0, 0, 0, 0, 0], 32),
];

/// The first octet stays, so that loopback, multicast and default stay such; 169.254/16 stays whole.
fn map_v4(seed: &[u8], ip: Ipv4Addr) -> Ipv4Addr {
    if ip.is_link_local() || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return ip;
    }
    let wide = |octets: [u8; 4]| u128::from(u32::from_be_bytes(octets)) << 96;
    let blocks: Vec<(u128, u32)> = BLOCKS_V4.iter().map(|&(net, len)| (wide(net), len)).collect();
    Ipv4Addr::from(permute(seed, wide(ip.octets()), 8, 32, &blocks).wrapping_shr(96) as u32)
}

/// The first 16 bits stay, so that ULA, global and link-local stay such.
fn map_v6(seed: &[u8], ip: Ipv6Addr) -> Ipv6Addr {
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return ip;
    }
    let blocks: Vec<(u128, u32)> = BLOCKS_V6
        .iter()
        .map(|&(net, len)| (u128::from(Ipv6Addr::from(net)), len))
        .collect();
    Ipv6Addr::from(permute(seed, u128::from(ip), 16, 128, &blocks))
}

/// Flips bits `from..to` (from the most significant one) each by a function of the bits before it, so that the length
/// of the common prefix of any two values stays. A bit that decides whether a value lies in one of `blocks` is not
/// flipped.
fn permute(seed: &[u8], value: u128, from: u32, to: u32, blocks: &[(u128, u32)]) -> u128 {
    let mut out = value;
    for bit in from..to {
        let before = |value: u128| value.checked_shr(128 - bit).unwrap_or(0);
        let prefix = before(value);
        if blocks
            .iter()
            .any(|&(net, len)| bit < len && before(net) == prefix)
        {
            continue;
        }
        let digest = Sha256::new()
            .chain_update(seed)
            .chain_update([1, bit as u8])
            .chain_update(prefix.to_be_bytes())
            .finalize();
        out ^= u128::from(digest[0] & 1) << (127 - bit);
    }
    out
}

fn truncate(ip: IpAddr, len: u8) -> IpAddr {
    ipnet::IpNet::new(ip, len).map_or(ip, |net| net.trunc().addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_block_stay_in_it_and_nobody_joins() {
        let blocks: Vec<ipnet::IpNet> = BLOCKS_V4
            .iter()
            .map(|&(net, len)| ipnet::Ipv4Net::new_assert(net.into(), len as u8).into())
            .collect();
        let of = |ip: Ipv4Addr| blocks.iter().position(|block| block.contains(&IpAddr::V4(ip)));
        let mut moved = 0;
        for n in 0..20_000u32 {
            let near = BLOCKS_V4[n as usize % BLOCKS_V4.len()].0;
            // Beside the blocks as often as within them.
            let ip = Ipv4Addr::from(u32::from_be_bytes(near) ^ (n.wrapping_mul(2_654_435_761) >> (n % 32)));
            let mapped = map_v4(b"seed", ip);
            assert_eq!(of(mapped), of(ip), "{ip} became {mapped}");
            moved += u32::from(mapped != ip);
        }
        assert!(moved > 10_000, "{moved}");
        let documentation = map_v6(b"seed", "2001:db8::1".parse().unwrap());
        assert_eq!(documentation.segments()[..2], [0x2001, 0xdb8]);
    }

    #[test]
    fn common_prefixes_keep_their_length() {
        let common = |a: u32, b: u32| (a ^ b).leading_zeros();
        for n in 0..2_000u32 {
            let a = n.wrapping_mul(2_654_435_761) | 0x4000_0000;
            let b = a ^ (1 << (n % 24));
            let (x, y) = (map_v4(b"seed", a.into()), map_v4(b"seed", b.into()));
            let special = |ip: Ipv4Addr| ip.is_link_local() || ip.is_loopback() || ip.is_multicast();
            if !special(a.into()) && !special(b.into()) {
                assert_eq!(common(x.into(), y.into()), common(a, b));
            }
        }
    }
}
