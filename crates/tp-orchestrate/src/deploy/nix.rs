//! Runners from the Nix store: a closure that is copied to a host, or built there from a flake.
//!
//! A closure goes over the connection that this program has anyway, as `nix-store --export` writes it and `--import` reads
//! it: the same login, the same host keys, the same jump hosts as for everything else.

use super::Sent;
use super::artifact::Artifact;
use crate::Error;
use crate::host::ssh::{Input, remote};
use crate::host::{CommandOutput, Fault, Host, HostError, SshHost};
use sha2::{Digest, Sha256};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Where the store is unless `NIX_STORE_DIR` says otherwise.
const STORE: &str = "/nix/store";
/// How long a question to a store may take.
const ASK_LIMIT: Duration = Duration::from_secs(60);
/// How long the transfer of a closure may take.
const COPY_LIMIT: Duration = Duration::from_secs(1800);
/// How long a host may build.
const BUILD_LIMIT: Duration = Duration::from_secs(7200);
/// The flake's output that is the runner.
const OUTPUT: &str = "tf-tp-test";

/// In front of every script: the places where installers put Nix, which a session without a profile does not know.
macro_rules! on_path {
    ($tool:literal) => {
        concat!(
            r#"PATH=$PATH:$HOME/.nix-profile/bin:/nix/var/nix/profiles/default/bin:/run/current-system/sw/bin; "#,
            "command -v ",
            $tool,
            " >/dev/null 2>&1 || { echo 'there is no ",
            $tool,
            " on the PATH of the session: install Nix there, or choose another `deploy`' >&2; exit 1; }; "
        )
    };
}

/// Standard input: store paths, one a line. Prints those that are not there.
const MISSING: &str = concat!(
    on_path!("nix-store"),
    "xargs nix-store --check-validity --print-invalid --"
);
/// Standard input: what `nix-store --export` wrote.
const IMPORT: &str = concat!(on_path!("nix-store"), "nix-store --import >/dev/null");
/// `$1` a store path, `$2` a link that keeps it from being collected.
const ROOT: &str = concat!(
    on_path!("nix-store"),
    r#"mkdir -p "${2%/*}" && nix-store --realise "$1" --add-root "$2" --indirect >/dev/null"#
);
/// `$1` a flake with its output, `$2` the link that is to lead to what was built.
const BUILD: &str = concat!(
    on_path!("nix"),
    r#"mkdir -p "${2%/*}" && nix --extra-experimental-features 'nix-command flakes' build --out-link "$2" -- "$1""#
);
/// `$1` the link to what was built.
const BUILT: &str = r#"[ -x "$1/bin/tf-tp-test" ] || { echo "$1 leads to no runner" >&2; exit 1; }"#;

/// The store path that a file is part of.
pub(super) fn store_path(file: &Path) -> Option<PathBuf> {
    let store = std::env::var_os("NIX_STORE_DIR").map_or_else(|| STORE.into(), PathBuf::from);
    let first = file.strip_prefix(&store).ok()?.components().next()?;
    Some(store.join(first))
}

/// Refuses what cannot be copied from this machine.
pub(super) fn check_here() -> Result<(), Error> {
    let tried = Command::new("nix-store")
        .arg("--version")
        .stdin(Stdio::null())
        .output();
    let why = match tried {
        Ok(output) if output.status.success() => return Ok(()),
        Ok(output) => last_line(&String::from_utf8_lossy(&output.stderr)),
        Err(error) => error.to_string(),
    };
    Err(Error::Refused(format!(
        "`deploy = \"nix-copy\"` copies the runner's closure out of this machine's Nix store, and `nix-store` cannot be run \
         here: {why}; `push` needs no Nix"
    )))
}

/// Refuses a runner that no closure can be made of.
pub(super) fn check_artifact(artifact: &Artifact) -> Result<PathBuf, Error> {
    store_path(&artifact.path).ok_or_else(|| {
        Error::Refused(format!(
            "`deploy = \"nix-copy\"` copies a runner of the Nix store, and {} is not in it; name one by --runner, e.g. \
             $(nix build .#{OUTPUT} --no-link --print-out-paths)/bin/tf-tp-test",
            artifact.path.display()
        ))
    })
}

/// Copies what is missing of the runner's closure, and keeps it there.
///
/// # Errors
/// There is no Nix on either side, or it refused.
pub(super) fn copy(host: &SshHost, artifact: &Artifact) -> Result<Sent, HostError> {
    let began = Instant::now();
    let path = check_artifact(artifact).map_err(|e| error(host, e.to_string()))?;
    let closure = here(host, &["--query", "--requisites"], &[path.display().to_string()])?;
    let listed = closure.as_bytes().to_vec();
    let missing = ask(host, "look for the runner's closure", MISSING, &[], listed)?;
    // In the closure's own order: what a path refers to stands in front of it.
    let wanted: Vec<String> = closure
        .lines()
        .filter(|path| missing.lines().any(|other| other == *path))
        .map(str::to_owned)
        .collect();
    let mut sent = Sent::nothing();
    if !wanted.is_empty() {
        let (file, bytes) = export(host, &wanted)?;
        let output = host.run(script(IMPORT, &[]), Input::File(file), COPY_LIMIT)?;
        checked(host, "import the runner's closure", output)?;
        sent.bytes = bytes;
    }
    let link = format!("{}/nix/{}", host.about().dir, name_of(&path));
    keep(host, &path, &link)?;
    sent.took = began.elapsed();
    Ok(sent)
}

/// Whether the runner is in the host's store.
pub(super) fn is_there(host: &SshHost, artifact: &Artifact) -> Result<bool, HostError> {
    let path = check_artifact(artifact).map_err(|e| error(host, e.to_string()))?;
    let listed = format!("{}\n", path.display()).into_bytes();
    let missing = ask(host, "look for the runner", MISSING, &[], listed)?;
    Ok(missing.trim().is_empty())
}

/// Has the host build the runner, and keeps it there.
///
/// # Errors
/// There is no Nix, or the build failed.
pub(super) fn build(host: &SshHost, flake: &str) -> Result<Sent, HostError> {
    let began = Instant::now();
    let arguments = [format!("{flake}#{OUTPUT}"), link_of(host, flake)];
    let output = host.run(script(BUILD, &arguments), Input::Empty, BUILD_LIMIT)?;
    checked(host, &format!("build {flake}#{OUTPUT}"), output)?;
    is_built(host, flake)?;
    Ok(Sent {
        took: began.elapsed(),
        ..Sent::nothing()
    })
}

/// Refuses a host that has not built it.
pub(super) fn is_built(host: &SshHost, flake: &str) -> Result<(), HostError> {
    let link = link_of(host, flake);
    let output = host.script(BUILT, &[link], ASK_LIMIT)?;
    checked(host, "find the runner that it built", output).map(drop)
}

/// Where the runner is that a host built of a flake.
pub(super) fn runner_of(host: &SshHost, flake: &str) -> String {
    format!("{}/bin/tf-tp-test", link_of(host, flake))
}

/// Another flake has another link: a run under way keeps what it runs on.
fn link_of(host: &SshHost, flake: &str) -> String {
    let hash = hex::encode(Sha256::digest(flake));
    format!("{}/nix/build-{}", host.about().dir, &hash[..16])
}

fn name_of(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

fn keep(host: &SshHost, path: &Path, link: &str) -> Result<(), HostError> {
    let arguments = [path.display().to_string(), link.to_owned()];
    let output = host.script(ROOT, &arguments, ASK_LIMIT)?;
    checked(host, &format!("keep {} there", path.display()), output).map(drop)
}

/// The paths as one stream, in a file that nobody else sees and that goes with its handle.
fn export(host: &SshHost, paths: &[String]) -> Result<(File, u64), HostError> {
    let failed = |e: std::io::Error| error(host, format!("write its closure to a temporary file: {e}"));
    let id = crate::exec::new_run_id().map_err(|e| error(host, e.to_string()))?;
    let spool = std::env::temp_dir().join(format!("tp-orchestrate-closure-{id}"));
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&spool)
        .map_err(failed)?;
    std::fs::remove_file(&spool).map_err(failed)?;
    let output = Command::new("nix-store")
        .arg("--export")
        .args(paths)
        .stdin(Stdio::null())
        .stdout(file.try_clone().map_err(failed)?)
        .stderr(Stdio::piped())
        .output()
        .map_err(|e| error(host, format!("run nix-store here: {e}")))?;
    if !output.status.success() {
        let said = last_line(&String::from_utf8_lossy(&output.stderr));
        return Err(error(
            host,
            format!("export its closure: nix-store here says: {said}"),
        ));
    }
    let mut file = file;
    let bytes = file.metadata().map_err(failed)?.len();
    std::io::Seek::rewind(&mut file).map_err(failed)?;
    Ok((file, bytes))
}

/// What this machine's `nix-store` answers.
fn here(host: &SshHost, words: &[&str], paths: &[String]) -> Result<String, HostError> {
    let output = Command::new("nix-store")
        .args(words)
        .args(paths)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| error(host, format!("run nix-store here: {e}")))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = last_line(&String::from_utf8_lossy(&output.stderr));
    Err(error(
        host,
        format!("find the runner's closure: nix-store here says: {said}"),
    ))
}

fn script(script: &str, arguments: &[String]) -> String {
    let mut argv: Vec<String> = ["sh", "-c", script, "sh"].map(str::to_owned).to_vec();
    argv.extend_from_slice(arguments);
    remote::marked(&argv)
}

fn ask(
    host: &SshHost,
    what: &str,
    text: &str,
    arguments: &[String],
    input: Vec<u8>,
) -> Result<String, HostError> {
    let output = host.run(script(text, arguments), Input::Bytes(input), ASK_LIMIT)?;
    checked(host, what, output)
}

fn checked(host: &SshHost, what: &str, output: CommandOutput) -> Result<String, HostError> {
    if output.code == Some(0) {
        return Ok(output.stdout);
    }
    Err(error(
        host,
        format!("{what}: the host says: {}", last_line(&output.stderr)),
    ))
}

/// What went wrong: Nix's errors have hints behind them.
fn last_line(said: &str) -> String {
    let line = said
        .lines()
        .rfind(|line| line.contains("error:"))
        .or_else(|| said.lines().rfind(|line| !line.trim().is_empty()));
    line.unwrap_or("nothing").trim().to_owned()
}

fn error(host: &SshHost, what: String) -> HostError {
    HostError {
        host: host.name().to_owned(),
        what,
        fault: Fault::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_store_path_of_a_file() {
        let file = Path::new("/nix/store/abc-runner/bin/tf-tp-test");
        assert_eq!(store_path(file), Some("/nix/store/abc-runner".into()));
        assert_eq!(store_path(Path::new("/usr/bin/tf-tp-test")), None);
    }

    #[test]
    fn the_line_that_says_what_went_wrong() {
        let said = "warning: x\nerror: builder failed\n       For full logs, run:\n";
        assert_eq!(last_line(said), "error: builder failed");
        assert_eq!(last_line("there is no nix\n\n"), "there is no nix");
    }
}
