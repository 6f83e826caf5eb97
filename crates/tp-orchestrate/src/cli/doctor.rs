//! `doctor`: every host at once.

use super::args::DoctorArgs;
use super::{hosts, out};
use crate::Error;
use crate::doctor;
use crate::inventory::Inventory;

pub(super) fn run(args: &DoctorArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    let hosts = hosts::connect(&inventory, &args.target)?;
    let report = doctor::examine(&inventory, &hosts, !args.no_collective);
    if args.json {
        let text = serde_json::to_string(&report)
            .map_err(|e| Error::Failed(format!("failed to write the report as JSON: {e}")))?;
        out::line(text)?;
    } else {
        out::text(&report.text(args.all))?;
    }
    Ok(report.exit)
}
