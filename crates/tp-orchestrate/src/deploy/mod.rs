//! Bringing the runner to the hosts, and proving that it is the one that is meant.
//!
//! However a runner gets to a host, its hash is compared there before a rank starts ([`Runners::settle`]); a content-addressed
//! path means that a running program is never written to.

mod artifact;
mod chain;
mod nix;
mod prune;
mod put;
mod relay;
mod runners;

pub use artifact::Artifact;
pub use prune::{Pruned, prune};
pub use put::{Sent, There, look, put};
pub use relay::spread;
pub use runners::{Bring, Runners, check_here};

use crate::Error;
use crate::host::{Host, HostError, SshHost};
use crate::inventory::{self, Inventory};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The runner's file name.
pub const RUNNER: &str = "tf-tp-test";

/// The runners at hand, by system.
#[derive(Clone, Debug, Default)]
pub struct Artifacts(BTreeMap<String, Artifact>);

impl Artifacts {
    /// Those named; else the one beside this program, and beside it `tf-tp-test-SYSTEM` for other systems.
    ///
    /// # Errors
    /// A file that was named cannot be read or is no program; two are for one system; none is there.
    pub fn find(named: &[PathBuf]) -> Result<Self, Error> {
        let mut found = BTreeMap::new();
        for path in if named.is_empty() {
            beside()?
        } else {
            named.to_vec()
        } {
            let path = crate::exec::find_runner(Some(&path))?;
            let artifact = Artifact::read(&path)?;
            let system = artifact.system.clone().unwrap_or_else(own_system);
            // Its name on the hosts is always the same.
            let artifact = Artifact {
                name: RUNNER.to_owned(),
                ..artifact
            };
            if let Some(other) = found.insert(system.clone(), artifact) {
                return Err(Error::Usage(format!(
                    "--runner: {} and {} are both for {system}",
                    other.path.display(),
                    path.display()
                )));
            }
        }
        Ok(Self(found))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Artifact> {
        self.0.values()
    }

    /// The one for a system.
    pub fn of(&self, system: &str) -> Option<&Artifact> {
        self.0.get(system)
    }

    /// The one for a host.
    ///
    /// # Errors
    /// Refused: there is none for its system.
    pub fn for_host(&self, host: &SshHost) -> Result<&Artifact, Error> {
        let system = &host.about().system;
        self.of(system).ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            Error::Refused(format!(
                "host {} is {system} and there is a runner for {} only; build one for {system} and name both by --runner, or \
                 put it beside this program as {RUNNER}-{system}",
                host.name(),
                known.join(", ")
            ))
        })
    }
}

/// This machine's system.
pub fn own_system() -> String {
    format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS)
}

fn beside() -> Result<Vec<PathBuf>, Error> {
    let first = crate::exec::find_runner(None)?;
    let dir = first.parent().unwrap_or(Path::new(".")).to_owned();
    let mut others: Vec<PathBuf> = glob::glob(&format!("{}/{RUNNER}-*-linux", dir.display()))
        .map(|found| found.flatten().collect())
        .unwrap_or_default();
    others.insert(0, first);
    Ok(others)
}

/// A host and its part of the inventory.
#[derive(Clone, Debug)]
pub struct Member<'i> {
    /// The connection.
    pub ssh: Arc<SshHost>,
    /// What the inventory says.
    pub entry: &'i inventory::Host,
}

/// Pairs connections with the inventory's hosts, in its order.
pub fn members<'i>(inventory: &'i Inventory, hosts: &[Arc<SshHost>]) -> Vec<Member<'i>> {
    let member = |entry: &'i inventory::Host| {
        let ssh = hosts.iter().find(|host| host.name() == entry.name)?;
        Some(Member {
            ssh: Arc::clone(ssh),
            entry,
        })
    };
    inventory.hosts.iter().filter_map(member).collect()
}

/// Does something for every host at once; the results in the hosts' order.
pub fn each<'m, 'i, T: Send>(
    members: &'m [Member<'i>],
    work: impl Fn(&'m Member<'i>) -> Result<T, HostError> + Sync,
) -> Vec<Result<T, HostError>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = members
            .iter()
            .map(|member| scope.spawn(|| work(member)))
            .collect();
        let joined = threads.into_iter().zip(members).map(|(thread, member)| {
            thread.join().unwrap_or_else(|_| {
                Err(HostError {
                    host: member.ssh.name().to_owned(),
                    what: "go on: a thread of this program ended".to_owned(),
                    fault: crate::host::Fault::Other,
                })
            })
        });
        joined.collect()
    })
}

/// All that went well, or one error that names every host on which it did not.
///
/// # Errors
/// Refused, with a line for every host.
pub fn all<T>(results: Vec<Result<T, HostError>>) -> Result<Vec<T>, Error> {
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for result in results {
        match result {
            Ok(value) => good.push(value),
            Err(error) => bad.push(error.to_string()),
        }
    }
    if bad.is_empty() {
        return Ok(good);
    }
    Err(Error::Refused(bad.join("\n")))
}

/// Refuses a host whose runner has another hash than the one that is meant.
fn verify(host: &SshHost, artifact: &Artifact, found: &str) -> Result<(), HostError> {
    if found == artifact.sha256 {
        return Ok(());
    }
    Err(HostError {
        host: host.name().to_owned(),
        what: format!(
            "find the runner that is meant: {} has the SHA-256 {found}, {} here has {}",
            host.runner().display(),
            artifact.path.display(),
            artifact.sha256
        ),
        fault: crate::host::Fault::Other,
    })
}
