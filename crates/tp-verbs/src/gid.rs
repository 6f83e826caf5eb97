//! GIDs: the addresses of RDMA ports.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

/// A port's number on its device, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PortNum(pub u8);

impl fmt::Display for PortNum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// One entry of a port's GID table, in network order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The IPv4 address of an IPv4-mapped GID.
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        self.ipv6().to_ipv4_mapped()
    }

    /// The GID as an IPv6 address.
    pub fn ipv6(self) -> Ipv6Addr {
        Ipv6Addr::from(self.0)
    }

    /// Whether the entry is empty.
    pub fn is_empty(self) -> bool {
        self.0 == [0; 16]
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.ipv6().fmt(f)
    }
}

/// What a GID's packets look like on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GidType {
    /// InfiniBand, or unknown to the library.
    Infiniband,
    /// RoCE v1: Ethernet frames, not routed.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_gids_show_their_ipv4_address() {
        let mut bytes = [0; 16];
        bytes[10..].copy_from_slice(&[0xff, 0xff, 192, 0, 2, 7]);
        let gid = Gid(bytes);
        assert_eq!(gid.ipv4(), Some(Ipv4Addr::new(192, 0, 2, 7)));
        assert_eq!(gid.to_string(), "::ffff:192.0.2.7");
        assert!(Gid::default().is_empty() && !gid.is_empty());
        assert_eq!(
            Gid(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).octets()).ipv4(),
            None
        );
    }
}
