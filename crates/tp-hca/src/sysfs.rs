//! RDMA ports from sysfs, below a root that may be a captured tree.
//!
//! What a file does not say stays unknown: many GID slots cannot be read at all (EINVAL) and are skipped, and the active
//! MTU is not in sysfs, so a capture leaves it to whoever can ask the device.

use crate::facts::{Gid, GidType, LinkLayer, Port, PortKind, PortState, is_device_name};
use crate::ids::{GidIndex, PortNum};
use std::io;
use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};

/// The `sys` directory below a root.
struct Tree<'r> {
    root: &'r Path,
    /// Whether the root is this machine's: only then does opening a device say anything.
    live: bool,
}

/// All ports below `root`, by device and port. `notes` gets one line for each thing that was there and could not be used.
pub fn ports(root: &Path, notes: &mut Vec<String>) -> Vec<Port> {
    let tree = Tree {
        root,
        live: root == Path::new("/"),
    };
    let class = tree.path("sys/class/infiniband");
    let mut devices = names(&class);
    devices.sort();
    let mut found = Vec::new();
    for device in devices {
        if !is_device_name(&device) {
            notes.push(format!(
                "device `{}` left out: not a name of letters, digits and `_`",
                device.escape_default()
            ));
            continue;
        }
        let directory = class.join(&device);
        let mut numbers: Vec<u32> = names(&directory.join("ports"))
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        numbers.sort_unstable();
        found.extend(
            numbers
                .into_iter()
                .map(|number| tree.port(&device, &directory, number, notes)),
        );
    }
    found
}

impl Tree<'_> {
    fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    fn net(&self, netdev: &str, file: &str) -> PathBuf {
        self.path("sys/class/net").join(netdev).join(file)
    }

    fn port(&self, device: &str, directory: &Path, number: u32, notes: &mut Vec<String>) -> Port {
        let port_dir = directory.join("ports").join(number.to_string());
        let pci_dir = directory.join("device");
        let gids = gids(&port_dir);
        let soft = directory.join("parent").exists() || !pci_dir.exists();
        let netdev = self.netdev(directory, number, &gids);
        let bond = gids
            .iter()
            .filter_map(|gid| gid.netdev.as_deref())
            .any(|name| self.net(name, "bonding").exists());
        let kind = match () {
            () if soft => PortKind::Soft,
            () if bond => PortKind::Bond,
            () if pci_dir.join("physfn").exists() => PortKind::Vf,
            () => PortKind::Pf,
        };
        Port {
            device: device.to_owned(),
            port: PortNum(number),
            state: text(&port_dir.join("state")).as_deref().and_then(state),
            physical_state: text(&port_dir.join("phys_state")).map(|text| physical_state(&text)),
            link_layer: text(&port_dir.join("link_layer"))
                .as_deref()
                .and_then(|text| match text {
                    "Ethernet" => Some(LinkLayer::Ethernet),
                    "InfiniBand" => Some(LinkLayer::InfiniBand),
                    _ => None,
                }),
            carrier: netdev.as_deref().and_then(|name| self.carrier(name)),
            active_mtu: None,
            speed_gbps: text(&port_dir.join("rate")).and_then(|text| text.split(' ').next()?.parse().ok()),
            soft: Some(soft),
            gids: Some(gids),
            pci: link_name(&pci_dir).filter(|name| name.contains(':') && name.contains('.')),
            numa_node: text(&pci_dir.join("numa_node")).and_then(|text| text.parse().ok()),
            driver: link_name(&pci_dir.join("driver")),
            kind: Some(kind),
            phys_port: netdev
                .as_deref()
                .and_then(|name| text(&self.net(name, "phys_port_name"))),
            openable: self.openable(device, notes),
            node_guid: text(&directory.join("node_guid")),
            netdev,
        }
    }

    /// The port's own netdev: by the PCI function and port, by the parent of a soft device, else by the first GID.
    fn netdev(&self, directory: &Path, number: u32, gids: &[Gid]) -> Option<String> {
        let mut candidates = names(&directory.join("device/net"));
        candidates.sort();
        let on_port = |name: &&String| {
            let dev_port: Option<u32> = text(&self.net(name, "dev_port")).and_then(|text| text.parse().ok());
            dev_port.is_some_and(|dev_port| dev_port + 1 == number)
        };
        let by_function = match &candidates[..] {
            [only] => Some(only.clone()),
            several => several.iter().find(on_port).cloned(),
        };
        by_function
            .or_else(|| text(&directory.join("parent")))
            .or_else(|| gids.iter().find_map(|gid| gid.netdev.clone()))
    }

    /// The kernel refuses to read the carrier of an interface that is administratively down: no carrier then.
    fn carrier(&self, netdev: &str) -> Option<bool> {
        match std::fs::read_to_string(self.net(netdev, "carrier")) {
            Ok(text) => Some(text.trim() == "1"),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Some(false),
            Err(_) => None,
        }
    }

    fn openable(&self, device: &str, notes: &mut Vec<String>) -> Option<bool> {
        if !self.live {
            return None;
        }
        let class = self.path("sys/class/infiniband_verbs");
        let uverbs = names(&class)
            .into_iter()
            .find(|name| text(&class.join(name).join("ibdev")).as_deref() == Some(device))?;
        let file = self.path("dev/infiniband").join(&uverbs);
        match std::fs::OpenOptions::new().read(true).write(true).open(&file) {
            Ok(_) => Some(true),
            Err(error) => {
                notes.push(format!(
                    "{device}: visible in sysfs, {} cannot be opened: {error}",
                    file.display()
                ));
                Some(false)
            }
        }
    }
}

/// The filled slots of a port's GID table.
fn gids(port_dir: &Path) -> Vec<Gid> {
    let mut slots: Vec<u32> = names(&port_dir.join("gids"))
        .iter()
        .filter_map(|name| name.parse().ok())
        .collect();
    slots.sort_unstable();
    slots
        .into_iter()
        .filter_map(|slot| {
            let name = slot.to_string();
            let value: Ipv6Addr = text(&port_dir.join("gids").join(&name))?.parse().ok()?;
            let attribute = |kind: &str| text(&port_dir.join("gid_attrs").join(kind).join(&name));
            let kind = match attribute("types").as_deref() {
                Some("IB/RoCE v1") => Some(GidType::V1),
                Some("RoCE v2") => Some(GidType::V2),
                _ => None,
            };
            let filled = !value.is_unspecified();
            filled.then(|| Gid {
                index: Some(GidIndex(slot)),
                gid: Some(value),
                kind,
                netdev: attribute("ndevs"),
            })
        })
        .collect()
}

/// `4: ACTIVE`.
fn state(text: &str) -> Option<PortState> {
    Some(match text.split(':').next_back()?.trim() {
        "NOP" => PortState::Nop,
        "DOWN" => PortState::Down,
        "INIT" => PortState::Init,
        "ARMED" => PortState::Armed,
        "ACTIVE" => PortState::Active,
        "ACTIVE_DEFER" => PortState::ActiveDefer,
        _ => return None,
    })
}

/// `5: LinkUp` as the rdma tool writes it, `LINK_UP`.
fn physical_state(text: &str) -> String {
    let word = text.split(':').next_back().unwrap_or(text).trim();
    let mut out = String::new();
    for (index, character) in word.chars().enumerate() {
        if index > 0 && character.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(if character == ' ' {
            '_'
        } else {
            character.to_ascii_uppercase()
        });
    }
    out.replace("__", "_")
}

/// The trimmed text of a file; none where it cannot be read or is empty.
fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn names(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory) else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect()
}

/// The last component of where a link leads.
fn link_name(path: &Path) -> Option<String> {
    let target = std::fs::read_link(path).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}
