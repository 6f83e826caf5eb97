//! Ranks that no rail can join are refused before anything is started.

use super::facts;
use crate::Error;
use crate::inventory::{Inventory, Launcher};
use crate::plan::{Capabilities, Plan};
use tp_hca::{Document, ErrorCode, Options};

/// The variable that lets ranks without a shared rail go on with NCCL alone.
const FALLBACK: &str = "TF_TP_ROCE_FALLBACK";

/// Looks whether the plan's ranks can reach each other, as far as that is known before the run: by `model`, the facts
/// files of a `model` pick, else by what the hosts said. Where the plan picks nothing, nothing is asked of the ports.
///
/// # Errors
/// Refused: two ranks share no subnet and no route, as when one host of a ring is left out.
pub fn check_rails(
    inventory: &Inventory,
    plan: &Plan,
    capabilities: &Capabilities,
    model: Option<Document>,
) -> Result<(), Error> {
    let picks = plan
        .arms
        .iter()
        .any(|arm| arm.steps.iter().any(|step| step.name == "hca"));
    let falls_back = inventory
        .hosts
        .iter()
        .any(|host| host.env.get(FALLBACK).is_some_and(|value| value == "nccl"));
    if !picks || falls_back {
        return Ok(());
    }
    let Some(document) = model.or_else(|| asked(inventory, capabilities)) else {
        return Ok(());
    };
    match tp_hca::pick(&document, &Options::default()).error {
        Some(error) if error.code == ErrorCode::NoSharedRail => Err(Error::Refused(format!(
            "{error}; steps that pick no ports run with --steps, and {FALLBACK} = \"nccl\" in `env` leaves it to NCCL"
        ))),
        _ => Ok(()),
    }
}

/// The facts of every rank as its host told them; none where a host did not, or where all ranks are on this machine.
fn asked(inventory: &Inventory, capabilities: &Capabilities) -> Option<Document> {
    if inventory.launcher == Launcher::Local || capabilities.rdma_ports != Some(true) {
        return None;
    }
    let told = inventory
        .hosts
        .iter()
        .map(|host| capabilities.host_facts.get(&host.name));
    facts::of_hosts(inventory, told.map(|text| text.map(String::as_str)))
}
