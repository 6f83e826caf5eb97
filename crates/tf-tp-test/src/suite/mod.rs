//! `suite`: every collective against the oracle, bit for bit.

pub mod check;
pub mod inputs;
pub mod memory;
pub mod pairs;
pub mod table;

use crate::sink::Sink;
use check::{Check, Wrong};
use inputs::Inputs;
use std::fmt::Write;
use table::Case;
use tp_fabric::collective::{Collectives, Stream};
use tp_fabric::types::{BackendKind, World};
use tp_receipt::event::{Kind, Outcome, Progress};

/// Why there are no graph checks on host memory.
const NO_GRAPHS: &str = "CUDA graphs need a GPU backend; the host backend works on host memory";
/// Progress is said every this many checks.
const PROGRESS_EVERY: usize = 16;

/// The transport failed in the middle; what it said.
pub struct Broken(pub String);

/// Runs every check whose name contains `only` on this rank and reports each. `Err` when the transport is broken; what
/// could not be run any more is then reported as skipped.
pub fn run(on: &dyn Collectives, only: Option<&str>, sink: &Sink) -> Result<(), Broken> {
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
            None => case.not_in(world),
        };
        if let Some(reason) = skip {
            sink.check(group, &name, Outcome::Skipped, Some(reason));
            continue;
        }
        let check = Check {
            on,
            stream: Stream::HOST,
            case,
            number: index,
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
    for name in table::graph_names(backend).iter().filter(|name| wanted(name)) {
        sink.check("graph", name, Outcome::Skipped, Some(NO_GRAPHS.to_owned()));
    }
    broken.map_or(Ok(()), Err)
}

/// Every name with its group, one a line, in the order they are run in.
pub fn list(backend: BackendKind, world: World, only: Option<&str>) -> String {
    let wanted = |name: &str| only.is_none_or(|text| name.contains(text));
    let mut text = String::new();
    let cases: Vec<Case> = table::cases(world);
    let checks = cases.iter().map(|c| (c.group.name(), table::name(backend, c)));
    let graphs = table::graph_names(backend)
        .into_iter()
        .map(|name| ("graph", name));
    for (group, name) in checks.chain(graphs).filter(|(_, name)| wanted(name)) {
        let _ = writeln!(text, "{group}\t{name}");
    }
    text
}
