//! From TOML to the raw inventory: keys, types and ranges of single values. Rules between values are in `check`.

use super::read::{At, InventoryError, Section, Source};
use super::{Deploy, HCA_VARIABLES, Launcher, SCHEMA, WORLD_MAX};
use std::collections::BTreeMap;
use toml::de::DeTable;

const TOP: &[&str] = &["schema", "cluster", "defaults", "host"];
const CLUSTER: &[&str] = &["name", "launcher", "deploy", "flake", "step_limit_s"];
const DEFAULTS: &[&str] = &[
    "user",
    "port",
    "identity",
    "run_prefix",
    "env",
    "mtu",
    "system",
    "dir",
];
const HOST: &[&str] = &[
    "name",
    "ssh",
    "fabric",
    "user",
    "port",
    "identity",
    "gpus",
    "ranks",
    "rank",
    "run_prefix",
    "env",
    "mtu",
    "arms",
    "machine_id",
    "facts",
    "system",
    "dir",
];
/// What an Ethernet interface's MTU can be, bytes.
const MTU: std::ops::Range<u64> = 1280..65_536;
/// The largest CUDA ordinal that the runner takes.
const GPU_MAX: u64 = 63;
/// The arms that may carry values; `none` has none by its meaning.
const ARMS: &[&str] = &["nccl", "roce"];

pub(super) struct Raw {
    pub name: At<String>,
    pub launcher: Launcher,
    pub deploy: Deploy,
    pub flake: Option<String>,
    pub step_limit_s: Option<f64>,
    pub hosts: Vec<RawHost>,
    /// Where `host` ought to be, for a file without any.
    pub end: usize,
}

pub(super) struct RawHost {
    pub offset: usize,
    pub name: At<String>,
    pub ssh: Option<At<String>>,
    pub fabric: Option<At<String>>,
    pub user: Option<String>,
    pub port: Option<At<u16>>,
    pub identity: Option<String>,
    pub gpus: Option<Vec<At<u64>>>,
    pub ranks: Option<At<u64>>,
    pub rank: Option<At<u64>>,
    pub run_prefix: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub mtu: Option<u32>,
    pub arms: BTreeMap<String, BTreeMap<String, At<String>>>,
    pub machine_id: Option<At<String>>,
    pub facts: Option<At<String>>,
    pub system: Option<String>,
    pub dir: Option<String>,
}

pub(super) fn parse(source: Source<'_>) -> Result<Raw, InventoryError> {
    let document = DeTable::parse(source.text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        source.error(at, format!("not TOML: {}", e.message().replace('\n', " ")))
    })?;
    source.refuse_hidden(document.get_ref())?;
    let top = Section::new(source, "the inventory", document.get_ref(), document.span(), TOP)?;
    match top.number("schema", 0..u64::MAX)? {
        None => return Err(top.error(format!("`schema` is missing; this format is `schema = {SCHEMA}`"))),
        Some(At { value: SCHEMA, .. }) => {}
        Some(other) => {
            let text = format!("`schema` is {}; this program reads {SCHEMA}", other.value);
            return Err(source.error(other.offset, text));
        }
    }
    let cluster = top
        .section("cluster", CLUSTER)?
        .ok_or_else(|| top.error("there is no [cluster] table with a `name`"))?;
    let name = cluster.required_string("name")?;
    let launcher = cluster
        .word("launcher", Launcher::WORDS)?
        .unwrap_or(Launcher::Ssh);
    let deploy = cluster.word("deploy", Deploy::WORDS)?.unwrap_or(match launcher {
        // Slurm's nodes share a file system as a rule, and Slurm starts programs only.
        Launcher::Local | Launcher::Slurm => Deploy::Preinstalled,
        Launcher::Ssh => Deploy::Push,
    });
    if launcher == Launcher::Slurm && deploy != Deploy::Preinstalled {
        return Err(cluster.error(format!(
            "`deploy = \"{}\"` does not go with `launcher = \"slurm\"`: Slurm starts programs and sends none; put the runner \
             where all nodes see it and leave `deploy` out",
            deploy.name()
        )));
    }
    let flake = flake(source, &cluster, deploy)?;
    let defaults = top.section("defaults", DEFAULTS)?;
    let hosts = top
        .sections("host", HOST)?
        .iter()
        .map(|section| host(section, defaults.as_ref()))
        .collect::<Result<_, _>>()?;
    Ok(Raw {
        name,
        launcher,
        deploy,
        flake,
        step_limit_s: cluster.seconds("step_limit_s")?,
        hosts,
        end: source.text.trim_end().len(),
    })
}

/// The flake that hosts build, where they build one.
fn flake(
    source: Source<'_>,
    cluster: &Section<'_>,
    deploy: Deploy,
) -> Result<Option<String>, InventoryError> {
    let Some(flake) = cluster.string("flake")? else {
        if deploy == Deploy::NixBuild {
            return Err(cluster.error(
                "`deploy = \"nix-build\"` needs `flake`: what every host is to build, with its revision, e.g. \
                 \"github:OWNER/tp-bringup/REVISION\""
                    .to_owned(),
            ));
        }
        return Ok(None);
    };
    let wrong = |what: &str| Err(source.error(flake.offset, format!("`flake` is `{}`: {what}", flake.value)));
    if deploy != Deploy::NixBuild {
        return wrong("it has a meaning with `deploy = \"nix-build\"` only");
    }
    let plain = |c: char| !c.is_whitespace() && !c.is_control() && c != '#';
    if flake.value.is_empty() || flake.value.starts_with('-') || !flake.value.chars().all(plain) {
        return wrong("a reference to a flake is meant, without an output and without options");
    }
    Ok(Some(flake.value))
}

fn host(own: &Section<'_>, defaults: Option<&Section<'_>>) -> Result<RawHost, InventoryError> {
    let string = |key: &str| -> Result<Option<String>, InventoryError> {
        let found = match (own.string(key)?, defaults) {
            (Some(own), _) => Some(own),
            (None, Some(defaults)) => defaults.string(key)?,
            (None, None) => None,
        };
        Ok(found.map(|at| at.value))
    };
    let port = match (own.number("port", 1..65_536)?, defaults) {
        (Some(own), _) => Some(own),
        (None, Some(defaults)) => defaults.number("port", 1..65_536)?,
        (None, None) => None,
    };
    let mtu = match (own.number("mtu", MTU)?, defaults) {
        (Some(own), _) => Some(own),
        (None, Some(defaults)) => defaults.number("mtu", MTU)?,
        (None, None) => None,
    };
    let run_prefix = match (own.strings("run_prefix")?, defaults) {
        (Some(own), _) => own,
        (None, Some(defaults)) => defaults.strings("run_prefix")?.unwrap_or_default(),
        (None, None) => Vec::new(),
    };
    let mut env = match defaults {
        Some(defaults) => defaults.variables("env")?,
        None => BTreeMap::new(),
    };
    env.extend(own.variables("env")?);
    if let Some(name) = HCA_VARIABLES.iter().find(|name| env.contains_key(**name)) {
        return Err(own.error(format!(
            "`{name}` does not belong into `env`: the arms set and unset it; give it under [host.arms]"
        )));
    }
    Ok(RawHost {
        offset: own.offset(),
        name: own.required_string("name")?,
        ssh: own.string("ssh")?,
        fabric: own.string("fabric")?,
        user: string("user")?,
        port: port.and_then(|p| {
            Some(At {
                value: u16::try_from(p.value).ok()?,
                offset: p.offset,
            })
        }),
        identity: string("identity")?,
        gpus: own.numbers("gpus", 0..GPU_MAX + 1)?,
        ranks: own.number("ranks", 0..WORLD_MAX + 1)?,
        rank: own.number("rank", 0..WORLD_MAX)?,
        run_prefix,
        env: env.into_iter().map(|(name, at)| (name, at.value)).collect(),
        mtu: mtu.and_then(|m| u32::try_from(m.value).ok()),
        arms: arms(own)?,
        machine_id: own.string("machine_id")?,
        facts: own.string("facts")?,
        system: string("system")?,
        dir: string("dir")?,
    })
}

fn arms(own: &Section<'_>) -> Result<BTreeMap<String, BTreeMap<String, At<String>>>, InventoryError> {
    let mut out = BTreeMap::new();
    let Some(section) = own.section("arms", ARMS)? else {
        return Ok(out);
    };
    for arm in ARMS {
        let variables = section.variables(arm)?;
        if !variables.is_empty() {
            out.insert((*arm).to_owned(), variables);
        }
    }
    Ok(out)
}
