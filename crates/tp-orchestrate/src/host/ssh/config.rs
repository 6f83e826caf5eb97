//! The part of `~/.ssh/config` that says how a host is reached: `HostName`, `User`, `Port`, `IdentityFile`,
//! `IdentitiesOnly`, `IdentityAgent`, `ProxyJump`, `UserKnownHostsFile`, `GlobalKnownHostsFile`, `HostKeyAlias`, in `Host`
//! and `Match all|host|originalhost` blocks, with `Include`.
//!
//! As OpenSSH reads it, the first value found for a key counts, but for `IdentityFile`, of which all do. A `Match` whose
//! conditions this program cannot judge never applies. `ProxyCommand` is refused where it would be used: going another
//! way than `ssh` does would reach another machine, or none.

use super::pattern;
use std::path::{Path, PathBuf};

/// How deep `Include` may go.
const INCLUDE_DEPTH_MAX: u32 = 16;

/// What the configuration says of one host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostConfig {
    /// The name or address to connect to.
    pub host_name: Option<String>,
    /// User to log in as.
    pub user: Option<String>,
    /// TCP port.
    pub port: Option<u16>,
    /// Identity files, in order.
    pub identity_files: Vec<String>,
    /// Only the identity files, not every key of the agent.
    pub identities_only: Option<bool>,
    /// The agent's socket; `none` for no agent.
    pub identity_agent: Option<String>,
    /// Hosts to go through, separated by commas; `none` for a direct connection.
    pub proxy_jump: Option<String>,
    /// A command to connect through, which is not supported.
    pub proxy_command: Option<String>,
    /// Files of known host keys.
    pub user_known_hosts: Option<Vec<String>>,
    /// The system's files of known host keys.
    pub global_known_hosts: Option<Vec<String>>,
    /// The name under which the host's key is kept.
    pub host_key_alias: Option<String>,
}

/// Reads what the files say of `alias`; files that are not there say nothing.
///
/// # Errors
/// A file that is there cannot be read, or a line of it cannot be understood: file, line and what is wrong.
pub fn lookup(alias: &str, files: &[PathBuf], home: &Path) -> Result<HostConfig, String> {
    let mut reader = Reader {
        alias,
        home,
        out: HostConfig::default(),
    };
    for file in files {
        if file.exists() {
            reader.file(file, 0)?;
        }
    }
    Ok(reader.out)
}

struct Reader<'a> {
    alias: &'a str,
    home: &'a Path,
    out: HostConfig,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, depth: u32) -> Result<(), String> {
        let text = std::fs::read_to_string(path)
            .map_err(|e| format!("read the SSH configuration {}: {e}", path.display()))?;
        // Lines in front of the first Host or Match concern every host.
        let mut applies = true;
        for (index, line) in text.lines().enumerate() {
            let at = |what: String| format!("understand {}:{}: {what}", path.display(), index + 1);
            let words = words(line).map_err(at)?;
            let Some((key, values)) = words.split_first() else {
                continue;
            };
            match key.to_ascii_lowercase().as_str() {
                "host" => applies = matches_list(values, self.alias),
                "match" => applies = self.match_block(values),
                "include" if applies => self.include(path, values, depth)?,
                key if applies => self.key(key, values).map_err(at)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn match_block(&self, words: &[String]) -> bool {
        let resolved = self.out.host_name.as_deref().unwrap_or(self.alias);
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let lower = word.to_ascii_lowercase();
            let name = match lower.as_str() {
                "all" => continue,
                "host" => resolved,
                "originalhost" => self.alias,
                _ => return false,
            };
            let Some(patterns) = words.next() else {
                return false;
            };
            let patterns: Vec<String> = patterns.split(',').map(str::to_owned).collect();
            if !matches_list(&patterns, name) {
                return false;
            }
        }
        true
    }

    fn include(&mut self, from: &Path, patterns: &[String], depth: u32) -> Result<(), String> {
        if depth >= INCLUDE_DEPTH_MAX {
            return Err(format!(
                "follow the Include lines of {}: they go deeper than {INCLUDE_DEPTH_MAX} files",
                from.display()
            ));
        }
        for pattern in patterns {
            let path = expand_home(pattern, self.home);
            let path = if path.is_absolute() {
                path
            } else {
                self.home.join(".ssh").join(path)
            };
            let Ok(found) = glob::glob(&path.display().to_string()) else {
                continue;
            };
            for file in found.flatten() {
                self.file(&file, depth + 1)?;
            }
        }
        Ok(())
    }

    fn key(&mut self, key: &str, values: &[String]) -> Result<(), String> {
        let out = &mut self.out;
        let all = || (!values.is_empty()).then(|| values.to_vec());
        let first = || {
            values
                .first()
                .cloned()
                .ok_or_else(|| format!("`{key}` has no value"))
        };
        match key {
            "hostname" => set(&mut out.host_name, first()?),
            "user" => set(&mut out.user, first()?),
            "port" => {
                let text = first()?;
                let port = text.parse().ok().filter(|p| *p != 0);
                set(&mut out.port, port.ok_or_else(|| format!("`{text}` is no port"))?);
            }
            "identityfile" => out.identity_files.push(first()?),
            "identitiesonly" => set(&mut out.identities_only, first()?.eq_ignore_ascii_case("yes")),
            "identityagent" => set(&mut out.identity_agent, first()?),
            // The first of the two that is found decides, as in ssh.
            "proxyjump" if out.proxy_command.is_none() => set(&mut out.proxy_jump, values.join(",")),
            "proxycommand" if out.proxy_jump.is_none() => set(&mut out.proxy_command, values.join(" ")),
            "userknownhostsfile" if out.user_known_hosts.is_none() => out.user_known_hosts = all(),
            "globalknownhostsfile" if out.global_known_hosts.is_none() => out.global_known_hosts = all(),
            "hostkeyalias" => set(&mut out.host_key_alias, first()?),
            _ => {}
        }
        Ok(())
    }
}

fn set<T>(place: &mut Option<T>, value: T) {
    place.get_or_insert(value);
}

/// Whether a list of patterns takes a name: one of them does, and none with `!` in front.
fn matches_list(patterns: &[String], name: &str) -> bool {
    let mut taken = false;
    for pattern in patterns {
        match pattern.strip_prefix('!') {
            Some(pattern) if pattern::matches(pattern, name) => return false,
            Some(_) => {}
            None => taken |= pattern::matches(pattern, name),
        }
    }
    taken
}

/// The words of a line: key and value may be joined by `=`, values may stand in double quotes, `#` begins a comment.
fn words(line: &str) -> Result<Vec<String>, String> {
    let mut out: Vec<String> = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() && !rest.starts_with('#') {
        if let Some(quoted) = rest.strip_prefix('"') {
            let end = quoted.find('"').ok_or("a double quote is not closed")?;
            out.push(quoted[..end].to_owned());
            rest = &quoted[end + 1..];
        } else {
            let is_end = |c: char| c.is_whitespace() || (c == '=' && out.is_empty());
            let end = rest.find(is_end).unwrap_or(rest.len());
            out.push(rest[..end].to_owned());
            rest = &rest[end..];
        }
        rest = rest.trim_start();
        if out.len() == 1
            && let Some(value) = rest.strip_prefix('=')
        {
            rest = value.trim_start();
        }
    }
    Ok(out)
}

/// A path with `~/` in front as one of the home directory.
pub fn expand_home(path: &str, home: &Path) -> PathBuf {
    match path.strip_prefix("~/") {
        Some(rest) => home.join(rest),
        None => PathBuf::from(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(alias: &str, text: &str) -> HostConfig {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        std::fs::write(&file, text).unwrap();
        lookup(alias, &[file], dir.path()).unwrap()
    }

    #[test]
    fn the_first_value_counts_and_identity_files_add_up() {
        let text = "IdentityFile ~/.ssh/first\n# a comment\nHost spark-* !spark-z\n  HostName=192.0.2.7 # behind\n  Port = 2222\n\
                    \tUser \"alice\"\n  IdentityFile \"/keys/my key\"\nHost *\n  User bob\n  Port 22\n  ProxyJump jump.example,10.0.0.1:2200\n";
        let got = look("spark-a", text);
        assert_eq!(got.host_name.as_deref(), Some("192.0.2.7"));
        assert_eq!((got.user.as_deref(), got.port), (Some("alice"), Some(2222)));
        assert_eq!(got.identity_files, ["~/.ssh/first", "/keys/my key"]);
        assert_eq!(got.proxy_jump.as_deref(), Some("jump.example,10.0.0.1:2200"));
        let other = look("spark-z", text);
        assert_eq!((other.user.as_deref(), other.port), (Some("bob"), Some(22)));
        assert_eq!(other.host_name, None);
    }

    #[test]
    fn a_match_that_cannot_be_judged_never_applies() {
        let text = "Host a\n  User one\nMatch exec \"test -e /x\"\n  HostName wrong\n  Port 1\nMatch originalhost a\n  Port 7\n\
                    Match all\n  HostKeyAlias k\n";
        let got = look("a", text);
        assert_eq!((got.host_name.as_deref(), got.port), (None, Some(7)));
        assert_eq!(got.host_key_alias.as_deref(), Some("k"));
        assert_eq!(look("b", text).port, None);
    }

    #[test]
    fn includes_are_read_within_their_block() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join(".ssh/conf.d")).unwrap();
        std::fs::write(dir.path().join(".ssh/conf.d/a.conf"), "Host a\n User alice\n").unwrap();
        let file = dir.path().join("config");
        std::fs::write(&file, "Include conf.d/*.conf\nHost a\nUser bob\n").unwrap();
        let got = lookup("a", &[file], dir.path()).unwrap();
        assert_eq!(got.user.as_deref(), Some("alice"));
    }

    #[test]
    fn a_line_that_is_wrong_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config");
        std::fs::write(&file, "Host a\n Port many\n").unwrap();
        let error = lookup("a", std::slice::from_ref(&file), dir.path()).unwrap_err();
        assert!(error.contains("config:2") && error.contains("many"), "{error}");
        std::fs::write(&file, "User \"alice\n").unwrap();
        assert!(lookup("a", &[file], dir.path()).unwrap_err().contains(":1:"));
    }
}
