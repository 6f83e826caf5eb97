//! `init`: writes an inventory by asking the hosts.

use super::args::InitArgs;
use super::out;
use crate::exec::find_runner;
use crate::host::ssh::{self, HostKeys};
use crate::host::{Host, LocalHost};
use crate::init::{Found, SCRIPT, text};
use crate::inventory::Inventory;
use crate::{Error, exit_code};
use std::io::Write;
use std::path::Path;
use std::time::Duration;

/// How long a host may take to answer.
const LIMIT: Duration = Duration::from_secs(30);

pub(super) fn run(args: &InitArgs) -> Result<u8, Error> {
    let (launcher, found) = match args.local {
        Some(_) => ("local", vec![this_machine(args)?]),
        None => ("ssh", elsewhere(args)?),
    };
    let written = text(&args.name, launcher, &found, args.local.unwrap_or(1));
    // What is written is read again: an inventory that the next command refuses is none.
    let name = args.out.as_deref().unwrap_or(Path::new("inventory.toml"));
    Inventory::parse(&name.display().to_string(), &written, Path::new("."))?;
    if let Some(path) = &args.out {
        write_new(path, &written)?;
    }
    if args.json {
        let document = serde_json::json!({
            "schema": 1, "ok": true, "inventory": written, "file": args.out, "hosts": found,
        });
        out::line(document)?;
    } else if let Some(path) = &args.out {
        out::line(format!(
            "wrote {}; next: tp-orchestrate doctor {0}",
            path.display()
        ))?;
    } else {
        out::text(&written)?;
    }
    Ok(exit_code::PASSED)
}

fn this_machine(args: &InitArgs) -> Result<Found, Error> {
    let host = LocalHost::new("here", find_runner(args.runner.as_deref())?);
    let mut found = ask(&host, "here")?;
    // As many ranks as GPUs is what a list of GPUs means; who asks for another number means ranks without.
    if found.gpus.len() as u32 != args.local.unwrap_or(1) {
        found.gpus.clear();
    }
    Ok(found)
}

/// Every host at once, as the inventory of these names alone would reach them.
fn elsewhere(args: &InitArgs) -> Result<Vec<Found>, Error> {
    let mut found: Vec<Found> = Vec::new();
    for given in &args.hosts {
        let (user, address) = match given.rsplit_once('@') {
            Some((user, address)) => (Some(user.to_owned()), address),
            None => (None, given.as_str()),
        };
        found.push(Found {
            name: name_of(address, &found),
            ssh: Some(address.to_owned()),
            user,
            ..Found::default()
        });
    }
    let first = Inventory::parse(
        "the hosts given",
        &text(&args.name, "ssh", &found, 1),
        Path::new("."),
    )?;
    let options = ssh::Options {
        keys: HostKeys::Known,
        limit: None,
    };
    let mut bad = Vec::new();
    let mut whole = Vec::new();
    for (known, host) in found.into_iter().zip(ssh::connect(&first, &options)) {
        let answer = host
            .map_err(|e| Error::Refused(e.to_string()))
            .and_then(|host| ask(host.as_ref(), &known.name));
        match answer {
            Ok(said) => whole.push(Found {
                ssh: known.ssh,
                user: known.user,
                ..said
            }),
            Err(error) => bad.push(error.to_string()),
        }
    }
    if bad.is_empty() {
        Ok(whole)
    } else {
        Err(Error::Refused(bad.join("\n")))
    }
}

/// A host's name in the inventory: the first part of its address, made unlike the others'.
fn name_of(address: &str, others: &[Found]) -> String {
    let first = if address.parse::<std::net::IpAddr>().is_ok() {
        format!("host-{}", others.len())
    } else {
        address.split('.').next().unwrap_or(address).to_owned()
    };
    if others.iter().any(|other| other.name == first) {
        format!("{first}-{}", others.len())
    } else {
        first
    }
}

fn ask(host: &dyn Host, name: &str) -> Result<Found, Error> {
    let argv = ["sh", "-c", SCRIPT].map(str::to_owned);
    let output = host
        .output(&argv, LIMIT)
        .map_err(|e| Error::Refused(e.to_string()))?;
    let said = if output.stdout.trim().is_empty() {
        &output.stderr
    } else {
        &output.stdout
    };
    Found::read(name, said).map_err(|what| Error::Refused(format!("host {name}: {what}")))
}

fn write_new(path: &Path, text: &str) -> Result<(), Error> {
    let failed = |e: std::io::Error| Error::Usage(format!("--out: failed to write {}: {e}", path.display()));
    let mut file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}
