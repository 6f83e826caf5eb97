//! Replacing what names people and places, while everything that the pick depends on stays.

use super::Document;
use crate::capture::VARIABLES;
use sha2::{Digest, Sha256};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

impl Document {
    /// Replaces host names, addresses and GUIDs by pseudonyms that depend on `seed` alone: equal inputs stay equal, two
    /// addresses share exactly as many leading bits as before, and link-local, loopback, private-use (ULA) and global
    /// IPv6 addresses stay what they are, so a redacted file gives the same pick. Of the variables only
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

/// The first octet stays, so that loopback, multicast and default stay such; 169.254/16 stays whole.
fn map_v4(seed: &[u8], ip: Ipv4Addr) -> Ipv4Addr {
    if ip.is_link_local() || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return ip;
    }
    let mapped =
        Ipv4Addr::from(permute(seed, u128::from(u32::from(ip)) << 96, 8, 32).wrapping_shr(96) as u32);
    // A permuted second octet must not fall into the link-local range.
    if mapped.is_link_local() { ip } else { mapped }
}

/// The first 16 bits stay, so that ULA, global and link-local stay such.
fn map_v6(seed: &[u8], ip: Ipv6Addr) -> Ipv6Addr {
    if ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() {
        return ip;
    }
    let keep = if ip.is_unicast_link_local() { 64 } else { 16 };
    Ipv6Addr::from(permute(seed, u128::from(ip), keep, 128))
}

/// Flips bits `from..to` (from the most significant one) each by a function of the bits before it, so that the length
/// of the common prefix of any two values stays.
fn permute(seed: &[u8], value: u128, from: u32, to: u32) -> u128 {
    let mut out = value;
    for bit in from..to {
        let prefix = if bit == 0 { 0 } else { value >> (128 - bit) };
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
