//! The runner that is meant on every host: how it gets there, where it is, and the proof that it is that one.

use super::{Artifact, Artifacts, Member, Sent, There, all, each, look, nix, put, verify};
use crate::Error;
use crate::host::{Fault, Host, HostError, SshHost};
use crate::inventory::{Deploy, Inventory};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// What becomes of a runner that is not on a host yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bring {
    /// It is brought there, in the way that the inventory names.
    Missing,
    /// The host is refused: a dry run changes nothing.
    Nothing,
}

/// The runners that are meant.
#[derive(Clone, Debug)]
pub struct Runners {
    how: Deploy,
    flake: Option<String>,
    /// What the hosts' hashes are compared with; none where they are compared with each other.
    artifacts: Option<Artifacts>,
}

impl Runners {
    /// What the inventory and `--runner` say.
    ///
    /// # Errors
    /// Refused: there is no such runner here, or none that can be brought in the way that the inventory names.
    pub fn meant(inventory: &Inventory, named: &[PathBuf]) -> Result<Self, Error> {
        check_here(inventory)?;
        let artifacts = match inventory.deploy {
            Deploy::Preinstalled | Deploy::NixBuild if named.is_empty() => None,
            _ => Some(Artifacts::find(named)?),
        };
        if inventory.deploy == Deploy::NixCopy {
            for artifact in artifacts.iter().flat_map(Artifacts::iter) {
                nix::check_artifact(artifact)?;
            }
        }
        Ok(Self {
            how: inventory.deploy,
            flake: inventory.flake.clone(),
            artifacts,
        })
    }

    /// Where it is on a host once it has been brought there; none where the host's PATH says.
    ///
    /// # Errors
    /// Refused: there is none for the host's system.
    pub fn path_on(&self, host: &SshHost) -> Result<Option<String>, Error> {
        let artifact = || match &self.artifacts {
            Some(artifacts) => artifacts.for_host(host).map(Some),
            None => Ok(None),
        };
        Ok(match self.how {
            Deploy::Preinstalled => None,
            Deploy::Push => artifact()?.map(|artifact| artifact.path_on(&host.about().dir)),
            Deploy::NixCopy => artifact()?.map(|artifact| artifact.path.display().to_string()),
            Deploy::NixBuild => self.flake.as_ref().map(|flake| nix::runner_of(host, flake)),
        })
    }

    /// Says on every host where its runner is, bringing it there where it is missing and may be, and compares its hash.
    /// Gives what was sent to each, and the hash of what is there.
    ///
    /// # Errors
    /// Refused, with a line for every host on which it is not, or is another one.
    pub fn settle(&self, members: &[Member<'_>], bring: Bring) -> Result<Vec<(Sent, String)>, Error> {
        let mut chosen: Vec<Option<&Artifact>> = Vec::new();
        for member in members {
            chosen.push(match &self.artifacts {
                Some(artifacts) => Some(artifacts.for_host(&member.ssh)?),
                None => None,
            });
            if let Some(path) = self.path_on(&member.ssh)? {
                member.ssh.set_runner(path);
            }
        }
        let settled = all(each(members, |member| {
            let index = members
                .iter()
                .position(|other| Arc::ptr_eq(&other.ssh, &member.ssh));
            let artifact = chosen[index.unwrap_or_default()];
            let sent = self.bring(&member.ssh, artifact, bring)?;
            let found = member.ssh.runner_sha256()?;
            if let Some(artifact) = artifact {
                verify(&member.ssh, artifact, &found)?;
            }
            Ok((sent, found))
        }))?;
        if self.how == Deploy::NixBuild {
            agree(members, &settled)?;
        }
        Ok(settled)
    }

    fn bring(&self, host: &SshHost, artifact: Option<&Artifact>, bring: Bring) -> Result<Sent, HostError> {
        let there = match (self.how, artifact, &self.flake, bring) {
            (Deploy::Push, Some(artifact), _, Bring::Missing) => return put(host, artifact),
            (Deploy::Push, Some(artifact), ..) => look(host, artifact)? == There::Whole,
            (Deploy::NixCopy, Some(artifact), _, Bring::Missing) => return nix::copy(host, artifact),
            (Deploy::NixCopy, Some(artifact), ..) => nix::is_there(host, artifact)?,
            (Deploy::NixBuild, _, Some(flake), Bring::Missing) => return nix::build(host, flake),
            (Deploy::NixBuild, _, Some(flake), _) => nix::is_built(host, flake).is_ok(),
            _ => true,
        };
        if there {
            return Ok(Sent::nothing());
        }
        Err(HostError {
            host: host.name().to_owned(),
            what: "find the runner there: push it first (tp-orchestrate push)".to_owned(),
            fault: Fault::Other,
        })
    }
}

/// Refuses at once, before a host is asked, what this machine cannot do.
///
/// # Errors
/// Refused: `nix-copy` without Nix.
pub fn check_here(inventory: &Inventory) -> Result<(), Error> {
    match inventory.deploy {
        Deploy::NixCopy => nix::check_here(),
        Deploy::Push | Deploy::NixBuild | Deploy::Preinstalled => Ok(()),
    }
}

/// Hosts of one system must have built the same file.
fn agree(members: &[Member<'_>], settled: &[(Sent, String)]) -> Result<(), Error> {
    let mut built: BTreeMap<&str, BTreeMap<&str, Vec<&str>>> = BTreeMap::new();
    for (member, (_, hash)) in members.iter().zip(settled) {
        let by_hash = built.entry(&member.ssh.about().system).or_default();
        by_hash.entry(hash).or_default().push(member.ssh.name());
    }
    let differs = built.iter().find(|(_, by_hash)| by_hash.len() > 1);
    let Some((system, by_hash)) = differs else {
        return Ok(());
    };
    let lines = by_hash
        .iter()
        .map(|(hash, hosts)| format!("{}: {hash}", hosts.join(", ")));
    Err(Error::Refused(format!(
        "the {system} hosts built different runners of one flake; name a revision in `flake`:\n{}",
        lines.collect::<Vec<_>>().join("\n")
    )))
}
