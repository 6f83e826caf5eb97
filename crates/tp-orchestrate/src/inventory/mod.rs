//! The inventory: which hosts there are, which ranks run on them, and what each is to be given.
//!
//! [`Inventory::load`] reads a TOML file, refuses what it does not understand and checks the rules that need no host.
//! `docs/orchestrate.md` has the format.

mod check;
mod parse;
mod read;
pub mod settings;

pub use read::{InventoryError, nearest};

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The version of the format that this program reads.
pub const SCHEMA: u64 = 1;
/// The largest number of ranks that a run may have.
pub const WORLD_MAX: u64 = 4096;

/// The two variables that an arm may set.
pub const HCA_VARIABLES: [&str; 2] = ["NCCL_IB_HCA", "TF_TP_ROCE_HCA"];

/// How ranks are started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// Processes on this machine.
    Local,
    /// SSH to each host.
    Ssh,
    /// The cluster's Slurm.
    Slurm,
}

impl Launcher {
    /// The words of the inventory, with their meaning.
    pub const WORDS: &'static [(&'static str, Self)] =
        &[("local", Self::Local), ("ssh", Self::Ssh), ("slurm", Self::Slurm)];

    /// The word of the inventory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Ssh => "ssh",
            Self::Slurm => "slurm",
        }
    }
}

/// How the runner gets to a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deploy {
    /// The portable binary is sent.
    Push,
    /// The Nix closure is sent.
    NixCopy,
    /// Every host builds the flake.
    NixBuild,
    /// It is there already; its hash is compared.
    Preinstalled,
}

impl Deploy {
    /// The words of the inventory, with their meaning.
    pub const WORDS: &'static [(&'static str, Self)] = &[
        ("push", Self::Push),
        ("nix-copy", Self::NixCopy),
        ("nix-build", Self::NixBuild),
        ("preinstalled", Self::Preinstalled),
    ];

    /// The word of the inventory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Push => "push",
            Self::NixCopy => "nix-copy",
            Self::NixBuild => "nix-build",
            Self::Preinstalled => "preinstalled",
        }
    }
}

/// Which GPUs a host's ranks use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Gpus {
    /// Not said: one GPU a rank where the host has enough of them, none where not.
    Auto,
    /// These, one rank each; empty: none.
    Listed(Vec<u32>),
}

/// One host of the inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The name that plans, logs and tables use.
    pub name: String,
    /// Control address, or an alias of the SSH configuration; absent with the `local` launcher.
    pub ssh: Option<String>,
    /// User to log in as.
    pub user: Option<String>,
    /// SSH port.
    pub port: Option<u16>,
    /// SSH identity file.
    pub identity: Option<String>,
    /// Address at which the other ranks reach this host.
    pub fabric: Option<String>,
    /// The ranks on this host, ascending.
    pub ranks: Vec<u32>,
    /// Their GPUs.
    pub gpus: Gpus,
    /// Words in front of the runner's command line, e.g. of a container.
    pub run_prefix: Vec<String>,
    /// Variables for every rank on this host.
    pub env: BTreeMap<String, String>,
    /// The MTU that the interfaces of the picked ports ought to have, bytes.
    pub mtu: Option<u32>,
    /// What the arms set here, where the pick is not to supply it: arm → variable → value.
    pub arms: BTreeMap<String, BTreeMap<String, String>>,
    /// The machine that must answer, as in `/etc/machine-id`.
    pub machine_id: Option<String>,
    /// A facts file on which the `hca` steps pick where there is no RDMA port; as given.
    pub facts: Option<String>,
    /// The system, e.g. `aarch64-linux`.
    pub system: Option<String>,
    /// Directory on the host that belongs to us.
    pub dir: Option<String>,
}

/// A checked inventory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inventory {
    /// The cluster's name; names the receipt directory.
    pub name: String,
    /// How ranks are started.
    pub launcher: Launcher,
    /// How the runner gets there.
    pub deploy: Deploy,
    /// What every host builds, with [`Deploy::NixBuild`].
    pub flake: Option<String>,
    /// Deadline of every step in milliseconds, where it is not to be the step's own.
    pub step_limit_ms: Option<u64>,
    /// The hosts; rank 0's host is wherever rank 0 is.
    pub hosts: Vec<Host>,
    /// Directory of the file: what relative facts files are relative to.
    pub dir: PathBuf,
}

impl Inventory {
    /// Reads and checks a file.
    pub fn load(path: &Path) -> Result<Self, crate::Error> {
        let text = std::fs::read_to_string(path).map_err(|e| {
            crate::Error::Usage(format!("failed to read the inventory {}: {e}", path.display()))
        })?;
        let dir = path
            .parent()
            .filter(|p| !p.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        Ok(Self::parse(&path.display().to_string(), &text, dir)?)
    }

    /// Reads and checks a text; `file` is the name for messages, `dir` what relative paths are relative to.
    pub fn parse(file: &str, text: &str, dir: &Path) -> Result<Self, InventoryError> {
        let source = read::Source { file, text };
        let raw = parse::parse(source)?;
        check::check(source, raw, dir)
    }

    /// The number of ranks.
    pub fn world(&self) -> u32 {
        self.hosts.iter().map(|h| h.ranks.len() as u32).sum()
    }

    /// The host that a rank runs on.
    pub fn host_of(&self, rank: u32) -> Option<&Host> {
        self.hosts.iter().find(|h| h.ranks.contains(&rank))
    }

    /// A facts file's path.
    pub fn facts_path(&self, facts: &str) -> PathBuf {
        self.dir.join(facts)
    }
}
