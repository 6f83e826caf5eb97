//! What the tests share: the orchestrator's binary, scratch directories, fake runners, a look at the process table.

#![allow(dead_code, reason = "every test binary uses its own part of this module")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use tempfile::TempDir;
use tp_receipt::receipt::Receipt;

/// The orchestrator under test.
pub const ORCHESTRATE: &str = env!("CARGO_BIN_EXE_tp-orchestrate");

/// A scratch directory with an inventory in it.
pub struct Scratch {
    pub dir: TempDir,
}

impl Scratch {
    pub fn new(inventory: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("inventory.toml"), inventory).unwrap();
        Self { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The orchestrator with these arguments, in the scratch directory, with a state directory of its own.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(ORCHESTRATE);
        command
            .args(arguments)
            .current_dir(self.dir.path())
            .env("XDG_STATE_HOME", self.path("state"))
            .env("TMPDIR", self.tmp())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null());
        command
    }

    /// Where the orchestrator keeps working files, to see that none is left.
    pub fn tmp(&self) -> PathBuf {
        let tmp = self.path("tmp");
        fs::create_dir_all(&tmp).unwrap();
        tmp
    }

    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// A runner that is a shell script: `body` is run for `supervise`, with `$rank` set.
    pub fn fake_runner(&self, body: &str) -> PathBuf {
        let script = format!(
            r#"#!/bin/sh
case "$1" in
--version) echo "tf-tp-test 0.0.0-fake"; exit 0;;
doctor) echo '{{"schema":1,"items":[],"abilities":[{{"command":"suite host","can":true,"why":""}},{{"command":"hca","can":false,"why":"no RDMA port"}}]}}'; exit 0;;
esac
while [ $# -gt 0 ]; do
  case "$1" in --rank) rank=$2;; --session) session=$2;; esac
  shift
done
hello() {{ printf '{{"schema":1,"t":0,"rank":%s,"event":"hello","world":2,"session":"%s","pid":%s,"binary_sha256":"aa"}}\n' "$rank" "$session" $$; }}
summary() {{ printf '{{"schema":1,"t":1,"rank":%s,"event":"summary","passed":0,"failed":0,"skipped":0}}\n' "$rank"; }}
ended() {{ printf '{{"schema":1,"t":1,"rank":%s,"event":"exit","code":%s,"monotonic_ns":1}}\n' "$rank" "$1"; exit "$1"; }}
{body}
"#
        );
        let path = self.path("fake-runner");
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }
}

/// An inventory of two ranks on this machine, without facts.
pub const TWO: &str = r#"
schema = 1
[cluster]
name = "pair"
launcher = "local"
[[host]]
name = "here"
ranks = 2
gpus = []
"#;

/// The same with a deadline for every step.
pub fn two_with_limit(seconds: f64) -> String {
    TWO.replace(
        "launcher = \"local\"",
        &format!("launcher = \"local\"\nstep_limit_s = {seconds:.2}"),
    )
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub fn receipt(dir: &Path) -> Receipt {
    Receipt::from_json(&fs::read_to_string(dir.join("receipt.json")).unwrap()).unwrap()
}

/// Processes whose command line contains `word`.
pub fn processes_with(word: &str) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        let Ok(bytes) = fs::read(entry.path().join("cmdline")) else {
            continue;
        };
        let line = text(&bytes).replace('\0', " ");
        if line.contains(word) {
            found.push((pid, line));
        }
    }
    found
}

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .unwrap()
}

/// The real runner: the one named by TF_TP_TEST_BIN, else the one beside the orchestrator, built first where it is not
/// there or older than its sources.
pub fn runner() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT
        .get_or_init(|| {
            if let Some(given) = std::env::var_os("TF_TP_TEST_BIN") {
                return PathBuf::from(given);
            }
            let beside = Path::new(ORCHESTRATE).with_file_name("tf-tp-test");
            let mut build = Command::new(env!("CARGO"));
            build
                .args(["build", "--quiet", "-p", "tf-tp-test"])
                .current_dir(root());
            if Path::new(ORCHESTRATE).parent().and_then(Path::file_name) == Some("release".as_ref()) {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "the runner cannot be built");
            beside
        })
        .clone()
}

/// Two ranks on this machine with the modelled pair's facts.
pub fn twins() -> String {
    let facts = |name: &str| root().join("hosts/facts").join(name).display().to_string();
    format!(
        "schema = 1\n[cluster]\nname = \"twins\"\nlauncher = \"local\"\n\
         [[host]]\nname = \"twin-a\"\ngpus = []\nranks = 1\nfacts = \"{}\"\n\
         [[host]]\nname = \"twin-b\"\ngpus = []\nranks = 1\nfacts = \"{}\"\n",
        facts("twin-a.toml"),
        facts("twin-b.toml")
    )
}
