//! Runners that come by Nix: a closure that is copied, and a flake that every host builds, with a Nix and a store on every
//! host.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;
mod lab;

use common::text;
use lab::{Lab, Said};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

const ONE_STEP: [&str; 4] = ["--arms", "none", "--steps", "hca"];

/// Nix on the workstation and on the hosts of a lab: programs for all, and at one path a store for each.
struct Nix<'l> {
    lab: &'l Lab,
    variables: Vec<(String, String)>,
}

impl<'l> Nix<'l> {
    /// `None` where this machine has no Nix to lend, which is said.
    fn up(lab: &'l Lab) -> Option<Self> {
        let home = |dir: &str| std::env::var_os(dir).map(PathBuf::from);
        let cache = home("XDG_CACHE_HOME").or_else(|| Some(home("HOME")?.join(".cache")))?;
        let tree = cache.join("tp-bringup/nix/nix-trixie");
        if !tree.join("usr/bin/nix").exists() {
            let said =
                b"SKIPPED: no Nix for nix-copy and nix-build over SSH: scripts/nix-check --eval gets one\n";
            let _ = std::io::stderr().write_all(said);
            return None;
        }
        let root = lab.path("nix");
        for folder in ["tools/bin", "tools/lib", "store", "conf"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let conf = "experimental-features = nix-command flakes\nbuild-users-group =\nsubstituters =\nflake-registry =\nsandbox = false\n";
        fs::write(root.join("conf/nix.conf"), conf).unwrap();
        lend(&tree, &root.join("tools"));
        let path = |name: &str| root.join(name).display().to_string();
        let mut variables = vec![("PATH".to_owned(), format!("{}:/usr/bin:/bin", path("tools/bin")))];
        for (name, folder) in [
            ("NIX_STORE_DIR", "store/store"),
            ("NIX_STATE_DIR", "store/var"),
            ("NIX_LOG_DIR", "store/log"),
            ("NIX_CONF_DIR", "conf"),
        ] {
            variables.push((name.to_owned(), path(folder)));
        }
        let own = Self { lab, variables };
        for host in 1..=lab.hosts {
            lab.on(
                host,
                &format!("mkdir /root/store && mount --bind /root/store {}", path("store")),
            );
            own.install(host);
        }
        Some(own)
    }

    /// What a session of the host has of Nix.
    fn install(&self, host: usize) {
        let lines: String = self
            .variables
            .iter()
            .map(|(name, value)| format!("{name}={value}\n"))
            .collect();
        fs::write(self.environment(host), lines).unwrap();
    }

    fn environment(&self, host: usize) -> PathBuf {
        self.lab.home(host).join(".ssh/environment")
    }

    /// The orchestrator on a workstation with Nix.
    fn output(&self, words: &[&str]) -> Said {
        let began = std::time::Instant::now();
        let mut command = self.lab.orchestrate(words);
        let output = command.envs(self.variables.iter().cloned()).output().unwrap();
        Said::of(&output, began.elapsed())
    }

    /// Builds a flake's runner on the workstation and gives its store path.
    fn build(&self, flake: &str) -> PathBuf {
        let output = Command::new("nix")
            .args([
                "build",
                "--no-link",
                "--print-out-paths",
                &format!("{flake}#tf-tp-test"),
            ])
            .envs(self.variables.iter().cloned())
            .env("HOME", self.lab.path("home"))
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        PathBuf::from(text(&output.stdout).trim())
    }

    /// A flake that makes a runner of the tested one; `more` is what its builder does besides.
    fn flake(&self, name: &str, more: &str) -> String {
        let dir = self.lab.path(name);
        fs::create_dir(&dir).unwrap();
        fs::copy(lab::runner(), dir.join("runner")).unwrap();
        let system = format!("{}-linux", std::env::consts::ARCH);
        let flake = format!(
            r#"{{ outputs = {{ self }}: let
  data = derivation {{ name = "data"; system = "{system}"; builder = "/bin/sh"; args = [ "-c" "echo data >$out" ]; }};
in {{ packages.{system}.tf-tp-test = derivation {{
  name = "tf-tp-test"; system = "{system}"; builder = "/bin/sh"; PATH = "/usr/bin:/bin";
  args = [ "-c" "mkdir -p $out/bin; cp ${{self}}/runner $out/bin/tf-tp-test; echo ${{data}} >$out/data; {more}" ];
}}; }}; }}"#
        );
        fs::write(dir.join("flake.nix"), flake).unwrap();
        format!("path:{}", dir.display())
    }

    /// Takes Nix away from the hosts; nothing else of ours is there.
    fn down(&self) {
        for host in 1..=self.lab.hosts {
            let store = self.lab.path("nix/store");
            self.lab.on(
                host,
                &format!(
                    "umount {}; chmod -R u+w /root/store; rm -rf /root/store /root/.cache/nix",
                    store.display()
                ),
            );
            fs::remove_file(self.environment(host)).unwrap_or_default();
        }
        self.lab.assert_clean();
    }
}

/// Puts a copy of the program and of its libraries where hosts see it: the cache is below /root, of which each has its own.
fn lend(tree: &Path, tools: &Path) {
    let listed = Command::new(tree.join("usr/bin/nix"))
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .output()
        .unwrap();
    let mut libraries: Vec<PathBuf> = text(&listed.stdout)
        .lines()
        .filter_map(|line| Some(line.split_once("=> ")?.1.split(' ').next()?.into()))
        .collect();
    let loader = |path: &PathBuf| path.to_string_lossy().contains("/ld-linux");
    if !libraries.iter().any(loader) {
        let pattern = tree.join("usr/lib/*/ld-linux-*.so.*").display().to_string();
        libraries.extend(glob::glob(&pattern).unwrap().flatten());
    }
    for library in &libraries {
        fs::copy(library, tools.join("lib").join(library.file_name().unwrap())).unwrap();
    }
    let name = libraries
        .iter()
        .find(|path| loader(path))
        .unwrap()
        .file_name()
        .unwrap();
    let program = tools.join("bin/nix");
    fs::copy(tree.join("usr/bin/nix"), &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let patched = Command::new(tree.join("patchelf/bin/patchelf"))
        .arg("--set-interpreter")
        .arg(tools.join("lib").join(name))
        .args(["--force-rpath", "--set-rpath"])
        .args([&tools.join("lib"), &program])
        .status()
        .unwrap();
    assert!(patched.success());
    symlink("nix", tools.join("bin/nix-store")).unwrap();
}

#[test]
fn a_closure_is_copied_once_and_its_runner_is_the_one_that_runs() {
    let Some(lab) = Lab::up(2) else { return };
    // A workstation without Nix is told so when it plans, before any host is asked.
    lab.edit(|text| text.replace("launcher = \"ssh\"", "launcher = \"ssh\"\ndeploy = \"nix-copy\""));
    let mut planned = lab.orchestrate(&["plan", "inventory.toml"]);
    let planned = planned.env("PATH", "/usr/bin:/bin").output().unwrap();
    let said = Said::of(&planned, std::time::Duration::ZERO);
    let said = said.expect(3, &["`nix-store` cannot be run here"]);
    assert_eq!(said.text.lines().count(), 1, "{}", said.text);

    let Some(nix) = Nix::up(&lab) else { return };
    let elsewhere = lab::runner().display().to_string();
    nix.output(&["push", "inventory.toml", "--runner", &elsewhere])
        .expect(3, &["copies a runner of the Nix store", "is not in it"]);
    let runner = nix
        .build(&nix.flake("flake", ""))
        .join("bin/tf-tp-test")
        .display()
        .to_string();
    let push = ["push", "inventory.toml", "--runner", &runner];
    fs::remove_file(nix.environment(2)).unwrap();
    let said = nix
        .output(&push)
        .expect(3, &["host host-2: ", "there is no nix-store"]);
    assert!(!said.text.contains("host host-1"), "{}", said.text);
    nix.install(2);
    nix.output(&push).expect(0, &["MB in", &runner]);
    nix.output(&push)
        .expect(0, &["host-1  was there", "host-2  was there"]);
    // What keeps it from being collected is ours.
    let kept = lab.on(2, "readlink -f /root/.cache/tp-bringup/nix/*");
    assert_eq!(
        Path::new(kept.trim()),
        Path::new(&runner).ancestors().nth(2).unwrap()
    );

    let run = |out: &str| {
        nix.output(
            &[
                &[
                    "run",
                    "inventory.toml",
                    "--runner",
                    &runner,
                    "--out",
                    out,
                    "--no-redact",
                ],
                &ONE_STEP[..],
            ]
            .concat(),
        )
    };
    run("out").expect(0, &["PASSED"]);
    let launched = lab
        .events("out")
        .into_iter()
        .filter(|event| event["event"] == "launch");
    assert!(
        launched
            .map(|event| event["argv"][0].clone())
            .all(|argv| argv == runner.as_str())
    );
    // A store that somebody wrote into is found out like any other file.
    lab.on(
        2,
        &format!("mount -o remount,rw / 2>/dev/null; chmod u+w {runner}; echo >>{runner}"),
    );
    run("bad").expect(3, &["host host-2: failed to find the runner that is meant"]);
    assert!(!lab.path("bad").exists());
    lab.on(2, "rm -rf /root/.cache/tp-bringup/nix");
    nix.down();
}

/// `--prune` takes our links to other runners away, also one that leads nowhere, and lets those be that a process needs.
/// What is in the store stays: it is for its owner to collect.
#[test]
fn prune_takes_away_the_links_to_other_runners() {
    let Some(lab) = Lab::up(2) else { return };
    let Some(nix) = Nix::up(&lab) else { return };
    let inventory = lab.inventory();
    let links = |host: usize| lab.on(host, "cd /root/.cache/tp-bringup/nix && ls");
    let deploys = |how: &str| {
        let with = format!("launcher = \"ssh\"\n{how}");
        lab.edit(|_| inventory.replace("launcher = \"ssh\"", &with));
    };
    // One that every host builds, and two that are copied: what is meant in the end is the last one.
    deploys(&format!(
        "deploy = \"nix-build\"\nflake = \"{}\"",
        nix.flake("built", "echo built >>$out/bin/tf-tp-test")
    ));
    nix.output(&["push", "inventory.toml"])
        .expect(0, &["built there"]);
    deploys("deploy = \"nix-copy\"");
    let copied = ["older", "newer"].map(|name| {
        let path = nix.build(&nix.flake(name, &format!("echo {name} >>$out/bin/tf-tp-test")));
        (path.join("bin/tf-tp-test").display().to_string(), path)
    });
    let [(older, older_path), (newer, newer_path)] = copied;
    nix.output(&["push", "inventory.toml", "--runner", &older])
        .expect(0, &["MB in"]);
    lab.on(2, "ln -s /nowhere /root/.cache/tp-bringup/nix/dangling");
    let mut busy = lab.spawn_on(
        1,
        &format!("while sleep 1 && echo beat; do :; done 2>/dev/null | {older} supervise -- sleep 600"),
    );
    lab::within(10, "the busy runner", || {
        lab.on(1, "pgrep -x tf-tp-test").lines().count() > 0
    });
    let prune = ["push", "inventory.toml", "--runner", &newer, "--prune"];
    nix.output(&prune).expect(
        0,
        &[
            "host-1  1 taken away, 1 in use and kept",
            "host-2  3 taken away, 0 in use and kept",
        ],
    );
    let name = |path: &Path| format!("{}\n", path.file_name().unwrap().to_string_lossy());
    let mut both = [name(&older_path), name(&newer_path)];
    both.sort();
    assert_eq!(links(1), both.concat());
    assert_eq!(links(2), name(&newer_path));
    let there = lab.on(2, &format!("test -x {older} && test -x {newer} && echo both"));
    assert_eq!(there, "both\n", "the store is not ours to collect");
    // What beats ends at its next beat.
    lab.on(1, "kill $(pgrep -x tf-tp-test)");
    busy.wait().unwrap();
    nix.output(&prune)
        .expect(0, &["host-1  1 taken away, 0 in use and kept"]);
    assert_eq!(links(1), name(&newer_path));
    for host in [1, 2] {
        lab.on(host, "rm -rf /root/.cache/tp-bringup/nix");
    }
    nix.down();
}

#[test]
fn every_host_builds_the_flake_and_what_they_build_must_agree() {
    let Some(lab) = Lab::up(2) else { return };
    let Some(nix) = Nix::up(&lab) else { return };
    let inventory = lab.inventory();
    let builds = |flake: &str| {
        lab.edit(|_| {
            inventory.replace(
                "launcher = \"ssh\"",
                &format!("launcher = \"ssh\"\ndeploy = \"nix-build\"\n{flake}"),
            )
        });
    };
    builds("");
    nix.output(&["plan", "inventory.toml"])
        .expect(2, &["needs `flake`"]);
    builds(&format!("flake = \"{}\"", nix.flake("same", "")));
    let run = |out: &str| nix.output(&[&["run", "inventory.toml", "--out", out], &ONE_STEP[..]].concat());
    nix.output(&["plan", "inventory.toml", "--ask"]).expect(
        3,
        &["host host-1: failed to find the runner there: push it first"],
    );
    nix.output(&["push", "inventory.toml"])
        .expect(0, &["host-1  built there in", "host-2  built there in"]);
    run("out").expect(0, &["PASSED"]);
    nix.output(&["plan", "inventory.toml", "--ask"])
        .expect(0, &["rank 1 on host-2"]);

    builds(&format!(
        "flake = \"{}\"",
        nix.flake("fails", "echo nothing works >&2; exit 1")
    ));
    run("none").expect(
        3,
        &[
            "host host-1: failed to build",
            "host host-2: failed to build",
            "error:",
        ],
    );
    // A build that is not the same everywhere.
    builds(&format!(
        "flake = \"{}\"",
        nix.flake("differs", "cat /etc/machine-id >>$out/bin/tf-tp-test")
    ));
    run("other").expect(
        3,
        &[
            "hosts built different runners of one flake",
            "host-1: ",
            "host-2: ",
        ],
    );
    assert!(!lab.path("other").exists());
    lab.on(1, "rm -rf /root/.cache/tp-bringup/nix");
    lab.on(2, "rm -rf /root/.cache/tp-bringup/nix");
    nix.down();
}
