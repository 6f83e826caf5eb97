//! Everything that can be refused before a socket, a library or a GPU is touched.

use crate::bench;
use crate::cli::{BenchArgs, Command, FailKind, FailfastArgs, SuiteArgs};
use crate::devices;
use crate::exit_code::Refusal;
use crate::failfast::{At, Injection};
use crate::os;
use crate::suite;
use crate::transport;
use tp_fabric::settings::{Settings, Sources};
use tp_fabric::types::{BackendKind, WireKind, World};

/// Where the kernel shows its RDMA devices.
const RDMA_DEVICES: &str = "/sys/class/infiniband";
/// The share of the available memory that buffers may take: the rest of the host goes on living.
const MEMORY_SHARE: f64 = 0.8;

/// A command of the group, checked: what it needs to know beyond the settings.
#[derive(Debug)]
pub enum Job {
    /// `roce-host`, with this many timed gathers of each size.
    RoceHost(usize),
    /// `suite`, only the checks whose names contain this text.
    Suite(Option<String>),
    /// `failfast`.
    Failfast(Injection, At),
    /// `failfast VICTIM transport`.
    Transport(transport::Plan),
    /// `bench`.
    Bench(bench::Plan),
    /// `bench --rails`: each rail, all together, and TCP on the same ports, with this many calls of each.
    Rails(u32),
}

impl Job {
    /// What every rank must have been told alike, as it would be written. Ranks with different jobs would wait for each other
    /// for ever, or until one meets a call that it does not expect.
    pub fn words(&self) -> String {
        let only = |text: &Option<String>| {
            text.as_ref()
                .map_or(String::new(), |text| format!(" --only {text}"))
        };
        match self {
            Self::RoceHost(calls) => format!("roce-host --calls {calls}"),
            Self::Suite(text) => format!("suite{}", only(text)),
            Self::Failfast(injection, at) => {
                format!(
                    "failfast {} {} --at {}",
                    injection.victim,
                    injection.kind.name(),
                    at.name()
                )
            }
            // How the link goes down is the victim's affair.
            Self::Transport(plan) => format!("failfast {} transport", plan.victim),
            Self::Bench(plan) => plan.words(),
            Self::Rails(calls) => format!("bench --rails --calls {calls}"),
        }
    }
}

/// Reads the settings for a command that names a backend of its own (`suite BACKEND`), which must not contradict
/// `--backend`.
pub fn settings(sources: &mut Sources, named: Option<&str>) -> Result<Settings, Refusal> {
    if let Some(named) = named {
        let option = sources
            .options
            .get("TF_COMM_BACKEND")
            .and_then(|text| text.to_str());
        if let Some(other) = option.filter(|other| *other != named) {
            return Err(Refusal::usage(format!(
                "the command names backend `{named}` and --backend `{other}`: give one"
            )));
        }
        crate::start::option(sources, "TF_COMM_BACKEND", named);
    }
    Settings::load(sources).map_err(|e| Refusal::usage(e.to_string()))
}

/// The job of a command that runs on the group; `None` for a command that is none.
pub fn job(command: &Command, settings: &Settings) -> Result<Option<Job>, Refusal> {
    let job = match command {
        Command::RoceHost(args) => Job::RoceHost(args.calls),
        Command::Suite(args) => {
            checks(args, settings)?;
            Job::Suite(args.only.clone())
        }
        Command::Failfast(args) => failfast(args, settings)?,
        Command::Bench(args) => bench(args, settings)?,
        _ => return Ok(None),
    };
    // `roce-host` proves the protocol on host memory, whatever backend is set.
    let backend = match job {
        Job::RoceHost(_) => Some(BackendKind::Host),
        _ => settings.backend,
    };
    devices::refuse(backend, settings)?;
    wire(settings)?;
    Ok(Some(job))
}

/// The checks of the suite that are asked for, one a line with its group. None at all is a mistake: it would prove nothing.
pub fn checks(args: &SuiteArgs, settings: &Settings) -> Result<String, Refusal> {
    let backend = settings.backend.unwrap_or(BackendKind::Host);
    let only = args.only.as_deref();
    let list = suite::list(backend, settings.world, only);
    match only {
        Some(text) if list.is_empty() => Err(Refusal::usage(format!(
            "no check of the {backend} suite at world {} has `{text}` in its name; tf-tp-test suite --list prints all",
            settings.world
        ))),
        _ => Ok(list),
    }
}

/// What no wire can do in any place.
fn wire(settings: &Settings) -> Result<(), Refusal> {
    if settings.wire == Some(WireKind::Verbs) && settings.world.0 > 1 {
        needs_rdma("wire verbs")?;
    }
    Ok(())
}

/// What is seen without touching any device.
fn needs_rdma(what: &str) -> Result<(), Refusal> {
    if std::fs::read_dir(RDMA_DEVICES).map_or(0, Iterator::count) > 0 {
        return Ok(());
    }
    Err(Refusal::cannot(format!(
        "{what} needs an RDMA port for the verbs wire, and {RDMA_DEVICES} shows none: load the network card's RDMA driver, or \
         take shm on one host, tcp between hosts"
    )))
}

fn failfast(args: &FailfastArgs, settings: &Settings) -> Result<Job, Refusal> {
    let (victim, world) = (args.victim, settings.world);
    if world.0 < 2 {
        return Err(Refusal::usage(format!(
            "failfast needs a survivor: TF_TP_WORLD (or --world) is {world}"
        )));
    }
    if victim >= world.0 {
        return Err(Refusal::usage(format!(
            "the victim `{victim}` is not below the world {world}"
        )));
    }
    let at = match &args.at {
        None => At::Run,
        Some(word) => word.parse().map_err(|e| Refusal::usage(format!("--at: {e}")))?,
    };
    if args.kind == FailKind::Transport {
        if args.at.is_some() {
            return Err(Refusal::usage(
                "--at says when a process fails; a transport fails while messages pass",
            ));
        }
        if settings.wire.is_some_and(|wire| wire != WireKind::Verbs) {
            return Err(Refusal::usage(
                "failfast transport breaks the verbs wire: leave --wire out, or give verbs",
            ));
        }
        needs_rdma("failfast transport")?;
        return Ok(Job::Transport(transport::Plan {
            victim,
            link: args.link_down.clone().zip(args.link_up.clone()),
        }));
    }
    if args.link_down.is_some() {
        return Err(Refusal::usage("--link-down belongs to failfast transport"));
    }
    Ok(Job::Failfast(
        Injection {
            victim,
            kind: args.kind,
        },
        at,
    ))
}

fn bench(args: &BenchArgs, settings: &Settings) -> Result<Job, Refusal> {
    if args.rails {
        if settings.world.0 != 2 {
            return Err(Refusal::usage(format!(
                "bench --rails measures the rails of two ranks; TF_TP_WORLD (or --world) is {}",
                settings.world
            )));
        }
        needs_rdma("bench --rails")?;
        return Ok(Job::Rails(args.calls.unwrap_or(bench::rails::CALLS)));
    }
    let plan = bench::Plan::parse(&args.ops, &args.sizes, args.calls).map_err(Refusal::usage)?;
    let available = os::available_memory();
    memory(&plan, settings.world, ranks_here(settings), available)?;
    Ok(Job::Bench(plan))
}

/// How many ranks share this host's memory: all of them where they meet on loopback.
fn ranks_here(settings: &Settings) -> u32 {
    if tp_fabric::bootstrap::is_loopback(&settings.master) {
        settings.world.0
    } else {
        1
    }
}

fn memory(plan: &bench::Plan, world: World, ranks_here: u32, available: Option<u64>) -> Result<(), Refusal> {
    // Where it cannot be asked for, nothing is refused.
    let Some(available) = available else { return Ok(()) };
    let (one, bytes) = plan.memory(world);
    let all = one.saturating_mul(u64::from(ranks_here));
    if all as f64 <= available as f64 * MEMORY_SHARE {
        return Ok(());
    }
    let mib = |bytes: u64| bytes >> 20;
    Err(Refusal::cannot(format!(
        "size {} needs {} MiB on this host ({ranks_here} ranks of {} MiB), {} MiB are available: measure smaller --sizes",
        bench::sizes::show(bytes as u64),
        mib(all),
        mib(one),
        mib(available)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 29: on unified memory such a size would freeze the host.
    #[test]
    fn sizes_beyond_the_free_memory_are_refused_by_name() {
        let plan = bench::Plan::parse("all_gather", "1G", None).unwrap();
        assert!(memory(&plan, World(2), 2, Some(16 << 30)).is_ok());
        let refusal = memory(&plan, World(2), 2, Some(4 << 30)).unwrap_err();
        assert_eq!(refusal.code, crate::exit_code::CANNOT);
        assert!(
            refusal.text.contains("1 GiB") && refusal.text.contains("6144 MiB"),
            "{}",
            refusal.text
        );
        assert!(memory(&plan, World(2), 2, None).is_ok());
    }

    #[test]
    fn a_backend_named_twice_must_be_one() {
        let mut sources = Sources::of([]);
        crate::start::option(&mut sources, "TF_COMM_BACKEND", "nccl");
        assert_eq!(
            settings(&mut sources, Some("host")).unwrap_err().code,
            crate::exit_code::USAGE
        );
        assert!(settings(&mut sources, Some("nccl")).is_ok());
    }
}
