//! Addresses and routes of a host: live from rtnetlink, or from what `ip -j address` and `ip -j route` printed there.

use crate::facts::{Address, IfAddr, Route};
use serde::Deserialize;
use std::net::IpAddr;

/// A host's addresses, and the unicast routes of its main table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// With real prefix lengths, by netdev and address.
    pub addresses: Vec<Address>,
    /// By destination; a route over several next hops is given once for each.
    pub routes: Vec<Route>,
}

impl Network {
    fn sorted(mut self) -> Self {
        self.addresses
            .sort_by(|a, b| (&a.netdev, a.address).cmp(&(&b.netdev, b.address)));
        self.routes.sort_by(|a, b| {
            (a.destination, a.metric, &a.netdev, a.via).cmp(&(b.destination, b.metric, &b.netdev, b.via))
        });
        self
    }

    /// This host's, from the kernel. The error is one line that says what failed.
    pub fn live() -> Result<Self, String> {
        live::network().map(Self::sorted)
    }

    /// Another host's, from `ip -j address` and `ip -j route` (joined with `ip -j -6 route`, if wanted).
    pub fn from_ip_json(addresses: &str, routes: &str) -> Result<Self, String> {
        let links: Vec<IpLink> =
            serde_json::from_str(addresses).map_err(|error| format!("output of `ip -j address`: {error}"))?;
        let routes: Vec<IpRoute> =
            serde_json::from_str(routes).map_err(|error| format!("output of `ip -j route`: {error}"))?;
        let mut network = Self::default();
        for link in links {
            for info in link.addr_info {
                let address = IfAddr {
                    ip: info.local,
                    prefix_len: Some(info.prefixlen),
                };
                network.addresses.push(Address {
                    netdev: Some(link.ifname.clone()),
                    address: Some(address),
                });
            }
        }
        for route in routes {
            let Some(mut destination) = route.dst.parse::<IfAddr>().ok() else {
                continue;
            };
            destination.prefix_len = Some(destination.route_len());
            let hops = if route.nexthops.is_empty() {
                vec![IpHop {
                    dev: route.dev,
                    gateway: route.gateway,
                }]
            } else {
                route.nexthops
            };
            for hop in hops.into_iter().filter(|hop| hop.dev.is_some()) {
                network.routes.push(Route {
                    destination: Some(destination),
                    netdev: hop.dev,
                    via: hop.gateway,
                    metric: route.metric,
                    source: route.prefsrc,
                });
            }
        }
        Ok(network.sorted())
    }
}

#[derive(Deserialize)]
struct IpLink {
    ifname: String,
    #[serde(default)]
    addr_info: Vec<IpInfo>,
}

#[derive(Deserialize)]
struct IpInfo {
    local: IpAddr,
    prefixlen: u8,
}

#[derive(Deserialize)]
struct IpRoute {
    dst: String,
    dev: Option<String>,
    gateway: Option<IpAddr>,
    metric: Option<u32>,
    prefsrc: Option<IpAddr>,
    #[serde(default)]
    nexthops: Vec<IpHop>,
}

#[derive(Deserialize)]
struct IpHop {
    dev: Option<String>,
    gateway: Option<IpAddr>,
}

#[cfg(not(all(target_os = "linux", not(portable_os))))]
mod live {
    use super::Network;

    pub(super) fn network() -> Result<Network, String> {
        Err("addresses and routes can be read live on Linux only; use a facts file".to_owned())
    }
}

#[cfg(all(target_os = "linux", not(portable_os)))]
mod live {
    use super::Network;
    use crate::facts::{Address, IfAddr, Route};
    use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::address::{AddressAttribute, AddressMessage};
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};
    use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType};
    use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
    use std::collections::BTreeMap;
    use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

    type Names = BTreeMap<u32, String>;

    pub(super) fn network() -> Result<Network, String> {
        let mut names = Names::new();
        dump(RouteNetlinkMessage::GetLink(LinkMessage::default()), |message| {
            if let RouteNetlinkMessage::NewLink(link) = message {
                let name = link.attributes.into_iter().find_map(|attribute| match attribute {
                    LinkAttribute::IfName(name) => Some(name),
                    _ => None,
                });
                names.extend(name.map(|name| (link.header.index, name)));
            }
        })?;
        let mut network = Network::default();
        dump(
            RouteNetlinkMessage::GetAddress(AddressMessage::default()),
            |message| {
                if let RouteNetlinkMessage::NewAddress(address) = message {
                    network.addresses.extend(address_of(&names, &address));
                }
            },
        )?;
        dump(
            RouteNetlinkMessage::GetRoute(RouteMessage::default()),
            |message| {
                if let RouteNetlinkMessage::NewRoute(route) = message {
                    network.routes.extend(routes_of(&names, &route));
                }
            },
        )?;
        Ok(network)
    }

    /// Sends one dump request and hands every message of the answer to `each`.
    fn dump(request: RouteNetlinkMessage, mut each: impl FnMut(RouteNetlinkMessage)) -> Result<(), String> {
        let failed = |what: &str, error: &dyn std::fmt::Display| format!("rtnetlink: {what} failed: {error}");
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(|error| failed("socket", &error))?;
        socket.bind_auto().map_err(|error| failed("bind", &error))?;
        socket
            .connect(&SocketAddr::new(0, 0))
            .map_err(|error| failed("connect", &error))?;
        let mut packet = NetlinkMessage::new(NetlinkHeader::default(), NetlinkPayload::from(request));
        packet.header.flags = NLM_F_DUMP | NLM_F_REQUEST;
        packet.header.sequence_number = 1;
        packet.finalize();
        let mut buffer = vec![0; packet.buffer_len()];
        packet.serialize(&mut buffer);
        socket.send(&buffer, 0).map_err(|error| failed("send", &error))?;
        loop {
            let (bytes, _) = socket
                .recv_from_full()
                .map_err(|error| failed("receive", &error))?;
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(|error| failed("an answer", &error))?;
                let length = (message.header.length as usize).next_multiple_of(4);
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) if error.code.is_some() => {
                        return Err(failed("the dump", &error.to_io()));
                    }
                    NetlinkPayload::InnerMessage(message) => each(message),
                    _ => {}
                }
                rest = rest.get(length.max(1)..).unwrap_or_default();
            }
            if bytes.is_empty() {
                return Err("rtnetlink: the dump ended early".to_owned());
            }
        }
    }

    fn address_of(names: &Names, message: &AddressMessage) -> Option<Address> {
        let mut ip = None;
        for attribute in &message.attributes {
            match attribute {
                // On point-to-point links `Address` is the other end and `Local` is ours.
                AddressAttribute::Local(local) => ip = Some(*local),
                AddressAttribute::Address(address) => ip = ip.or(Some(*address)),
                _ => {}
            }
        }
        let local = message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Local(local) => Some(*local),
            _ => None,
        });
        let address = IfAddr {
            ip: local.or(ip)?,
            prefix_len: Some(message.header.prefix_len),
        };
        Some(Address {
            netdev: names.get(&message.header.index).cloned(),
            address: Some(address),
        })
    }

    fn routes_of(names: &Names, message: &RouteMessage) -> Vec<Route> {
        let header = &message.header;
        let mut table = u32::from(header.table);
        let mut route = Route::default();
        let mut destination = None;
        let mut out = None;
        let mut hops = Vec::new();
        for attribute in &message.attributes {
            match attribute {
                RouteAttribute::Table(number) => table = *number,
                RouteAttribute::Destination(address) => destination = ip(address),
                RouteAttribute::Gateway(address) => route.via = ip(address),
                RouteAttribute::PrefSource(address) => route.source = ip(address),
                RouteAttribute::Priority(metric) => route.metric = Some(*metric),
                RouteAttribute::Oif(index) => out = Some(*index),
                RouteAttribute::MultiPath(several) => hops.extend(several.iter()),
                _ => {}
            }
        }
        if table != u32::from(RouteHeader::RT_TABLE_MAIN) || header.kind != RouteType::Unicast {
            return Vec::new();
        }
        let any = match header.address_family {
            netlink_packet_route::AddressFamily::Inet6 => IpAddr::from(Ipv6Addr::UNSPECIFIED),
            _ => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        };
        let prefix_len = Some(header.destination_prefix_length);
        route.destination = Some(IfAddr {
            ip: destination.unwrap_or(any),
            prefix_len,
        });
        let named = |index: u32| names.get(&index).cloned();
        let single = out.map(|index| Route {
            netdev: named(index),
            ..route.clone()
        });
        let several = hops.into_iter().map(|hop| {
            let via = hop.attributes.iter().find_map(|attribute| match attribute {
                RouteAttribute::Gateway(address) => ip(address),
                _ => None,
            });
            Route {
                netdev: named(hop.interface_index),
                via,
                ..route.clone()
            }
        });
        single.into_iter().chain(several).collect()
    }

    fn ip(address: &RouteAddress) -> Option<IpAddr> {
        match address {
            RouteAddress::Inet(v4) => Some((*v4).into()),
            RouteAddress::Inet6(v6) => Some((*v6).into()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(all(target_os = "linux", not(portable_os)))]
    fn the_kernel_names_the_loopback_address() {
        let network = Network::live().unwrap();
        let wanted: IfAddr = "127.0.0.1/8".parse().unwrap();
        let found = network
            .addresses
            .iter()
            .find(|entry| entry.address == Some(wanted));
        assert_eq!(found.and_then(|entry| entry.netdev.as_deref()), Some("lo"));
    }

    #[test]
    fn ip_json_is_understood() {
        let addresses = r#"[{"ifname":"eth0","addr_info":[{"local":"192.0.2.1","prefixlen":24,"scope":"global"}]},{"ifname":"x"}]"#;
        let routes = r#"[{"dst":"default","gateway":"192.0.2.9","dev":"eth0","metric":100},
            {"dst":"198.51.100.7","dev":"eth0","prefsrc":"192.0.2.1"},
            {"dst":"203.0.113.0/24","nexthops":[{"dev":"eth0"},{"dev":"eth1","gateway":"192.0.2.8"}]}]"#;
        let network = Network::from_ip_json(addresses, routes).unwrap();
        assert_eq!(network.addresses[0].address.unwrap().to_string(), "192.0.2.1/24");
        let lines: Vec<String> = network
            .routes
            .iter()
            .map(|route| {
                format!(
                    "{} {}",
                    route.destination.unwrap(),
                    route.netdev.as_deref().unwrap()
                )
            })
            .collect();
        assert_eq!(
            lines,
            [
                "0.0.0.0/0 eth0",
                "198.51.100.7/32 eth0",
                "203.0.113.0/24 eth0",
                "203.0.113.0/24 eth1"
            ]
        );
    }
}
