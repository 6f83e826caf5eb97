//! `push`: the runner, and what goes with it, to every host.

use super::args::PushArgs;
use super::out;
use crate::deploy::{self, Artifact, Artifacts, Member, Sent};
use crate::exec::fleet::reach;
use crate::host::Host;
use crate::host::ssh::HostKeys;
use crate::inventory::{Inventory, Launcher};
use crate::{Error, exit_code};

pub(super) fn run(args: &PushArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    if inventory.launcher == Launcher::Local {
        return Err(Error::Usage(
            "with `launcher = \"local\"` the runner is where it is: there is nothing to push".to_owned(),
        ));
    }
    let artifacts = Artifacts::find(&args.target.runner)?;
    let with = args
        .with
        .iter()
        .map(|path| Artifact::read(path))
        .collect::<Result<Vec<_>, _>>()?;
    let keys = if args.accept_new_host_keys {
        HostKeys::AcceptNew
    } else {
        HostKeys::Known
    };
    let hosts = reach(&inventory, keys)?;
    let members = deploy::members(&inventory, &hosts);
    let mut rows = Vec::new();
    let runners = members
        .iter()
        .map(|member| artifacts.for_host(&member.ssh))
        .collect::<Result<Vec<_>, _>>()?;
    let of = |member: &Member<'_>| {
        let index = members
            .iter()
            .position(|other| other.entry.name == member.entry.name);
        runners[index.unwrap_or_default()]
    };
    let sent = deploy::all(deploy::each(&members, |member| {
        deploy::put(&member.ssh, of(member))
    }))?;
    for ((member, artifact), sent) in members.iter().zip(&runners).zip(sent) {
        rows.push(row(member, artifact, sent));
    }
    for member in &members {
        member.ssh.set_runner(of(member).path_on(&member.ssh.about().dir));
    }
    for artifact in &with {
        let sent = deploy::all(deploy::spread(&members, artifact, !args.no_relay))?;
        rows.extend(
            members
                .iter()
                .zip(sent)
                .map(|(member, sent)| row(member, artifact, sent)),
        );
    }
    if args.prune {
        let mut keep: Vec<String> = with.iter().map(|artifact| artifact.sha256.clone()).collect();
        keep.extend(runners.iter().map(|artifact| artifact.sha256.clone()));
        let pruned = deploy::all(deploy::each(&members, |member| deploy::prune(&member.ssh, &keep)))?;
        for (member, pruned) in members.iter().zip(pruned) {
            rows.push(Row {
                host: member.entry.name.clone(),
                text: format!("{} taken away, {} in use and kept", pruned.gone.len(), pruned.kept.len()),
                json: serde_json::json!({ "host": member.entry.name, "pruned": pruned.gone, "kept": pruned.kept }),
            });
        }
    }
    show(args.json, &rows)?;
    Ok(exit_code::PASSED)
}

struct Row {
    host: String,
    text: String,
    json: serde_json::Value,
}

fn row(member: &Member<'_>, artifact: &Artifact, sent: Sent) -> Row {
    let path = artifact.path_on(&member.ssh.about().dir);
    let what = match sent {
        Sent { bytes: 0, .. } => "was there".to_owned(),
        Sent {
            bytes,
            resumed,
            replaced,
            relayed,
            took,
        } => {
            let more = match (resumed, replaced) {
                _ if relayed => ", from another host",
                (_, true) => ", in the place of one with another hash",
                (true, false) => ", the rest of an earlier transfer",
                (false, false) => "",
            };
            format!(
                "{:.1} MB in {:.1} s{more}",
                bytes as f64 / 1e6,
                took.as_secs_f64()
            )
        }
    };
    Row {
        host: member.ssh.name().to_owned(),
        text: format!("{what}: {path}"),
        json: serde_json::json!({
            "host": member.ssh.name(), "file": artifact.name, "path": path, "sha256": artifact.sha256,
            "bytes": artifact.size, "sent": sent.bytes, "resumed": sent.resumed, "replaced": sent.replaced,
            "relayed": sent.relayed,
            "took_ms": sent.took.as_secs_f64() * 1e3,
        }),
    }
}

fn show(json: bool, rows: &[Row]) -> Result<(), Error> {
    if json {
        let rows: Vec<_> = rows.iter().map(|row| row.json.clone()).collect();
        return out::line(serde_json::json!({ "schema": 1, "ok": true, "hosts": rows }));
    }
    let width = rows.iter().map(|row| row.host.len()).max().unwrap_or(0);
    for row in rows {
        out::line(format!("{:width$}  {}", row.host, row.text))?;
    }
    Ok(())
}
