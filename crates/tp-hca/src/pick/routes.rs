//! Which way a host's own routes lead.

use crate::facts::Route;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The routes of a host by destination, longest prefix first. Default routes are left out: they say nothing about a
/// fabric.
pub(crate) struct RouteTable<'a> {
    /// By (IPv6?, prefix length), longest first on reversal; then by network bits.
    by_len: BTreeMap<(bool, u8), BTreeMap<u128, Vec<&'a Route>>>,
}

/// Where a route lookup leads.
#[derive(Clone, Debug)]
pub(crate) struct Way<'a> {
    /// Output devices; several where equal routes tie.
    pub netdevs: Vec<&'a str>,
    /// Prefix length of the route.
    pub len: u8,
}

impl<'a> RouteTable<'a> {
    pub fn new(routes: &'a [Route]) -> Self {
        let mut by_len: BTreeMap<(bool, u8), BTreeMap<u128, Vec<&'a Route>>> = BTreeMap::new();
        for route in routes {
            let (Some(destination), Some(_)) = (route.destination, &route.netdev) else {
                continue;
            };
            let len = destination.route_len();
            if len > 0 {
                by_len
                    .entry((destination.ip.is_ipv6(), len))
                    .or_default()
                    .entry(network(destination.ip, len))
                    .or_default()
                    .push(route);
            }
        }
        Self { by_len }
    }

    pub fn is_empty(&self) -> bool {
        self.by_len.is_empty()
    }

    /// The output devices towards an address: longest prefix, then lowest metric.
    pub fn way(&self, to: IpAddr) -> Option<Way<'a>> {
        let family = to.is_ipv6();
        let (len, routes) = self
            .by_len
            .range((family, 0)..=(family, 128))
            .rev()
            .find_map(|(&(_, len), nets)| Some((len, nets.get(&network(to, len))?)))?;
        let best = routes.iter().map(|route| route.metric.unwrap_or(0)).min()?;
        let mut netdevs: Vec<&str> = routes
            .iter()
            .filter(|route| route.metric.unwrap_or(0) == best)
            .filter_map(|route| route.netdev.as_deref())
            .collect();
        netdevs.sort_unstable();
        netdevs.dedup();
        Some(Way { netdevs, len })
    }
}

/// The first `len` bits of an address, aligned to the top.
fn network(ip: IpAddr, len: u8) -> u128 {
    let bits = match ip {
        IpAddr::V4(v4) => u128::from(u32::from(v4)) << 96,
        IpAddr::V6(v6) => u128::from(v6),
    };
    match u32::from(len) {
        0 => 0,
        len => bits & (u128::MAX << (128 - len.min(128))),
    }
}
