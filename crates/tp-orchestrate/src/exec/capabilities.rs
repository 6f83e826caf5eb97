//! What this machine can do, as the runner's `doctor --json` says.

use crate::Error;
use crate::host::{Host, LocalHost};
use crate::plan::Capabilities;
use serde_json::Value;
use std::time::Duration;

/// How long the runner may take to look at this machine.
const LIMIT: Duration = Duration::from_secs(20);

/// Asks the runner on this machine.
///
/// # Errors
/// Refused: the runner gives no document that can be read.
pub fn capabilities(host: &LocalHost) -> Result<Capabilities, Error> {
    let argv = [
        host.runner().display().to_string(),
        "doctor".to_owned(),
        "--json".to_owned(),
    ];
    let output = host
        .output(&argv, LIMIT)
        .map_err(|e| Error::Refused(e.to_string()))?;
    let said = || output.stderr.lines().last().unwrap_or("nothing").to_owned();
    let document: Value = serde_json::from_str(output.stdout.trim()).map_err(|e| {
        Error::Refused(format!(
            "{} gave no JSON document ({e}) and said: {}",
            argv.join(" "),
            said()
        ))
    })?;
    read(&document).map_err(|what| Error::Refused(format!("{}: {what}", argv.join(" "))))
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
        // The ranks may use what this process may.
        cpus: std::thread::available_parallelism()
            .ok()
            .and_then(|n| u32::try_from(n.get()).ok()),
        rdma_ports: Some(rdma_ports),
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
    fn a_document_without_abilities_is_refused() {
        assert!(
            read(&serde_json::json!({ "schema": 1 }))
                .unwrap_err()
                .contains("abilities")
        );
    }
}
