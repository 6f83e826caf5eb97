//! Hosts against the inventory, and against each other.

use super::ask::Answer;
use super::{Finding, HostReport, Level};
use crate::inventory::{self, Gpus, Inventory, Launcher};
use crate::machine::{Identity, Relation};
use std::collections::BTreeMap;
use std::net::IpAddr;
use tp_hca::Document;
use tp_receipt::doctor::{Item, State};

/// A clock that is off by more is worth a word, milliseconds: logs of several hosts cannot be laid side by side then.
const CLOCK_OFF_MS: f64 = 1000.0;

pub(super) fn findings(inventory: &Inventory, answers: &[Answer]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (host, answer) in inventory.hosts.iter().zip(answers) {
        match &answer.report {
            None => found.push(unanswered(host, answer)),
            Some(report) => {
                found.extend(
                    report
                        .items
                        .iter()
                        .filter_map(|item| of_item(inventory, host, report, item)),
                );
                found.extend(identity(host, report));
                found.extend(gpus(host, report));
                found.extend(address(inventory, host, report));
                found.extend(cma(host, report));
            }
        }
        found.extend(clock(host, answer));
    }
    let heard: Vec<(&inventory::Host, &HostReport)> = inventory
        .hosts
        .iter()
        .zip(answers)
        .filter_map(|(host, answer)| Some((host, answer.report.as_ref()?)))
        .collect();
    if inventory.launcher != Launcher::Local {
        found.extend(same_machine(&heard));
    }
    found.extend(versions(&heard));
    found
}

fn unanswered(host: &inventory::Host, answer: &Answer) -> Finding {
    let error = answer
        .error
        .clone()
        .unwrap_or_else(|| "it said nothing".to_owned());
    let lower = error.to_lowercase();
    let fix = if lower.contains("does not start there")
        || lower.contains("no such file")
        || lower.contains("not found")
    {
        "put the runner there (tp-orchestrate push), or name it by --runner; `run_prefix` must see it too"
    } else {
        "look at the address, at `ssh` by hand with the same user, and whether the host is up"
    };
    Finding::new(Level::Bad, "unanswered", error)
        .on(&host.name)
        .fix(fix)
}

/// A host's own finding, weighed by what the inventory wants of the host.
fn of_item(
    inventory: &Inventory,
    host: &inventory::Host,
    report: &HostReport,
    item: &Item,
) -> Option<Finding> {
    if item.state == State::Ok {
        return None;
    }
    let wants_gpu = matches!(&host.gpus, Gpus::Listed(list) if !list.is_empty());
    let wants_rdma =
        inventory.launcher != Launcher::Local && host.facts.is_none() && inventory.hosts.len() > 1;
    let has_rdma = report
        .items
        .iter()
        .any(|i| i.name == "RDMA ports" && i.state == State::Ok);
    let level = match (item.name.as_str(), item.state) {
        // Each step takes a free port of its own.
        ("port", _) => return None,
        ("libcuda" | "kernels" | "libnccl", State::No) if wants_gpu => Level::Bad,
        ("libcuda" | "kernels" | "libnccl", _) => Level::Note,
        ("RDMA ports" | "RDMA device files", State::No) if wants_rdma => Level::Bad,
        ("RDMA ports" | "RDMA device files", _) => Level::Note,
        ("libibverbs", _) if !has_rdma => Level::Note,
        // Memory that cannot be locked cannot be registered.
        ("memlock", _) if has_rdma => Level::Bad,
        ("memlock", _) => Level::Note,
        ("processors", _) => Level::Note,
        (_, State::No) => Level::Bad,
        _ => Level::Warn,
    };
    let finding = Finding::new(level, &item.name, &item.text).on(&host.name);
    Some(Finding {
        fix: item.fix.clone(),
        ..finding
    })
}

/// Whether it is the machine, of the kind, that the inventory means.
fn identity(host: &inventory::Host, report: &HostReport) -> Vec<Finding> {
    let mut found = Vec::new();
    let about = &report.host;
    if let Some(wanted) = &host.machine_id {
        let actual = about.machine_id.as_deref().unwrap_or("none");
        if !actual.eq_ignore_ascii_case(wanted) {
            found.push(
                Finding::new(
                    Level::Bad,
                    "machine_id",
                    format!(
                        "the inventory says {wanted}, the machine that answers has {actual} (host name {})",
                        about.name
                    ),
                )
                .on(&host.name)
                .fix("it is another machine, or was installed anew: correct `ssh` or `machine_id`"),
            );
        }
    }
    if let Some(wanted) = host.system.as_ref().filter(|system| **system != about.system) {
        found.push(
            Finding::new(
                Level::Bad,
                "system",
                format!("the inventory says {wanted}, the machine is {}", about.system),
            )
            .on(&host.name)
            .fix("correct `system`: the runner that is sent follows it"),
        );
    }
    found
}

fn gpus(host: &inventory::Host, report: &HostReport) -> Option<Finding> {
    let Gpus::Listed(wanted) = &host.gpus else {
        return None;
    };
    let missing: Vec<String> = wanted
        .iter()
        .filter(|index| !report.gpus.iter().any(|gpu| gpu.index == **index))
        .map(u32::to_string)
        .collect();
    if missing.is_empty() {
        return None;
    }
    let there: Vec<String> = report
        .gpus
        .iter()
        .map(|gpu| format!("{} {}", gpu.index, gpu.name))
        .collect();
    let there = if there.is_empty() {
        "none".to_owned()
    } else {
        there.join(", ")
    };
    let text = format!(
        "the inventory lists GPU {}; there are: {there}",
        missing.join(", ")
    );
    Some(
        Finding::new(Level::Bad, "gpus", text)
            .on(&host.name)
            .fix("correct `gpus`, or look at nvidia-smi -L and CUDA_VISIBLE_DEVICES there"),
    )
}

/// Whether `fabric` is an address that the host has now: addresses set by hand are lost, and inventories grow old.
fn address(inventory: &Inventory, host: &inventory::Host, report: &HostReport) -> Option<Finding> {
    let fabric = host.fabric.as_ref()?;
    let bare = fabric.trim_start_matches('[').trim_end_matches(']');
    let bare = bare.split('%').next().unwrap_or(bare);
    let wanted: IpAddr = bare.parse().ok()?;
    if wanted.is_loopback() && inventory.launcher == Launcher::Local {
        return None;
    }
    let facts = Document::from_toml(&report.facts).ok()?;
    let mut has: Vec<String> = Vec::new();
    for address in facts.ranks.iter().flat_map(|rank| &rank.addresses) {
        let Some(found) = address.address else { continue };
        if found.ip == wanted {
            return None;
        }
        if !found.ip.is_loopback() {
            has.push(format!(
                "{} on {}",
                found.ip,
                address.netdev.as_deref().unwrap_or("?")
            ));
        }
    }
    if has.is_empty() {
        return None;
    }
    let text = format!(
        "the inventory says fabric {wanted}; the host has {}",
        has.join(", ")
    );
    Some(
        Finding::new(Level::Bad, "fabric", text).on(&host.name).fix(
            "correct `fabric`, or give the host its address again (and so that it stays: netplan, nmcli)",
        ),
    )
}

/// Kernels that leave no contiguous memory fail to register even a page.
fn cma(host: &inventory::Host, report: &HostReport) -> Option<Finding> {
    let rdma = report
        .items
        .iter()
        .any(|i| i.name == "RDMA ports" && i.state == State::Ok);
    (rdma && report.host.cma_total == Some(0)).then(|| {
        Finding::new(
            Level::Warn,
            "CMA",
            format!(
                "CmaTotal is 0 on {}: memory may not be registered for RDMA",
                report.host.kernel
            ),
        )
        .on(&host.name)
        .fix("boot a kernel with a contiguous memory area if ibv_reg_mr says `Cannot allocate memory`")
    })
}

fn clock(host: &inventory::Host, answer: &Answer) -> Option<Finding> {
    let clock = answer.clock?;
    let off = clock.offset_ms.abs() - clock.error_ms;
    (off > CLOCK_OFF_MS).then(|| {
        let text = format!(
            "its clock is {:+.1} s from this machine's (± {:.0} ms)",
            clock.offset_ms / 1e3,
            clock.error_ms
        );
        Finding::new(Level::Warn, "clock", text)
            .on(&host.name)
            .fix("timedatectl set-ntp true there; a run measures on its own clock, but its logs are hard to compare")
    })
}

fn identified(report: &HostReport) -> Identity<'_> {
    Identity {
        boot: report.host.boot_id.as_deref(),
        network: report.host.network_namespace.as_deref(),
    }
}

/// Two names for one machine.
fn same_machine(heard: &[(&inventory::Host, &HostReport)]) -> Vec<Finding> {
    let mut found = Vec::new();
    for (index, (a, first)) in heard.iter().enumerate() {
        for (b, second) in &heard[index + 1..] {
            let both = format!("hosts {} and {}", a.name, b.name);
            let relation = identified(first).relation(identified(second));
            let machine_id = &first.host.machine_id;
            if relation == Relation::OneHost {
                found.push(
                    Finding::new(
                        Level::Bad,
                        "same machine",
                        format!("{both} are one machine ({})", first.host.name),
                    )
                    .fix("correct `ssh` of one of them; ranks on one machine stand in one [[host]] with more `gpus` or `ranks`"),
                );
            } else if relation == Relation::Containers {
                found.push(Finding::new(
                    Level::Note,
                    "same machine",
                    format!("{both} are two network namespaces (containers) of one machine"),
                ));
            } else if machine_id.is_some() && *machine_id == second.host.machine_id {
                found.push(
                    Finding::new(
                        Level::Warn,
                        "machine-id",
                        format!("{both} have one machine-id: they were cloned from one image"),
                    )
                    .fix("on one of them: rm /etc/machine-id && systemd-machine-id-setup"),
                );
            }
        }
    }
    found
}

/// What ought to be equal, as a table host → version where it is not.
fn versions(heard: &[(&inventory::Host, &HostReport)]) -> Vec<Finding> {
    let library = |report: &HostReport, name: &str| {
        let library = report.libraries.iter().find(|l| l.library == name)?;
        let version = library.version.clone()?;
        let file = library
            .file
            .as_ref()
            .map_or(String::new(), |file| format!(" from {file}"));
        Some((version, file))
    };
    let gpu = heard
        .iter()
        .any(|(host, _)| matches!(&host.gpus, Gpus::Listed(list) if !list.is_empty()));
    let level = if gpu { Level::Bad } else { Level::Note };
    let mut found = Vec::new();
    found.extend(
        differ(heard, "NCCL", level, &|r| library(r, "libnccl"))
            .map(|f| f.fix("install one version on every host, or name one file by TF_NCCL_LIB in `env`")),
    );
    found.extend(
        differ(heard, "CUDA driver", Level::Warn, &|r| library(r, "libcuda"))
            .map(|f| f.fix("update the older drivers: mixed ones are seldom tried together")),
    );
    found.extend(
        differ(heard, "NVIDIA driver", Level::Warn, &|r| {
            Some((r.host.driver.clone()?, String::new()))
        })
        .map(|f| f.fix("update the older drivers: mixed ones are seldom tried together")),
    );
    found.extend(differ(heard, "system", Level::Note, &|r| {
        Some((r.host.system.clone(), String::new()))
    }));
    let mut systems: Vec<&str> = heard.iter().map(|(_, r)| r.host.system.as_str()).collect();
    systems.sort_unstable();
    systems.dedup();
    for system in systems {
        let of_system: Vec<_> = heard
            .iter()
            .filter(|(_, r)| r.host.system == system)
            .copied()
            .collect();
        let hash = |r: &HostReport| {
            Some((
                r.host.runner_sha256.as_ref()?.get(..12)?.to_owned(),
                String::new(),
            ))
        };
        found.extend(
            differ(&of_system, "runner", Level::Bad, &hash)
                .map(|f| f.fix("put one build on every host (tp-orchestrate push): ranks of different builds refuse each other")),
        );
    }
    found
}

fn differ(
    heard: &[(&inventory::Host, &HostReport)],
    what: &str,
    level: Level,
    of: &dyn Fn(&HostReport) -> Option<(String, String)>,
) -> Option<Finding> {
    let mut values: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (host, report) in heard {
        if let Some((value, note)) = of(report) {
            values
                .entry(value)
                .or_default()
                .push(format!("{}{note}", host.name));
        }
    }
    if values.len() < 2 {
        return None;
    }
    let rows: Vec<String> = values
        .iter()
        .map(|(value, hosts)| format!("{value}: {}", hosts.join(", ")))
        .collect();
    Some(Finding::new(level, &format!("{what} differs"), rows.join("; ")))
}
