//! The backends that a plan may use: one row each, so that a new one is a new row.

use crate::inventory::{Gpus, Inventory, Launcher};
use std::collections::BTreeMap;

/// A backend and what it needs.
#[derive(Clone, Copy, Debug)]
pub struct Backend {
    /// The word of `TF_COMM_BACKEND`.
    pub name: &'static str,
    /// Every rank needs a GPU.
    pub needs_gpu: bool,
    /// All ranks must be on one host.
    pub one_host: bool,
    /// The largest world it serves.
    pub world_max: u32,
    /// The scope of its steps.
    pub scope: &'static str,
}

/// Every backend, in the order in which they run.
pub const BACKENDS: &[Backend] = &[
    Backend {
        name: "host",
        needs_gpu: false,
        one_host: false,
        world_max: 64,
        scope: "host",
    },
    Backend {
        name: "nccl",
        needs_gpu: true,
        one_host: false,
        world_max: 64,
        scope: "gpu",
    },
    Backend {
        name: "mailbox",
        needs_gpu: true,
        one_host: true,
        world_max: 8,
        scope: "gpu",
    },
    Backend {
        name: "roce",
        needs_gpu: true,
        one_host: false,
        world_max: 8,
        scope: "gpu",
    },
];

/// The largest world that `roce-host` serves.
pub(super) const ROCE_HOST_WORLD_MAX: u32 = 64;

/// Why something that serves so many ranks cannot be used in this world.
pub(super) fn too_large(world: u32, world_max: u32) -> Option<String> {
    (world > world_max).then(|| format!("it serves at most {world_max} ranks; the world is {world}"))
}

/// What the hosts can do, as far as it is known before the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Number of GPUs that this machine's ranks may use; `None` where the hosts were not asked.
    pub gpus: Option<u32>,
    /// The same by host, where the ranks are on several.
    pub host_gpus: BTreeMap<String, u32>,
    /// Number of processors that this machine's ranks share; `None` where the hosts were not asked.
    pub cpus: Option<u32>,
    /// Whether the ranks have RDMA ports; `None` where the hosts were not asked.
    pub rdma_ports: Option<bool>,
    /// The ports and routes of each host, a facts file's text by host; of hosts that were not asked there is none.
    pub host_facts: BTreeMap<String, String>,
    /// The backends that the runner can open there, each with the reason where it cannot; `None` where not asked.
    pub backends: Option<Vec<(String, Result<(), String>)>>,
}

impl Capabilities {
    /// Nothing was asked: the inventory is believed.
    pub fn unknown() -> Self {
        Self {
            gpus: None,
            host_gpus: BTreeMap::new(),
            cpus: None,
            rdma_ports: None,
            host_facts: BTreeMap::new(),
            backends: None,
        }
    }

    /// A machine without GPU and RDMA port, with a runner that has the host backend.
    pub fn host_only() -> Self {
        Self {
            gpus: Some(0),
            host_gpus: BTreeMap::new(),
            cpus: None,
            rdma_ports: Some(false),
            host_facts: BTreeMap::new(),
            backends: Some(vec![("host".into(), Ok(()))]),
        }
    }
}

/// The GPU of each rank, by rank.
pub(super) fn gpus(inventory: &Inventory, capabilities: &Capabilities, share: bool) -> Vec<Option<u32>> {
    let mut out = vec![None; inventory.world() as usize];
    // Hosts of the local launcher are one machine, whose GPUs are dealt out once.
    let one_machine = inventory.launcher == Launcher::Local;
    let available = capabilities.gpus.unwrap_or(0);
    let wanted: u32 = inventory
        .hosts
        .iter()
        .filter(|h| h.gpus == Gpus::Auto)
        .map(|h| h.ranks.len() as u32)
        .sum();
    let mut next = 0;
    for host in &inventory.hosts {
        for (index, rank) in host.ranks.iter().enumerate() {
            out[*rank as usize] = match &host.gpus {
                Gpus::Listed(list) => list.get(index).copied(),
                Gpus::Auto if one_machine && (wanted <= available || share && available > 0) => {
                    next += 1;
                    Some((next - 1) % available)
                }
                Gpus::Auto => {
                    let own = capabilities.host_gpus.get(&host.name).copied().unwrap_or(0);
                    let enough = host.ranks.len() as u32 <= own;
                    (enough || share && own > 0).then(|| index as u32 % own)
                }
            };
        }
    }
    out
}

/// Why a backend cannot be used here, or `None` where it can.
pub(super) fn obstacle(
    backend: &Backend,
    inventory: &Inventory,
    capabilities: &Capabilities,
    gpus: &[Option<u32>],
) -> Option<String> {
    if backend.needs_gpu
        && let Some(rank) = gpus.iter().position(Option::is_none)
    {
        return Some(format!("rank {rank} has no GPU"));
    }
    if backend.one_host && inventory.launcher != Launcher::Local && inventory.hosts.len() > 1 {
        return Some(format!(
            "it joins the GPUs of one host; the ranks are on {} hosts",
            inventory.hosts.len()
        ));
    }
    if let Some(reason) = too_large(inventory.world(), backend.world_max) {
        return Some(reason);
    }
    let known = capabilities.backends.as_ref()?;
    match known.iter().find(|(name, _)| name == backend.name) {
        Some((_, Ok(()))) => None,
        Some((_, Err(reason))) => Some(reason.clone()),
        None => Some("the runner does not have it".to_owned()),
    }
}
