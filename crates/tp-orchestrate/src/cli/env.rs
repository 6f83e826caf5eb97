//! `env`: the variables that an engine should be started with.

use super::args::{EnvArgs, EnvFormat};
use super::{hosts, out};
use crate::engine::{HostVariables, variables};
use crate::exec::facts_document;
use crate::inventory::Inventory;
use crate::plan::Place;
use crate::{Error, doctor, exit_code};
use std::path::Path;
use tp_hca::{Document, Options, PickDocument};
use tp_receipt::receipt::Receipt;

pub(super) fn run(args: &EnvArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    let wanted = wanted_host(args, &inventory)?;
    let (document, model) = facts(args, &inventory)?;
    let pick = tp_hca::pick(&document, &Options::default());
    if let Some(error) = &pick.error {
        return Err(match error.exit_code() {
            exit_code::USAGE => Error::Usage(error.to_string()),
            _ => Error::Refused(error.to_string()),
        });
    }
    if let Some(dir) = &args.proved_by {
        proved(dir, &pick, model)?;
    }
    let mut all = variables(&inventory, &pick).map_err(Error::Refused)?;
    if let Some(name) = wanted {
        all.retain(|host| host.host == name);
    }
    print(args, &inventory, &all, model)?;
    Ok(exit_code::PASSED)
}

/// The host that is asked for, by its name or by a rank of it.
fn wanted_host(args: &EnvArgs, inventory: &Inventory) -> Result<Option<String>, Error> {
    if let Some(name) = &args.host {
        if inventory.hosts.iter().any(|host| host.name == *name) {
            return Ok(Some(name.clone()));
        }
        return Err(Error::Usage(format!(
            "--host: `{name}` is none of {}",
            names(inventory)
        )));
    }
    let Some(rank) = args.rank else { return Ok(None) };
    match inventory.host_of(rank) {
        Some(host) => Ok(Some(host.name.clone())),
        None => Err(Error::Usage(format!(
            "--rank: {rank} is outside the world of {}",
            inventory.world()
        ))),
    }
}

fn names(inventory: &Inventory) -> String {
    let names: Vec<_> = inventory.hosts.iter().map(|host| host.name.as_str()).collect();
    names.join(", ")
}

/// The facts that the inventory names, else what the hosts say now.
fn facts(args: &EnvArgs, inventory: &Inventory) -> Result<(Document, bool), Error> {
    let place = |host: &crate::inventory::Host, rank: &u32| Place {
        rank: *rank,
        host: host.name.clone(),
        via: String::new(),
        gpu: None,
        facts: host.facts.clone(),
    };
    let places: Vec<Place> = inventory
        .hosts
        .iter()
        .flat_map(|host| host.ranks.iter().map(move |rank| place(host, rank)))
        .collect();
    if let Some(document) = facts_document(inventory, &places)? {
        return Ok((document, true));
    }
    let hosts = hosts::connect(inventory, &args.target)?;
    Ok((doctor::facts(inventory, &hosts)?, false))
}

/// Compares the pick of now with that of a run that passed.
fn proved(dir: &Path, pick: &PickDocument, model: bool) -> Result<(), Error> {
    let path = dir.join("receipt.json");
    let usage = |e: &dyn std::fmt::Display| Error::Usage(format!("--proved-by: {}: {e}", path.display()));
    let text = tp_receipt::store::read_text(dir, "receipt.json").map_err(|e| usage(&e))?;
    let receipt = Receipt::from_json(&text).map_err(|e| usage(&e))?;
    let refused = |what: String| Err(Error::Refused(format!("--proved-by: {}: {what}", dir.display())));
    if !receipt.verdict.passed() {
        return refused(format!(
            "its verdict is {}, which proves nothing",
            receipt.verdict
        ));
    }
    for rank in &pick.ranks {
        let recorded = receipt
            .picks
            .iter()
            .find(|p| p.rank == rank.rank && p.arm == "none");
        let Some(recorded) = recorded else {
            return refused(format!("it has no pick of rank {}", rank.rank));
        };
        if recorded.model && !model {
            return refused(
                "its pick was made on facts files, which proves nothing of live ports".to_owned(),
            );
        }
        let then: Vec<_> = recorded
            .rails
            .iter()
            .map(|r| format!("{}:{} to rank {}", r.device, r.port, r.peer))
            .collect();
        let now: Vec<_> = rank
            .rails
            .iter()
            .map(|r| format!("{}:{} to rank {}", r.device, r.port, r.peer))
            .collect();
        if then != now {
            return refused(format!(
                "rank {} was proved on {} and would use {} now: run again",
                rank.rank,
                shown(&then),
                shown(&now)
            ));
        }
    }
    Ok(())
}

fn shown(rails: &[String]) -> String {
    if rails.is_empty() {
        "no port".to_owned()
    } else {
        rails.join(", ")
    }
}

fn print(args: &EnvArgs, inventory: &Inventory, all: &[HostVariables], model: bool) -> Result<(), Error> {
    let format = if args.json { EnvFormat::Json } else { args.format };
    if format == EnvFormat::Json {
        let document = serde_json::json!({ "schema": 1, "ok": true, "model": model, "hosts": all });
        return out::line(document);
    }
    let form = |host: &HostVariables| match format {
        EnvFormat::Dotenv => host.to_dotenv(),
        EnvFormat::Sh | EnvFormat::Json => host.to_sh(),
    };
    if let Some(dir) = &args.into {
        return write_files(dir, all, &form);
    }
    match all {
        [host] => {
            if model {
                super::say("model: picked on facts files; nothing here was read from a port");
            }
            out::text(&form(host))
        }
        _ => Err(Error::Usage(format!(
            "each host has its own variables: name one by --host ({}), write all by --into DIR, or take --format json",
            names(inventory)
        ))),
    }
}

/// One file a host, for systemd units, Compose files and scripts there.
fn write_files(
    dir: &Path,
    all: &[HostVariables],
    form: &dyn Fn(&HostVariables) -> String,
) -> Result<(), Error> {
    let failed =
        |path: &Path, e: std::io::Error| Error::Usage(format!("failed to write {}: {e}", path.display()));
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    for host in all {
        let path = dir.join(format!("{}.env", host.host));
        std::fs::write(&path, form(host)).map_err(|e| failed(&path, e))?;
        out::line(path.display())?;
    }
    Ok(())
}
