//! From inventory, capabilities and selection to the plan. Pure: asks nobody, changes nothing.

use super::backends::{self, BACKENDS, Backend, Capabilities};
use super::commands::{self, INJECTIONS, Kind};
use super::glob::StepGlobs;
use super::{ARMS, Arm, Command, NotRun, Place, Plan, SCHEMA, Step, symbol};
use crate::Error;
use crate::inventory::{HCA_VARIABLES, Host, Inventory, Launcher, nearest};
use std::collections::BTreeMap;

/// What the user asked for; empty lists mean everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    /// Arms by name.
    pub arms: Vec<String>,
    /// Step names, as shell patterns.
    pub steps: Vec<String>,
    /// Backends by name.
    pub backends: Vec<String>,
    /// Ranks may share a GPU where there are fewer GPUs than ranks.
    pub share_gpu: bool,
}

/// How the arms' variables reach the ranks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ports {
    /// The ranks have RDMA ports: every step of an arm gets the arm's variables.
    Real,
    /// Facts files stand for them: only the `hca` step gets the arm's variables, in the file.
    Model,
    /// Neither: there is nothing to pick.
    Missing,
}

/// Makes the plan. Refuses selections that name nothing.
pub fn build(
    inventory: &Inventory,
    capabilities: &Capabilities,
    selection: &Selection,
) -> Result<Plan, Error> {
    let globs = StepGlobs::new(&selection.steps)?;
    let arms = select("--arms", &selection.arms, &ARMS)?;
    let names: Vec<&str> = BACKENDS.iter().map(|b| b.name).collect();
    let wanted = select("--backends", &selection.backends, &names)?;
    let mut builder = Builder::new(inventory, capabilities, selection.share_gpu);
    let backends = builder.backends(&wanted, !selection.backends.is_empty())?;
    let kinds = builder.kinds(&backends);
    let all: Vec<String> = kinds.iter().map(|kind| kind.name.clone()).collect();
    globs.check_used(&all)?;
    let kinds: Vec<_> = kinds.into_iter().filter(|kind| globs.takes(&kind.name)).collect();
    builder
        .not_run
        .retain(|left_out| globs.takes(&left_out.what) || left_out.what.starts_with("backend "));
    let arms = arms.iter().map(|arm| builder.arm(arm, &kinds)).collect();
    let arms = builder.with_prerequisites(arms);
    Ok(Plan {
        schema: SCHEMA,
        cluster: inventory.name.clone(),
        launcher: inventory.launcher.name().to_owned(),
        world: inventory.world(),
        places: builder.places(),
        arms,
        not_run: builder.not_run,
    })
}

/// The words that were asked for, in the order of `known`; all of them where nothing was.
fn select<'k>(option: &str, asked: &[String], known: &[&'k str]) -> Result<Vec<&'k str>, Error> {
    if let Some(wrong) = asked.iter().find(|word| !known.contains(&word.as_str())) {
        let hint = match nearest(wrong, known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known: {}", known.join(", ")),
        };
        return Err(Error::Usage(format!("{option}: `{wrong}` is unknown; {hint}")));
    }
    let taken = |word: &&&str| asked.is_empty() || asked.iter().any(|a| a == **word);
    Ok(known.iter().filter(taken).copied().collect())
}

struct Builder<'i> {
    inventory: &'i Inventory,
    capabilities: &'i Capabilities,
    gpus: Vec<Option<u32>>,
    ports: Ports,
    not_run: Vec<NotRun>,
}

impl<'i> Builder<'i> {
    fn new(inventory: &'i Inventory, capabilities: &'i Capabilities, share_gpu: bool) -> Self {
        let facts = inventory.hosts.iter().all(|h| h.facts.is_some());
        let ports = match capabilities.rdma_ports {
            Some(true) | None => Ports::Real,
            Some(false) if facts => Ports::Model,
            Some(false) => Ports::Missing,
        };
        let gpus = backends::gpus(inventory, capabilities, share_gpu);
        Self {
            inventory,
            capabilities,
            gpus,
            ports,
            not_run: Vec::new(),
        }
    }

    /// The backends that can be used; one that was asked for by name and cannot is refused.
    fn backends(&mut self, wanted: &[&str], by_name: bool) -> Result<Vec<&'static Backend>, Error> {
        let mut out = Vec::new();
        for backend in BACKENDS.iter().filter(|b| wanted.contains(&b.name)) {
            match backends::obstacle(backend, self.inventory, self.capabilities, &self.gpus) {
                None => out.push(backend),
                Some(reason) if by_name => {
                    return Err(Error::Refused(format!(
                        "--backends: {} cannot run here: {reason}",
                        backend.name
                    )));
                }
                Some(reason) => self.leave_out(format!("backend {}", backend.name), reason),
            }
        }
        Ok(out)
    }

    fn leave_out(&mut self, what: String, reason: impl Into<String>) {
        self.not_run.push(NotRun {
            what,
            reason: reason.into(),
        });
    }

    /// Every step of an arm, in order.
    fn kinds(&mut self, backends: &[&Backend]) -> Vec<Kind> {
        let mut kinds = Vec::new();
        match self.ports {
            Ports::Real => kinds.push(commands::hca(false)),
            Ports::Model => kinds.push(commands::hca(true)),
            Ports::Missing => self.leave_out(
                "hca".into(),
                "the ranks have no RDMA port and the inventory names no `facts` files to pick on",
            ),
        }
        match backends::too_large(self.inventory.world(), backends::ROCE_HOST_WORLD_MAX) {
            None => kinds.push(commands::roce_host()),
            Some(reason) => self.leave_out("roce-host".into(), reason),
        }
        for backend in backends {
            kinds.push(commands::suite(backend));
            kinds.push(commands::bench(backend));
            if self.inventory.world() < 2 {
                let reason = "in a world of 1 nobody is left to notice";
                self.leave_out(format!("failfast-{}-*", backend.name), reason);
                continue;
            }
            for inject in INJECTIONS {
                for victim in 0..self.inventory.world() {
                    kinds.push(commands::failfast(backend, inject, victim, self.inventory));
                }
            }
        }
        kinds
    }

    fn arm(&self, arm: &str, kinds: &[Kind]) -> Arm {
        Arm {
            name: arm.to_owned(),
            steps: kinds.iter().map(|kind| self.step(arm, kind)).collect(),
        }
    }

    /// What several ranks prove on one GPU is a rehearsal, and the receipt says so.
    fn scope(&self, kind: &Kind) -> &'static str {
        let shared = (0..self.inventory.world()).any(|rank| self.shares_gpu(rank));
        if kind.scope == "gpu" && shared {
            "shared-gpu"
        } else {
            kind.scope
        }
    }

    /// Whether another rank of the same machine has this rank's GPU.
    fn shares_gpu(&self, rank: u32) -> bool {
        let place = |rank: u32| {
            let gpu = self.gpus.get(rank as usize).copied().flatten()?;
            let host = self.inventory.host_of(rank)?;
            // Hosts of the local launcher are one machine.
            let machine = (self.inventory.launcher != Launcher::Local).then_some(host.name.as_str());
            Some((machine, gpu))
        };
        let mine = place(rank);
        mine.is_some() && (0..self.inventory.world()).any(|other| other != rank && place(other) == mine)
    }

    fn step(&self, arm: &str, kind: &Kind) -> Step {
        Step {
            name: kind.name.clone(),
            scope: self.scope(kind).to_owned(),
            limit_ms: self
                .inventory
                .step_limit_ms
                .unwrap_or_else(|| kind.limit_ms.saturating_mul(self.ranks_per_cpu())),
            expect: kind.expect.clone(),
            added_because: None,
            commands: (0..self.inventory.world())
                .filter_map(|rank| self.command(arm, kind, rank))
                .collect(),
        }
    }

    /// How many ranks share a processor, at least 1: ranks that wait for their turn are slower and no less right. Hosts
    /// of the local launcher are one machine; of others the number of processors is not known.
    fn ranks_per_cpu(&self) -> u64 {
        let cpus = self.capabilities.cpus.unwrap_or(u32::MAX).max(1);
        u64::from(self.inventory.world().div_ceil(cpus).max(1))
    }

    fn command(&self, arm: &str, kind: &Kind, rank: u32) -> Option<Command> {
        let host = self.inventory.host_of(rank)?;
        let mut settings = host.env.clone();
        if let Some(gpu) = self.gpus.get(rank as usize).copied().flatten() {
            settings.insert("TF_TP_DEVICE".into(), gpu.to_string());
            // NCCL refuses two ranks on one GPU of one host; with names of their own they count as several hosts.
            if self.shares_gpu(rank) {
                let name = format!("{}-rank-{rank}", host.name);
                settings.entry("NCCL_HOSTID".into()).or_insert(name);
            }
        }
        let variables = arm_variables(arm, host, rank);
        let mut facts_env = None;
        match self.ports {
            Ports::Real => settings.extend(variables),
            Ports::Model if kind.scope == "model" => facts_env = Some(variables),
            Ports::Model | Ports::Missing => {}
        }
        let picked = self.ports == Ports::Real && kind.name != "hca";
        let master = commands::master(self.inventory, picked);
        let unset = HCA_VARIABLES.iter().filter(|name| !settings.contains_key(**name));
        Some(Command {
            rank,
            host: host.name.clone(),
            argv: commands::argv(self.inventory, rank, master, &kind.words),
            unset: unset.map(|name| (*name).to_owned()).collect(),
            settings,
            facts_env,
        })
    }

    /// Where a step needs the `none` arm's pick and that is not part of the selection, it is added in front.
    fn with_prerequisites(&self, mut arms: Vec<Arm>) -> Vec<Arm> {
        let needs = |arm: &Arm| arm.name != "none" && arm.steps.iter().any(|step| !step.symbols().is_empty());
        let needing: Vec<_> = arms
            .iter()
            .filter(|arm| needs(arm))
            .map(|arm| arm.name.clone())
            .collect();
        let none = arms.iter().position(|arm| arm.name == "none");
        let there = none.is_some_and(|i| arms[i].steps.iter().any(|step| step.name == "hca"));
        if needing.is_empty() || there {
            return arms;
        }
        let mut step = self.step("none", &commands::hca(self.ports == Ports::Model));
        step.added_because = Some(format!("its pick supplies the values of: {}", needing.join(", ")));
        match none {
            Some(index) => arms[index].steps.insert(0, step),
            None => arms.insert(
                0,
                Arm {
                    name: "none".into(),
                    steps: vec![step],
                },
            ),
        }
        arms
    }

    fn places(&self) -> Vec<Place> {
        let place = |rank: u32| {
            let host = self.inventory.host_of(rank)?;
            Some(Place {
                rank,
                host: host.name.clone(),
                via: via(self.inventory.launcher, host),
                gpu: self.gpus.get(rank as usize).copied().flatten(),
                facts: host.facts.clone().filter(|_| self.ports == Ports::Model),
            })
        };
        (0..self.inventory.world()).filter_map(place).collect()
    }
}

/// What the arm sets on a host: the inventory's values, else the `none` arm's pick.
fn arm_variables(arm: &str, host: &Host, rank: u32) -> BTreeMap<String, String> {
    let mut variables = host.arms.get(arm).cloned().unwrap_or_default();
    let derived = match arm {
        "nccl" => Some(("NCCL_IB_HCA", "nccl_ib_hca")),
        "roce" => Some(("TF_TP_ROCE_HCA", "tf_tp_roce_hca")),
        _ => None,
    };
    if let Some((variable, field)) = derived {
        variables
            .entry(variable.to_owned())
            .or_insert_with(|| symbol::pick(rank, field));
    }
    variables
}

fn via(launcher: Launcher, host: &Host) -> String {
    match launcher {
        Launcher::Local => "this machine".to_owned(),
        Launcher::Slurm => "srun".to_owned(),
        Launcher::Ssh => {
            let user = host.user.as_ref().map_or(String::new(), |u| format!("{u}@"));
            let port = host.port.map_or(String::new(), |p| format!(" port {p}"));
            format!("ssh {user}{}{port}", host.ssh.as_ref().unwrap_or(&host.name))
        }
    }
}
