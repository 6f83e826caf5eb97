//! `hca`: the pick of all ranks, in one table.

use super::args::HcaArgs;
use super::{out, plan};
use crate::deploy::Bring;
use crate::exec::fleet::Fleet;
use crate::exec::{facts_document, find_runner};
use crate::host::{Host, LocalHost};
use crate::inventory::{Inventory, Launcher};
use crate::plan::Plan;
use crate::{Error, exit_code};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tp_hca::{Document, Options};

/// How long a host may take to read its own facts.
const CAPTURE_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn run(args: &HcaArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    let modelled = inventory.hosts.iter().all(|host| host.facts.is_some());
    let fleet = match inventory.launcher {
        Launcher::Local => None,
        _ if modelled => None,
        _ => Some(Fleet::open(&inventory, &args.target.runner, Bring::Missing)?),
    };
    let select = super::args::Select::default();
    let plan = match &fleet {
        Some(fleet) => plan::with(&inventory, &fleet.capabilities, &select)?,
        None => plan::make(&inventory, &args.target, &select)?,
    };
    let (document, model) = match facts_document(&inventory, &plan.places)? {
        Some(document) => (document, true),
        None => (captured(&inventory, &plan, fleet.as_ref(), args)?, false),
    };
    let picked = tp_hca::pick(&document, &Options::default());
    if args.json {
        let text = serde_json::to_string(&picked)
            .map_err(|e| Error::Refused(format!("failed to write the document as JSON: {e}")))?;
        out::line(text)?;
    } else {
        if model {
            out::line("model: picked on facts files; nothing here was read from a port")?;
        }
        out::text(&tp_hca::table(&picked))?;
        if let Some(error) = &picked.error {
            super::say(&error.to_string());
        }
    }
    Ok(match picked.exit_code() {
        0 => exit_code::PASSED,
        code => code,
    })
}

/// The facts of every rank's host, as each captures them.
fn captured(
    inventory: &Inventory,
    plan: &Plan,
    fleet: Option<&Fleet>,
    args: &HcaArgs,
) -> Result<Document, Error> {
    let here = match fleet {
        Some(_) => None,
        None => Some(LocalHost::new(
            "this machine",
            find_runner(args.target.runner.first().map(PathBuf::as_path))?,
        )),
    };
    let mut known: BTreeMap<&str, Document> = BTreeMap::new();
    let mut ranks = Vec::new();
    for place in &plan.places {
        let entry = inventory.host_of(place.rank);
        let name = if fleet.is_some() { place.host.as_str() } else { "" };
        if !known.contains_key(name) {
            let host: &dyn Host = match (fleet.and_then(|fleet| fleet.hosts.get(name)), &here) {
                (Some(host), _) => host.as_ref(),
                (None, Some(here)) => here,
                (None, None) => return Err(Error::Refused(format!("host {name} is not part of this run"))),
            };
            let prefix = entry
                .filter(|_| fleet.is_some())
                .map(|e| e.run_prefix.clone())
                .unwrap_or_default();
            known.insert(name, capture(host, &prefix)?);
        }
        let facts = known[name].clone();
        let mut own = facts
            .into_single(place.rank, &format!("hca --capture on {}", place.host))
            .map_err(|e| Error::Refused(format!("host {}: {e}", place.host)))?;
        own.env = entry.map(|h| h.env.clone()).unwrap_or_default();
        ranks.push(own);
    }
    Document::of_ranks(ranks).map_err(|e| Error::Refused(format!("failed to join the facts: {e}")))
}

fn capture(host: &dyn Host, prefix: &[String]) -> Result<Document, Error> {
    let mut argv = prefix.to_vec();
    argv.extend([
        host.runner().display().to_string(),
        "hca".to_owned(),
        "--capture".to_owned(),
    ]);
    let output = host
        .output(&argv, CAPTURE_LIMIT)
        .map_err(|e| Error::Refused(e.to_string()))?;
    if output.code != Some(0) {
        let said = output.stderr.lines().last().unwrap_or("nothing").to_owned();
        return Err(Error::Refused(format!(
            "host {}: {} failed and said: {said}",
            host.name(),
            argv.join(" ")
        )));
    }
    Document::from_toml(&output.stdout)
        .map_err(|e| Error::Refused(format!("host {}: {}: {e}", host.name(), argv.join(" "))))
}
