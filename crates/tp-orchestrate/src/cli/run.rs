//! `run`: preflight, then the plan, then the receipt.

use super::args::RunArgs;
use super::plan;
use crate::Error;
use crate::deploy::Bring;
use crate::display::reporter;
use crate::exec::fleet::Fleet;
use crate::exec::mark::RunMark;
use crate::exec::{self, Begin, Context, Earlier, Interrupt, Ledger, ModelFacts, RunOptions};
use crate::inventory::Inventory;
use crate::plan::Plan;
use std::path::{Path, PathBuf};
use tp_receipt::redact::{Keyring, Redactor};

pub(super) fn run(args: &RunArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    let fleet = Fleet::open(&inventory, &args.target.runner, Bring::Missing)?;
    for note in &fleet.notes {
        super::say(note);
    }
    fleet.has_the_gpus_of(&inventory)?;
    let plan = plan::with(&inventory, &fleet.capabilities, &args.select)?;
    // From here on a signal ends the run in order, not this process in the middle of a line.
    let interrupt = Interrupt::install()?;
    let run_id = exec::new_run_id()?;
    let facts = ModelFacts::load(&inventory, &plan.places, &run_id)?;
    let _mark = RunMark::set(&run_id);
    let (ledger, earlier) = ledger(args, &inventory, &plan, &fleet, &run_id)?;
    let options = RunOptions {
        fail_fast: args.fail_fast,
        repeat: args.repeat,
        retries: args.retries,
    };
    let context = Context {
        run_id: &run_id,
        hosts: &fleet.hosts,
        facts: &facts,
        interrupt: &interrupt,
    };
    let done = exec::execute(&plan, options, &context, ledger, earlier);
    if facts.is_used() {
        fleet.hosts.values().for_each(|host| host.clean(&run_id));
    }
    if let Ok((receipt, _)) = &done
        && receipt.interrupted.is_some()
    {
        super::say(
            "to go on where it ended, say the same with --resume DIR, and the receipt's directory, in place of --out",
        );
    }
    done.map(|(_, code)| code)
}

fn ledger(
    args: &RunArgs,
    inventory: &Inventory,
    plan: &Plan,
    fleet: &Fleet,
    run_id: &str,
) -> Result<(Ledger, Earlier), Error> {
    if let Some(dir) = &args.resume {
        let runners: Vec<_> = fleet.runners.values().collect();
        let redacted = exec::is_redacted(dir, &runners)?;
        return Ledger::resume(dir, plan, redactor(redacted)?, reporter(args.json));
    }
    let dir = args.out.clone().unwrap_or_else(|| default_out(inventory));
    let begin = Begin {
        plan,
        run_id,
        repeat: args.repeat,
        versions: fleet.versions(),
        redactor: redactor(!args.no_redact)?,
    };
    Ok((
        Ledger::create(&dir, begin, reporter(args.json))?,
        Earlier::default(),
    ))
}

/// `./receipts/NAME-DATE-TIME`, with a number behind it where runs begin within one second.
fn default_out(inventory: &Inventory) -> PathBuf {
    let name = format!("{}-{}", inventory.name, exec::time::stamp());
    let numbered = (2..1000).map(|n| format!("{name}-{n}"));
    let mut candidates = std::iter::once(name.clone())
        .chain(numbered)
        .map(|name| Path::new("receipts").join(name));
    // The directory is made with an error where it exists, so a race here ends in a refusal and not in a mixture.
    candidates
        .find(|path| !path.exists())
        .unwrap_or_else(|| Path::new("receipts").join(&name))
}

fn redactor(on: bool) -> Result<Redactor, Error> {
    if !on {
        return Ok(Redactor::off());
    }
    let usage = |e: tp_receipt::redact::RedactError| Error::Usage(e.to_string());
    Redactor::open(Keyring::of_user().map_err(usage)?).map_err(usage)
}
