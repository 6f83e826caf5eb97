//! The `hca` document: what a pick says, to machines.

use crate::code::{ErrorCode, WarningCode};
use crate::ids::{GidIndex, PortNum};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The version of the document that this crate writes.
pub const SCHEMA: u32 = 1;

/// The outcome of a pick for all ranks; one JSON document, also on refusal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PickDocument {
    /// Version of the format, [`SCHEMA`].
    pub schema: u32,
    /// Whether every rank got its rails.
    pub ok: bool,
    /// Why not, where `ok` is false.
    pub error: Option<PickError>,
    /// Every rank, ascending; on refusal as far as the pick got.
    pub ranks: Vec<RankPick>,
}

/// Why a pick was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {text}")]
pub struct PickError {
    /// From the closed list.
    pub code: ErrorCode,
    /// The rank whose variable or ports are at fault; null where no single rank is.
    pub rank: Option<u32>,
    /// One clear line: what, where, what to do.
    pub text: String,
}

impl PickError {
    /// An error of one rank, or of none.
    pub fn new(code: ErrorCode, rank: impl Into<Option<u32>>, text: impl Into<String>) -> Self {
        Self {
            code,
            rank: rank.into(),
            text: text.into(),
        }
    }

    /// 2 when a variable, the inventory or the file is wrong, 3 when the fabric cannot.
    pub fn exit_code(&self) -> u8 {
        self.code.exit_code()
    }
}

/// Which variables decided on a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Neither: every eligible port was a candidate.
    #[serde(rename = "auto")]
    Auto,
    /// `TF_TP_ROCE_HCA` alone.
    #[serde(rename = "TF_TP_ROCE_HCA")]
    Roce,
    /// `NCCL_IB_HCA` alone.
    #[serde(rename = "NCCL_IB_HCA")]
    Nccl,
    /// Both, in agreement.
    #[serde(rename = "both")]
    Both,
}

/// How the two ends of a rail were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum By {
    /// Their addresses are on one subnet by both ends' own prefix lengths.
    Subnet,
    /// Each end's route to the other's address leaves by its own port.
    Route,
    /// Both ends were named and the facts say nothing for or against.
    Explicit,
}

/// What was picked for one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankPick {
    /// The rank.
    pub rank: u32,
    /// Which variables decided.
    pub mode: Mode,
    /// By peer, then in rail order; rail k to a peer is rail k of that peer to this rank.
    pub rails: Vec<RailPick>,
    /// What NCCL should see: derived values, and the user's own where one was set; nothing where the pick was refused.
    pub nccl_env: BTreeMap<String, String>,
    /// Every port of the rank, by device name and port.
    pub ports: Vec<PortPick>,
    /// What a person should know although the pick stands.
    pub warnings: Vec<Warning>,
}

/// One rail, seen from one end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RailPick {
    /// The rank at the other end.
    pub peer: u32,
    /// Own RDMA device.
    pub device: String,
    /// Own port.
    pub port: PortNum,
    /// Own GID index, as resolved from the facts.
    pub gid_index: GidIndex,
    /// Own address on the rail.
    pub address: String,
    /// The peer's RDMA device.
    pub peer_device: String,
    /// The peer's port.
    pub peer_port: PortNum,
    /// How the pair was found.
    pub by: By,
    /// Whether a real RDMA write crossed it each way.
    pub probed: bool,
}

/// One port and what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PortPick {
    /// RDMA device.
    pub device: String,
    /// Port number.
    pub port: PortNum,
    /// Whether any rail uses it.
    pub chosen: bool,
    /// Why, in words a person can act on.
    pub reason: String,
}

/// One warning.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Warning {
    /// From the closed list.
    pub code: WarningCode,
    /// One clear line.
    pub text: String,
}

impl PickDocument {
    /// A document that says nothing but why there is no pick.
    pub fn refused(error: PickError) -> Self {
        Self {
            schema: SCHEMA,
            ok: false,
            error: Some(error),
            ranks: Vec::new(),
        }
    }

    /// 0 picked, 2 a variable or the file is wrong, 3 the fabric cannot.
    pub fn exit_code(&self) -> u8 {
        self.error.as_ref().map_or(0, PickError::exit_code)
    }

    /// What was picked for `rank`.
    pub fn rank(&self, rank: u32) -> Option<&RankPick> {
        self.ranks.iter().find(|pick| pick.rank == rank)
    }
}
