//! `plan`: the dry run.

use super::args::{PlanArgs, Select, Target};
use super::out;
use crate::exec::{Runner, capabilities, facts_document, find_runner};
use crate::host::LocalHost;
use crate::inventory::{Inventory, Launcher};
use crate::plan::{Capabilities, Plan, Selection, build};
use crate::{Error, exit_code};

pub(super) fn run(args: &PlanArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    let (plan, _) = make(&inventory, &args.target, &args.select)?;
    if args.json {
        out::line(plan.to_json())?;
    } else {
        out::text(&plan.to_text())?;
    }
    Ok(exit_code::PASSED)
}

/// The plan, and the runner where this machine is to start it.
pub(super) fn make(
    inventory: &Inventory,
    target: &Target,
    select: &Select,
) -> Result<(Plan, Option<Runner>), Error> {
    let selection = Selection {
        arms: select.arms.clone(),
        steps: select.steps.clone(),
        backends: select.backends.clone(),
    };
    let (capabilities, runner) = match inventory.launcher {
        Launcher::Local => {
            let host = LocalHost::new("this machine", find_runner(target.runner.as_deref())?);
            let runner = Runner::ask(&host)?;
            (capabilities(&host)?, Some(runner))
        }
        Launcher::Ssh | Launcher::Slurm => (Capabilities::unknown(), None),
    };
    let plan = build(inventory, &capabilities, &selection)?;
    // A facts file that cannot be read is found now and not in the middle of a run.
    facts_document(inventory, &plan.places)?;
    Ok((plan, runner))
}
