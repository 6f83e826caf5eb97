//! What this host has of RDMA, without failing: the library, its providers, the kernel's devices, the nodes to open them.

use std::path::{Path, PathBuf};

use crate::cause;
use crate::device::List;
use crate::{Attempt, LoadError, Search, Verbs};

/// The result of looking for libibverbs and what it needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The file that would be used.
    pub path: Option<PathBuf>,
    /// Drivers for which the library has a provider on disk, sorted: `mlx5`, `rxe`, …
    pub providers: Vec<String>,
    /// RDMA devices that the kernel shows in sysfs.
    pub in_sysfs: Vec<String>,
    /// The device files under `/dev/infiniband`, and for each that this process may not open the reason.
    pub nodes: Vec<(PathBuf, Option<String>)>,
    /// RDMA devices that the library offers, in its order.
    pub devices: Vec<String>,
    /// Why the library offers none, in the system's words.
    pub devices_error: Option<String>,
    /// What was tried and not taken, in order.
    pub attempts: Vec<Attempt>,
    /// Why there is no library.
    pub error: Option<LoadError>,
}

impl Probe {
    /// Whether a device could be opened.
    pub fn is_usable(&self) -> bool {
        self.error.is_none()
            && !self.devices.is_empty()
            && self.nodes.iter().any(|(_, denied)| denied.is_none())
    }

    /// One line about what was found.
    pub fn detail(&self) -> String {
        if let Some(error) = &self.error {
            return error.to_string();
        }
        let mut parts = Vec::new();
        parts.push(match self.devices.len() {
            0 => "no RDMA device".to_owned(),
            _ => format!("devices {}", self.devices.join(", ")),
        });
        if let Some(error) = &self.devices_error {
            parts.push(error.clone());
        }
        parts.push(match self.providers.len() {
            0 => "no provider".to_owned(),
            _ => format!("providers {}", self.providers.join(", ")),
        });
        for (node, denied) in &self.nodes {
            if let Some(reason) = denied {
                parts.push(format!("{} cannot be opened: {reason}", node.display()));
            }
        }
        for attempt in &self.attempts {
            parts.push(format!("passed over {attempt}"));
        }
        parts.join("; ")
    }

    /// What would make RDMA usable here; none where it is.
    pub fn fix(&self) -> Option<String> {
        match &self.error {
            Some(LoadError::Override { .. }) => {
                return Some("name a libibverbs.so.1 in TF_IBVERBS_LIB, or unset it to search".to_owned());
            }
            Some(LoadError::NotFound { .. }) => {
                return Some("install rdma-core: libibverbs1 and ibverbs-providers".to_owned());
            }
            None => {}
        }
        let seen = self.in_sysfs.join(", ");
        let openable = self.nodes.iter().any(|(_, denied)| denied.is_none());
        if !self.in_sysfs.is_empty() && self.nodes.is_empty() {
            // The usual state of a container that was not given the device files.
            return Some(format!(
                "{seen} visible in sysfs, but there is no /dev/infiniband/uverbs*: pass --device /dev/infiniband to the \
                 container, or load the kernel module ib_uverbs"
            ));
        }
        if !self.in_sysfs.is_empty() && !openable {
            return Some(format!(
                "{seen} visible in sysfs, but this user may not open /dev/infiniband/uverbs*: give it read and write access"
            ));
        }
        if self.in_sysfs.is_empty() {
            return Some(
                "no RDMA device in /sys/class/infiniband: load the network card's RDMA driver".to_owned(),
            );
        }
        if self.devices.is_empty() {
            return Some(format!(
                "{seen} visible in sysfs, but libibverbs offers none: install ibverbs-providers"
            ));
        }
        None
    }
}

/// Looks for libibverbs as [`Verbs::load`] does and says what was found. No device is opened for use. `root` stands
/// for `/`, so that another tree's sysfs and device files can be asked about.
pub fn probe(search: &Search, root: &Path) -> Probe {
    let in_sysfs = names(&root.join("sys/class/infiniband"));
    let nodes = nodes(&root.join("dev/infiniband"));
    match Verbs::load(search) {
        Ok(verbs) => {
            let (devices, devices_error) = match device_names(&verbs) {
                Ok(devices) => (devices, None),
                Err(reason) => (Vec::new(), Some(reason)),
            };
            Probe {
                providers: providers(verbs.path()),
                path: Some(verbs.path().to_owned()),
                in_sysfs,
                nodes,
                devices,
                devices_error,
                attempts: verbs.attempts().to_vec(),
                error: None,
            }
        }
        Err(error) => Probe {
            path: None,
            providers: Vec::new(),
            in_sysfs,
            nodes,
            devices: Vec::new(),
            devices_error: None,
            attempts: error.attempts().to_vec(),
            error: Some(error),
        },
    }
}

/// The names in a folder, sorted; empty where there is none.
fn names(folder: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// The device files, and for each that cannot be opened for reading and writing the reason.
fn nodes(folder: &Path) -> Vec<(PathBuf, Option<String>)> {
    names(folder)
        .into_iter()
        .filter(|name| name.starts_with("uverbs"))
        .map(|name| {
            let node = folder.join(name);
            let opened = std::fs::OpenOptions::new().read(true).write(true).open(&node);
            (node, opened.err().map(|error| error.to_string()))
        })
        .collect()
}

/// The drivers whose providers lie where this libibverbs looks: `libibverbs/libNAME-rdmavN.so` beside it.
fn providers(library: &Path) -> Vec<String> {
    let Some(folder) = library.parent() else {
        return Vec::new();
    };
    let mut found: Vec<String> = names(&folder.join("libibverbs"))
        .iter()
        .filter_map(|name| Some(name.strip_prefix("lib")?.split_once("-rdmav")?.0.to_owned()))
        .collect();
    found.dedup();
    found
}

/// The devices that the library offers, in its order; the error is the system's reason.
fn device_names(verbs: &Verbs) -> Result<Vec<String>, String> {
    match List::new(verbs) {
        Ok(list) => Ok(list.devices().map(|(_, name)| name).collect()),
        Err(errno) => Err(match cause::of_errno("ibv_get_device_list", errno) {
            Some(cause) => cause.to_owned(),
            None => std::io::Error::from_raw_os_error(errno).to_string(),
        }),
    }
}
