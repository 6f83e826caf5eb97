//! What this machine can do, as the runner's `doctor --json` says.

use crate::Error;
use crate::host::Host;
use crate::plan::Capabilities;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// How long the runner may take to look at this machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Asks the runner on a host, through the words that its ranks are started with.
///
/// # Errors
/// Refused: the runner gives no document that can be read.
pub fn capabilities(host: &dyn Host, prefix: &[String]) -> Result<Capabilities, Error> {
    let mut argv = prefix.to_vec();
    argv.extend([
        host.runner().display().to_string(),
        "doctor".to_owned(),
        "--json".to_owned(),
    ]);
    let output = host
        .output(&argv, LIMIT)
        .map_err(|e| Error::Refused(e.to_string()))?;
    let said = || output.stderr.lines().last().unwrap_or("nothing").to_owned();
    let on = || format!("host {}: {}", host.name(), argv.join(" "));
    let document: Value = serde_json::from_str(output.stdout.trim()).map_err(|e| {
        Error::Refused(format!(
            "{} gave no JSON document ({e}) and said: {}",
            on(),
            said()
        ))
    })?;
    let mut found = read(&document).map_err(|what| Error::Refused(format!("{}: {what}", on())))?;
    found
        .host_gpus
        .insert(host.name().to_owned(), found.gpus.unwrap_or(0));
    if let Some(facts) = document.get("facts").and_then(Value::as_str) {
        found.host_facts.insert(host.name().to_owned(), facts.to_owned());
    }
    Ok(found)
}

/// What all hosts can do together: what one of them cannot, none can.
pub fn merged(hosts: &[(String, Capabilities)]) -> Capabilities {
    let mut out = Capabilities {
        gpus: None,
        host_gpus: BTreeMap::new(),
        cpus: None,
        rdma_ports: Some(true),
        host_facts: BTreeMap::new(),
        backends: None,
    };
    let mut backends: Vec<(String, Result<(), String>)> = Vec::new();
    for (host, own) in hosts {
        out.host_gpus.extend(own.host_gpus.clone());
        out.host_facts.extend(own.host_facts.clone());
        out.rdma_ports = Some(out.rdma_ports == Some(true) && own.rdma_ports == Some(true));
        for (name, can) in own.backends.iter().flatten() {
            let can = can.clone().map_err(|why| format!("host {host}: {why}"));
            match backends.iter_mut().find(|(other, _)| other == name) {
                None => backends.push((name.clone(), can)),
                Some((_, all)) if all.is_ok() => *all = can,
                Some(_) => {}
            }
        }
    }
    for (host, own) in hosts {
        let has = |name: &str| own.backends.iter().flatten().any(|(other, _)| other == name);
        for (name, all) in &mut backends {
            if !has(name) && all.is_ok() {
                *all = Err(format!("host {host}: its runner does not have it"));
            }
        }
    }
    out.backends = Some(backends);
    out
}

/// Reads the document; what it does not say is not assumed to be there. A backend is what `suite BACKEND` can prove, the
/// ranks have RDMA ports where `hca` can run on live ones.
fn read(document: &Value) -> Result<Capabilities, String> {
    let abilities = document
        .get("abilities")
        .and_then(Value::as_array)
        .ok_or("the document has no list `abilities`")?;
    let mut backends = Vec::new();
    let mut rdma_ports = false;
    for ability in abilities {
        let command = ability
            .get("command")
            .and_then(Value::as_str)
            .ok_or("an ability without a `command`")?;
        let can = ability
            .get("can")
            .and_then(Value::as_bool)
            .ok_or_else(|| format!("`{command}` without `can`"))?;
        let why = ability
            .get("why")
            .and_then(Value::as_str)
            .unwrap_or("the runner gives no reason");
        if let Some(backend) = command.strip_prefix("suite ") {
            backends.push((backend.to_owned(), if can { Ok(()) } else { Err(why.to_owned()) }));
        }
        rdma_ports |= command == "hca" && can;
    }
    let gpus = document.get("gpus").and_then(Value::as_array).map_or(0, Vec::len);
    Ok(Capabilities {
        gpus: Some(u32::try_from(gpus).unwrap_or(u32::MAX)),
        host_gpus: BTreeMap::new(),
        // The ranks may use what this process may.
        cpus: std::thread::available_parallelism()
            .ok()
            .and_then(|n| u32::try_from(n.get()).ok()),
        rdma_ports: Some(rdma_ports),
        host_facts: BTreeMap::new(),
        backends: Some(backends),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_anything_has_the_host_backend() {
        let document = serde_json::json!({
            "schema": 1,
            "abilities": [
                { "command": "suite host", "can": true, "why": "over shm and tcp" },
                { "command": "roce-host", "can": true, "why": "" },
                { "command": "hca", "can": false, "why": "no RDMA port" },
                { "command": "suite nccl", "can": false, "why": "no GPU" },
            ],
        });
        let got = read(&document).unwrap();
        assert_eq!((got.gpus, got.rdma_ports), (Some(0), Some(false)));
        let backends = got.backends.unwrap();
        assert_eq!(
            backends,
            [
                ("host".to_owned(), Ok(())),
                ("nccl".to_owned(), Err("no GPU".to_owned()))
            ]
        );
    }

    #[test]
    fn what_one_host_cannot_none_can() {
        let own = |can: bool, gpus: u32, host: &str| {
            let document = serde_json::json!({
                "abilities": [
                    { "command": "suite host", "can": true, "why": "" },
                    { "command": "hca", "can": can, "why": "no RDMA port" },
                    { "command": "suite nccl", "can": can, "why": "no libnccl" },
                ],
            });
            let mut own = read(&document).unwrap();
            own.host_gpus.insert(host.to_owned(), gpus);
            (host.to_owned(), own)
        };
        let all = merged(&[own(true, 8, "a"), own(false, 2, "b")]);
        assert_eq!(
            (all.rdma_ports, all.host_gpus["a"], all.host_gpus["b"]),
            (Some(false), 8, 2)
        );
        let nccl = all
            .backends
            .unwrap()
            .into_iter()
            .find(|(name, _)| name == "nccl")
            .unwrap();
        assert_eq!(nccl.1, Err("host b: no libnccl".to_owned()));
        assert_eq!(
            merged(&[own(true, 1, "a"), own(true, 1, "b")]).rdma_ports,
            Some(true)
        );
    }

    #[test]
    fn a_document_without_abilities_is_refused() {
        assert!(
            read(&serde_json::json!({ "schema": 1 }))
                .unwrap_err()
                .contains("abilities")
        );
    }
}
