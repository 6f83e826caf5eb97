//! The runner's file: where it is, its hash and its version.

use crate::Error;
use crate::host::Host;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long the runner may take to say its version.
const VERSION_LIMIT: Duration = Duration::from_secs(10);
/// The runner's file name.
const NAME: &str = "tf-tp-test";

/// A runner that was found and has answered.
#[derive(Clone, Debug)]
pub struct Runner {
    /// Its file.
    pub path: PathBuf,
    /// SHA-256, lower-case hex.
    pub sha256: String,
    /// What `--version` prints: version, revision, kernels.
    pub version: Vec<String>,
}

/// The runner that is to be started: the one named, else the one beside this program.
pub fn find_runner(named: Option<&Path>) -> Result<PathBuf, Error> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => {
            let own = std::env::current_exe()
                .map_err(|e| Error::Refused(format!("failed to find this program's own file: {e}")))?;
            own.parent().unwrap_or(Path::new(".")).join(NAME)
        }
    };
    match std::fs::canonicalize(&path) {
        Ok(found) if found.is_file() => Ok(found),
        Ok(found) => Err(Error::Refused(format!(
            "the runner {} is no file",
            found.display()
        ))),
        Err(e) => Err(Error::Refused(format!(
            "the runner {} cannot be used: {e}; build it (cargo build -p {NAME}) or name it by --runner",
            path.display()
        ))),
    }
}

impl Runner {
    /// Asks the runner on a host for its hash and version, through the words that its ranks are started with.
    pub fn ask(host: &dyn Host, prefix: &[String]) -> Result<Self, Error> {
        let refused = |e: crate::host::HostError| Error::Refused(e.to_string());
        let path = host.runner().to_owned();
        let mut argv = prefix.to_vec();
        argv.extend([path.display().to_string(), "--version".to_owned()]);
        let output = host.output(&argv, VERSION_LIMIT).map_err(refused)?;
        if output.code != Some(0) || output.stdout.trim().is_empty() {
            let said = output.stderr.lines().last().unwrap_or("nothing");
            return Err(Error::Refused(format!(
                "host {}: {} failed and said: {said}",
                host.name(),
                argv.join(" ")
            )));
        }
        let version = output
            .stdout
            .lines()
            .map(|line| line.trim().to_owned())
            .filter(|l| !l.is_empty())
            .collect();
        Ok(Self {
            sha256: host.runner_sha256().map_err(refused)?,
            path,
            version,
        })
    }

    /// The versions as name and value, as far as the runner gives them.
    pub fn versions(&self) -> Vec<(String, String)> {
        let mut out = vec![("runner_sha256".to_owned(), self.sha256.clone())];
        for (index, line) in self.version.iter().enumerate() {
            match line.split_once(':') {
                Some((name, value)) => out.push((name.trim().to_owned(), value.trim().to_owned())),
                None if index == 0 => {
                    let value = line.split_once(' ').map_or(line.as_str(), |(_, version)| version);
                    out.push(("runner".to_owned(), value.to_owned()));
                }
                None => {}
            }
        }
        out
    }
}
