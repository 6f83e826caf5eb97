//! `run`: preflight, then the plan, then the receipt.

use super::args::RunArgs;
use super::plan;
use crate::Error;
use crate::display::reporter;
use crate::exec::{self, Begin, Context, Earlier, Interrupt, Ledger, ModelFacts, RunOptions, Runner};
use crate::host::{Host, LocalHost};
use crate::inventory::{Inventory, Launcher};
use crate::plan::Plan;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tp_receipt::redact::{Keyring, Redactor};

pub(super) fn run(args: &RunArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    if inventory.launcher != Launcher::Local {
        return Err(Error::Refused(format!(
            "the `{}` launcher can be planned and not yet run; `launcher = \"local\"` runs on this machine",
            inventory.launcher.name()
        )));
    }
    exec::check_machine(&inventory)?;
    let (plan, runner) = plan::make(&inventory, &args.target, &args.select)?;
    let runner = runner.ok_or_else(|| Error::Refused("there is no runner on this machine".to_owned()))?;
    // From here on a signal ends the run in order, not this process in the middle of a line.
    let interrupt = Interrupt::install()?;
    let run_id = exec::new_run_id()?;
    let facts = ModelFacts::load(&inventory, &plan.places, &run_id)?;
    let hosts = hosts(&inventory, &runner.path);
    let (ledger, earlier) = ledger(args, &inventory, &plan, &runner, &run_id)?;
    let options = RunOptions {
        fail_fast: args.fail_fast,
        repeat: args.repeat,
        retries: args.retries,
    };
    let context = Context {
        run_id: &run_id,
        hosts: &hosts,
        facts: &facts,
        interrupt: &interrupt,
    };
    let (_, code) = exec::execute(&plan, options, &context, ledger, earlier)?;
    Ok(code)
}

fn hosts(inventory: &Inventory, runner: &Path) -> BTreeMap<String, Arc<dyn Host>> {
    let host = |name: &String| -> Arc<dyn Host> { Arc::new(LocalHost::new(name.clone(), runner)) };
    inventory
        .hosts
        .iter()
        .map(|h| (h.name.clone(), host(&h.name)))
        .collect()
}

fn ledger(
    args: &RunArgs,
    inventory: &Inventory,
    plan: &Plan,
    runner: &Runner,
    run_id: &str,
) -> Result<(Ledger, Earlier), Error> {
    if let Some(dir) = &args.resume {
        let redacted = exec::is_redacted(dir, runner)?;
        return Ledger::resume(dir, plan, redactor(redacted)?, reporter(args.json));
    }
    let dir = args.out.clone().unwrap_or_else(|| default_out(inventory));
    let begin = Begin {
        plan,
        run_id,
        repeat: args.repeat,
        versions: runner.versions(),
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
