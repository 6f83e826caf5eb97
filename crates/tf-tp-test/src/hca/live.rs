//! `hca` over the bootstrap: every rank gives its facts, every rank makes the same pick of all, and the rails are probed.

use super::{Live, facts, report, root, search};
use crate::exit_code::Refusal;
use crate::group::{agree_on_rails, hooks};
use crate::sink::Sink;
use std::path::Path;
use tp_fabric::devices;
use tp_fabric::rails::RdmaConfig;

/// Meets the other ranks, trades facts, probes what they propose, picks and reports. Ends with the pick's exit code on every
/// rank.
pub fn run(live: &Live<'_>, sink: &Sink) -> Result<u8, Refusal> {
    let rank = live.settings.rank.0;
    let root = root(live.args);
    let mine = facts(root, live.sources, rank, sink);
    let mut rdma = RdmaConfig::of(mine, search(live.sources));
    rdma.nccl_version = devices::nccl_version(&|name| live.sources.text(name).map(|(value, _)| value));
    // What a captured tree shows is not there to be written over.
    rdma.probe = root == Path::new("/");
    let (group, agreed) = agree_on_rails("hca", live.settings, &rdma, hooks("hca", sink))?;
    group.close();
    if rank == 0 {
        for retried in &agreed.retried {
            sink.log("warn", Some("probe-retried"), &retried.to_string());
        }
    }
    if let (Err(why), true) = (&agreed.verbs, rdma.probe && !rdma.facts.ports.is_empty()) {
        sink.log(
            "warn",
            Some("unprobed"),
            &format!("this rank probes no rail: {why}"),
        );
    }
    let code = report(&agreed.document, live.args.json, Some(rank), false, sink)?;
    Ok(code)
}
