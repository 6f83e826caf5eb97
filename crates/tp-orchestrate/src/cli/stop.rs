//! `stop`: ends what an interrupted run left.

use super::args::StopArgs;
use super::out;
use crate::deploy;
use crate::exec::fleet::reach;
use crate::exec::leftovers::{self, Leftover};
use crate::exec::mark;
use crate::host::Host;
use crate::host::ssh::HostKeys;
use crate::inventory::{Inventory, Launcher};
use crate::{Error, exit_code};

pub(super) fn run(args: &StopArgs) -> Result<u8, Error> {
    let inventory = Inventory::load(&args.inventory)?;
    if inventory.launcher == Launcher::Local {
        return Err(Error::Usage(
            "with `launcher = \"local\"` nothing is ever left: ranks end when the orchestrator does"
                .to_owned(),
        ));
    }
    let hosts = reach(&inventory, HostKeys::Known)?;
    let members = deploy::members(&inventory, &hosts);
    let found = deploy::all(deploy::each(&members, |member| leftovers::list(&member.ssh)))?;
    let mine = mark::ended_early();
    let ours = |one: &Leftover| {
        let run = one.run_id();
        !args.list && (mine.iter().any(|id| id == run) || args.run.iter().any(|id| id == run))
    };
    let per_host = |member: &deploy::Member<'_>| {
        let own: Vec<Leftover> = found
            .iter()
            .flatten()
            .filter(|one| one.host == member.entry.name && ours(one))
            .cloned()
            .collect();
        let still = leftovers::end(&member.ssh, &own)?;
        if !args.list {
            for run in mine.iter().chain(&args.run) {
                member.ssh.clean(run);
            }
        }
        Ok(still)
    };
    let still: Vec<Leftover> = deploy::all(deploy::each(&members, per_host))?
        .into_iter()
        .flatten()
        .collect();
    if !args.list && still.is_empty() {
        mine.iter().for_each(|run| mark::forget(run));
    }
    let rows: Vec<(Leftover, &str)> = found
        .into_iter()
        .flatten()
        .map(|one| {
            let what = if still.contains(&one) {
                "still there"
            } else if ours(&one) {
                "ended"
            } else {
                "left alone"
            };
            (one, what)
        })
        .collect();
    show(args.json, &rows)?;
    if still.is_empty() {
        return Ok(exit_code::PASSED);
    }
    Err(Error::Failed(format!(
        "{} processes did not end, even by SIGKILL",
        still.len()
    )))
}

fn show(json: bool, rows: &[(Leftover, &str)]) -> Result<(), Error> {
    if json {
        let row = |(one, what): &(Leftover, &str)| {
            serde_json::json!({
                "host": one.host, "pid": one.pid, "session": one.session, "run": one.run_id(), "age_s": one.age_s,
                "outcome": what,
            })
        };
        let rows: Vec<_> = rows.iter().map(row).collect();
        return out::line(serde_json::json!({ "schema": 1, "ok": true, "found": rows }));
    }
    if rows.is_empty() {
        return out::line("nothing of ours runs on these hosts");
    }
    for (one, what) in rows {
        out::line(format!(
            "{}  pid {}  session {}  for {} s: {what}",
            one.host, one.pid, one.session, one.age_s
        ))?;
    }
    if rows.iter().any(|(_, what)| *what == "left alone") {
        out::line(
            "what is left alone belongs to a run under way or to somebody else; --run RUN ends it too",
        )?;
    }
    Ok(())
}
