//! What is wrong with a variable, said.

use crate::code::ErrorCode;
use crate::document::PickError;
use crate::facts::{GidType, nearest};
use crate::grammar::{nccl, roce};
use crate::ids::GidIndex;
use crate::pick::host::{Host, Refusal};
use std::collections::BTreeSet;

/// A name that no device has.
pub(crate) fn unknown(host: &Host<'_>, variable: &str, column: usize, name: &str) -> PickError {
    let mut devices: Vec<&str> = host.facts.ports.iter().map(|port| port.device.as_str()).collect();
    devices.sort_unstable();
    devices.dedup();
    let there = match devices.is_empty() {
        true => "it has no RDMA device".to_owned(),
        false => format!(
            "did you mean `{}`? It has {}",
            nearest(name, &devices),
            devices.join(", ")
        ),
    };
    let given = host.facts.env.get(variable).map_or("", String::as_str);
    let text = format!(
        "{variable}={given}, character {column}: {} has no device `{name}`; {there}",
        host.facts.place()
    );
    PickError::new(ErrorCode::UnknownDevice, host.rank(), text)
}

/// Why a pinned GID index cannot be used.
pub(crate) fn pin_refusal(host: &Host<'_>, port: usize, index: GidIndex) -> Refusal {
    let gids = host.facts.ports[port].gids.as_deref();
    let usable: Vec<String> = host.ports[port]
        .endpoints
        .iter()
        .map(|&endpoint| &host.endpoints[endpoint])
        .filter(|endpoint| !endpoint.link_local)
        .map(|endpoint| format!("{} ({})", endpoint.gid_index, endpoint.ip))
        .collect();
    let found = match gids.map(|gids| gids.iter().find(|gid| gid.index == Some(index))) {
        None => "its GIDs are not known".to_owned(),
        Some(None) => format!("GID index {index} is empty"),
        Some(Some(gid)) => match gid.kind {
            Some(GidType::V1) => format!("GID index {index} is RoCE v1"),
            Some(GidType::V2) => format!("GID index {index} is no usable address"),
            None => format!("the type of GID index {index} is not known"),
        },
    };
    let hint = match usable.is_empty() {
        true => "no RoCE v2 GID of a usable address is there".to_owned(),
        false => format!("usable: {}; better leave the index out", usable.join(", ")),
    };
    Refusal {
        code: ErrorCode::NoGid,
        text: format!("{found}; {hint}"),
    }
}

/// The ports that both variables name; different devices are refused.
pub(crate) fn agreed(host: &Host<'_>, ours: Vec<usize>, theirs: &[usize]) -> Result<Vec<usize>, PickError> {
    let devices = |ports: &[usize]| -> BTreeSet<&str> {
        ports
            .iter()
            .map(|&port| host.facts.ports[port].device.as_str())
            .collect()
    };
    let (our_devices, their_devices) = (devices(&ours), devices(theirs));
    if our_devices != their_devices {
        let list = |a: &BTreeSet<&str>, b: &BTreeSet<&str>| {
            let only: Vec<&str> = a.difference(b).copied().collect();
            if only.is_empty() {
                "nothing".to_owned()
            } else {
                only.join(", ")
            }
        };
        let text = format!(
            "{} and {} name different devices on {}: only the first has {}, only the second has {}; unset one of them",
            roce::VARIABLE,
            nccl::VARIABLE,
            host.facts.place(),
            list(&our_devices, &their_devices),
            list(&their_devices, &our_devices),
        );
        return Err(PickError::new(ErrorCode::MixedModes, host.rank(), text));
    }
    Ok(ours.into_iter().filter(|port| theirs.contains(port)).collect())
}
