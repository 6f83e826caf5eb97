//! Hosts for the tests: a lab of real SSH servers (`scripts/ssh-lab`), which ends with its value.

#![allow(dead_code, reason = "every test binary uses its own part of this module")]

use crate::common::{self, ORCHESTRATE, root, text};
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tp_receipt::receipt::Receipt;

/// A lab with hosts `host-1`, `host-2`, …
pub struct Lab {
    dir: TempDir,
    pub hosts: usize,
}

impl Lab {
    /// Starts hosts; `None` where this machine cannot, which is said.
    pub fn up(hosts: usize) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let output = Command::new(script())
            .args(["up".as_ref(), dir.path().as_os_str(), "--hosts".as_ref()])
            .arg(hosts.to_string())
            .output()
            .unwrap();
        if output.status.code() == Some(77) {
            // Past the capture of the test harness, so that scripts/test repeats it at its end.
            let _ = std::io::stderr().write_all(&output.stdout);
            return None;
        }
        assert!(
            output.status.success(),
            "{}{}",
            text(&output.stdout),
            text(&output.stderr)
        );
        Some(Self { dir, hosts })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What a host has as /root.
    pub fn home(&self, host: usize) -> PathBuf {
        self.path(&format!("hosts/host-{host}/home"))
    }

    fn command(&self, verb: &str, words: &[&str]) -> Command {
        let mut command = Command::new(script());
        command
            .arg(verb)
            .arg(self.dir.path())
            .args(words)
            .stdin(Stdio::null());
        command
    }

    /// A command of `scripts/ssh-lab`.
    pub fn lab(&self, verb: &str, words: &[&str]) {
        let output = self.command(verb, words).output().unwrap();
        assert!(
            output.status.success(),
            "{verb} {words:?}: {}",
            text(&output.stderr)
        );
    }

    /// A shell command on a host.
    pub fn on(&self, host: usize, line: &str) -> String {
        let output = self
            .command("on", &[&format!("host-{host}"), "sh", "-c", line])
            .output()
            .unwrap();
        text(&output.stdout)
    }

    /// Something that runs on a host until it is killed; its input stays open.
    pub fn spawn_on(&self, host: usize, line: &str) -> std::process::Child {
        let host = format!("host-{host}");
        self.command("on", &[&host, "sh", "-c", line])
            .stdout(Stdio::piped())
            .stdin(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// The orchestrator on the workstation, in the lab's directory.
    pub fn orchestrate<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Command {
        let mut command = Command::new(script());
        command
            .arg("run")
            .arg(self.dir.path())
            .arg(ORCHESTRATE)
            .args(arguments)
            .current_dir(self.dir.path())
            .env("NO_COLOR", "1")
            .env_remove("SSH_AUTH_SOCK")
            .stdin(Stdio::null());
        command
    }

    pub fn output<S: AsRef<OsStr>>(&self, arguments: &[S]) -> Said {
        let began = Instant::now();
        let output = self.orchestrate(arguments).output().unwrap();
        Said::of(&output, began.elapsed())
    }

    /// `run` with the stripped runner; the receipt goes to `out`.
    pub fn run_arguments(&self, out: &str, more: &[&str]) -> Vec<String> {
        let runner = runner().display().to_string();
        let fixed = ["run", "inventory.toml", "--runner", &runner, "--out", out];
        fixed.iter().chain(more).map(|word| (*word).to_owned()).collect()
    }

    pub fn run(&self, out: &str, more: &[&str]) -> Said {
        self.output(&self.run_arguments(out, more))
    }

    /// Starts a run in the background and waits until its step's ranks are on every host.
    pub fn run_in_background(&self, out: &str, more: &[&str]) -> std::process::Child {
        let child = self
            .orchestrate(&self.run_arguments(out, more))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        within(180, "the ranks to start", || {
            (1..=self.hosts).all(|host| self.ranks(host) > 0)
        });
        child
    }

    /// Ends the orchestrator by a signal. `nsenter` has become it: the process id is its own.
    pub fn signal(child: &std::process::Child, signal: &str) {
        let status = Command::new("kill")
            .arg(format!("-{signal}"))
            .arg(child.id().to_string())
            .status()
            .unwrap();
        assert!(status.success());
    }

    pub fn inventory(&self) -> String {
        fs::read_to_string(self.path("inventory.toml")).unwrap()
    }

    /// Changes the inventory.
    pub fn edit(&self, edit: impl FnOnce(String) -> String) {
        fs::write(self.path("inventory.toml"), edit(self.inventory())).unwrap();
    }

    /// Adds lines to a host's entry.
    pub fn add_to_host(&self, host: usize, lines: &str) {
        let name = format!("name = \"host-{host}\"\n");
        self.edit(|text| text.replace(&name, &format!("{name}{lines}\n")));
    }

    /// Number of processes of the runner on a host.
    pub fn ranks(&self, host: usize) -> usize {
        let script = "for p in /proc/[0-9]*; do \
                      tr '\\0' ' ' <$p/cmdline 2>/dev/null | grep -q -- '--session' && readlink $p/exe; done; true";
        self.on(host, script)
            .lines()
            .filter(|line| line.contains("tf-tp-test"))
            .count()
    }

    /// Waits until no rank is on any of the hosts.
    pub fn await_quiet(&self, hosts: &[usize], seconds: u64) {
        within(seconds, "the ranks to end", || {
            hosts.iter().all(|host| self.ranks(*host) == 0)
        });
    }

    /// Nothing of ours is on a host but our directory's runner.
    pub fn assert_clean(&self) {
        for host in 1..=self.hosts {
            assert_eq!(self.ranks(host), 0, "host-{host} has ranks");
            let found = self.on(
                host,
                // The profile is what tests write there themselves.
                "find /root -type f ! -path /root/.bashrc ! -path '/root/.ssh/*' ! -path '/root/.cache/tp-bringup/bin/*' \
                 ! -path '/root/.cache/tp-bringup/sha256/*'; find /dev/shm /var/tmp /root/.cache/tp-bringup/run \
                 -mindepth 1 ! -name '*faketime*' 2>/dev/null",
            );
            assert_eq!(found, "", "host-{host} has files");
        }
    }

    pub fn receipt(&self, out: &str) -> Receipt {
        common::receipt(&self.path(out))
    }

    pub fn events(&self, out: &str) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path(out).join("events.jsonl")).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// `receipt verify` finds nothing wrong.
    pub fn assert_verified(&self, out: &str) {
        let said = self.output(&["receipt", "verify", out]);
        assert_eq!(said.code, 0, "{}", said.text);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = self.command("down", &[]).output();
    }
}

/// What a command said and how it ended.
pub struct Said {
    pub code: i32,
    pub text: String,
    pub took: Duration,
}

impl Said {
    pub fn of(output: &Output, took: Duration) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            text: text(&output.stdout) + &text(&output.stderr),
            took,
        }
    }

    /// The exit code and every word of its answer that matters.
    pub fn expect(self, code: i32, words: &[&str]) -> Self {
        assert_eq!(self.code, code, "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "no `{word}` in: {}", self.text);
        }
        self
    }
}

fn script() -> PathBuf {
    root().join("scripts/ssh-lab")
}

/// The runner that the hosts get: the portable one that TF_TP_PORTABLE_BIN names, byte for byte, else cargo's without its
/// debugging symbols, which are most of it.
pub fn runner() -> &'static Path {
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    STRIPPED.get_or_init(|| {
        if let Some(portable) = std::env::var_os("TF_TP_PORTABLE_BIN") {
            return PathBuf::from(portable);
        }
        let whole = common::runner();
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("stripped-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let stripped = dir.join("tf-tp-test");
        let done = Command::new("strip")
            .arg("-o")
            .arg(&stripped)
            .arg(&whole)
            .status();
        if done.is_ok_and(|status| status.success()) {
            stripped
        } else {
            whole
        }
    })
}

/// Waits until something holds.
pub fn within(seconds: u64, what: &str, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(seconds);
    while !holds() {
        assert!(Instant::now() < until, "waited {seconds} s for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}
