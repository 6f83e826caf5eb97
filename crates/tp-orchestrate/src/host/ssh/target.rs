//! Where a host is and how to log in there: the inventory's words, completed by `~/.ssh/config`.

use super::config::{self, HostConfig, expand_home};
use super::known_hosts::KeyName;
use crate::inventory;
use std::path::{Path, PathBuf};

/// Hosts on the way, at most.
const JUMPS_MAX: usize = 8;
/// Identity files that are tried where none is named.
const DEFAULT_IDENTITIES: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];

/// The user's own SSH surroundings.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Home directory.
    pub home: PathBuf,
    /// The user's name on this machine.
    pub user: String,
    /// The agent's socket.
    pub agent: Option<PathBuf>,
    /// Configuration files, the first first.
    pub config: Vec<PathBuf>,
}

impl Surroundings {
    /// Those of this process: `HOME`, `SSH_AUTH_SOCK`, `~/.ssh/config` and `/etc/ssh/ssh_config`.
    ///
    /// # Errors
    /// The user has no home directory.
    pub fn of_user() -> Result<Self, String> {
        let home = std::env::home_dir()
            .filter(|home| home.is_absolute())
            .ok_or("find your home directory: HOME is not set")?;
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid())
            .ok()
            .flatten()
            .map(|user| user.name)
            .or_else(|| std::env::var("USER").ok())
            .unwrap_or_else(|| "root".to_owned());
        Ok(Self {
            config: vec![home.join(".ssh/config"), PathBuf::from("/etc/ssh/ssh_config")],
            home,
            user,
            agent: std::env::var_os("SSH_AUTH_SOCK")
                .filter(|s| !s.is_empty())
                .map(PathBuf::from),
        })
    }
}

/// A host to connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// What messages call it.
    pub name: String,
    /// Host name or address.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// User to log in as.
    pub user: String,
    /// Under which its key is kept.
    pub key_name: KeyName,
    /// Identity files that are there or were named.
    pub identities: Vec<PathBuf>,
    /// Whether they were named.
    pub named: bool,
    /// Keys of the agent that are no identity file are not offered.
    pub identities_only: bool,
    /// The agent's socket.
    pub agent: Option<PathBuf>,
    /// Files of known keys; a new key is added to the first.
    pub known_hosts: Vec<PathBuf>,
    /// Hosts to go through, the nearest first.
    pub jumps: Vec<Target>,
}

impl Target {
    /// The host of an inventory.
    ///
    /// # Errors
    /// The SSH configuration cannot be read or asks for what is not supported; what failed, for a [`super::HostError`].
    pub fn of_host(host: &inventory::Host, around: &Surroundings) -> Result<Self, String> {
        let alias = host.ssh.as_deref().unwrap_or(&host.name);
        let given = Given {
            user: host.user.clone(),
            port: host.port,
            identity: host.identity.clone(),
        };
        resolve(&host.name, alias, given, around, 0)
    }

    /// `USER@HOST port PORT`, as people say it.
    pub fn place(&self) -> String {
        let port = if self.port == 22 {
            String::new()
        } else {
            format!(" port {}", self.port)
        };
        format!("{}@{}{port}", self.user, self.host)
    }
}

#[derive(Default)]
struct Given {
    user: Option<String>,
    port: Option<u16>,
    identity: Option<String>,
}

fn resolve(
    name: &str,
    alias: &str,
    given: Given,
    around: &Surroundings,
    depth: usize,
) -> Result<Target, String> {
    let alias = alias.trim_start_matches('[').trim_end_matches(']');
    let found = config::lookup(alias, &around.config, &around.home)?;
    if let Some(command) = found.proxy_command.as_ref().filter(|c| *c != "none") {
        return Err(format!(
            "follow the SSH configuration of {alias}: `ProxyCommand {command}` is not supported; say it by ProxyJump"
        ));
    }
    let user = given
        .user
        .or(found.user.clone())
        .unwrap_or_else(|| around.user.clone());
    let host_name = found.host_name.clone().unwrap_or_else(|| alias.to_owned());
    let host = host_name.replace("%%", "%").replace("%h", alias);
    let port = given.port.or(found.port).unwrap_or(22);
    let tokens = Tokens {
        around,
        host: &host,
        user: &user,
        port,
    };
    let named: Vec<String> = given
        .identity
        .into_iter()
        .chain(found.identity_files.clone())
        .collect();
    let identities = if named.is_empty() {
        let all = DEFAULT_IDENTITIES
            .iter()
            .map(|file| around.home.join(".ssh").join(file));
        all.filter(|path| path.exists()).collect()
    } else {
        named.iter().map(|path| tokens.path(path)).collect()
    };
    let agent = match found.identity_agent.as_deref() {
        None | Some("SSH_AUTH_SOCK") => around.agent.clone(),
        Some("none") => None,
        Some(path) => Some(tokens.path(path)),
    };
    Ok(Target {
        name: name.to_owned(),
        key_name: KeyName {
            host: found.host_key_alias.clone().unwrap_or_else(|| host.clone()),
            port: if found.host_key_alias.is_some() { 22 } else { port },
        },
        named: !named.is_empty(),
        identities,
        identities_only: found.identities_only.unwrap_or(false),
        agent,
        known_hosts: known_hosts(&found, &tokens),
        jumps: jumps(&found, around, depth)?,
        host,
        port,
        user,
    })
}

fn known_hosts(found: &HostConfig, tokens: &Tokens<'_>) -> Vec<PathBuf> {
    let ssh = tokens.around.home.join(".ssh");
    let paths = |list: &Option<Vec<String>>, default: Vec<PathBuf>| match list {
        Some(list) => list
            .iter()
            .filter(|p| *p != "none")
            .map(|p| tokens.path(p))
            .collect(),
        None => default,
    };
    let mut out = paths(
        &found.user_known_hosts,
        vec![ssh.join("known_hosts"), ssh.join("known_hosts2")],
    );
    let system = ["/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"];
    out.extend(paths(
        &found.global_known_hosts,
        system.iter().map(PathBuf::from).collect(),
    ));
    out
}

fn jumps(found: &HostConfig, around: &Surroundings, depth: usize) -> Result<Vec<Target>, String> {
    let Some(list) = found
        .proxy_jump
        .as_deref()
        .filter(|j| !j.is_empty() && *j != "none")
    else {
        return Ok(Vec::new());
    };
    if depth >= JUMPS_MAX {
        return Err(format!(
            "follow ProxyJump: more than {JUMPS_MAX} hosts, or a circle"
        ));
    }
    let mut out: Vec<Target> = Vec::new();
    for jump in list.split(',') {
        let jump = jump.trim().trim_start_matches("ssh://").trim_end_matches('/');
        let (user, place) = match jump.rsplit_once('@') {
            Some((user, place)) => (Some(user.to_owned()), place),
            None => (None, jump),
        };
        let (host, port) = split_port(place)?;
        let given = Given {
            user,
            port,
            identity: None,
        };
        let next = resolve(&format!("jump host {host}"), host, given, around, depth + 1)?;
        // The first one may itself be reached through others.
        if out.is_empty() {
            out.extend(next.jumps.iter().cloned());
        }
        out.push(Target {
            jumps: Vec::new(),
            ..next
        });
    }
    Ok(out)
}

/// `host`, `host:port`, `[v6]`, `[v6]:port`, or a bare IPv6 address.
fn split_port(text: &str) -> Result<(&str, Option<u16>), String> {
    let wrong = || format!("follow ProxyJump: `{text}` has no port that is one");
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or_else(wrong)?;
        return match after.strip_prefix(':') {
            Some(port) => Ok((host, Some(port.parse().map_err(|_| wrong())?))),
            None => Ok((host, None)),
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => Ok((host, Some(port.parse().map_err(|_| wrong())?))),
        _ => Ok((text, None)),
    }
}

/// What `%` stands for in paths.
struct Tokens<'a> {
    around: &'a Surroundings,
    host: &'a str,
    user: &'a str,
    port: u16,
}

impl Tokens<'_> {
    fn path(&self, text: &str) -> PathBuf {
        let mut out = String::new();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            match chars.next() {
                Some('h') => out.push_str(self.host),
                Some('r') => out.push_str(self.user),
                Some('u') => out.push_str(&self.around.user),
                Some('d') => out.push_str(&self.around.home.display().to_string()),
                Some('p') => out.push_str(&self.port.to_string()),
                Some('%') | None => out.push('%'),
                Some(other) => out.extend(['%', other]),
            }
        }
        let path = expand_home(&out, &self.around.home);
        if path.is_relative() {
            return std::path::absolute(&path).unwrap_or(path);
        }
        path
    }
}

/// Whether a private key's file is protected by a passphrase, as far as its text says so.
pub fn has_passphrase(path: &Path) -> bool {
    let Ok(text) = std::fs::read_to_string(path) else {
        return false;
    };
    if text.contains("ENCRYPTED") {
        return true;
    }
    // In OpenSSH's own format the name of the cipher stands first: "none" is the one that protects nothing.
    let Some(body) = text.split("OPENSSH PRIVATE KEY-----").nth(1) else {
        return false;
    };
    !body.trim_start().starts_with("b3BlbnNzaC1rZXktdjEAAAAABG5vbmU")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn around(dir: &Path, text: &str) -> Surroundings {
        std::fs::create_dir_all(dir.join(".ssh")).unwrap();
        std::fs::write(dir.join(".ssh/config"), text).unwrap();
        Surroundings {
            home: dir.to_owned(),
            user: "me".into(),
            agent: None,
            config: vec![dir.join(".ssh/config")],
        }
    }

    fn host(text: &str) -> inventory::Host {
        let text = format!("schema = 1\n[cluster]\nname = \"c\"\n[[host]]\nname = \"a\"\n{text}");
        inventory::Inventory::parse("x.toml", &text, Path::new("."))
            .unwrap()
            .hosts
            .remove(0)
    }

    #[test]
    fn the_inventory_wins_over_the_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let around = around(
            dir.path(),
            "Host a\n HostName %h.example\n User cfg\n Port 2222\n IdentityFile ~/.ssh/%r-key\n UserKnownHostsFile ~/kh\n",
        );
        let target = Target::of_host(&host(""), &around).unwrap();
        assert_eq!(target.place(), "cfg@a.example port 2222");
        assert_eq!(target.identities, [dir.path().join(".ssh/cfg-key")]);
        assert_eq!(target.known_hosts[0], dir.path().join("kh"));
        assert_eq!(target.key_name.text(), "[a.example]:2222");
        let target = Target::of_host(&host("user = \"inv\"\nport = 23\n"), &around).unwrap();
        assert_eq!(target.place(), "inv@a.example port 23");
    }

    #[test]
    fn jumps_come_in_order_and_a_circle_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let text = "Host a\n ProxyJump one,bob@[2001:db8::2]:2200\nHost one\n HostName 192.0.2.1\n ProxyJump outer\n";
        let target = Target::of_host(&host(""), &around(dir.path(), text)).unwrap();
        let places: Vec<String> = target.jumps.iter().map(Target::place).collect();
        assert_eq!(places, ["me@outer", "me@192.0.2.1", "bob@2001:db8::2 port 2200"]);
        let text = "Host a\n ProxyJump b\nHost b\n ProxyJump a\n";
        assert!(
            Target::of_host(&host(""), &around(dir.path(), text))
                .unwrap_err()
                .contains("circle")
        );
        let text = "Host a\n ProxyCommand nc %h %p\n";
        let error = Target::of_host(&host(""), &around(dir.path(), text)).unwrap_err();
        assert!(error.contains("ProxyJump"), "{error}");
    }
}
