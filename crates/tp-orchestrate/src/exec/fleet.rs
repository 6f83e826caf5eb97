//! The hosts of a run, ready: reached, checked, with the runner that is meant, and asked what they can do.

use super::{Runner, capabilities, check_machine, find_runner, merged};
use crate::Error;
use crate::deploy::{self, Bring, Member, Runners};
use crate::host::ssh::{self, HostKeys};
use crate::host::{Allocation, Host, LocalHost, SlurmHost, SshHost};
use crate::inventory::{self, Gpus, Inventory, Launcher};
use crate::machine::{Identity, Relation};
use crate::plan::Capabilities;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How far a host's wall clock may be off before it is said. Nothing is measured with it.
const SKEW_SAID_S: f64 = 5.0;

/// The hosts of a run.
pub struct Fleet {
    /// By the inventory's name.
    pub hosts: BTreeMap<String, Arc<dyn Host>>,
    /// The runner on each.
    pub runners: BTreeMap<String, Runner>,
    /// What all of them can do together.
    pub capabilities: Capabilities,
    /// What ought to be looked at and stops nothing, one line each.
    pub notes: Vec<String>,
}

impl Fleet {
    /// Refuses an inventory that lists GPUs which a host has not: a run without them would prove less than was asked for,
    /// and pass.
    ///
    /// # Errors
    /// Refused, with a line for every such host.
    pub fn has_the_gpus_of(&self, inventory: &Inventory) -> Result<(), Error> {
        let lines: Vec<String> = inventory
            .hosts
            .iter()
            .filter_map(|host| missing_gpus(host, &self.capabilities))
            .collect();
        match lines.is_empty() {
            true => Ok(()),
            false => Err(Error::Refused(lines.join("\n"))),
        }
    }

    /// Reaches and prepares every host.
    ///
    /// # Errors
    /// Refused, with a line for every host that cannot be used.
    pub fn open(inventory: &Inventory, runner: &[PathBuf], bring: Bring) -> Result<Self, Error> {
        match inventory.launcher {
            Launcher::Local => Self::local(inventory, runner),
            Launcher::Ssh => Self::ssh(inventory, runner, bring),
            Launcher::Slurm => Self::slurm(inventory, runner),
        }
    }

    fn local(inventory: &Inventory, runner: &[PathBuf]) -> Result<Self, Error> {
        check_machine(inventory)?;
        let path = find_runner(runner.first().map(PathBuf::as_path))?;
        let here = LocalHost::new("this machine", &path);
        let runner = Runner::ask(&here, &[])?;
        let capabilities = capabilities(&here, &[])?;
        let names = || inventory.hosts.iter().map(|host| host.name.clone());
        let host = |name: String| -> (String, Arc<dyn Host>) {
            (name.clone(), Arc::new(LocalHost::new(name, &path)))
        };
        Ok(Self {
            hosts: names().map(host).collect(),
            runners: names().map(|name| (name, runner.clone())).collect(),
            capabilities,
            notes: Vec::new(),
        })
    }

    /// The nodes see this machine's files, the runner among them.
    fn slurm(inventory: &Inventory, runner: &[PathBuf]) -> Result<Self, Error> {
        let path = find_runner(runner.first().map(PathBuf::as_path))?;
        let allocation = Allocation::get(inventory).map_err(|e| Error::Refused(e.to_string()))?;
        let mut hosts: BTreeMap<String, Arc<dyn Host>> = BTreeMap::new();
        let (mut runners, mut able) = (BTreeMap::new(), Vec::new());
        for entry in &inventory.hosts {
            let host = SlurmHost::new(&entry.name, &path, Arc::clone(&allocation));
            runners.insert(entry.name.clone(), Runner::ask(&host, &entry.run_prefix)?);
            able.push((entry.name.clone(), capabilities(&host, &entry.run_prefix)?));
            hosts.insert(entry.name.clone(), Arc::new(host));
        }
        same_revision(&runners)?;
        Ok(Self {
            hosts,
            runners,
            capabilities: merged(&able),
            notes: Vec::new(),
        })
    }

    fn ssh(inventory: &Inventory, runner: &[PathBuf], bring: Bring) -> Result<Self, Error> {
        let meant = Runners::meant(inventory, runner)?;
        let hosts = reach(inventory, HostKeys::Known)?;
        let members = deploy::members(inventory, &hosts);
        let mut notes = skews(&members);
        meant.settle(&members, bring)?;
        let asked = deploy::each(&members, |member| {
            let host: &dyn Host = member.ssh.as_ref();
            let prefix = &member.entry.run_prefix;
            Ok(Runner::ask(host, prefix).and_then(|runner| Ok((runner, capabilities(host, prefix)?))))
        });
        let mut runners = BTreeMap::new();
        let mut able = Vec::new();
        let mut bad = Vec::new();
        for (member, asked) in members.iter().zip(deploy::all(asked)?) {
            match asked {
                Ok((runner, can)) => {
                    runners.insert(member.entry.name.clone(), runner);
                    able.push((member.entry.name.clone(), can));
                }
                Err(error) => bad.push(error.to_string()),
            }
        }
        if !bad.is_empty() {
            return Err(Error::Refused(bad.join("\n")));
        }
        same_revision(&runners)?;
        notes.extend(super::leftovers::notes(&members));
        let dynamic = |host: Arc<SshHost>| -> (String, Arc<dyn Host>) { (host.name().to_owned(), host) };
        Ok(Self {
            hosts: hosts.into_iter().map(dynamic).collect(),
            runners,
            capabilities: merged(&able),
            notes,
        })
    }

    /// What is known of each host's runner before the first rank speaks.
    pub fn versions(&self) -> BTreeMap<String, Vec<(String, String)>> {
        self.runners
            .iter()
            .map(|(name, runner)| (name.clone(), runner.versions()))
            .collect()
    }
}

/// Logs in to every host and makes sure that each is the machine that is meant.
///
/// # Errors
/// Refused, with a line for every host that cannot be used.
pub fn reach(inventory: &Inventory, keys: HostKeys) -> Result<Vec<Arc<SshHost>>, Error> {
    let options = ssh::Options { keys, limit: None };
    let hosts = deploy::all(ssh::connect(inventory, &options))?;
    let members = deploy::members(inventory, &hosts);
    let mut bad: Vec<String> = members.iter().filter_map(wrong_machine).collect();
    for (index, one) in hosts.iter().enumerate() {
        let same = |other: &&Arc<SshHost>| identity(other).relation(identity(one)) == Relation::OneHost;
        if let Some(other) = hosts[..index].iter().find(same) {
            bad.push(format!(
                "hosts {} and {} are one machine under two names; give one [[host]] more `gpus` or `ranks` instead",
                other.name(),
                one.name()
            ));
        }
    }
    if bad.is_empty() {
        Ok(hosts)
    } else {
        Err(Error::Refused(bad.join("\n")))
    }
}

fn identity(host: &SshHost) -> Identity<'_> {
    Identity::parse(&host.about().boot_id)
}

fn wrong_machine(member: &Member<'_>) -> Option<String> {
    let (entry, about) = (member.entry, member.ssh.about());
    if let Some(wanted) = &entry.machine_id {
        let found = about.machine_id.as_deref().unwrap_or("none");
        if !found.eq_ignore_ascii_case(wanted) {
            return Some(format!(
                "host {}: the inventory says machine_id {wanted}, the machine that answers has {found}: it is another one, or \
                 was installed anew; correct the inventory",
                entry.name
            ));
        }
    }
    let wanted = entry.system.as_ref().filter(|system| **system != about.system)?;
    Some(format!(
        "host {}: the inventory says system {wanted}, the machine that answers is {}",
        entry.name, about.system
    ))
}

fn skews(members: &[Member<'_>]) -> Vec<String> {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or(Duration::ZERO)
        .as_secs_f64();
    let skew = |member: &Member<'_>| {
        let off = member.ssh.about().clock_s - now;
        (off.abs() > SKEW_SAID_S).then(|| {
            format!(
                "host {}: its clock is {:.0} s {} this machine's; nothing is measured with it, logs will look odd",
                member.entry.name,
                off.abs(),
                if off > 0.0 { "ahead of" } else { "behind" }
            )
        })
    };
    members.iter().filter_map(skew).collect()
}

/// What a host lacks of the GPUs that the inventory lists for it.
fn missing_gpus(host: &inventory::Host, capabilities: &Capabilities) -> Option<String> {
    let Gpus::Listed(listed) = &host.gpus else {
        return None;
    };
    // Of the local launcher all hosts are this machine.
    let there = capabilities
        .host_gpus
        .get(&host.name)
        .copied()
        .or(capabilities.gpus)?;
    let missing: Vec<String> = listed
        .iter()
        .filter(|gpu| **gpu >= there)
        .map(u32::to_string)
        .collect();
    if missing.is_empty() {
        return None;
    }
    Some(format!(
        "host {}: the inventory lists GPU {}, and {}; look at nvidia-smi -L there, or correct `gpus`",
        host.name,
        missing.join(", "),
        match there {
            0 => "the runner finds none".to_owned(),
            there => format!("the runner finds {there}, from 0 on"),
        }
    ))
}

/// Runners for different systems have different hashes; their source must be one.
fn same_revision(runners: &BTreeMap<String, Runner>) -> Result<(), Error> {
    let mut said: BTreeMap<&[String], Vec<&str>> = BTreeMap::new();
    for (host, runner) in runners {
        said.entry(&runner.version).or_default().push(host);
    }
    if said.len() <= 1 {
        return Ok(());
    }
    let lines = said
        .iter()
        .map(|(version, hosts)| format!("{}: {}", hosts.join(", "), version.join(", ")));
    Err(Error::Refused(format!(
        "the runners are not of one source:\n{}",
        lines.collect::<Vec<_>>().join("\n")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_that_are_listed_and_not_there_are_named_by_host() {
        let text = "schema = 1\n[cluster]\nname = \"c\"\nlauncher = \"local\"\n\
                    [[host]]\nname = \"a\"\ngpus = [0, 2]\n[[host]]\nname = \"b\"\ngpus = []\nranks = 1\n";
        let inventory = Inventory::parse("x.toml", text, std::path::Path::new(".")).unwrap();
        let with = |gpus: Option<u32>| {
            let mut capabilities = Capabilities::unknown();
            capabilities.gpus = gpus;
            let lacks = |host| missing_gpus(host, &capabilities);
            inventory.hosts.iter().filter_map(lacks).collect::<Vec<_>>()
        };
        assert_eq!(with(Some(3)), [""; 0]);
        // Nobody was asked: the inventory is believed.
        assert_eq!(with(None), [""; 0]);
        let none = with(Some(0));
        assert!(
            none.len() == 1 && none[0].contains("host a: the inventory lists GPU 0, 2"),
            "{none:?}"
        );
        assert!(with(Some(2))[0].contains("lists GPU 2, and the runner finds 2"));
    }
}
