//! `doctor`: what this host can run, and why not. It looks and tells; it changes nothing and opens no session.

mod about;
mod host;
mod ports;
mod reach;
mod settings;

use crate::cli::DoctorArgs;
use crate::exit_code::{self, Refusal};
use crate::stdout;
use std::ffi::OsString;
use std::path::Path;
use tp_fabric::devices::{self, Finding};
use tp_fabric::settings::Sources;
use tp_receipt::doctor::{Ability, Gpu, Item, Library, Reached, Report, SCHEMA, State};

/// Looks, prints to standard output, and returns 0 where at least the host backend can run, else 3.
pub fn run(args: &DoctorArgs, sources: &Sources) -> Result<u8, Refusal> {
    if !args.reach.is_empty() {
        return reached(args);
    }
    let report = examine(sources);
    if args.json {
        // Plain lists and texts always serialise.
        let document = serde_json::to_string_pretty(&report).unwrap_or_default();
        stdout::print(&format!("{document}\n"))?;
    } else {
        stdout::print(&text(&report))?;
    }
    Ok(if report.ok {
        exit_code::PASSED
    } else {
        exit_code::CANNOT
    })
}

/// Only whether these addresses answer; 0 whatever comes out, since the answer is what was asked for.
fn reached(args: &DoctorArgs) -> Result<u8, Refusal> {
    let reach = reach::try_all(&args.reach);
    if args.json {
        let document = serde_json::to_string(&Reached {
            schema: SCHEMA,
            reach,
        })
        .unwrap_or_default();
        stdout::print(&format!("{document}\n"))?;
    } else {
        let lines = reach
            .iter()
            .map(|r| format!("{}  {} ({} ms)\n", r.to, r.text, r.ms));
        stdout::print(&lines.collect::<String>())?;
    }
    Ok(exit_code::PASSED)
}

fn examine(sources: &Sources) -> Report {
    let env = |name: &str| -> Option<OsString> { sources.text(name).map(|(text, _)| text) };
    let (libraries, gpus) = devices::survey(&env);
    let root = Path::new("/");
    let capture = tp_hca::capture(root);
    let looks = ports::look(&capture.facts, root);
    let nccl_settings = settings::nccl(sources, root);
    let mut items = host::items(sources);
    items.extend(ports::items(&capture.facts, &looks, root));
    items.extend(settings::items(sources, &nccl_settings));
    items.extend(libraries.iter().map(of_finding));
    let abilities = abilities(&items, &libraries);
    let ok = abilities.iter().any(|a| a.command == "suite host" && a.can);
    let not_tried = vec![
        "any collective: tf-tp-test suite and roce-host prove them".to_owned(),
        "whether this host reaches others: tf-tp-test hca on all hosts at once".to_owned(),
    ];
    Report {
        schema: SCHEMA,
        ok,
        host: about::here(root),
        items,
        libraries: libraries.iter().map(library).collect(),
        nccl_settings,
        ports: looks,
        facts: tp_hca::Document::of_ranks(vec![capture.facts])
            .and_then(|document| document.to_toml())
            .unwrap_or_default(),
        gpus: gpus.into_iter().map(of_gpu).collect(),
        abilities,
        not_tried,
    }
}

fn library(finding: &Finding) -> Library {
    Library {
        library: finding.library.to_owned(),
        version: finding.version.clone(),
        file: finding.found.as_ref().map(|file| file.display().to_string()),
    }
}

fn of_gpu(gpu: devices::Gpu) -> Gpu {
    let (major, minor) = gpu.capability;
    Gpu {
        index: gpu.index,
        name: gpu.name,
        compute_capability: format!("{major}.{minor}"),
    }
}

fn of_finding(finding: &Finding) -> Item {
    let state = match (&finding.found, &finding.fix) {
        (Some(_), None) => State::Ok,
        (Some(_), Some(_)) => State::Warn,
        (None, _) => State::No,
    };
    let mut text = String::new();
    if let Some(version) = &finding.version {
        text.push_str(&format!("{version}, "));
    }
    text.push_str(&finding.detail);
    if let Some(path) = &finding.found {
        text.push_str(&format!(", from {}", path.display()));
    }
    let item = Item::new(
        finding.library,
        state,
        text.split_whitespace().collect::<Vec<_>>().join(" "),
    );
    Item {
        fix: finding.fix.clone(),
        ..item
    }
}

fn abilities(items: &[Item], libraries: &[Finding]) -> Vec<Ability> {
    let state = |name: &str| {
        items
            .iter()
            .find(|i| i.name == name)
            .map_or(State::No, |i| i.state)
    };
    let has = |library: &str| {
        libraries
            .iter()
            .any(|f| f.library == library && f.found.is_some() && f.fix.is_none())
    };
    let ability = |command: &str, can: bool, why: &str| Ability {
        command: command.to_owned(),
        can,
        why: why.to_owned(),
    };
    let shm = state("shared memory") != State::No;
    let ports = state("RDMA ports") == State::Ok;
    let gpu = |command: &str, needs: &[&str], how: &str| {
        let gone: Vec<&str> = needs.iter().copied().filter(|n| !has(n)).collect();
        match gone.is_empty() {
            true => ability(command, true, how),
            false => ability(command, false, &format!("lacks {}", gone.join(", "))),
        }
    };
    let sums = if has("kernels") {
        "sums in rank order"
    } else {
        "two ranks; more need the kernels"
    };
    let wires = if ports {
        "over verbs, shm and tcp"
    } else {
        "over shm and tcp"
    };
    vec![
        ability(
            "suite host",
            true,
            match (ports && has("libibverbs"), shm) {
                (true, true) => "over verbs, shm and tcp",
                (true, false) => "over verbs and tcp; shared memory is not there",
                (false, true) => "over shm and tcp",
                (false, false) => "over tcp; shared memory is not there",
            },
        ),
        ability(
            "roce-host",
            true,
            match (ports && has("libibverbs"), shm) {
                (true, true) => "over verbs, shm and tcp",
                (true, false) => "over verbs and tcp; shared memory is not there",
                (false, true) => "over shm and tcp",
                (false, false) => "over tcp; shared memory is not there",
            },
        ),
        ability(
            "hca",
            ports,
            if ports {
                ""
            } else {
                "no RDMA port; with --facts FILE it runs anywhere"
            },
        ),
        ability(
            "failfast V transport",
            ports && has("libibverbs"),
            match (ports, has("libibverbs")) {
                (true, true) => "",
                (true, false) => "lacks libibverbs",
                (false, _) => "no RDMA port",
            },
        ),
        gpu("suite nccl", &["libcuda", "libnccl"], sums),
        gpu("suite mailbox", &["libcuda", "kernels"], "ranks of one host"),
        gpu("suite roce", &["libcuda", "kernels"], wires),
    ]
}

fn text(report: &Report) -> String {
    let mut out = String::new();
    let width = report.items.iter().map(|i| i.name.len()).max().unwrap_or(0);
    for item in &report.items {
        let mark = match item.state {
            State::Ok => "ok  ",
            State::Warn => "warn",
            State::No | State::Other => "no  ",
        };
        out.push_str(&format!("{mark} {:width$}  {}\n", item.name, item.text));
        if let Some(fix) = &item.fix {
            out.push_str(&format!("     {:width$}  -> {fix}\n", ""));
        }
    }
    out.push('\n');
    let width = report
        .abilities
        .iter()
        .map(|a| a.command.len())
        .max()
        .unwrap_or(0);
    for ability in &report.abilities {
        let mark = if ability.can { "runs here  " } else { "cannot run " };
        out.push_str(format!("{mark} {:width$}  {}", ability.command, ability.why).trim_end());
        out.push('\n');
    }
    for not in &report.not_tried {
        out.push_str(&format!("not tried   {not}\n"));
    }
    out
}
