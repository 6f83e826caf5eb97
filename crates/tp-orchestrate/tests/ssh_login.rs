//! Getting in: host keys, keys, agents, jump hosts, hosts that do not answer or are not the ones that are meant.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;
mod lab;

use common::text;
use lab::{Lab, Said};
use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const ONE_STEP: [&str; 4] = ["--arms", "none", "--steps", "hca"];

/// Nothing ran and nothing was written: a refusal.
fn refused(lab: &Lab, words: &[&str]) -> Said {
    let said = lab.run("refused", &ONE_STEP).expect(3, words);
    assert!(!lab.path("refused").exists(), "{}", said.text);
    said
}

fn known_hosts(lab: &Lab) -> std::path::PathBuf {
    lab.path("home/.ssh/known_hosts")
}

/// Cases 104, 110.
#[test]
fn an_unknown_host_key_is_shown_and_refused_and_a_changed_one_always() {
    let Some(lab) = Lab::up(2) else { return };
    let good = fs::read_to_string(known_hosts(&lab)).unwrap();
    let shown = Command::new("ssh-keygen")
        .args(["-lf"])
        .arg(lab.path("hosts/host-2/etc/host_key.pub"))
        .output()
        .unwrap();
    let fingerprint = text(&shown.stdout).split_whitespace().nth(1).unwrap().to_owned();
    let only_first: String = good.lines().take(1).map(|line| format!("{line}\n")).collect();
    fs::write(known_hosts(&lab), &only_first).unwrap();
    refused(
        &lab,
        &[
            "host host-2: failed to trust 192.0.2.2",
            "is unknown",
            &fingerprint,
        ],
    );
    assert_eq!(
        fs::read_to_string(known_hosts(&lab)).unwrap(),
        only_first,
        "run accepts nothing"
    );

    let runner = lab::runner().display().to_string();
    let push = [
        "push",
        "inventory.toml",
        "--runner",
        &runner,
        "--accept-new-host-keys",
    ];
    lab.output(&push).expect(0, &["host-2"]);
    let added = fs::read_to_string(known_hosts(&lab)).unwrap();
    assert!(
        added.starts_with(&only_first) && added.lines().count() == 2,
        "{added}"
    );
    lab.run("out", &ONE_STEP).expect(0, &["PASSED"]);

    // The second line now carries the first host's key.
    let first_key: Vec<&str> = good.lines().next().unwrap().split(' ').collect();
    fs::write(
        known_hosts(&lab),
        format!("{only_first}192.0.2.2 {} {}\n", first_key[1], first_key[2]),
    )
    .unwrap();
    refused(&lab, &["host host-2", "another than", "known_hosts:2 says"]);
    lab.output(&push)
        .expect(3, &["another than", "known_hosts:2 says"]);
}

struct Agent {
    process: Child,
    socket: String,
}

impl Agent {
    fn start(lab: &Lab, name: &str) -> Self {
        let socket = lab.path(name).display().to_string();
        let process = Command::new("ssh-agent")
            .args(["-D", "-a", &socket])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        lab::within(10, "the agent", || std::path::Path::new(&socket).exists());
        Self { process, socket }
    }

    fn run(&self, lab: &Lab, out: &str) -> Said {
        let began = Instant::now();
        let mut command = Command::new("env");
        let inner = lab.orchestrate(&lab.run_arguments(out, &ONE_STEP));
        // The lab takes the caller's agent away; the workstation's own is set behind that.
        let words: Vec<_> = inner.get_args().map(|a| a.to_owned()).collect();
        command
            .arg(inner.get_program())
            .args(&words[..2])
            .arg("env")
            .arg(format!("SSH_AUTH_SOCK={}", self.socket));
        command
            .args(&words[2..])
            .current_dir(inner.get_current_dir().unwrap())
            .stdin(Stdio::null());
        Said::of(&command.output().unwrap(), began.elapsed())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn who_has_no_right_key_hears_which_ones_were_tried() {
    let Some(lab) = Lab::up(1) else { return };
    let inventory = lab.inventory();
    lab.edit(|text| text.replace("user = \"root\"", "user = \"nobody\""));
    refused(
        &lab,
        &[
            "log in to nobody@192.0.2.1: the host refused",
            "id_ed25519",
            "is `user` right",
        ],
    );
    lab.edit(|_| inventory.clone());

    // The key is only in the agent; then nowhere.
    let key = lab.path("home/.ssh/id_ed25519");
    let agent = Agent::start(&lab, "agent");
    let added = Command::new("ssh-add")
        .arg("-q")
        .arg(&key)
        .env("SSH_AUTH_SOCK", &agent.socket)
        .status()
        .unwrap();
    assert!(added.success());
    fs::rename(&key, lab.path("away")).unwrap();
    agent.run(&lab, "by-agent").expect(0, &["PASSED"]);
    let empty = Agent::start(&lab, "empty");
    let said = empty
        .run(&lab, "no-key")
        .expect(3, &["there is no key to offer", "the agent holds no key"]);
    assert!(!said.text.contains("PRIVATE"), "{}", said.text);
    refused(&lab, &["there is no key to offer", "SSH_AUTH_SOCK is not set"]);

    // A key with a passphrase needs the agent, and nobody is asked for the passphrase.
    fs::rename(lab.path("away"), &key).unwrap();
    let changed = Command::new("ssh-keygen")
        .args(["-q", "-p", "-N", "secret", "-f"])
        .arg(&key)
        .status()
        .unwrap();
    assert!(changed.success());
    refused(&lab, &["has a passphrase: ssh-add it"]);
    // Case 91: a password has no place in an inventory.
    lab.add_to_host(1, "password = \"x\"");
    lab.run("refused", &ONE_STEP)
        .expect(2, &["`password` is refused"]);
}

/// Cases 10, 19, 94: the wrong machine, the same machine twice, and hosts that do not answer, each with its own word.
#[test]
fn a_host_that_is_not_there_or_not_the_one_that_is_meant_is_refused_before_anything_runs() {
    let Some(lab) = Lab::up(2) else { return };
    let inventory = lab.inventory();
    lab.add_to_host(2, "machine_id = \"0123\"");
    refused(
        &lab,
        &["host host-2: the inventory says machine_id 0123", "face0002"],
    );
    lab.edit(|_| {
        inventory.replace(
            "name = \"host-2\"",
            "name = \"host-2\"\nsystem = \"aarch64-linux\"",
        )
    });
    refused(&lab, &["host host-2: the inventory says system aarch64-linux"]);
    // One machine under two names, which the file alone cannot tell.
    lab.edit(|_| inventory.replace("ssh = \"192.0.2.2\"", "ssh = \"other\""));
    fs::write(lab.path("home/.ssh/config"), "Host other\n  HostName 192.0.2.1\n").unwrap();
    refused(&lab, &["hosts host-1 and host-2 are one machine under two names"]);
    lab.edit(|_| inventory.replace("ssh = \"192.0.2.2\"", "ssh = \"no-such-host.invalid\""));
    refused(&lab, &["failed to resolve the name no-such-host.invalid"]);
    lab.edit(|_| inventory.replace("ssh = \"192.0.2.2\"", "ssh = \"192.0.2.2\"\nport = 2222"));
    refused(
        &lab,
        &["host host-2: failed to connect to 192.0.2.2:2222: refused"],
    );
    // Both lines stand there where two hosts are wrong.
    lab.edit(|_| inventory.clone());
    lab.lab("stop", &["host-2"]);
    let said = refused(&lab, &["host host-2: failed to connect to 192.0.2.2:22"]);
    assert!(!said.text.contains("host-1"), "{}", said.text);
    assert!(said.took.as_secs() < 40, "{:?}", said.took);
    // --json says it in JSON, and nothing else.
    let mut arguments = lab.run_arguments("refused", &ONE_STEP);
    arguments.push("--json".to_owned());
    let output = lab.orchestrate(&arguments).output().unwrap();
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), document["error"]["exit"].as_u64()),
        (Some(3), Some(3))
    );
}

/// The configuration decides the way: an alias, its user and key, and a host that is only reached through another.
#[test]
fn the_ssh_configuration_and_a_jump_host_lead_to_the_host() {
    let Some(lab) = Lab::up(2) else { return };
    // From the workstation host-2 is reached at no address; host-1 reaches it over the fabric.
    lab.lab("cut", &["host-2", "control"]);
    let ssh = lab.path("home/.ssh");
    fs::rename(ssh.join("id_ed25519"), ssh.join("lab-key")).unwrap();
    let known = fs::read_to_string(known_hosts(&lab)).unwrap();
    fs::rename(known_hosts(&lab), ssh.join("lab-known")).unwrap();
    fs::write(ssh.join("lab-known"), known.replace("192.0.2.2 ", "behind ")).unwrap();
    fs::write(
        ssh.join("config"),
        "Host first\n  HostName 192.0.2.1\nHost second\n  HostName 198.51.100.2\n  HostKeyAlias behind\n  ProxyJump first\n\
         Match all\n  User root\n  IdentityFile ~/.ssh/lab-key\n  UserKnownHostsFile ~/.ssh/lab-known\n",
    )
    .unwrap();
    lab.edit(|text| {
        text.replace("user = \"root\"\n", "")
            .replace("ssh = \"192.0.2.1\"", "ssh = \"first\"")
            .replace("ssh = \"192.0.2.2\"", "ssh = \"second\"")
    });
    lab.run("out", &["--arms", "none", "--steps", "hca,failfast-host-kill-1"])
        .expect(0, &["PASSED"]);
    lab.assert_clean();
    fs::write(ssh.join("config"), "Host second\n  ProxyCommand nc %h %p\n").unwrap();
    refused(
        &lab,
        &["`ProxyCommand nc %h %p` is not supported; say it by ProxyJump"],
    );
}

/// More logins at once than the server takes: those that it turned away come again, and nothing else is tried twice.
#[test]
fn a_busy_server_is_tried_again_and_a_refusal_is_not() {
    let Some(lab) = Lab::up(1) else { return };
    // Sixteen sessions that never say a word hold the server's starting sessions; it then drops most that come.
    let config = lab.path("hosts/host-1/etc/more");
    fs::write(&config, "MaxStartups 2:80:3\nLoginGraceTime 3\n").unwrap();
    // It starts anew for that, and listens to nobody meanwhile.
    lab.on(
        1,
        "kill -HUP $(pgrep -o -x sshd); sleep 0.5; \
         until bash -c 'exec 3<>/dev/tcp/127.0.0.1/22' 2>/dev/null; do sleep 0.05; done",
    );
    let mut holders = lab.spawn_on(
        1,
        "for i in 1 2 3; do sh -c 'exec 3<>/dev/null; sleep 4' & done; wait",
    );
    let flood = lab.spawn_on(
        1,
        "bash -c 'for i in 1 2 3 4; do exec {fd}<>/dev/tcp/127.0.0.1/22; done; sleep 3'",
    );
    lab.run("out", &ONE_STEP).expect(0, &["PASSED"]);
    for child in [&mut holders, &mut { flood }] {
        let _ = child.kill();
        let _ = child.wait();
    }
}
