//! What is known of the ranks' ports, addresses and routes.
//!
//! A document comes from a TOML file ([`Document::from_toml`]), from a live host ([`crate::capture()`]) or from another
//! rank ([`RankFacts::from_bytes`]). Every field but the rank, the device and the port may be absent: absent means not
//! known, and the pick then says so and guesses nothing.

mod address;
mod merge;
mod parse;
mod redact;

pub use address::IfAddr;
pub use merge::MAX_BYTES;
pub(crate) use parse::nearest;
pub use parse::{FactsError, is_device_name};

use crate::ids::{GidIndex, PortNum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the facts format that this crate writes.
pub const SCHEMA: u32 = 1;

/// The facts of all ranks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Document {
    /// Version of the format; absent reads as [`SCHEMA`].
    #[serde(default = "schema")]
    pub schema: u32,
    /// One entry a rank, in any order.
    #[serde(default, rename = "rank")]
    pub ranks: Vec<RankFacts>,
}

fn schema() -> u32 {
    SCHEMA
}

/// The facts of one rank's host, as that rank sees it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankFacts {
    /// The rank.
    pub rank: u32,
    /// Name of the host. Ranks of one name share the host and need no rail between them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Variables that are set, as set; an empty value is set and empty.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// RDMA ports.
    #[serde(default, rename = "port", skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// Addresses of the netdevs, those without an RDMA device too.
    #[serde(default, rename = "address", skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<Address>,
    /// Routes of the main table.
    #[serde(default, rename = "route", skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
}

/// Logical state of a port, as sysfs spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum PortState {
    /// The driver does not say.
    Nop,
    /// No link.
    Down,
    /// Link, not configured.
    Init,
    /// Configured, not yet in use.
    Armed,
    /// Carries traffic.
    Active,
    /// Was active, link lost a moment ago.
    ActiveDefer,
}

impl PortState {
    /// The state as sysfs spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Nop => "NOP",
            Self::Down => "DOWN",
            Self::Init => "INIT",
            Self::Armed => "ARMED",
            Self::Active => "ACTIVE",
            Self::ActiveDefer => "ACTIVE_DEFER",
        }
    }
}

/// Link layer of a port, as sysfs spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// InfiniBand.
    InfiniBand,
}

/// What a device is to its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PortKind {
    /// Physical function.
    Pf,
    /// Virtual function.
    Vf,
    /// Several ports bonded into one device.
    Bond,
    /// Software device (rxe, siw).
    Soft,
}

/// Type of a GID, as `gid_attrs/types` spells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum GidType {
    /// InfiniBand, or RoCE version 1: Ethernet frames, never routed.
    #[serde(rename = "IB/RoCE v1")]
    V1,
    /// RoCE version 2: UDP.
    #[serde(rename = "RoCE v2")]
    V2,
}

/// One RDMA port.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// RDMA device; names carry no meaning.
    pub device: String,
    /// Port number.
    pub port: PortNum,
    /// Logical state.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<PortState>,
    /// Physical state in the driver's words, e.g. `LINK_UP`, `DISABLED`, `POLLING`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_state: Option<String>,
    /// Ethernet or InfiniBand.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link_layer: Option<LinkLayer>,
    /// Network interface of the port; absent where the device has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// Carrier of the netdev.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub carrier: Option<bool>,
    /// Active MTU in bytes (256 to 4096).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub active_mtu: Option<u32>,
    /// Speed in Gbit/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_gbps: Option<f64>,
    /// A software device (rxe, siw).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft: Option<bool>,
    /// The filled slots of the GID table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gids: Option<Vec<Gid>>,
    /// PCI address, `domain:bus:device.function`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// NUMA node; absent where the host has one only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_node: Option<u32>,
    /// Kernel driver.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    /// pf, vf, bond or soft.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<PortKind>,
    /// Physical port of the netdev, `p0`, `p1`, …; two functions of one cage give the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phys_port: Option<String>,
    /// Whether this process can open the device's `/dev/infiniband/uverbs*`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub openable: Option<bool>,
    /// Node GUID, `xxxx:xxxx:xxxx:xxxx`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_guid: Option<String>,
}

impl Default for PortNum {
    fn default() -> Self {
        PortNum(1)
    }
}

/// One filled slot of a GID table.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Gid {
    /// Slot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<GidIndex>,
    /// Value, as an IPv6 address (`::ffff:192.0.2.1` for IPv4).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gid: Option<std::net::Ipv6Addr>,
    /// RoCE version; absent where the kernel would not say.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<GidType>,
    /// The netdev the address lives on: the port's own, or a bond or VLAN above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
}

/// One address of a network interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Address {
    /// Network interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// Address with its real prefix length, `192.0.2.1/24`; without one the length is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<IfAddr>,
}

/// One route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// Destination: a network, one address, or `default`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub destination: Option<IfAddr>,
    /// Output interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub netdev: Option<String>,
    /// Gateway, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub via: Option<std::net::IpAddr>,
    /// Metric; lower wins. Absent reads as 0, as the kernel does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metric: Option<u32>,
    /// Preferred source address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<std::net::IpAddr>,
}

/// A text of a stranger for a message: one line without control characters, cut where it is long.
pub(crate) fn shown(text: &str) -> String {
    const MOST: usize = 80;
    let cut: String = text.chars().take(MOST).collect();
    let dots = if cut.len() < text.len() { "…" } else { "" };
    format!("{}{dots}", cut.escape_debug())
}
