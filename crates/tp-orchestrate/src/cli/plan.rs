//! `plan`: the dry run.

use super::args::{PlanArgs, Select, Target};
use super::out;
use crate::deploy::{self, Bring};
use crate::exec::fleet::Fleet;
use crate::exec::{check_rails, facts_document};
use crate::inventory::{Inventory, Launcher};
use crate::plan::{Capabilities, Plan, Selection, build};
use crate::{Error, exit_code};

pub(super) fn run(args: &PlanArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    let plan = if args.ask {
        let fleet = Fleet::open(&inventory, &args.target.runner, Bring::Nothing)?;
        with(&inventory, &fleet.capabilities, &args.select)?
    } else {
        make(&inventory, &args.target, &args.select)?
    };
    if args.json {
        out::line(plan.to_json())?;
    } else {
        out::text(&plan.to_text())?;
    }
    Ok(exit_code::PASSED)
}

/// The plan of what this machine can do, or of what the inventory says where hosts are elsewhere.
pub(super) fn make(inventory: &Inventory, target: &Target, select: &Select) -> Result<Plan, Error> {
    let capabilities = match inventory.launcher {
        Launcher::Local => Fleet::open(inventory, &target.runner, Bring::Nothing)?.capabilities,
        Launcher::Ssh | Launcher::Slurm => {
            deploy::check_here(inventory)?;
            Capabilities::unknown()
        }
    };
    with(inventory, &capabilities, select)
}

/// The plan of what the hosts can do.
pub(super) fn with(
    inventory: &Inventory,
    capabilities: &Capabilities,
    select: &Select,
) -> Result<Plan, Error> {
    let selection = Selection {
        arms: select.arms.clone(),
        steps: select.steps.clone(),
        backends: select.backends.clone(),
        share_gpu: select.share_gpu,
    };
    let plan = build(inventory, capabilities, &selection)?;
    // A facts file that cannot be read is found now and not in the middle of a run.
    let model = facts_document(inventory, &plan.places)?;
    check_rails(inventory, &plan, capabilities, model)?;
    Ok(plan)
}
