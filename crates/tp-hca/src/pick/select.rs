//! What a rank's variables say about its ports.

use crate::code::{ErrorCode, WarningCode};
use crate::document::{Mode, PickError, Warning};
use crate::facts::{LinkLayer, PortState};
use crate::grammar::{self, MAX_ENTRIES, nccl, roce};
use crate::ids::GidIndex;
use crate::pick::host::{Host, Refusal};
use crate::pick::variables::{agreed, pin_refusal, unknown};
use std::collections::{BTreeMap, BTreeSet};

/// The most rails of a pair: TF_TP_ROCE_HCAS.
pub(crate) const LIMIT: &str = "TF_TP_ROCE_HCAS";
/// Whether software devices may be taken.
pub(crate) const SOFT: &str = "TF_TP_ROCE_SOFT";

/// A rank's variables, applied to its ports.
#[derive(Clone, Debug)]
pub(crate) struct Selection {
    pub mode: Mode,
    /// The named ports, in the order of the list where it has one; none where every port is a candidate.
    pub named: Option<Vec<usize>>,
    /// GID indexes pinned by hand.
    pub pins: BTreeMap<usize, GidIndex>,
    /// Most rails to one peer.
    pub limit: usize,
    pub warnings: Vec<Warning>,
}

impl Selection {
    pub fn allows(&self, port: usize) -> bool {
        self.named.as_ref().is_none_or(|named| named.contains(&port))
    }

    /// The assignment that names exactly these ports in this rank's variable, to be written as it stands.
    pub fn list(&self, host: &Host<'_>, ports: &[usize]) -> String {
        match self.mode {
            Mode::Nccl => {
                let names: Vec<String> = ports.iter().map(|&port| host.name(port)).collect();
                format!("{}=={}", nccl::VARIABLE, names.join(","))
            }
            Mode::Roce | Mode::Both | Mode::Auto => {
                let devices: Vec<&str> = ports
                    .iter()
                    .map(|&port| host.facts.ports[port].device.as_str())
                    .collect();
                format!("{}={}", roce::VARIABLE, devices.join(","))
            }
        }
    }

    /// The variable to name in messages.
    pub fn variable(&self) -> &'static str {
        match self.mode {
            Mode::Nccl => nccl::VARIABLE,
            Mode::Roce | Mode::Both => roce::VARIABLE,
            Mode::Auto => "its variables",
        }
    }
}

/// Variables whose being set and empty is worth a word.
const WATCHED: &[&str] = &[
    roce::VARIABLE,
    nccl::VARIABLE,
    LIMIT,
    SOFT,
    "NCCL_IB_GID_INDEX",
    "NCCL_SOCKET_IFNAME",
    "NCCL_IB_ADDR_RANGE",
];

/// Whether software devices may be taken on this rank.
pub(crate) fn soft_allowed(env: &BTreeMap<String, String>, rank: u32) -> Result<bool, PickError> {
    match value(env, SOFT) {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(PickError::new(
            ErrorCode::BadSyntax,
            rank,
            format!(
                "{SOFT}={} on rank {rank} is neither 0 nor 1",
                other.escape_debug()
            ),
        )),
    }
}

/// A variable's value; one that is empty is unset.
pub(crate) fn value<'e>(env: &'e BTreeMap<String, String>, name: &str) -> Option<&'e str> {
    env.get(name)
        .map(String::as_str)
        .filter(|value| !value.is_empty())
}

/// Applies the variables. The first thing wrong is the error.
pub(crate) fn select(host: &Host<'_>) -> Result<Selection, PickError> {
    let env = &host.facts.env;
    let mut selection = Selection {
        mode: Mode::Auto,
        named: None,
        pins: BTreeMap::new(),
        limit: limit(host)?,
        warnings: Vec::new(),
    };
    for &name in WATCHED {
        if env.get(name).is_some_and(String::is_empty) {
            selection.warn(
                WarningCode::EmptyVariable,
                format!("{name} is set and empty: taken as unset; unset it"),
            );
        }
    }
    if let Some(index) = value(env, "NCCL_IB_GID_INDEX") {
        selection.warn(
            WarningCode::GidIndexPinned,
            format!(
                "NCCL_IB_GID_INDEX={index} pins one GID index for all ports of NCCL; indexes drift, unset it"
            ),
        );
    }
    // Both texts are read before either is held against the ports, so that a slip of the pen is named first.
    let roce_entries = value(env, roce::VARIABLE)
        .map(roce::parse)
        .transpose()
        .map_err(|e| syntax(host, &e))?;
    let nccl_list = value(env, nccl::VARIABLE)
        .map(nccl::check)
        .transpose()
        .map_err(|e| syntax(host, &e))?;
    let by_roce = roce_entries
        .map(|entries| selection.apply_roce(host, &entries))
        .transpose()?;
    let by_nccl = nccl_list
        .map(|list| selection.apply_nccl(host, &list))
        .transpose()?;
    (selection.mode, selection.named) = match (by_roce, by_nccl) {
        (None, None) => (Mode::Auto, None),
        (Some(named), None) => (Mode::Roce, Some(named)),
        (None, Some(named)) => (Mode::Nccl, Some(named)),
        (Some(ours), Some(theirs)) => (Mode::Both, Some(agreed(host, ours, &theirs)?)),
    };
    if let Some(named) = &selection.named
        && selection.mode != Mode::Nccl
        && named.len() > selection.limit
    {
        let text = format!(
            "{} names {} ports on rank {}, {LIMIT} allows {}; name fewer or raise it",
            roce::VARIABLE,
            named.len(),
            host.rank(),
            selection.limit
        );
        return Err(PickError::new(ErrorCode::BadSyntax, host.rank(), text));
    }
    Ok(selection)
}

fn limit(host: &Host<'_>) -> Result<usize, PickError> {
    let Some(text) = value(&host.facts.env, LIMIT) else {
        return Ok(MAX_ENTRIES);
    };
    text.trim()
        .parse()
        .ok()
        .filter(|limit| (1..=MAX_ENTRIES).contains(limit))
        .ok_or_else(|| {
            let text = format!(
                "{LIMIT}={} is not a number from 1 to {MAX_ENTRIES}",
                text.escape_debug()
            );
            PickError::new(ErrorCode::BadSyntax, host.rank(), text)
        })
}

fn syntax(host: &Host<'_>, error: &grammar::GrammarError) -> PickError {
    PickError::new(ErrorCode::BadSyntax, host.rank(), error.to_string())
}

fn refused(host: &Host<'_>, variable: &str, verb: &str, port: usize, refusal: &Refusal) -> PickError {
    let text = format!(
        "{variable} {verb} {} on {}, which cannot be used: {}",
        host.name(port),
        host.facts.place(),
        refusal.text
    );
    PickError::new(refusal.code, host.rank(), text)
}

impl Selection {
    fn warn(&mut self, code: WarningCode, text: String) {
        self.warnings.push(Warning { code, text });
    }

    fn apply_roce(&mut self, host: &Host<'_>, entries: &[roce::Entry]) -> Result<Vec<usize>, PickError> {
        let mut named = Vec::new();
        for entry in entries {
            let ports = ports_of(host, |device, _| device == entry.device);
            let Some(&first) = ports.first() else {
                return Err(unknown(host, roce::VARIABLE, entry.column, &entry.device));
            };
            let usable: Vec<usize> = match entry.gid_index {
                None => ports
                    .iter()
                    .copied()
                    .filter(|&port| host.ports[port].refusal().is_none())
                    .collect(),
                Some(index) => {
                    let fit = |port: &usize| {
                        host.ports[*port].link.is_none() && pinned(host, *port, index).is_some()
                    };
                    ports.iter().copied().filter(fit).collect()
                }
            };
            if usable.is_empty() {
                let refusal = host.ports[first].link.clone().or_else(|| match entry.gid_index {
                    Some(index) => Some(pin_refusal(host, first, index)),
                    None => host.ports[first].gid.clone(),
                });
                if let Some(refusal) = refusal {
                    return Err(refused(host, roce::VARIABLE, "names", first, &refusal));
                }
            }
            if let Some(index) = entry.gid_index {
                self.pin(host, &usable, index);
            }
            named.extend(usable);
        }
        Ok(named)
    }

    fn pin(&mut self, host: &Host<'_>, ports: &[usize], index: GidIndex) {
        for &port in ports {
            self.pins.insert(port, index);
            let name = host.name(port);
            self.warn(
                WarningCode::GidIndexPinned,
                format!(
                    "{} pins GID index {index} of {name}; indexes drift, leave `:{index}` out",
                    roce::VARIABLE
                ),
            );
            if pinned(host, port, index).is_some_and(|endpoint| host.endpoints[endpoint].link_local) {
                self.warn(
                    WarningCode::LinkLocal,
                    format!("the pinned GID {index} of {name} is link-local: it reaches its own cable only"),
                );
            }
        }
    }

    fn apply_nccl(&mut self, host: &Host<'_>, list: &nccl::List) -> Result<Vec<usize>, PickError> {
        for entry in &list.entries {
            self.check_entry(host, list, entry)?;
        }
        let taken: Vec<usize> = ports_of(host, |device, port| list.selects(device, port))
            .into_iter()
            .filter(|&p| nccl_sees(host, p))
            .collect();
        if taken.is_empty() {
            let text = format!(
                "{} leaves no ACTIVE port on {}",
                nccl::VARIABLE,
                host.facts.place()
            );
            return Err(PickError::new(ErrorCode::PortDown, host.rank(), text));
        }
        for &port in &taken {
            if let Some(refusal) = host.ports[port].refusal() {
                return Err(refused(host, nccl::VARIABLE, "makes NCCL take", port, refusal));
            }
        }
        Ok(taken)
    }

    /// An entry must match a port, and one that includes must match a port that NCCL would take.
    fn check_entry(
        &mut self,
        host: &Host<'_>,
        list: &nccl::List,
        entry: &nccl::Entry,
    ) -> Result<(), PickError> {
        let matched = ports_of(host, |device, port| entry.matches(list.exact, device, port));
        let Some(&first) = matched.first() else {
            let any_port = nccl::Entry {
                port: None,
                ..entry.clone()
            };
            if ports_of(host, |device, port| any_port.matches(list.exact, device, port)).is_empty() {
                return Err(unknown(host, nccl::VARIABLE, entry.column, &entry.name));
            }
            let number = entry.port.unwrap_or_default();
            let text = format!(
                "{}={}, character {}: NCCL reads `:{number}` as port {number}, and {} has no such port; write `={}:1`, and \
                 a GID index, if at all, in {} only",
                nccl::VARIABLE,
                host.facts.env.get(nccl::VARIABLE).map_or("", String::as_str),
                entry.column,
                entry.name,
                entry.name,
                roce::VARIABLE
            );
            return Err(PickError::new(ErrorCode::BadSyntax, host.rank(), text));
        };
        if !list.exclude && !matched.iter().any(|&port| nccl_sees(host, port)) {
            let state_unknown = Refusal {
                code: ErrorCode::UnknownFact,
                text: "state not known".to_owned(),
            };
            let refusal = host.ports[first].link.as_ref().unwrap_or(&state_unknown);
            return Err(refused(host, nccl::VARIABLE, "names", first, refusal));
        }
        let caught: BTreeSet<&str> = matched
            .iter()
            .map(|&port| host.facts.ports[port].device.as_str())
            .filter(|device| !list.exact && *device != entry.name)
            .collect();
        if !caught.is_empty() {
            let caught: Vec<&str> = caught.into_iter().collect();
            self.warn(
                WarningCode::PrefixMatch,
                format!(
                    "`{}` in {} is a prefix and also matches {}; put `=` in front of the list for exact names",
                    entry.name,
                    nccl::VARIABLE,
                    caught.join(", ")
                ),
            );
        }
        Ok(())
    }
}

/// Ports that fit, by device and port.
fn ports_of(host: &Host<'_>, fits: impl Fn(&str, crate::ids::PortNum) -> bool) -> Vec<usize> {
    let ports = &host.facts.ports;
    let mut found: Vec<usize> = (0..ports.len())
        .filter(|&index| fits(&ports[index].device, ports[index].port))
        .collect();
    found.sort_by_key(|&index| (&ports[index].device, ports[index].port));
    found
}

/// Whether NCCL looks at a port at all: ACTIVE, InfiniBand or Ethernet.
fn nccl_sees(host: &Host<'_>, port: usize) -> bool {
    let port = &host.facts.ports[port];
    port.state == Some(PortState::Active)
        && matches!(port.link_layer, Some(LinkLayer::Ethernet | LinkLayer::InfiniBand))
}

/// The endpoint of a port at a GID index.
pub(crate) fn pinned(host: &Host<'_>, port: usize, index: GidIndex) -> Option<usize> {
    host.ports[port]
        .endpoints
        .iter()
        .copied()
        .find(|&endpoint| host.endpoints[endpoint].gid_index == index)
}
