//! Rules between the values of an inventory: what can be refused without asking any host.

use super::parse::{Raw, RawHost};
use super::read::{At, InventoryError, Source};
use super::{Gpus, HCA_VARIABLES, Host, Inventory, Launcher, WORLD_MAX};
use crate::display::counted;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;

pub(super) fn check(source: Source<'_>, raw: Raw, dir: &Path) -> Result<Inventory, InventoryError> {
    file_name(source, "name of [cluster]", &raw.name)?;
    if raw.hosts.is_empty() {
        return Err(source.error(raw.end, "there is no [[host]]: the world would be 0"));
    }
    unique(source, &raw, "name", |host| Some(host.name.clone()))?;
    unique(source, &raw, "machine_id", |host| host.machine_id.clone())?;
    if raw.launcher != Launcher::Local {
        unique(source, &raw, "ssh", ssh_target)?;
        unique(source, &raw, "fabric", |host| {
            let fabric = host.fabric.clone()?;
            Some(At {
                value: canonical(&fabric.value),
                ..fabric
            })
        })?;
    }
    facts_all_or_none(source, &raw)?;
    let ranks = number_ranks(source, &raw)?;
    let mut hosts = Vec::new();
    for (host, ranks) in raw.hosts.iter().zip(ranks) {
        hosts.push(check_host(source, raw.launcher, host, ranks)?);
    }
    loopback_head(source, &raw, &hosts)?;
    Ok(Inventory {
        name: raw.name.value,
        launcher: raw.launcher,
        deploy: raw.deploy,
        flake: raw.flake,
        step_limit_ms: raw.step_limit_s.map(|s| (s * 1e3).ceil() as u64),
        hosts,
        dir: dir.to_owned(),
    })
}

/// SSH's own port, which a host without `port` is reached at.
const SSH_PORT: u16 = 22;

/// What names the machine that SSH reaches: the address (the host's name unless given) and the port where it is not SSH's
/// own.
fn ssh_target(host: &RawHost) -> Option<At<String>> {
    let ssh = host.ssh.as_ref().unwrap_or(&host.name);
    let port = host.port.as_ref().map(|p| p.value).filter(|p| *p != SSH_PORT);
    let port = port.map_or(String::new(), |p| format!(" port {p}"));
    Some(At {
        value: format!("{}{port}", canonical(&ssh.value)),
        offset: ssh.offset,
    })
}

/// One way to write an address: without brackets, IPv6 in its short form.
fn canonical(text: &str) -> String {
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    bare.parse::<IpAddr>()
        .map_or_else(|_| bare.to_owned(), |ip| ip.to_canonical().to_string())
}

/// `ssh` is an address alone: user and port have keys of their own, so that both forms cannot contradict each other.
fn ssh_address(source: Source<'_>, ssh: &At<String>) -> Result<(), InventoryError> {
    let text = ssh.value.as_str();
    let wrong = |what: String| Err(source.error(ssh.offset, format!("`ssh` is `{text}`: {what}")));
    if text.starts_with('-') || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return wrong("it is an address or an alias of the SSH configuration, without options".to_owned());
    }
    if let Some((_, rest)) = text.split_once("://") {
        return wrong(format!("give the address alone, `{rest}`"));
    }
    if let Some((user, host)) = text.rsplit_once('@') {
        return wrong(format!(
            "the user belongs in `user = \"{user}\"`, with `ssh = \"{host}\"`"
        ));
    }
    let literal = canonical(text);
    let literal = literal.split('%').next().unwrap_or(&literal);
    if literal.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()) => wrong(format!(
            "the port belongs in `port = {port}`, with `ssh = \"{host}\"`"
        )),
        Some(_) => wrong("it is neither an address nor a name".to_owned()),
        None => Ok(()),
    }
}

fn unique(
    source: Source<'_>,
    raw: &Raw,
    key: &str,
    value: impl Fn(&RawHost) -> Option<At<String>>,
) -> Result<(), InventoryError> {
    let mut seen: BTreeMap<String, &str> = BTreeMap::new();
    for host in &raw.hosts {
        let Some(at) = value(host) else { continue };
        if let Some(first) = seen.insert(at.value.to_lowercase(), &host.name.value) {
            let text = if key == "name" {
                format!("host `{}` is there twice", at.value)
            } else {
                format!(
                    "hosts `{first}` and `{}` have the same {key} `{}`: the same machine twice; give one [[host]] more \
                     `gpus` or `ranks` instead",
                    host.name.value, at.value
                )
            };
            return Err(source.error(at.offset, text));
        }
    }
    Ok(())
}

fn file_name(source: Source<'_>, what: &str, name: &At<String>) -> Result<(), InventoryError> {
    let shape = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if name.value.chars().all(shape) && !name.value.starts_with(['.', '-']) && name.value.len() <= 64 {
        return Ok(());
    }
    let text = format!(
        "{what} is `{}`; it becomes part of file names, so it takes at most 64 of A-Z a-z 0-9 . _ - and begins with a \
         letter, a digit or _",
        name.value
    );
    Err(source.error(name.offset, text))
}

fn facts_all_or_none(source: Source<'_>, raw: &Raw) -> Result<(), InventoryError> {
    let with = raw
        .hosts
        .iter()
        .find_map(|h| h.facts.as_ref().map(|_| &h.name.value));
    let without = raw.hosts.iter().find(|h| h.facts.is_none());
    match (with, without) {
        (Some(with), Some(without)) => Err(source.error(
            without.offset,
            format!(
                "host `{with}` has a `facts` file and host `{}` has none; a pick needs the facts of every rank",
                without.name.value
            ),
        )),
        _ => Ok(()),
    }
}

/// How many ranks a host has: one for each listed GPU, else `ranks`, else 1.
fn rank_count(source: Source<'_>, host: &RawHost) -> Result<u64, InventoryError> {
    let name = &host.name.value;
    if let Some(ranks) = host.ranks.as_ref().filter(|r| r.value == 0) {
        let text = format!("`ranks` of host `{name}` is 0: a host without a rank has no place here");
        return Err(source.error(ranks.offset, text));
    }
    let Some(gpus) = &host.gpus else {
        return Ok(host.ranks.as_ref().map_or(1, |r| r.value));
    };
    match (gpus.len() as u64, &host.ranks) {
        (0, None) => Err(source.error(
            host.offset,
            format!("host `{name}` has `gpus = []` and no `ranks`: say how many ranks run without a GPU"),
        )),
        (0, Some(ranks)) => Ok(ranks.value),
        (n, Some(ranks)) if ranks.value != n => Err(source.error(
            ranks.offset,
            format!(
                "host `{name}` lists {} and `ranks = {}`; each entry carries one rank",
                counted(n as usize, "GPU"),
                ranks.value
            ),
        )),
        (n, _) => Ok(n),
    }
}

fn number_ranks(source: Source<'_>, raw: &Raw) -> Result<Vec<Vec<u32>>, InventoryError> {
    let mut counts = Vec::new();
    for host in &raw.hosts {
        counts.push(rank_count(source, host)?);
    }
    let world: u64 = counts.iter().sum();
    if world > WORLD_MAX {
        return Err(source.error(
            raw.end,
            format!("the world would be {world}; at most {WORLD_MAX} ranks meet"),
        ));
    }
    let given = raw.hosts.iter().filter(|h| h.rank.is_some()).count();
    if given == 0 {
        let mut next = 0;
        let mut take = |count: u64| {
            let first = next;
            next += count as u32;
            (first..next).collect()
        };
        return Ok(counts.into_iter().map(&mut take).collect());
    }
    if let Some(host) = raw.hosts.iter().find(|h| h.rank.is_none()) {
        let text = format!(
            "host `{}` has no `rank` though others have; give it to every host or to none",
            host.name.value
        );
        return Err(source.error(host.offset, text));
    }
    explicit_ranks(source, raw, &counts, world)
}

fn explicit_ranks(
    source: Source<'_>,
    raw: &Raw,
    counts: &[u64],
    world: u64,
) -> Result<Vec<Vec<u32>>, InventoryError> {
    let mut owner: BTreeMap<u64, &str> = BTreeMap::new();
    let mut out = Vec::new();
    for (host, count) in raw.hosts.iter().zip(counts) {
        let Some(first) = &host.rank else { continue };
        for rank in first.value..first.value + count {
            if let Some(other) = owner.insert(rank, &host.name.value) {
                let text = format!(
                    "rank {rank} is given twice: to host `{other}` and to host `{}`",
                    host.name.value
                );
                return Err(source.error(first.offset, text));
            }
            if rank >= world {
                let text = format!(
                    "rank {rank} of host `{}` is outside the world of {world}; ranks are 0 to {}",
                    host.name.value,
                    world - 1
                );
                return Err(source.error(first.offset, text));
            }
        }
        out.push((first.value as u32..(first.value + count) as u32).collect());
    }
    Ok(out)
}

fn check_host(
    source: Source<'_>,
    launcher: Launcher,
    raw: &RawHost,
    ranks: Vec<u32>,
) -> Result<Host, InventoryError> {
    file_name(source, "`name` of a [[host]]", &raw.name)?;
    if let (Launcher::Local, Some(ssh)) = (launcher, &raw.ssh) {
        let text = "`ssh` has no meaning with `launcher = \"local\"`; remove it, or set `launcher = \"ssh\"`";
        return Err(source.error(ssh.offset, text));
    }
    if let Some(fabric) = &raw.fabric {
        address(source, fabric)?;
    }
    if let Some(ssh) = &raw.ssh {
        ssh_address(source, ssh)?;
    }
    one_string_for_both(source, raw)?;
    let mut arms = BTreeMap::new();
    for (arm, variables) in &raw.arms {
        let mut values = BTreeMap::new();
        for (variable, at) in variables {
            arm_variable(source, arm, variable, at)?;
            values.insert(variable.clone(), at.value.clone());
        }
        arms.insert(arm.clone(), values);
    }
    let ssh = match launcher {
        Launcher::Local | Launcher::Slurm => raw.ssh.as_ref().map(|s| s.value.clone()),
        Launcher::Ssh => Some(raw.ssh.as_ref().unwrap_or(&raw.name).value.clone()),
    };
    Ok(Host {
        name: raw.name.value.clone(),
        ssh,
        user: raw.user.clone(),
        port: raw.port.as_ref().map(|p| p.value),
        identity: raw.identity.clone(),
        fabric: raw.fabric.as_ref().map(|f| f.value.clone()),
        ranks,
        gpus: match &raw.gpus {
            None => Gpus::Auto,
            Some(list) => Gpus::Listed(list.iter().map(|g| g.value as u32).collect()),
        },
        run_prefix: raw.run_prefix.clone(),
        env: raw.env.clone(),
        mtu: raw.mtu,
        arms,
        machine_id: raw.machine_id.as_ref().map(|m| m.value.clone()),
        facts: raw.facts.as_ref().map(|f| f.value.clone()),
        system: raw.system.clone(),
        dir: raw.dir.clone(),
    })
}

fn address(source: Source<'_>, fabric: &At<String>) -> Result<(), InventoryError> {
    let text = fabric.value.as_str();
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    let is_name = |t: &str| {
        t.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c))
            && t.chars().any(|c| c.is_ascii_alphabetic())
            && !t.starts_with(['-', '.'])
    };
    // A zone such as %eth0 belongs to link-local addresses only.
    let literal = bare.split('%').next().unwrap_or(bare);
    if literal.parse::<IpAddr>().is_ok() || is_name(text) {
        return Ok(());
    }
    let text = format!(
        "`fabric` is `{text}`, which is neither an IP address nor a host name (no port, no prefix length)"
    );
    Err(source.error(fabric.offset, text))
}

fn is_loopback(fabric: &str) -> bool {
    let bare = fabric.trim_start_matches('[').trim_end_matches(']');
    bare.eq_ignore_ascii_case("localhost")
        || bare
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.to_canonical().is_loopback())
}

/// Ranks on other machines cannot reach rank 0 at its own loopback address.
fn loopback_head(source: Source<'_>, raw: &Raw, hosts: &[Host]) -> Result<(), InventoryError> {
    if raw.launcher == Launcher::Local || hosts.len() < 2 {
        return Ok(());
    }
    for (raw, host) in raw.hosts.iter().zip(hosts).filter(|(_, h)| h.ranks.contains(&0)) {
        let Some(fabric) = &raw.fabric else { continue };
        if is_loopback(&fabric.value) {
            let text = format!(
                "host `{}` has rank 0 and `fabric = \"{}\"`: a rank on another host would reach its own host \
                 there; give the address at which others reach this one",
                host.name, fabric.value
            );
            return Err(source.error(fabric.offset, text));
        }
    }
    Ok(())
}

/// `name:3` is port 3 in one variable and GID index 3 in the other, so one string in both cannot be meant.
fn one_string_for_both(source: Source<'_>, raw: &RawHost) -> Result<(), InventoryError> {
    let value = |arm: &str, variable: &str| raw.arms.get(arm).and_then(|variables| variables.get(variable));
    let (Some(nccl), Some(roce)) = (value("nccl", HCA_VARIABLES[0]), value("roce", HCA_VARIABLES[1])) else {
        return Ok(());
    };
    if nccl.value == roce.value && roce.value.contains(':') {
        let text = format!(
            "`{}` stands in both variables: the number is a port in {} and a GID index in {}; write `=NAME:PORT` in the first",
            roce.value, HCA_VARIABLES[0], HCA_VARIABLES[1]
        );
        return Err(source.error(roce.offset, text));
    }
    Ok(())
}

fn arm_variable(
    source: Source<'_>,
    arm: &str,
    variable: &str,
    at: &At<String>,
) -> Result<(), InventoryError> {
    let own = if arm == "nccl" {
        HCA_VARIABLES[0]
    } else {
        HCA_VARIABLES[1]
    };
    if HCA_VARIABLES.contains(&variable) && variable != own {
        let text = format!("the `{arm}` arm sets {own} only; `{variable}` would make it another arm");
        return Err(source.error(at.offset, text));
    }
    Ok(())
}
