//! One host's facts: live, or from a captured tree.

use crate::facts::RankFacts;
use crate::route::Network;
use crate::sysfs;
use std::path::Path;

/// What a capture found.
#[derive(Clone, Debug, Default)]
pub struct Capture {
    /// The facts; rank 0, and without variables until the caller sets them.
    pub facts: RankFacts,
    /// What could not be read, one line each.
    pub notes: Vec<String>,
}

/// The variables that a pick reads, and so the ones worth keeping beside a host's facts.
pub const VARIABLES: &[&str] = &[
    "TF_TP_ROCE_HCA",
    "TF_TP_ROCE_HCAS",
    "TF_TP_ROCE_SOFT",
    "NCCL_IB_HCA",
    "NCCL_IB_GID_INDEX",
    "NCCL_IB_ADDR_FAMILY",
    "NCCL_IB_ADDR_RANGE",
    "NCCL_IB_SUBNET_AWARE_ROUTING",
    "NCCL_IB_SUBNET_PREFIX_LEN",
    "NCCL_IB_DISABLE",
    "NCCL_NET",
    "NCCL_CROSS_NIC",
    "NCCL_SOCKET_IFNAME",
];

/// Reads the facts of the host whose file system is at `root`: `/` for this one, with its addresses and routes from the
/// kernel; a captured tree otherwise, with `ip-address.json` and `ip-route.json` (the output of `ip -j address` and
/// `ip -j route`) at its top.
pub fn capture(root: &Path) -> Capture {
    let mut notes = Vec::new();
    let ports = sysfs::ports(root, &mut notes);
    let network = if root == Path::new("/") {
        Network::live()
    } else {
        recorded(root)
    };
    let network = network.unwrap_or_else(|error| {
        notes.push(error);
        Network::default()
    });
    let host = std::fs::read_to_string(root.join("proc/sys/kernel/hostname"))
        .ok()
        .map(|name| name.trim().to_owned())
        .filter(|name| !name.is_empty());
    let facts = RankFacts {
        rank: 0,
        host,
        ports,
        addresses: network.addresses,
        routes: network.routes,
        ..RankFacts::default()
    };
    Capture { facts, notes }
}

fn recorded(root: &Path) -> Result<Network, String> {
    let read = |name: &str| {
        let path = root.join(name);
        std::fs::read_to_string(&path).map_err(|error| format!("{}: cannot be read: {error}", path.display()))
    };
    Network::from_ip_json(&read("ip-address.json")?, &read("ip-route.json")?)
}

impl RankFacts {
    /// Takes over the variables that a pick reads from `get`, e.g. the process's environment.
    pub fn take_env(&mut self, get: &dyn Fn(&str) -> Option<String>) {
        for name in VARIABLES {
            if let Some(value) = get(name) {
                self.env.insert((*name).to_owned(), value);
            }
        }
    }
}
