//! `suite`: every collective against the oracle, bit for bit.

pub mod check;
pub mod graphs;
pub mod inputs;
pub mod memory;
pub mod pairs;
pub mod rows;
pub mod table;

use crate::sink::Sink;
use check::{Check, Wrong};
use graphs::Graphs;
use inputs::Inputs;
use memory::Room;
use std::fmt::Write;
use std::sync::Arc;
use table::{Case, Fill};
use tp_fabric::collective::{Collectives, Stream};
use tp_fabric::gpu::{Device, Work};
use tp_fabric::types::{BackendKind, World};
use tp_receipt::event::{Kind, Outcome, Progress};

/// Why there are no graph checks on host memory.
const NO_GRAPHS: &str = "CUDA graphs need a GPU backend; the host backend works on host memory";
/// Why NaN and its like are left out where reductions are NCCL's own.
const NO_SPECIALS: &str =
    "NCCL's own reductions do not keep the oracle's rules for NaN; ordered ones need the GPU kernels";
/// Why the large matrices are left out on host memory.
const NO_ROWS: &str = "four ranks' matrices of 40 MiB are summed on GPU backends; on the host they would take most of the suite's time";
/// Progress is said every this many checks.
const PROGRESS_EVERY: usize = 16;

/// The transport failed in the middle; what it said.
pub struct Broken(pub String);

/// Runs every check whose name contains `only` on this rank and reports each. `Err` when the transport is broken; what
/// could not be run any more is then reported as skipped.
pub fn run(
    on: &dyn Collectives,
    device: Option<&Arc<Device>>,
    only: Option<&str>,
    sink: &Sink,
) -> Result<(), Broken> {
    let work = device.map(|device| Work::new(device)).transpose();
    let work = work.map_err(|error| Broken(error.to_string()))?;
    let stream = work.as_ref().map_or(Stream::HOST, Work::stream);
    let room = Room::of(device);
    let (backend, world) = (on.backend(), on.world());
    let wanted = |name: &str| only.is_none_or(|text| name.contains(text));
    let all = table::cases(world);
    let mut inputs = Inputs::new(world);
    let mut broken: Option<Broken> = None;
    for (index, case) in all.iter().enumerate() {
        let name = table::name(backend, case);
        if !wanted(&name) {
            continue;
        }
        if index % PROGRESS_EVERY == 0 {
            let (done, total) = (index as u64, all.len() as u64);
            sink.event(Kind::Progress(Progress {
                what: format!("suite {backend}"),
                done,
                total,
            }));
        }
        let group = case.group.name();
        let skip = match &broken {
            Some(Broken(why)) => Some(format!("not run: the transport had failed: {why}")),
            None if case.fill == Fill::Special && !on.exact_specials() => Some(NO_SPECIALS.to_owned()),
            None => case.not_in(world),
        };
        if let Some(reason) = skip {
            sink.check(group, &name, Outcome::Skipped, Some(reason));
            continue;
        }
        let check = Check {
            on,
            stream,
            case,
            number: index,
            room: &room,
        };
        match check.run(&mut inputs) {
            Ok(()) => sink.check(group, &name, Outcome::Passed, None),
            Err(Wrong::Answer(reason)) => sink.check(group, &name, Outcome::Failed, Some(reason)),
            Err(Wrong::Transport(reason)) => {
                sink.check(group, &name, Outcome::Failed, Some(reason.clone()));
                broken = Some(Broken(format!("{name}: {reason}")));
            }
        }
    }
    if let Some(name) = rows::name(backend, world).filter(|name| wanted(name)) {
        let skip = match (&broken, device) {
            (Some(Broken(why)), _) => Some(format!("not run: the transport had failed: {why}")),
            (None, None) => Some(NO_ROWS.to_owned()),
            (None, Some(_)) => None,
        };
        let (outcome, reason) = match skip {
            Some(reason) => (Outcome::Skipped, Some(reason)),
            None => match rows::run(on, &room, stream) {
                Ok(()) => (Outcome::Passed, None),
                Err(rows::Wrong::Answer(reason)) => (Outcome::Failed, Some(reason)),
                Err(rows::Wrong::Transport(reason)) => {
                    broken = Some(Broken(format!("{name}: {reason}")));
                    (Outcome::Failed, Some(reason))
                }
            },
        };
        sink.check("extended", &name, outcome, reason);
    }
    let names = table::graph_names(backend);
    let mut left = names.iter();
    if let (Some(device), Some(work), None) = (device, &work, &broken)
        && names.iter().any(|name| wanted(name))
    {
        let mut report = |outcome: Result<(), String>| {
            if let Some(name) = left.next()
                && wanted(name)
            {
                sink.check_result("graph", name, outcome);
            }
        };
        if let Err(why) = Graphs::new(on, device, work).run(&mut report) {
            if let Some(name) = left.next() {
                sink.check("graph", name, Outcome::Failed, Some(why.clone()));
            }
            broken = Some(Broken(format!("{backend} graphs: {why}")));
        }
    }
    for name in left.filter(|name| wanted(name)) {
        let why = match &broken {
            Some(Broken(why)) => format!("not run: the transport had failed: {why}"),
            None => NO_GRAPHS.to_owned(),
        };
        sink.check("graph", name, Outcome::Skipped, Some(why));
    }
    broken.map_or(Ok(()), Err)
}

/// Every name with its group, one a line, in the order they are run in.
pub fn list(backend: BackendKind, world: World, only: Option<&str>) -> String {
    let wanted = |name: &str| only.is_none_or(|text| name.contains(text));
    let mut text = String::new();
    let cases: Vec<Case> = table::cases(world);
    let checks = cases.iter().map(|c| (c.group.name(), table::name(backend, c)));
    let rows = rows::name(backend, world).map(|name| ("extended", name));
    let graphs = table::graph_names(backend)
        .into_iter()
        .map(|name| ("graph", name));
    for (group, name) in checks.chain(rows).chain(graphs).filter(|(_, name)| wanted(name)) {
        let _ = writeln!(text, "{group}\t{name}");
    }
    text
}
