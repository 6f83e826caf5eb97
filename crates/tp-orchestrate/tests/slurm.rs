//! A real Slurm of two nodes on this machine, in a directory of its own: munge, the controller, two node daemons. Skipped
//! by name where Slurm is not installed (Debian: slurm-wlm, munge) or does not start.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{Scratch, receipt, runner, text};
use std::fs;
use std::io::Write;
use std::net::{IpAddr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tp_receipt::receipt::Verdict;

/// Slurm's daemons; ended, by the ids that they wrote down, when the value goes.
struct Lab {
    dir: TempDir,
}

fn tool(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

/// Past the capture of the test harness, so that scripts/test repeats it at its end.
fn skipped(why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED: slurm: {why}");
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0))
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// An address of this machine that is not loopback: connecting a UDP socket sends nothing and chooses one.
fn own_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    socket
        .local_addr()
        .ok()
        .map(|address| address.ip())
        .filter(|ip| !ip.is_loopback())
}

impl Lab {
    fn start() -> Option<Self> {
        let needed = ["munged", "slurmctld", "slurmd", "srun", "salloc", "squeue"];
        let missing: Vec<_> = needed.into_iter().filter(|name| tool(name).is_none()).collect();
        if !missing.is_empty() {
            skipped(&format!("not installed: {}", missing.join(", ")));
            return None;
        }
        let lab = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        match lab.bring_up() {
            Ok(()) => Some(lab),
            Err(why) => {
                skipped(&format!("it does not start here: {why}"));
                None
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn bring_up(&self) -> Result<(), String> {
        let dir = self.dir.path().display();
        for name in ["munge", "state", "log"] {
            fs::create_dir(self.path(name)).unwrap();
        }
        let mut key = [0u8; 128];
        getrandom::fill(&mut key).unwrap();
        let key_file = self.path("munge/key");
        fs::write(&key_file, key).unwrap();
        let mode = |path: &Path, bits| {
            fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(bits)).unwrap();
        };
        mode(&key_file, 0o600);
        mode(self.dir.path(), 0o755);
        let user = std::env::var("USER").unwrap_or_else(|_| "root".to_owned());
        let ports = [free_port(), free_port(), free_port()];
        let conf = format!(
            "ClusterName=lab\nSlurmctldHost=localhost(127.0.0.1)\nSlurmUser={user}\nSlurmdUser={user}\n\
             AuthType=auth/munge\nAuthInfo=socket={dir}/munge/sock\nCredType=cred/munge\n\
             StateSaveLocation={dir}/state\nSlurmdSpoolDir={dir}/spool-%n\nSlurmctldPidFile={dir}/slurmctld.pid\n\
             SlurmdPidFile={dir}/slurmd-%n.pid\nSlurmctldLogFile={dir}/log/slurmctld.log\n\
             SlurmdLogFile={dir}/log/slurmd-%n.log\nSlurmctldPort={}\nSlurmdPort={}\n\
             ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nJobAcctGatherType=jobacct_gather/none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nReturnToService=2\nMpiDefault=none\n\
             SwitchType=switch/none\nSlurmdParameters=config_overrides\n\
             NodeName=n1 NodeHostName=localhost NodeAddr=127.0.0.1 Port={} CPUs=16 State=UNKNOWN\n\
             NodeName=n2 NodeHostName=localhost NodeAddr=127.0.0.1 Port={} CPUs=16 State=UNKNOWN\n\
             PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:8\n",
            ports[0], ports[1], ports[1], ports[2]
        );
        fs::write(self.path("slurm.conf"), conf).unwrap();
        let munge = |option: &str, file: &str| format!("--{option}={dir}/munge/{file}");
        let munge = [
            munge("key-file", "key"),
            munge("socket", "sock"),
            munge("pid-file", "pid"),
            munge("seed-file", "seed"),
            munge("log-file", "log"),
            "--force".to_owned(),
        ];
        let munge: Vec<&str> = munge.iter().map(String::as_str).collect();
        self.daemon("munged", &munge)?;
        self.daemon("slurmctld", &["-i"])?;
        self.daemon("slurmd", &["-N", "n1"])?;
        self.daemon("slurmd", &["-N", "n2"])?;
        let until = Instant::now() + Duration::from_secs(30);
        loop {
            let tried = self
                .command("srun")
                .args(["--quiet", "-N2", "-n2", "-t1", "true"])
                .output();
            match tried {
                Ok(output) if output.status.success() => return Ok(()),
                Ok(output) if Instant::now() > until => {
                    return Err(text(&output.stderr)
                        .lines()
                        .next()
                        .unwrap_or("srun says nothing")
                        .to_owned());
                }
                Ok(_) => thread::sleep(Duration::from_millis(200)),
                Err(e) => return Err(e.to_string()),
            }
        }
    }

    /// Starts a program that puts itself into the background.
    fn daemon(&self, name: &str, arguments: &[&str]) -> Result<(), String> {
        let output = self
            .command(name)
            .args(arguments)
            .output()
            .map_err(|e| format!("{name}: {e}"))?;
        let said = text(&output.stderr);
        let line = said.lines().next().unwrap_or("it says nothing");
        output
            .status
            .success()
            .then_some(())
            .ok_or_else(|| format!("{name}: {line}"))
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(tool(name).unwrap());
        command
            .env("SLURM_CONF", self.path("slurm.conf"))
            .stdin(Stdio::null());
        command
    }

    fn jobs(&self) -> String {
        text(&self.command("squeue").arg("--noheader").output().unwrap().stdout)
    }

    /// Waits for the queue to be empty: Slurm itself takes a moment to clean up.
    fn is_empty_soon(&self) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while !self.jobs().trim().is_empty() {
            if Instant::now() > until {
                return false;
            }
            thread::sleep(Duration::from_millis(100));
        }
        true
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for file in ["slurmd-n1.pid", "slurmd-n2.pid", "slurmctld.pid", "munge/pid"] {
            let pid = fs::read_to_string(self.path(file)).ok();
            let Some(pid) = pid.and_then(|pid| pid.trim().parse::<i32>().ok()) else {
                continue;
            };
            let pid = nix::unistd::Pid::from_raw(pid);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
            let until = Instant::now() + Duration::from_secs(10);
            while nix::sys::signal::kill(pid, None).is_ok() && Instant::now() < until {
                thread::sleep(Duration::from_millis(20));
            }
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
        }
    }
}

/// Two nodes with a rank each.
fn nodes(fabric: IpAddr) -> String {
    format!(
        "schema = 1\n[cluster]\nname = \"lab\"\nlauncher = \"slurm\"\n\
         [[host]]\nname = \"n1\"\nfabric = \"{fabric}\"\ngpus = []\nranks = 1\n\
         [[host]]\nname = \"n2\"\ngpus = []\nranks = 1\n"
    )
}

fn orchestrate(lab: &Lab, scratch: &Scratch, arguments: &[&str]) -> Command {
    let mut command = scratch.command(arguments);
    command.env("SLURM_CONF", lab.path("slurm.conf"));
    command
}

fn run(lab: &Lab, scratch: &Scratch, extra: &[&str]) -> Output {
    let runner = runner().display().to_string();
    let run = ["run", "inventory.toml", "--runner", &runner, "--out", "out"];
    orchestrate(lab, scratch, &[&run[..], extra].concat())
        .output()
        .unwrap()
}

#[test]
fn ranks_that_srun_starts_take_their_place_from_slurm() {
    let Some(lab) = Lab::start() else { return };
    let runner = runner();
    let suite = |variables: &[(&str, &str)], tasks: &str| {
        let mut command = lab.command("srun");
        command.args(["--quiet", "--overlap", "-N1", "-n", tasks, "--cpu-bind=none"]);
        command
            .arg(&runner)
            .args(["suite", "host", "--only", "all_reduce sum f32 4 B"]);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("TF_")) {
            command.env_remove(name);
        }
        command.env("TF_TP_PORT", free_port().to_string());
        command.envs(variables.iter().copied()).output().unwrap()
    };
    let output = suite(&[], "3");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    for rank in 0..3 {
        assert!(said.contains(&format!("[{rank}] SUMMARY")), "{said}");
    }
    // What contradicts the launcher is refused, with both.
    let output = suite(&[("TF_TP_WORLD", "2")], "3");
    let said = text(&output.stderr);
    assert!(!output.status.success());
    assert!(
        said.contains("TF_TP_WORLD is `2`, but Slurm started this rank with SLURM_STEP_NUM_TASKS `3`"),
        "{said}"
    );
    // The innermost launcher wins: torchrun's variables inside a step.
    let output = suite(&[("RANK", "0"), ("WORLD_SIZE", "1")], "1");
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    // A shell of salloc is no rank although it has Slurm's variables: without a step they say nothing.
    let mut command = lab.command("salloc");
    command
        .args(["-N1", "-n2"])
        .arg(&runner)
        .args(["explain", "TF_TP_WORLD"]);
    let said = text(&command.output().unwrap().stdout);
    assert!(said.contains("(default)"), "{said}");
}

#[test]
fn a_run_by_slurm_passes_and_gives_the_nodes_back() {
    let Some(lab) = Lab::start() else { return };
    let Some(address) = own_address() else {
        skipped("this machine has no address but loopback");
        return;
    };
    let scratch = Scratch::new(&nodes(address));
    let steps = [
        "--arms",
        "none",
        "--steps",
        "failfast-host-kill-1,failfast-host-stall-0",
    ];
    let output = run(&lab, &scratch, &steps);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let receipt = receipt(&scratch.path("out"));
    assert_eq!(
        (receipt.launcher.as_str(), &receipt.verdict),
        ("slurm", &Verdict::Passed)
    );
    let victim: Vec<_> = receipt.failfast.iter().map(|f| f.victim_end.as_str()).collect();
    assert_eq!(victim, ["signal 9", "signal 9"], "Slurm's own codes are not read");
    assert!(lab.is_empty_soon(), "{}", lab.jobs());
}

#[test]
fn nodes_that_are_not_there_are_refused_with_slurms_words() {
    let Some(lab) = Lab::start() else { return };
    let scratch = Scratch::new(&nodes(IpAddr::from([192, 0, 2, 1])).replace("\"n2\"", "\"n9\""));
    let output = run(&lab, &scratch, &["--arms", "none", "--steps", "roce-host"]);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(3), "{said}");
    assert!(
        said.contains("Invalid node name") || said.contains("not available"),
        "{said}"
    );
    assert!(!scratch.path("out").exists());
}
