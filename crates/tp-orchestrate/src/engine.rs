//! The variables that an inference engine is to be started with, so that it uses the ports that were proved.
//!
//! Pure: from the inventory and the pick to names and values, one set a host, and their written forms. `docs/engines.md`
//! says where each engine takes them.

use crate::inventory::Inventory;
use serde::Serialize;
use std::collections::BTreeMap;
use tp_hca::PickDocument;
use tp_hca::document::RankPick;

/// What NCCL reads and must not find set beside a pick: indexes drift and differ from host to host.
const UNSET: &[&str] = &["NCCL_IB_GID_INDEX"];

/// The variables of one host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostVariables {
    /// The inventory's name of the host.
    pub host: String,
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// Name and value.
    pub set: BTreeMap<String, String>,
    /// Names that must not be set.
    pub unset: Vec<String>,
}

/// One set for every host, in the order of the inventory.
///
/// # Errors
/// What keeps a host's ranks from sharing one set, or a value from being written.
pub fn variables(inventory: &Inventory, pick: &PickDocument) -> Result<Vec<HostVariables>, String> {
    let mut out = Vec::new();
    for host in &inventory.hosts {
        let mut sets = host.ranks.iter().map(|rank| pick.rank(*rank).map(of_pick));
        let first = sets.next().flatten().unwrap_or_default();
        if sets.any(|other| other.as_ref() != Some(&first)) {
            return Err(format!(
                "the ranks of host {} picked different ports, and an engine has one environment a host: give each rank's GPU \
                 a [[host]] of its own",
                host.name
            ));
        }
        let mut set = first;
        for (name, value) in &host.env {
            if value.contains(['\n', '\r', '\0']) {
                return Err(format!("host {}: `{name}` has more than one line", host.name));
            }
            set.insert(name.clone(), value.clone());
        }
        let unset = UNSET.iter().filter(|name| !set.contains_key(**name));
        out.push(HostVariables {
            host: host.name.clone(),
            ranks: host.ranks.clone(),
            unset: unset.map(|name| (*name).to_owned()).collect(),
            set,
        });
    }
    Ok(out)
}

/// What the pick says: NCCL's variables, ours, and the interface for the engines' own rendezvous.
fn of_pick(pick: &RankPick) -> BTreeMap<String, String> {
    let mut set = pick.nccl_env.clone();
    let mut devices: Vec<&str> = Vec::new();
    for rail in &pick.rails {
        if !devices.contains(&rail.device.as_str()) {
            devices.push(&rail.device);
        }
    }
    if !devices.is_empty() {
        // Without GID indexes: they are looked up at every start.
        set.insert("TF_TP_ROCE_HCA".to_owned(), devices.join(","));
    }
    // Gloo, which PyTorch's engines meet by, takes the bare name.
    if let Some(interface) = set.get("NCCL_SOCKET_IFNAME") {
        let bare = interface.trim_start_matches('=').to_owned();
        set.insert("GLOO_SOCKET_IFNAME".to_owned(), bare);
    }
    set
}

impl HostVariables {
    fn heading(&self) -> String {
        let ranks: Vec<String> = self.ranks.iter().map(u32::to_string).collect();
        let noun = if self.ranks.len() == 1 { "rank" } else { "ranks" };
        format!("# host {}, {noun} {}\n", self.host, ranks.join(", "))
    }

    /// Lines that a shell reads: `export NAME='value'`, `unset NAME`.
    pub fn to_sh(&self) -> String {
        let mut text = self.heading();
        for name in &self.unset {
            text.push_str(&format!("unset {name}\n"));
        }
        for (name, value) in &self.set {
            text.push_str(&format!("export {name}='{}'\n", value.replace('\'', "'\\''")));
        }
        text
    }

    /// Lines that `docker run --env-file` and Compose's `env_file` read: `NAME=value`, nothing quoted.
    pub fn to_dotenv(&self) -> String {
        let mut text = self.heading();
        for name in &self.unset {
            text.push_str(&format!("# leave {name} unset\n"));
        }
        for (name, value) in &self.set {
            text.push_str(&format!("{name}={value}\n"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn host(set: &[(&str, &str)]) -> HostVariables {
        HostVariables {
            host: "a".into(),
            ranks: vec![0, 1],
            set: set
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            unset: vec!["NCCL_IB_GID_INDEX".into()],
        }
    }

    #[test]
    fn forms_for_shells_and_for_containers() {
        let host = host(&[("A", "it's"), ("NCCL_IB_HCA", "=x:1,y:1")]);
        assert_eq!(
            host.to_sh(),
            "# host a, ranks 0, 1\nunset NCCL_IB_GID_INDEX\nexport A='it'\\''s'\nexport NCCL_IB_HCA='=x:1,y:1'\n"
        );
        assert_eq!(
            host.to_dotenv(),
            "# host a, ranks 0, 1\n# leave NCCL_IB_GID_INDEX unset\nA=it's\nNCCL_IB_HCA==x:1,y:1\n"
        );
    }

    #[test]
    fn a_value_of_two_lines_is_refused() {
        let text =
            "schema = 1\n[cluster]\nname = \"c\"\n[[host]]\nname = \"a\"\nenv = { A = \"\"\"x\ny\"\"\" }\n";
        let inventory = Inventory::parse("x.toml", text, Path::new(".")).unwrap();
        let pick = PickDocument {
            schema: 1,
            ok: true,
            error: None,
            ranks: Vec::new(),
        };
        let error = variables(&inventory, &pick).unwrap_err();
        assert!(error.contains("`A` has more than one line"), "{error}");
    }
}
