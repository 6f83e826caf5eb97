//! Bringing files to hosts: whole or not at all, never twice, never onto something that runs.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;
mod lab;

use lab::{Lab, Said};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

const ONE_STEP: [&str; 4] = ["--arms", "none", "--steps", "hca"];

fn push(lab: &Lab, more: &[&str]) -> Said {
    let runner = lab::runner().display().to_string();
    lab.output(&[&["push", "inventory.toml", "--runner", &runner], more].concat())
}

fn rows(said: &Said) -> Vec<serde_json::Value> {
    let document: serde_json::Value = serde_json::from_str(said.text.lines().next().unwrap()).unwrap();
    document["hosts"].as_array().unwrap().clone()
}

fn hash(path: &Path) -> String {
    hex::encode(Sha256::digest(fs::read(path).unwrap()))
}

/// Where the runner is on a host, as this machine sees it.
fn there(lab: &Lab, host: usize) -> PathBuf {
    lab.home(host)
        .join(".cache/tp-bringup/bin")
        .join(hash(lab::runner()))
        .join("tf-tp-test")
}

/// A file of pseudo-random bytes, which nothing can make smaller.
fn blob(lab: &Lab, name: &str, bytes: usize, seed: u64) -> PathBuf {
    let mut state = seed;
    let mut out = Vec::with_capacity(bytes);
    while out.len() < bytes {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        out.extend((state ^ (state >> 29)).to_le_bytes());
    }
    let path = lab.path(name);
    fs::write(&path, &out[..bytes]).unwrap();
    path
}

#[test]
fn a_file_is_sent_once_resumed_where_it_stopped_and_replaced_where_it_was_changed() {
    let Some(lab) = Lab::up(2) else { return };
    let first = push(&lab, &["--json"]).expect(0, &[]);
    let size = fs::metadata(lab::runner()).unwrap().len();
    assert!(
        rows(&first)
            .iter()
            .all(|row| row["sent"] == size && row["resumed"] == false),
        "{}",
        first.text
    );
    assert_eq!(hash(&there(&lab, 1)), hash(lab::runner()));
    let again = push(&lab, &["--json"]).expect(0, &[]);
    assert!(rows(&again).iter().all(|row| row["sent"] == 0), "{}", again.text);

    // A transfer that stopped: host-1 has the right beginning, host-2 a wrong one.
    for host in [1, 2] {
        let file = there(&lab, host);
        let mut bytes = fs::read(&file).unwrap();
        bytes.truncate(bytes.len() / 3);
        if host == 2 {
            bytes[100] ^= 1;
        }
        fs::remove_file(&file).unwrap();
        fs::write(file.with_extension("part"), &bytes).unwrap();
    }
    let resumed = push(&lab, &["--json"]).expect(0, &[]);
    let rows_ = rows(&resumed);
    assert_eq!(
        (&rows_[0]["resumed"], rows_[0]["sent"].as_u64()),
        (&true.into(), Some(size - size / 3)),
        "{}",
        resumed.text
    );
    for host in [1, 2] {
        assert_eq!(hash(&there(&lab, host)), hash(lab::runner()));
    }

    // A binary that somebody changed is found and replaced; `preinstalled` only compares, and refuses.
    let file = there(&lab, 2);
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::remove_file(&file).unwrap();
    fs::write(&file, &bytes).unwrap();
    let replaced = push(&lab, &["--json"]).expect(0, &[]);
    assert_eq!(rows(&replaced)[1]["replaced"], true, "{}", replaced.text);
    assert_eq!(hash(&file), hash(lab::runner()));
}

/// However it got there, a runner with another hash stops the run before a rank starts.
#[test]
fn a_preinstalled_runner_with_another_hash_is_refused() {
    let Some(lab) = Lab::up(2) else { return };
    lab.edit(|text| {
        text.replace(
            "launcher = \"ssh\"",
            "launcher = \"ssh\"\ndeploy = \"preinstalled\"",
        )
    });
    for host in [1, 2] {
        let bin = lab.home(host).join("bin");
        fs::create_dir_all(&bin).unwrap();
        fs::copy(lab::runner(), bin.join("tf-tp-test")).unwrap();
        fs::write(
            lab.home(host).join(".ssh/environment"),
            "PATH=/root/bin:/usr/bin:/bin\n",
        )
        .unwrap();
    }
    lab.run("good", &ONE_STEP).expect(0, &["PASSED"]);
    let file = lab.home(2).join("bin/tf-tp-test");
    let mut bytes = fs::read(&file).unwrap();
    bytes.push(0);
    fs::write(&file, &bytes).unwrap();
    lab.run("bad", &ONE_STEP).expect(
        3,
        &[
            "host host-2: failed to find the runner that is meant",
            &hash(lab::runner()),
        ],
    );
    assert!(!lab.path("bad").exists());
    // Without a file to compare with, the hosts are compared with each other.
    fs::remove_file(&file).unwrap();
    lab.run("none", &ONE_STEP)
        .expect(3, &["there is no tf-tp-test on PATH"]);
}

/// Cases 98, 101, and a disk without room.
#[test]
fn a_full_disk_a_foreign_program_and_a_busy_one() {
    let Some(lab) = Lab::up(2) else { return };
    lab.add_to_host(2, "dir = \"/root/small\"");
    lab.on(
        2,
        "mkdir /root/small && mount -t tmpfs -o size=3m tmpfs /root/small",
    );
    let said = push(&lab, &[]).expect(
        3,
        &[
            "host host-2: failed to put tf-tp-test into /root/small",
            "MB free",
        ],
    );
    assert!(!said.text.contains("host host-1"), "{}", said.text);
    // The room goes while the file comes: enough before, too little behind it, on a link that leaves the time for it.
    let size = fs::metadata(lab::runner()).unwrap().len();
    let (room, gone) = (size + (2 << 20), size / 4 * 3);
    lab.on(2, &format!("mount -o remount,size={room} /root/small"));
    lab.lab("shape", &["20mbit"]);
    let mut grow = lab.spawn_on(
        2,
        &format!("until ls /root/small/bin/*/*.part >/dev/null 2>&1; do :; done; fallocate -l {gone} /root/small/more"),
    );
    push(&lab, &[]).expect(3, &["host host-2: failed to write", "No space left on device"]);
    assert_eq!(
        lab.on(2, "ls /root/small/bin/*/"),
        "",
        "nothing half-written stays"
    );
    assert!(grow.wait().unwrap().success());
    lab.lab("shape", &["none"]);
    lab.on(2, "umount /root/small");
    lab.edit(|text| text.replace("dir = \"/root/small\"\n", ""));

    // A program for another machine.
    let mut foreign = fs::read(lab::runner()).unwrap();
    foreign[18..20].copy_from_slice(&183u16.to_le_bytes());
    let path = lab.path("tf-tp-test-arm");
    fs::write(&path, foreign).unwrap();
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let only_foreign = ["push", "inventory.toml", "--runner", path.to_str().unwrap()];
    let system = format!("{}-linux", std::env::consts::ARCH);
    lab.output(&only_foreign)
        .expect(3, &[&system, "there is a runner for aarch64-linux only"]);

    // One that runs is never written to, and `--prune` leaves it.
    push(&lab, &[]).expect(0, &[]);
    let mut busy = lab.spawn_on(
        1,
        "cd /root/.cache/tp-bringup/bin/*/; while sleep 1; do echo beat; done | ./tf-tp-test supervise -- sleep 600",
    );
    let mut other = fs::read(lab::runner()).unwrap();
    other.extend(b"another build");
    let newer = lab.path("newer/tf-tp-test");
    fs::create_dir_all(newer.parent().unwrap()).unwrap();
    fs::write(&newer, other).unwrap();
    fs::set_permissions(&newer, fs::Permissions::from_mode(0o755)).unwrap();
    lab::within(10, "the busy runner", || {
        lab.on(1, "pgrep -x tf-tp-test").lines().count() > 0
    });
    let newer = newer.to_str().unwrap().to_owned();
    let said = lab.output(&["push", "inventory.toml", "--runner", &newer, "--prune"]);
    let said = said.expect(
        0,
        &[
            "0 taken away, 1 in use and kept",
            "1 taken away, 0 in use and kept",
        ],
    );
    assert!(
        there(&lab, 1).exists() && !there(&lab, 2).exists(),
        "{}",
        said.text
    );
    let _ = busy.kill();
    let _ = busy.wait();
}

/// Two pushes of one file to one host at once do not disturb each other.
#[test]
fn two_pushes_at_once_both_succeed() {
    let Some(lab) = Lab::up(1) else { return };
    lab.lab("shape", &["100mbit"]);
    let runner = lab::runner().display().to_string();
    let arguments = ["push", "inventory.toml", "--runner", &runner];
    let mut other = lab.orchestrate(&arguments);
    let other = other
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    push(&lab, &[]).expect(0, &[]);
    let other = other.wait_with_output().unwrap();
    assert!(
        other.status.success(),
        "{}",
        String::from_utf8_lossy(&other.stderr)
    );
    assert_eq!(hash(&there(&lab, 1)), hash(lab::runner()));
    assert_eq!(lab.on(1, "ls /root/.cache/tp-bringup/bin/*/"), "tf-tp-test\n");
}

/// From eight hosts on a large file crosses this machine's link once; where the way from host to host is closed it still
/// comes, it is said why, and whoever does not know the secret gets nothing.
#[test]
fn eight_hosts_pass_a_large_file_on_to_each_other() {
    let Some(lab) = Lab::up(8) else { return };
    let file = blob(&lab, "libnccl.so.2", 20 << 20, 7);
    let name = file.display().to_string();
    // The fabric of one host is cut: the chain breaks there, goes on behind it, and that one gets it from here.
    lab.lab("cut", &["host-5", "fabric"]);
    let said = push(&lab, &["--with", &name, "--json"]).expect(0, &[]);
    let rows = rows(&said);
    let of_file: Vec<_> = rows.iter().filter(|row| row["file"] == "libnccl.so.2").collect();
    assert_eq!(of_file.len(), 8, "{}", said.text);
    let missed: Vec<_> = of_file.iter().filter(|row| row["relayed"] != true).collect();
    assert_eq!(missed.len(), 2, "{}", said.text);
    assert_eq!(
        (&missed[0]["host"], &missed[0]["missed"]),
        (&"host-1".into(), &Value::Null)
    );
    let why = missed[1]["missed"].as_str().unwrap();
    assert_eq!(missed[1]["host"], "host-5");
    assert!(
        why.starts_with("host-4 failed to pass it on: sending it to 198.51.100.5 port "),
        "{why}"
    );
    for host in 1..=8 {
        let path = lab.home(host).join(".cache/tp-bringup/bin").join(hash(&file));
        assert_eq!(hash(&path.join("libnccl.so.2")), hash(&file), "host-{host}");
        let mut names: Vec<_> = fs::read_dir(&path)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        names.sort();
        assert_eq!(names, [".libnccl.so.2.ok", "libnccl.so.2"], "host-{host}");
    }
    // Everything is there now, and takes no transfer.
    let again = push(&lab, &["--with", &name, "--json"]).expect(0, &[]);
    assert!(
        self::rows(&again).iter().all(|row| row["sent"] == 0),
        "{}",
        again.text
    );
    assert!(again.took < Duration::from_secs(30), "{:?}", again.took);
    lab.assert_clean();
}

/// A relay's host dies in the middle of a transfer: those behind it keep what they have and go on.
#[test]
fn a_host_that_dies_while_it_passes_a_file_on_takes_nobody_with_it() {
    if std::env::var_os("TP_LONG").is_none() {
        return;
    }
    let Some(lab) = Lab::up(8) else { return };
    push(&lab, &[]).expect(0, &[]);
    let file = blob(&lab, "other.so", 60 << 20, 8);
    lab.lab("shape", &["40mbit"]);
    let (runner, name) = (lab::runner().display().to_string(), file.display().to_string());
    let words = ["push", "inventory.toml", "--runner", &runner, "--with", &name];
    let child = lab
        .orchestrate(&words)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let part = format!(".cache/tp-bringup/bin/{}/other.so.part", hash(&file));
    lab::within(60, "the file to come to the last host", || {
        fs::metadata(lab.home(8).join(&part)).is_ok_and(|about| about.len() > 1 << 20)
    });
    lab.lab("stop", &["host-4"]);
    let output = child.wait_with_output().unwrap();
    let said = Said::of(&output, Duration::ZERO).expect(3, &["host host-4: failed to"]);
    for host in [1, 2, 3, 5, 6, 7, 8] {
        assert!(
            !said.text.contains(&format!("host host-{host}:")),
            "{}",
            said.text
        );
        let path = lab.home(host).join(".cache/tp-bringup/bin").join(hash(&file));
        assert_eq!(hash(&path.join("other.so")), hash(&file), "host-{host}");
    }
    lab.lab("start", &["host-4"]);
    lab.assert_clean();
}
