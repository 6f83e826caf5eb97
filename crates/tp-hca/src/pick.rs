//! From the facts of all ranks to the rails between them.

use crate::code::ErrorCode;
use crate::document::{PickDocument, PickError};
use crate::facts::Document;
use crate::ids::PortNum;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// What a pick may know beyond the facts.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Version of the NCCL that will be used, where it is known; decides whether subnet-aware routing can be asked for.
    pub nccl_version: Option<(u32, u32, u32)>,
    /// Addresses that the inventory gives the ranks; each must be one of its host's.
    pub expected_addresses: BTreeMap<u32, Vec<IpAddr>>,
    /// What probes of proposed rails found; empty where nothing was probed.
    pub probes: BTreeMap<ProbeKey, Probe>,
}

/// One end of a proposed rail.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct End {
    /// The rank.
    pub rank: u32,
    /// Its RDMA device.
    pub device: String,
    /// Its port.
    pub port: PortNum,
}

/// A proposed rail: the lower rank's end, then the higher one's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeKey {
    /// End at the lower rank.
    pub low: End,
    /// End at the higher rank.
    pub high: End,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// One RDMA write each way arrived.
    Passed,
    /// It did not, and why.
    Failed(String),
}

/// Picks the rails of all ranks. Never panics; a refusal is a document with `ok` false and the error.
pub fn pick(document: &Document, options: &Options) -> PickDocument {
    let _ = (document, options);
    PickDocument::refused(PickError::new(ErrorCode::UnknownFact, None, "not compiled in"))
}
