//! `hca`: which RDMA ports reach the peers, live, from a facts file, or only this host's facts.

mod live;

use crate::cli::HcaArgs;
use crate::exit_code::{self, Refusal};
use crate::sink::Sink;
use crate::stdout;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use tp_fabric::rails::RdmaConfig;
use tp_fabric::secret::Secret;
use tp_fabric::settings::{Settings, Sources};
use tp_hca::document::{By, RankPick};
use tp_hca::{Document, Options, PickDocument, RankFacts};
use tp_receipt::event::{Kind, Log, Port, Rail, Setting};

pub use live::run as live;

/// The variable that the pick hands to NCCL.
const NCCL_IB_HCA: &str = "NCCL_IB_HCA";

/// The facts of this host with the variables in force. What could not be read is logged.
fn facts(root: &Path, sources: &Sources, rank: u32, sink: &Sink) -> RankFacts {
    let mut capture = tp_hca::capture(root);
    for note in &capture.notes {
        sink.log("warn", None, note);
    }
    capture.facts.rank = rank;
    // What makes two ranks count as on one host is one thing for the pick and for shared memory.
    if let Some(id) = sources
        .text("TF_TP_HOST_ID")
        .and_then(|(id, _)| id.into_string().ok())
        && !id.trim().is_empty()
    {
        capture.facts.host = Some(id.trim().to_owned());
    }
    for name in variables(sources) {
        if let Some(value) = sources
            .text(&name)
            .and_then(|(value, _)| value.into_string().ok())
        {
            capture.facts.set_env(&name, Some(&value));
        }
    }
    capture.facts
}

/// Names of the variables that a pick may depend on: NCCL's and ours about RoCE, and the master's address.
fn variables(sources: &Sources) -> BTreeSet<String> {
    let matters = |name: &&String| {
        name.starts_with("NCCL_") || name.starts_with("TF_TP_ROCE_") || *name == "TF_TP_MASTER"
    };
    let orchestrator = sources.orchestrator.iter().flatten().map(|(name, _)| name);
    let all = sources
        .environment
        .keys()
        .chain(orchestrator)
        .chain(sources.options.keys());
    all.filter(matters).cloned().collect()
}

fn root(args: &HcaArgs) -> &Path {
    args.root.as_deref().unwrap_or_else(|| Path::new("/"))
}

/// `hca --capture`: this host's facts as TOML on standard output.
pub fn capture(args: &HcaArgs, sources: &Sources, sink: &Sink) -> Result<u8, Refusal> {
    let rank = sources
        .text("TF_TP_RANK")
        .and_then(|(text, _)| text.to_str()?.trim().parse().ok());
    let failed =
        |e: tp_hca::facts::FactsError| Refusal::cannot(format!("failed to write the facts: {}", e.text));
    let mut document =
        Document::of_ranks(vec![facts(root(args), sources, rank.unwrap_or(0), sink)]).map_err(failed)?;
    if args.redact {
        if sources.text(crate::start::SECRET).is_none() {
            sink.log(
                "warn",
                None,
                "the pseudonyms are this file's own: captures that are to be joined need one TF_TP_SECRET on every host",
            );
        }
        document.redact(redaction_seed(sources)?.as_bytes());
    }
    let text = document.to_toml().map_err(failed)?;
    stdout::print(&text)?;
    Ok(exit_code::PASSED)
}

/// Captures of several hosts fit together only under one seed, and a public seed protects nothing: the session's secret
/// where there is one, else a seed that is made for this file alone.
fn redaction_seed(sources: &Sources) -> Result<String, Refusal> {
    if let Some(secret) = sources
        .text(crate::start::SECRET)
        .and_then(|(text, _)| text.into_string().ok())
    {
        return Ok(secret);
    }
    let made = Secret::generate().map_err(|e| Refusal::cannot(format!("failed to make pseudonyms: {e}")))?;
    Ok(made.reveal().to_string())
}

/// `hca --facts FILE`: the pick for every rank of the file. No variable of this process decides anything. As a step of a
/// run (`only` is set) a rank reports its own part.
pub fn from_file(file: &Path, args: &HcaArgs, only: Option<u32>, sink: &Sink) -> Result<u8, Refusal> {
    let document = match Document::load(file) {
        Ok(facts) => tp_hca::pick(&facts, &Options::default()),
        Err(error) => PickDocument::refused(error.into()),
    };
    if let Some(rank) = only
        && document.ok
        && document.rank(rank).is_none()
    {
        let text = format!("{} has no rank {rank}", file.display());
        let error = tp_hca::PickError::new(tp_hca::ErrorCode::BadFile, rank, text);
        return report(&PickDocument::refused(error), args.json, only, true, sink);
    }
    report(&document, args.json, only, true, sink)
}

/// What this rank brings to a pick of rails for its own transport, and how it says what was picked.
pub fn rdma(sources: &Sources, settings: &Settings, sink: &Sink) -> Option<RdmaConfig> {
    if !settings.may_use_rdma() {
        return None;
    }
    let rank = settings.rank.0;
    let mut rdma = RdmaConfig::of(facts(Path::new("/"), sources, rank, sink), search(sources));
    let tell = sink.clone();
    rdma.on_pick = Some(Arc::new(move |document: &PickDocument| {
        if let Some(pick) = document.rank(rank) {
            events(pick, false, &tell);
        }
    }));
    Some(rdma)
}

/// Where libibverbs is looked for, by the variables in force.
fn search(sources: &Sources) -> tp_fabric::rails::Search {
    tp_fabric::rails::Search::new(&|name| sources.text(name).map(|(value, _)| value))
}

/// Says what was picked: one JSON document, or tables for people, events, and `NCCL_IB_HCA=…` on standard output.
fn report(
    document: &PickDocument,
    json: bool,
    only: Option<u32>,
    model: bool,
    sink: &Sink,
) -> Result<u8, Refusal> {
    if json {
        // Plain maps, lists and texts always serialise.
        let text = serde_json::to_string(document).unwrap_or_default();
        if let Some(error) = &document.error {
            sink.human(&format!("hca: {error}"));
        }
        stdout::print(&format!("{text}\n"))?;
        return Ok(document.exit_code());
    }
    for line in tp_hca::table(document).lines() {
        sink.human(line);
    }
    for pick in document
        .ranks
        .iter()
        .filter(|pick| only.is_none_or(|rank| rank == pick.rank))
    {
        events(pick, model, sink);
        if sink.events() {
            continue;
        }
        match (pick.nccl_env.get(NCCL_IB_HCA), only) {
            (Some(value), Some(_)) => stdout::print(&format!("{NCCL_IB_HCA}={value}\n"))?,
            (Some(value), None) => stdout::print(&format!("rank {} {NCCL_IB_HCA}={value}\n", pick.rank))?,
            (None, _) => {}
        }
    }
    // By hand the table has said it all; a step of a run is counted.
    if sink.events() {
        let name = format!("hca pick {}", if model { "model" } else { "live" });
        let result = document
            .error
            .as_ref()
            .map_or(Ok(()), |error| Err(error.to_string()));
        sink.check_result("hca", &name, result);
        sink.summary();
    }
    Ok(document.exit_code())
}

fn events(pick: &RankPick, model: bool, sink: &Sink) {
    let say = |kind| sink.event_as(Some(pick.rank), kind);
    for port in &pick.ports {
        let (device, reason) = (port.device.clone(), port.reason.clone());
        say(Kind::Port(Port {
            device,
            port: port.port.0,
            chosen: port.chosen,
            reason,
            model,
        }));
    }
    for rail in &pick.rails {
        let by = match rail.by {
            By::Subnet => "subnet",
            By::Route => "route",
            By::Explicit => "explicit",
        };
        say(Kind::Rail(Rail {
            peer: rail.peer,
            device: rail.device.clone(),
            port: rail.port.0,
            gid_index: rail.gid_index.0,
            address: rail.address.clone(),
            peer_device: rail.peer_device.clone(),
            peer_port: rail.peer_port.0,
            by: by.to_owned(),
            probed: rail.probed,
            model,
        }));
    }
    for (name, value) in &pick.nccl_env {
        say(Kind::Setting(Setting {
            name: name.clone(),
            value: value.clone(),
            source: "derived".to_owned(),
        }));
    }
    for warning in &pick.warnings {
        let code = Some(warning.code.as_str().to_owned());
        say(Kind::Log(Log {
            level: "warn".to_owned(),
            code,
            text: warning.text.clone(),
        }));
    }
}

/// What a live pick needs of the settings.
pub struct Live<'a> {
    /// The command's arguments.
    pub args: &'a HcaArgs,
    /// The settings.
    pub settings: &'a Settings,
    /// Where they came from, for the variables that the pick reads as they are.
    pub sources: &'a Sources,
}
