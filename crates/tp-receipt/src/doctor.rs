//! What a host says of itself: the documents of the runner's `doctor --json`, which the orchestrator reads.

use serde::{Deserialize, Serialize};

/// The version of the documents that this crate writes.
pub const SCHEMA: u32 = 1;

/// How a thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// As it should be.
    Ok,
    /// Usable, but likely to hurt.
    Warn,
    /// Not there; what needs it cannot run.
    No,
    /// A word of a later version.
    #[serde(other)]
    Other,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Stable name.
    pub name: String,
    /// How it stands.
    pub state: State,
    /// What was found, one line.
    pub text: String,
    /// What would mend it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

impl Item {
    /// What was found, without anything that would mend it.
    pub fn new(name: &str, state: State, text: impl Into<String>) -> Self {
        Self {
            name: name.to_owned(),
            state,
            text: text.into(),
            fix: None,
        }
    }

    /// With what would mend it.
    pub fn fix(self, fix: impl Into<String>) -> Self {
        Self {
            fix: Some(fix.into()),
            ..self
        }
    }
}

/// What identifies a host and what all hosts of a run are compared by.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Host name.
    pub name: String,
    /// `/etc/machine-id`; clones of one image may share it.
    pub machine_id: Option<String>,
    /// Identity of this boot of this kernel: the same in all containers of a machine.
    pub boot_id: Option<String>,
    /// Network namespace; with the boot id it says whether two names are one host.
    pub network_namespace: Option<String>,
    /// Processor and system, e.g. `aarch64-linux`.
    pub system: String,
    /// Kernel name and release.
    pub kernel: String,
    /// C library and version.
    pub libc: Option<String>,
    /// NVIDIA kernel driver's version.
    pub driver: Option<String>,
    /// Limit of locked memory in this session, bytes; none is no limit.
    pub memlock: Option<u64>,
    /// Memory that can be had, bytes.
    pub memory_available: Option<u64>,
    /// The kernel's contiguous memory area, bytes, where it has one: 0 may keep memory from being registered.
    pub cma_total: Option<u64>,
    /// Whether this host forwards IPv4 packets of others.
    pub forwards: Option<bool>,
    /// Policy of the FORWARD chain, where it can be read.
    pub forward_policy: Option<String>,
    /// SHA-256 of the runner's file.
    pub runner_sha256: Option<String>,
    /// The runner's version.
    pub runner: String,
}

/// One GPU that the driver lists.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// The driver's number of it, which `TF_TP_DEVICE` takes.
    pub index: u32,
    /// The driver's name for it.
    pub name: String,
    /// Compute capability, as `9.0`.
    pub compute_capability: String,
}

/// One library.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// `libcuda`, `libibverbs`, `libnccl`, `kernels`.
    pub library: String,
    /// Its version.
    pub version: Option<String>,
    /// The file; none where there is none.
    pub file: Option<String>,
}

/// A setting of NCCL's and where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NcclSetting {
    /// The variable.
    pub name: String,
    /// Its value.
    pub value: String,
    /// `environment`, or the file.
    pub source: String,
}

/// What sysfs says of an RDMA port beyond the facts that a pick reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Look {
    /// RDMA device.
    pub device: String,
    /// Port number.
    pub port: u32,
    /// MTU of the network interface, bytes.
    pub netdev_mtu: Option<u32>,
    /// PCIe lanes in use.
    pub pcie_width: Option<u32>,
    /// PCIe lanes that the device has.
    pub pcie_width_max: Option<u32>,
    /// PCIe speed in use, e.g. `32.0 GT/s PCIe`.
    pub pcie_speed: Option<String>,
    /// PCIe speed that the device has.
    pub pcie_speed_max: Option<String>,
    /// What all functions of one adapter have in common.
    pub adapter: Option<String>,
}

/// One command or backend, and whether the host can run it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ability {
    /// The command, as it is typed.
    pub command: String,
    /// Whether it can be run there.
    pub can: bool,
    /// Why not, or with what restriction.
    pub why: String,
}

/// Everything that `doctor` tells of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this document.
    #[serde(default)]
    pub schema: u32,
    /// Whether the host backend can run.
    #[serde(default)]
    pub ok: bool,
    /// Which host it is.
    #[serde(default)]
    pub host: About,
    /// What was looked at.
    pub items: Vec<Item>,
    /// The GPUs; none without a driver.
    #[serde(default)]
    pub gpus: Vec<Gpu>,
    /// Libraries and the file that each came from.
    #[serde(default)]
    pub libraries: Vec<Library>,
    /// Settings of NCCL's and where each stands.
    #[serde(default)]
    pub nccl_settings: Vec<NcclSetting>,
    /// RDMA ports beyond the facts.
    #[serde(default)]
    pub ports: Vec<Look>,
    /// The facts that a pick reads, in the form of `hca --capture`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub facts: String,
    /// What can be run.
    pub abilities: Vec<Ability>,
    /// What the command did not try.
    #[serde(default)]
    pub not_tried: Vec<String>,
}

/// What `doctor --reach` tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reached {
    /// Version of this document.
    #[serde(default)]
    pub schema: u32,
    /// Every address that was tried.
    pub reach: Vec<Reach>,
}

/// What became of one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// `HOST:PORT` as asked for.
    pub to: String,
    /// `open`, `refused`, `filtered`, `no-route`, `unknown-name` or `failed`.
    pub outcome: String,
    /// The same for people.
    pub text: String,
    /// How long the answer took, milliseconds.
    #[serde(default)]
    pub ms: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_a_host_says_is_read_by_older_and_newer_readers() {
        let report = Report {
            schema: SCHEMA,
            items: vec![Item::new("memlock", State::Warn, "8 MiB").fix("ulimit -l unlimited")],
            ..Report::default()
        };
        let text = serde_json::to_string(&report).unwrap();
        assert!(text.contains(r#""state":"warn""#), "{text}");
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), report);
        let other = r#"{"items":[{"name":"x","state":"odd","text":"","later":1}],"abilities":[],"later":2}"#;
        let read: Report = serde_json::from_str(other).unwrap();
        assert_eq!(read.items[0].state, State::Other);
        assert!(serde_json::from_str::<Report>("{}").is_err(), "that is no report");
    }
}
