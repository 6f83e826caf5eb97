//! `init`: from what hosts say of themselves to an inventory.
//!
//! A host is asked by a small POSIX shell script and nothing has to be installed there. What it says is parsed here; what
//! it does not say is left out of the inventory and said in a comment.

use serde::Serialize;
use std::fmt::Write;
use std::net::Ipv6Addr;

/// Reads files and asks `nvidia-smi`; changes nothing. Every line it prints begins with a word that says what it is.
pub const SCRIPT: &str = r#"echo "tp-init 1"
echo "host $(cat /proc/sys/kernel/hostname 2>/dev/null || uname -n)"
echo "system $(uname -m) $(uname -s)"
if [ -r /etc/machine-id ]; then echo "machine-id $(cat /etc/machine-id)"; fi
if command -v nvidia-smi >/dev/null 2>&1; then
  nvidia-smi -L 2>/dev/null | sed -n 's/^GPU \([0-9][0-9]*\): \(.*\) (UUID.*$/gpu \1 \2/p'
fi
for port in /sys/class/infiniband/*/ports/*; do
  [ -r "$port/state" ] || continue
  device=${port%/ports/*}; device=${device##*/}
  echo "port $device ${port##*/} $(cat "$port/state" 2>/dev/null)"
  for gid in "$port"/gids/*; do
    value=$(cat "$gid" 2>/dev/null) || continue
    type=$(cat "$port/gid_attrs/types/${gid##*/}" 2>/dev/null) || continue
    case $value in 0000:0000:0000:0000:0000:0000:0000:0000 | fe80:*) continue ;; esac
    echo "gid $device ${port##*/} $value $type"
  done
done
"#;

/// What a host said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The name in the inventory.
    pub name: String,
    /// Control address as given; none with the `local` launcher.
    pub ssh: Option<String>,
    /// User as given.
    pub user: Option<String>,
    /// Its own name for itself.
    pub host_name: Option<String>,
    /// `aarch64-linux`.
    pub system: Option<String>,
    /// `/etc/machine-id`.
    pub machine_id: Option<String>,
    /// Number and name of each GPU.
    pub gpus: Vec<(u32, String)>,
    /// RDMA ports, `rocep1s0f1/1`, with whether they are active.
    pub ports: Vec<(String, bool)>,
    /// Addresses of RoCE v2 GIDs, with the port of each.
    pub addresses: Vec<(String, String)>,
}

impl Found {
    /// Reads the script's output; lines before its first one (banners, profiles) are passed over.
    ///
    /// # Errors
    /// The script did not run to its first line.
    pub fn read(name: &str, output: &str) -> Result<Self, String> {
        let mut found = Self {
            name: name.to_owned(),
            ..Self::default()
        };
        let mut lines = output
            .lines()
            .map(str::trim)
            .skip_while(|line| *line != "tp-init 1");
        if lines.next().is_none() {
            let said = output
                .lines()
                .rev()
                .find(|line| !line.trim().is_empty())
                .unwrap_or("nothing");
            return Err(format!("no POSIX shell answered there; it said: {said}"));
        }
        lines.for_each(|line| found.line(line));
        Ok(found)
    }

    fn line(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let text = || Some(rest.trim().to_owned()).filter(|text| !text.is_empty());
        let words: Vec<&str> = rest.split_whitespace().collect();
        match (word, words.as_slice()) {
            ("host", _) => self.host_name = text(),
            ("system", [machine, system]) => {
                let machine = if *machine == "arm64" { "aarch64" } else { machine };
                self.system = Some(format!("{machine}-{}", system.to_lowercase()));
            }
            ("machine-id", [id]) => self.machine_id = Some((*id).to_owned()),
            ("gpu", [index, name @ ..]) => {
                if let Ok(index) = index.parse() {
                    self.gpus.push((index, name.join(" ")));
                }
            }
            ("port", [device, port, state @ ..]) => {
                self.ports
                    .push((format!("{device}/{port}"), state.contains(&"ACTIVE")));
            }
            // Both versions of RoCE list each address; the second is the one that is used.
            ("gid", [device, port, value, kind @ ..]) if kind.last() == Some(&"v2") => {
                if let Ok(gid) = value.parse::<Ipv6Addr>() {
                    let address = gid
                        .to_ipv4_mapped()
                        .map_or_else(|| gid.to_string(), |v4| v4.to_string());
                    self.addresses.push((address, format!("{device}/{port}")));
                }
            }
            _ => {}
        }
    }
}

/// The inventory's text. `launcher` is `ssh` or `local`; `ranks` is how many a host without GPU gets.
pub fn text(cluster: &str, launcher: &str, hosts: &[Found], ranks: u32) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_text(&mut out, cluster, launcher, hosts, ranks);
    out
}

fn write_text(
    out: &mut String,
    cluster: &str,
    launcher: &str,
    hosts: &[Found],
    ranks: u32,
) -> std::fmt::Result {
    writeln!(
        out,
        "# Written by tp-orchestrate init; look at it with tp-orchestrate doctor, then run it."
    )?;
    writeln!(
        out,
        "schema = 1\n\n[cluster]\nname = {}\nlauncher = {}",
        quoted(cluster),
        quoted(launcher)
    )?;
    if launcher == "ssh" {
        writeln!(out, "deploy = \"push\"")?;
    }
    for (index, host) in hosts.iter().enumerate() {
        let head = if index == 0 { "    # rank 0" } else { "" };
        writeln!(out, "\n[[host]]\nname = {}{head}", quoted(&host.name))?;
        if let Some(ssh) = &host.ssh {
            writeln!(out, "ssh = {}", quoted(ssh))?;
        }
        if let Some(user) = &host.user {
            writeln!(out, "user = {}", quoted(user))?;
        }
        if let Some(system) = host.system.as_ref().filter(|_| launcher == "ssh") {
            writeln!(out, "system = {}", quoted(system))?;
        }
        if let Some(id) = &host.machine_id {
            writeln!(out, "machine_id = {}", quoted(id))?;
        }
        fabric(out, host, launcher)?;
        gpus(out, host, ranks)?;
        let ports: Vec<String> = host
            .ports
            .iter()
            .map(|(port, active)| format!("{port} {}", if *active { "active" } else { "not active" }))
            .collect();
        match ports.is_empty() {
            true => writeln!(out, "# no RDMA port")?,
            false => writeln!(out, "# RDMA ports: {}", ports.join(", "))?,
        }
    }
    Ok(())
}

/// Which address the others reach is the pick's to find; the candidates stand in a comment.
fn fabric(out: &mut String, host: &Found, launcher: &str) -> std::fmt::Result {
    if launcher == "local" || host.addresses.is_empty() {
        return Ok(());
    }
    let candidates: Vec<String> = host
        .addresses
        .iter()
        .map(|(address, port)| format!("{address} ({port})"))
        .collect();
    writeln!(
        out,
        "# fabric: by the pick unless given, one of {}",
        candidates.join(", ")
    )
}

fn gpus(out: &mut String, host: &Found, ranks: u32) -> std::fmt::Result {
    if host.gpus.is_empty() {
        return writeln!(out, "gpus = []\nranks = {ranks}");
    }
    let numbers: Vec<String> = host.gpus.iter().map(|(index, _)| index.to_string()).collect();
    let mut names: Vec<&str> = host.gpus.iter().map(|(_, name)| name.as_str()).collect();
    names.dedup();
    writeln!(out, "gpus = [{}]    # {}", numbers.join(", "), names.join(", "))
}

/// A TOML string.
fn quoted(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inventory::{Gpus, Inventory};
    use std::path::Path;

    const SAID: &str = "Welcome!\ntp-init 1\nhost spark-a\nsystem aarch64 Linux\nmachine-id 0a1b\ngpu 0 NVIDIA GB10\n\
        port rocep1s0f0 1 1: DOWN\nport rocep1s0f1 1 4: ACTIVE\n\
        gid rocep1s0f1 1 0000:0000:0000:0000:0000:ffff:c000:0201 IB/RoCE v1\n\
        gid rocep1s0f1 1 0000:0000:0000:0000:0000:ffff:c000:0201 RoCE v2\n";

    #[test]
    fn what_hosts_say_becomes_an_inventory() {
        let mut a = Found::read("spark-a", SAID).unwrap();
        assert_eq!(a.gpus, [(0, "NVIDIA GB10".to_owned())]);
        assert_eq!(a.addresses, [("192.0.2.1".to_owned(), "rocep1s0f1/1".to_owned())]);
        a.ssh = Some("spark-a.lan".into());
        let mut b = Found::read(
            "spark-b",
            &SAID.replace("0a1b", "2c3d").replace("gpu 0", "nothing"),
        )
        .unwrap();
        (b.ssh, b.user) = (Some("spark-b.lan".into()), Some("me".into()));
        let text = text("sparks", "ssh", &[a, b], 1);
        let inventory =
            Inventory::parse("x.toml", &text, Path::new(".")).unwrap_or_else(|e| panic!("{e}\n{text}"));
        assert_eq!(inventory.world(), 2);
        assert_eq!(inventory.hosts[0].gpus, Gpus::Listed(vec![0]));
        assert_eq!(inventory.hosts[0].machine_id.as_deref(), Some("0a1b"));
        assert_eq!(inventory.hosts[1].user.as_deref(), Some("me"));
        assert!(
            text.contains("# RDMA ports: rocep1s0f0/1 not active, rocep1s0f1/1 active"),
            "{text}"
        );
        assert!(text.contains("one of 192.0.2.1 (rocep1s0f1/1)"), "{text}");
    }

    #[test]
    fn a_host_without_a_shell_is_named() {
        let error = Found::read("a", "This account is currently not available.\n").unwrap_err();
        assert!(
            error.contains("This account is currently not available."),
            "{error}"
        );
    }
}
