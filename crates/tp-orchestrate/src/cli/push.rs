//! `push`: the runner, and what goes with it, to every host.

use super::args::PushArgs;
use super::out;
use crate::deploy::{self, Artifact, Bring, Member, Runners, Sent};
use crate::exec::fleet::reach;
use crate::host::Host;
use crate::host::ssh::HostKeys;
use crate::inventory::{Deploy, Inventory, Launcher};
use crate::{Error, exit_code};

pub(super) fn run(args: &PushArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.target.inventory)?;
    if inventory.launcher == Launcher::Local {
        return Err(Error::Usage(
            "with `launcher = \"local\"` the runner is where it is: there is nothing to push".to_owned(),
        ));
    }
    let meant = Runners::meant(&inventory, &args.target.runner)?;
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
    let settled = meant.settle(&members, Bring::Missing)?;
    for (member, (sent, sha256)) in members.iter().zip(&settled) {
        let file = Brought {
            name: deploy::RUNNER,
            path: member.ssh.runner().display().to_string(),
            sha256,
            built: inventory.deploy == Deploy::NixBuild,
        };
        rows.push(row(member, file, sent));
    }
    for artifact in &with {
        let sent = deploy::all(deploy::spread(&members, artifact, !args.no_relay))?;
        rows.extend(
            members
                .iter()
                .zip(sent)
                .map(|(member, sent)| row(member, Brought::of(member, artifact), &sent)),
        );
    }
    if args.prune {
        let mut keep: Vec<String> = with.iter().map(|artifact| artifact.sha256.clone()).collect();
        keep.extend(settled.into_iter().map(|(_, hash)| hash));
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

/// A file that was brought to a host.
struct Brought<'a> {
    name: &'a str,
    path: String,
    sha256: &'a str,
    /// The host built it.
    built: bool,
}

impl<'a> Brought<'a> {
    fn of(member: &Member<'_>, artifact: &'a Artifact) -> Self {
        Self {
            name: &artifact.name,
            path: artifact.path_on(&member.ssh.about().dir),
            sha256: &artifact.sha256,
            built: false,
        }
    }
}

fn row(member: &Member<'_>, file: Brought<'_>, sent: &Sent) -> Row {
    let what = match sent {
        Sent { took, .. } if file.built => format!("built there in {:.1} s", took.as_secs_f64()),
        Sent { bytes: 0, .. } => "was there".to_owned(),
        Sent {
            bytes,
            resumed,
            replaced,
            relayed,
            took,
            missed,
        } => {
            let more = match (resumed, replaced) {
                _ if *relayed => ", from another host",
                (_, true) => ", in the place of one with another hash",
                (true, false) => ", the rest of an earlier transfer",
                (false, false) => "",
            };
            let missed = missed
                .as_ref()
                .map_or(String::new(), |why| format!(", from here since {why}"));
            let (mb, s) = (*bytes as f64 / 1e6, took.as_secs_f64());
            format!("{mb:.1} MB in {s:.1} s{more}{missed}")
        }
    };
    Row {
        host: member.ssh.name().to_owned(),
        text: format!("{what}: {}", file.path),
        json: serde_json::json!({
            "host": member.ssh.name(), "file": file.name, "path": file.path, "sha256": file.sha256,
            "sent": sent.bytes, "resumed": sent.resumed, "replaced": sent.replaced,
            "relayed": sent.relayed, "missed": sent.missed,
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
