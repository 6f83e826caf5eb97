//! One rank's ports as the pick sees them: which can be used, at which addresses, and why the others cannot.

use crate::code::ErrorCode;
use crate::facts::{Gid, GidType, LinkLayer, Port, PortKind, PortState, RankFacts};
use crate::ids::GidIndex;
use crate::pick::routes::RouteTable;
use std::net::IpAddr;

/// Why a port was left out.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub code: ErrorCode,
    pub text: String,
}

impl Refusal {
    fn new(code: ErrorCode, text: impl Into<String>) -> Self {
        Self {
            code,
            text: text.into(),
        }
    }
}

/// An address at which a port can be reached: one RoCE v2 GID.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    /// Index into the rank's ports.
    pub port: usize,
    pub gid_index: GidIndex,
    pub ip: IpAddr,
    /// The netdev's own prefix length for the address; none where no address entry gives it.
    pub prefix_len: Option<u8>,
    /// The netdev that carries the address: the port's, or a bond or VLAN above it.
    pub netdev: Option<String>,
    /// 169.254/16 or fe80::/10: used only where its index is pinned.
    pub link_local: bool,
}

impl Endpoint {
    /// The subnet, where the prefix says something.
    pub fn subnet(&self) -> Option<ipnet::IpNet> {
        let len = self.prefix_len?;
        let full = if self.ip.is_ipv4() { 32 } else { 128 };
        if len == 0 || len >= full {
            return None;
        }
        ipnet::IpNet::new(self.ip, len).ok().map(|net| net.trunc())
    }
}

/// One port: usable or not, and its endpoints.
#[derive(Clone, Debug)]
pub(crate) struct PortView {
    /// Set where state, link layer, carrier, device or driver rule the port out.
    pub link: Option<Refusal>,
    /// Set where the link is fine and no GID is usable on its own.
    pub gid: Option<Refusal>,
    /// Indexes into the host's endpoints, link-local ones too.
    pub endpoints: Vec<usize>,
}

impl PortView {
    pub fn refusal(&self) -> Option<&Refusal> {
        self.link.as_ref().or(self.gid.as_ref())
    }
}

/// A rank with its facts sifted.
pub(crate) struct Host<'a> {
    pub facts: &'a RankFacts,
    pub ports: Vec<PortView>,
    pub endpoints: Vec<Endpoint>,
    pub routes: RouteTable<'a>,
}

impl<'a> Host<'a> {
    pub fn new(facts: &'a RankFacts, soft_allowed: bool) -> Self {
        let mut endpoints = Vec::new();
        let mut ports = Vec::with_capacity(facts.ports.len());
        for (index, port) in facts.ports.iter().enumerate() {
            let first = endpoints.len();
            for gid in port.gids.iter().flatten() {
                endpoints.extend(endpoint(facts, index, port, gid));
            }
            let own = &mut endpoints[first..];
            own.sort_by_key(|endpoint| (endpoint.ip.is_ipv6(), endpoint.gid_index));
            let usable = own.iter().any(|endpoint| !endpoint.link_local);
            ports.push(PortView {
                link: link_refusal(facts, port, soft_allowed, !own.is_empty()),
                gid: (!usable).then(|| gid_refusal(port, own)),
                endpoints: (first..endpoints.len()).collect(),
            });
        }
        Self {
            facts,
            ports,
            endpoints,
            routes: RouteTable::new(&facts.routes),
        }
    }

    pub fn rank(&self) -> u32 {
        self.facts.rank
    }

    /// `device:port` of a port.
    pub fn name(&self, port: usize) -> String {
        let port = &self.facts.ports[port];
        format!("{}:{}", port.device, port.port)
    }

    /// What both ends know of a port besides its address, for telling ports apart in a fixed order. Names come last:
    /// they decide only between ports that differ in nothing else.
    pub fn tie(&self, port: usize) -> (Option<&str>, Option<&str>, u32, Option<&str>, &str) {
        let port = &self.facts.ports[port];
        (
            port.pci.as_deref(),
            port.node_guid.as_deref(),
            port.port.0,
            port.netdev.as_deref(),
            &port.device,
        )
    }

    /// A word for what kind of device a port is, where that matters to a reader.
    pub fn kind_note(&self, port: usize) -> &'static str {
        let port = &self.facts.ports[port];
        match port.kind {
            Some(PortKind::Vf) => " [virtual function]",
            Some(PortKind::Bond) => " [bond]",
            _ if is_soft(port) => " [software device]",
            _ => "",
        }
    }

    pub fn is_soft(&self, port: usize) -> bool {
        is_soft(&self.facts.ports[port])
    }
}

fn is_soft(port: &Port) -> bool {
    port.soft == Some(true)
        || port.kind == Some(PortKind::Soft)
        || matches!(port.driver.as_deref(), Some("rdma_rxe" | "siw"))
}

fn link_refusal(facts: &RankFacts, port: &Port, soft_allowed: bool, has_gid: bool) -> Option<Refusal> {
    match port.link_layer {
        Some(LinkLayer::Ethernet) => {}
        Some(LinkLayer::InfiniBand) => {
            return Some(Refusal::new(
                ErrorCode::WrongLinkLayer,
                "InfiniBand: reached by LID through its subnet manager, and never mixed with RoCE in one pick",
            ));
        }
        None => return Some(Refusal::new(ErrorCode::UnknownFact, "link layer not known")),
    }
    match port.state {
        Some(PortState::Active) => {}
        Some(state) => {
            let physical = port
                .physical_state
                .as_deref()
                .map(|text| format!(" (physical state {text})"));
            return Some(Refusal::new(
                ErrorCode::PortDown,
                format!(
                    "down, not considered: state {}{}",
                    state.as_str(),
                    physical.unwrap_or_default()
                ),
            ));
        }
        None => return Some(Refusal::new(ErrorCode::UnknownFact, "state not known")),
    }
    if port.carrier == Some(false) {
        let netdev = port.netdev.as_deref().unwrap_or("its netdev");
        return Some(Refusal::new(
            ErrorCode::PortDown,
            format!("down, not considered: no carrier on {netdev}"),
        ));
    }
    if port.netdev.is_none() && !port_has_netdev(facts, port) {
        let also = if has_gid {
            ", though its GID table holds an address"
        } else {
            ""
        };
        return Some(Refusal::new(
            ErrorCode::NoGid,
            format!("no network interface belongs to it{also}"),
        ));
    }
    if is_soft(port) && !soft_allowed {
        return Some(Refusal::new(
            ErrorCode::SoftDevice,
            "a software RDMA device; set TF_TP_ROCE_SOFT=1 to use it all the same",
        ));
    }
    if port.openable == Some(false) {
        return Some(Refusal::new(
            ErrorCode::NotOpenable,
            "visible in sysfs, cannot open uverbs: pass --device /dev/infiniband to the container, or check permissions",
        ));
    }
    None
}

/// Whether a GID names its netdev, or an address entry tells it.
fn port_has_netdev(facts: &RankFacts, port: &Port) -> bool {
    port.gids.iter().flatten().any(|gid| {
        gid.netdev.is_some()
            || gid
                .gid
                .is_some_and(|gid| netdev_of(facts, canonical(gid.into())).is_some())
    })
}

fn canonical(ip: IpAddr) -> IpAddr {
    ip.to_canonical()
}

/// The one netdev that an address lives on; none where no entry or several say so.
fn netdev_of(facts: &RankFacts, ip: IpAddr) -> Option<&str> {
    let mut found = facts
        .addresses
        .iter()
        .filter(|entry| entry.address.is_some_and(|address| address.ip == ip))
        .filter_map(|entry| entry.netdev.as_deref());
    found.next().filter(|_| found.next().is_none())
}

fn endpoint(facts: &RankFacts, index: usize, port: &Port, gid: &Gid) -> Option<Endpoint> {
    if gid.kind != Some(GidType::V2) {
        return None;
    }
    let (gid_index, ip) = (gid.index?, canonical(gid.gid?.into()));
    let link_local = match class(ip) {
        Class::Usable => false,
        Class::LinkLocal => true,
        Class::Empty | Class::Other => return None,
    };
    let netdev = gid
        .netdev
        .as_deref()
        .or(port.netdev.as_deref())
        .or_else(|| netdev_of(facts, ip));
    Some(Endpoint {
        port: index,
        gid_index,
        ip,
        prefix_len: prefix_len(facts, netdev, ip),
        netdev: netdev.map(str::to_owned),
        link_local,
    })
}

/// The prefix length of an address on its netdev; an entry that does not say its netdev counts for any.
fn prefix_len(facts: &RankFacts, netdev: Option<&str>, ip: IpAddr) -> Option<u8> {
    facts
        .addresses
        .iter()
        .filter(|entry| entry.netdev.is_none() || netdev.is_none() || entry.netdev.as_deref() == netdev)
        .filter_map(|entry| entry.address)
        .find(|address| address.ip == ip)?
        .prefix_len
}

#[derive(PartialEq)]
pub(crate) enum Class {
    /// IPv4, or global or unique local IPv6.
    Usable,
    LinkLocal,
    Empty,
    Other,
}

/// What kind of address a GID carries.
pub(crate) fn class(ip: IpAddr) -> Class {
    match ip {
        IpAddr::V4(v4) if v4.is_link_local() => Class::LinkLocal,
        IpAddr::V4(v4) if v4.is_unspecified() => Class::Empty,
        IpAddr::V4(v4) if v4.is_loopback() || v4.is_multicast() || v4.is_broadcast() => Class::Other,
        IpAddr::V4(_) => Class::Usable,
        IpAddr::V6(v6) if v6.is_unspecified() => Class::Empty,
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            if v6.segments()[1..].iter().all(|&part| part == 0) {
                Class::Empty
            } else {
                Class::LinkLocal
            }
        }
        // Unique local fc00::/7 and global unicast 2000::/3.
        IpAddr::V6(v6) if v6.octets()[0] & 0xfe == 0xfc || v6.octets()[0] & 0xe0 == 0x20 => Class::Usable,
        IpAddr::V6(_) => Class::Other,
    }
}

/// Why no GID of a port is usable on its own.
fn gid_refusal(port: &Port, endpoints: &[Endpoint]) -> Refusal {
    let Some(gids) = &port.gids else {
        return Refusal::new(ErrorCode::UnknownFact, "GIDs not known");
    };
    if !endpoints.is_empty() {
        let seen: Vec<String> = endpoints.iter().map(|endpoint| endpoint.ip.to_string()).collect();
        return Refusal::new(
            ErrorCode::NoGid,
            format!(
                "link-local only ({}): give {} an address",
                seen.join(", "),
                port_netdev(port)
            ),
        );
    }
    let usable = |gid: &&Gid| {
        gid.gid
            .is_some_and(|ip| class(canonical(ip.into())) == Class::Usable)
    };
    let text = match gids.iter().find(usable) {
        Some(gid) if gid.kind == Some(GidType::V1) => {
            format!("RoCE v1 GIDs only: enable RoCE v2 on {}", port.device)
        }
        Some(Gid { index: None, .. }) => "a usable GID whose index is not known".to_owned(),
        Some(_) => {
            return Refusal::new(
                ErrorCode::UnknownFact,
                "the RoCE version of its GIDs is not known",
            );
        }
        None => format!(
            "no RoCE v2 GID of a usable address: give {} an address",
            port_netdev(port)
        ),
    };
    Refusal::new(ErrorCode::NoGid, text)
}

fn port_netdev(port: &Port) -> &str {
    port.netdev.as_deref().unwrap_or("its netdev")
}
