//! What each step runs: the command lines, limits and expected ends.

use super::symbol::{FACTS, PORT, RUNNER, SESSION};
use super::{Expect, symbol};
use crate::inventory::{Inventory, Launcher};

/// A kind of step before it is spread over ranks.
#[derive(Clone, Debug)]
pub(super) struct Kind {
    pub name: String,
    pub scope: &'static str,
    /// The runner's command and its arguments.
    pub words: Vec<String>,
    pub limit_ms: u64,
    pub expect: Expect,
}

fn words(list: &[&str]) -> Vec<String> {
    list.iter().map(|word| (*word).to_owned()).collect()
}

/// The pick: live on the ranks' ports, or on facts files.
pub(super) fn hca(model: bool) -> Kind {
    let command = if model {
        words(&["hca", "--facts", FACTS])
    } else {
        words(&["hca"])
    };
    let scope = if model { "model" } else { "nic" };
    Kind {
        name: "hca".into(),
        scope,
        words: command,
        limit_ms: 30_000,
        expect: Expect::AllPass,
    }
}

pub(super) fn roce_host() -> Kind {
    Kind {
        name: "roce-host".into(),
        scope: "host",
        words: words(&["roce-host"]),
        limit_ms: 120_000,
        expect: Expect::AllPass,
    }
}

pub(super) fn suite(backend: &super::backends::Backend) -> Kind {
    Kind {
        name: format!("suite-{}", backend.name),
        scope: backend.scope,
        words: words(&["--backend", backend.name, "suite", backend.name]),
        limit_ms: 300_000,
        expect: Expect::AllPass,
    }
}

pub(super) fn bench(backend: &super::backends::Backend) -> Kind {
    Kind {
        name: format!("bench-{}", backend.name),
        scope: backend.scope,
        words: words(&["--backend", backend.name, "bench"]),
        limit_ms: 300_000,
        expect: Expect::AllPass,
    }
}

/// The injections of the matrix.
pub(super) const INJECTIONS: [&str; 3] = ["fatal", "kill", "stall"];

pub(super) fn failfast(
    backend: &super::backends::Backend,
    inject: &str,
    victim: u32,
    inventory: &Inventory,
) -> Kind {
    Kind {
        name: format!("failfast-{}-{inject}-{victim}", backend.name),
        scope: backend.scope,
        words: words(&["--backend", backend.name, "failfast", &victim.to_string(), inject]),
        limit_ms: 90_000,
        expect: Expect::FailFast {
            inject: inject.into(),
            victim,
            within_ms: within_ms(inject, inventory),
        },
    }
}

/// How long the survivors may take: the grace that every rank is given, for `stall` also the heartbeat limit (the
/// runner's defaults unless the inventory sets them), and a second for starting and reaping processes on a busy host.
fn within_ms(inject: &str, inventory: &Inventory) -> u64 {
    let setting = |name: &str, default: f64| {
        let given = inventory
            .hosts
            .iter()
            .filter_map(|h| h.env.get(name)?.trim().parse::<f64>().ok());
        given
            .filter(|s| s.is_finite() && *s >= 0.0)
            .fold(None, |max: Option<f64>, s| Some(max.map_or(s, |m| m.max(s))))
            .unwrap_or(default)
    };
    let grace = setting("TF_TP_FAILFAST_GRACE_S", 1.0);
    let detection = if inject == "stall" {
        setting("TF_TP_HEARTBEAT_LIMIT_S", 3.0)
    } else {
        0.0
    };
    ((detection + grace + 1.0) * 1e3).ceil() as u64
}

/// The whole command line of one rank.
pub(crate) fn argv(inventory: &Inventory, rank: u32, master: String, command: &[String]) -> Vec<String> {
    let prefix = inventory
        .host_of(rank)
        .map(|h| h.run_prefix.clone())
        .unwrap_or_default();
    let mut argv = prefix;
    argv.extend(words(&[
        RUNNER,
        "supervise",
        "--events",
        "--",
        RUNNER,
        "--events",
        "--lease",
        "stdin",
    ]));
    argv.extend(words(&["--session", SESSION, "--rank", &rank.to_string()]));
    argv.extend(words(&["--world", &inventory.world().to_string()]));
    argv.extend(words(&["--master", &master, "--port", PORT]));
    argv.extend_from_slice(command);
    argv
}

/// Where the other ranks reach rank 0: the inventory's word, else its picked address, else, where there is no pick yet or
/// none at all, the address at which its host is controlled.
pub(super) fn master(inventory: &Inventory, picked: bool) -> String {
    let head = inventory.host_of(0);
    match (head.and_then(|h| h.fabric.clone()), inventory.launcher) {
        (Some(fabric), _) => fabric,
        (None, Launcher::Local) => "127.0.0.1".to_owned(),
        (None, Launcher::Ssh) if !picked => symbol::CONTROL.to_owned(),
        // Slurm's name of a node is a name that its cluster knows.
        (None, Launcher::Slurm) if !picked => head.map_or_else(String::new, |h| h.name.clone()),
        (None, Launcher::Ssh | Launcher::Slurm) => symbol::pick(0, "address"),
    }
}
