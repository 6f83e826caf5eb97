//! `hca`: the pick of all ranks, in one table.

use super::args::HcaArgs;
use super::{out, plan};
use crate::exec::{facts_document, find_runner};
use crate::host::{Host, LocalHost};
use crate::inventory::{Inventory, Launcher};
use crate::plan::Plan;
use crate::{Error, exit_code};
use std::time::Duration;
use tp_hca::{Document, Options};

/// How long a host may take to read its own facts.
const CAPTURE_LIMIT: Duration = Duration::from_secs(20);

pub(super) fn run(args: &HcaArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    if inventory.launcher != Launcher::Local && inventory.hosts.iter().any(|h| h.facts.is_none()) {
        return Err(Error::Refused(format!(
            "the `{}` launcher cannot gather facts yet; capture them on each host (tf-tp-test hca --capture) and name the \
             files by `facts`",
            inventory.launcher.name()
        )));
    }
    let (plan, _) = plan::make(&inventory, &args.target, &super::args::Select::default())?;
    let (document, model) = match facts_document(&inventory, &plan.places)? {
        Some(document) => (document, true),
        None => (captured(&inventory, &plan, args)?, false),
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

/// This machine's facts, once for every rank on it.
fn captured(inventory: &Inventory, plan: &Plan, args: &HcaArgs) -> Result<Document, Error> {
    let host = LocalHost::new("this machine", find_runner(args.target.runner.as_deref())?);
    let argv = [
        host.runner().display().to_string(),
        "hca".to_owned(),
        "--capture".to_owned(),
    ];
    let output = host
        .output(&argv, CAPTURE_LIMIT)
        .map_err(|e| Error::Refused(e.to_string()))?;
    if output.code != Some(0) {
        let said = output.stderr.lines().last().unwrap_or("nothing").to_owned();
        return Err(Error::Refused(format!(
            "{} failed and said: {said}",
            argv.join(" ")
        )));
    }
    let refused = |e: tp_hca::facts::FactsError| Error::Refused(format!("{}: {e}", argv.join(" ")));
    let facts = Document::from_toml(&output.stdout).map_err(refused)?;
    let mut ranks = Vec::new();
    for place in &plan.places {
        let mut own = facts
            .clone()
            .into_single(place.rank, &argv.join(" "))
            .map_err(refused)?;
        own.env = inventory
            .host_of(place.rank)
            .map(|h| h.env.clone())
            .unwrap_or_default();
        ranks.push(own);
    }
    Document::of_ranks(ranks).map_err(refused)
}
