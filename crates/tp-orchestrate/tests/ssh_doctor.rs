//! `doctor`, `env` and `init` over SSH: what they find on real hosts, inside what `run_prefix` starts, and that what `env`
//! prints is what a runner picks.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;
mod lab;

use common::text;
use lab::{Lab, Said};
use serde_json::Value;
use std::fs;
use std::process::Command;

const ONE_STEP: [&str; 4] = ["--arms", "none", "--steps", "hca"];

/// A command that takes an inventory and a runner.
fn with_runner(lab: &Lab, command: &str, more: &[&str]) -> Said {
    let runner = lab::runner().display().to_string();
    lab.output(&[&[command, "inventory.toml", "--runner", &runner], more].concat())
}

fn json(said: &Said) -> Value {
    serde_json::from_str(said.text.lines().next().unwrap_or_default())
        .unwrap_or_else(|e| panic!("{e}: {}", said.text))
}

fn findings<'d>(document: &'d Value, name: &str) -> Vec<&'d Value> {
    let all = document["findings"].as_array().unwrap();
    all.iter().filter(|finding| finding["name"] == name).collect()
}

/// Whether the machine under the lab has a libibverbs, which its hosts then have too.
fn has_libibverbs() -> bool {
    let listed = Command::new("/sbin/ldconfig").arg("-p").output();
    listed.is_ok_and(|out| String::from_utf8_lossy(&out.stdout).contains("libibverbs.so.1 "))
}

/// Faults as `HOST NAME`, but for those that the machine under the lab has: its limit of locked memory, no RDMA device
/// behind the sysfs that the hosts show, perhaps no libibverbs.
fn faults(document: &Value) -> Vec<String> {
    let mut own = vec!["memlock", "RDMA device files"];
    if !has_libibverbs() {
        own.push("libibverbs");
    }
    let all = document["findings"].as_array().unwrap().iter();
    let bad =
        all.filter(|finding| finding["level"] == "bad" && !own.iter().any(|name| finding["name"] == *name));
    bad.map(|finding| {
        let host = finding["host"].as_str().unwrap_or("all");
        format!("{host} {}", finding["name"].as_str().unwrap())
    })
    .collect()
}

/// Every rail of a pick as `RANK DEVICE:PORT PEER`.
fn rails(pick: &Value) -> Vec<String> {
    let mut out = Vec::new();
    for rank in pick["ranks"].as_array().unwrap() {
        for rail in rank["rails"].as_array().unwrap() {
            let (device, port) = (rail["device"].as_str().unwrap(), &rail["port"]);
            out.push(format!("{} {device}:{port} {}", rank["rank"], rail["peer"]));
        }
    }
    out.sort();
    out
}

#[test]
fn doctor_looks_at_every_host_and_ends_with_a_collective() {
    let Some(lab) = Lab::up(2) else { return };
    // Nothing was pushed yet: said, and nothing is brought by looking.
    with_runner(&lab, "doctor", &["--json"]).expect(3, &["host-1", "host-2"]);
    with_runner(&lab, "push", &[]).expect(0, &["MB in"]);
    let sound = with_runner(&lab, "doctor", &["--json"]);
    let document = json(&sound);
    assert_eq!(faults(&document), [""; 0], "{}", document["findings"]);
    assert!(sound.code <= 1, "{}", sound.text);
    let names: Vec<_> = document["hosts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|h| &h["name"])
        .collect();
    assert_eq!(names, ["host-1", "host-2"]);
    assert_eq!(
        document["rails"].as_array().unwrap().len(),
        2,
        "{}",
        document["rails"]
    );
    assert_eq!(
        document["rails"][0]["ports"],
        serde_json::json!(["rocep1s0f0/1", "rocep1s0f1/1"])
    );
    assert_eq!(
        document["collectives"][0]["passed"], true,
        "{}",
        document["collectives"]
    );
    let reach = &document["reach"][0];
    assert_eq!(
        (&reach["from"], &reach["host"]),
        (&"host-2".into(), &"host-1".into())
    );

    // What is wrong on one host is laid at that host's door, with what would mend it.
    lab.on(2, "ip route add unreachable 198.51.100.1/32; echo NCCL_IB_HCA=mlx5_9 >/root/.nccl.conf; : >/dev/shm/tf-tp-0-old");
    fs::write(lab.home(2).join(".ssh/environment"), "NCCL_SOCKET_IFNAME=eth9\n").unwrap();
    let ill = with_runner(&lab, "doctor", &["--json", "--no-collective"]);
    let document = json(&ill);
    assert_eq!(ill.code, 1, "{document:#}");
    let found = faults(&document);
    assert!(found.contains(&"host-2 reach".to_owned()), "{found:?}");
    assert!(
        !found.iter().any(|fault| fault.starts_with("host-1")),
        "{found:?}"
    );
    let cut = findings(&document, "reach");
    assert!(
        cut[0]["fix"]
            .as_str()
            .unwrap()
            .contains("ip route get 198.51.100.1"),
        "{cut:?}"
    );
    assert_eq!(cut[0]["host"], "host-2");
    let sources: Vec<&str> = document["hosts"][1]["report"]["nccl_settings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|setting| setting["source"].as_str().unwrap())
        .collect();
    assert!(
        sources.iter().any(|source| source.ends_with(".nccl.conf")),
        "{sources:?}"
    );
    lab.on(
        2,
        "ip route del unreachable 198.51.100.1/32; rm /root/.nccl.conf /dev/shm/tf-tp-0-old",
    );
    fs::remove_file(lab.home(2).join(".ssh/environment")).unwrap();

    lab.lab("stop", &["host-2"]);
    let down = with_runner(&lab, "doctor", &["--json"]);
    assert_eq!(down.code, 3, "{}", down.text);
    assert!(
        json(&down)["hosts"][1]["error"]
            .as_str()
            .unwrap()
            .contains("192.0.2.2:22"),
        "{}",
        down.text
    );
    lab.lab("start", &["host-2"]);
    lab.assert_clean();
}

/// A root of its own with a C library and nothing else, in a process namespace of its own: what a container is.
const JAIL: &str = r#"
set -e
jail=/root/jail
mkdir -p $jail/etc $jail/proc $jail/sys $jail/dev/shm $jail/tmp $jail/root/.cache/tp-bringup
mount -t tmpfs tmpfs $jail/dev/shm
mount --rbind /sys $jail/sys
mount --bind /root/.cache/tp-bringup $jail/root/.cache/tp-bringup
ldd /root/.cache/tp-bringup/bin/*/tf-tp-test | sed -n 's/.*[ \t]\(\/[^ ]*\) (.*/\1/p' | while read -r f; do
  mkdir -p "$jail$(dirname "$f")"
  cp -L "$f" "$jail$f"
done
echo NCCL_IB_TIMEOUT=22 >$jail/etc/nccl.conf
"#;

/// `run_prefix` is what a rank is started in: `doctor` looks inside, and a run passes there.
#[test]
fn doctor_and_run_look_inside_a_container_of_their_own_root_and_processes() {
    let Some(lab) = Lab::up(2) else { return };
    with_runner(&lab, "push", &[]).expect(0, &[]);
    lab.on(2, JAIL);
    let inside = [
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--root=/root/jail",
        "--mount-proc",
    ];
    let prefix = format!("run_prefix = {inside:?}");
    let settings = |document: &Value| document["hosts"][1]["report"]["nccl_settings"].to_string();
    let outside = json(&with_runner(&lab, "doctor", &["--json", "--no-collective"]));
    assert!(!settings(&outside).contains("NCCL_IB_TIMEOUT"), "{outside:#}");
    assert_eq!(faults(&outside), [""; 0], "{}", outside["findings"]);
    lab.add_to_host(2, &prefix);
    let within = with_runner(&lab, "doctor", &["--json"]);
    let document = json(&within);
    // Where the system has a libibverbs, the container still has none.
    let lacks: &[&str] = if has_libibverbs() {
        &["host-2 libibverbs"]
    } else {
        &[]
    };
    assert_eq!(faults(&document), lacks, "{}", document["findings"]);
    assert_eq!(within.code, 1, "{}", within.text);
    assert!(settings(&document).contains("NCCL_IB_TIMEOUT"), "{document:#}");
    assert_eq!(document["collectives"][0]["passed"], true, "{document:#}");
    lab.run("out", &["--arms", "none", "--steps", "hca,failfast-host-kill-1"])
        .expect(0, &["PASSED"]);
    lab.assert_verified("out");
    lab.on(
        2,
        "umount -R /root/jail/sys /root/jail/root/.cache/tp-bringup /root/jail/dev/shm; rm -rf /root/jail",
    );
    lab.assert_clean();
}

#[test]
fn what_env_prints_makes_a_runner_pick_the_proved_ports_and_no_others() {
    let Some(lab) = Lab::up(2) else { return };
    lab.run("out", &ONE_STEP).expect(0, &["PASSED"]);
    let proved = json(&with_runner(&lab, "hca", &["--json"]).expect(0, &[]));
    with_runner(&lab, "env", &["--into", "env", "--proved-by", "out"])
        .expect(0, &["host-1.env", "host-2.env"]);
    let runner = |lab: &Lab| {
        lab.on(1, "echo /root/.cache/tp-bringup/bin/*/tf-tp-test")
            .trim()
            .to_owned()
    };
    // `files[i]` is sourced by rank i, in a shell that has variables of its own.
    let pick = |files: [&str; 2]| {
        let start = |(rank, file): (usize, &str)| {
            let line = format!(
                "export NCCL_IB_GID_INDEX=9 NCCL_IB_HCA=stale TF_TP_SECRET={}; . {}; exec {} --rank {rank} --world 2 \
                 --master 198.51.100.1 --port 20123 hca --json",
                "5ec2e7ab".repeat(4),
                lab.path("env").join(file).display(),
                runner(&lab)
            );
            lab.spawn_on(rank + 1, &line)
        };
        let started: Vec<_> = files.into_iter().enumerate().map(start).collect();
        let ended: Vec<_> = started
            .into_iter()
            .map(|child| child.wait_with_output().unwrap())
            .collect();
        ended
    };
    for ended in pick(["host-1.env", "host-2.env"]) {
        assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stdout));
        let picked: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(rails(&picked), rails(&proved));
        let given = picked["ranks"][0]["nccl_env"]["NCCL_IB_HCA"].as_str().unwrap();
        assert_eq!(given, proved["ranks"][0]["nccl_env"]["NCCL_IB_HCA"]);
    }
    // One list for all hosts names devices that the other does not have: it decides, and it is refused.
    for ended in pick(["host-1.env", "host-1.env"]) {
        let picked: Value = serde_json::from_slice(&ended.stdout).unwrap();
        assert_eq!(ended.status.code(), Some(2), "{picked:#}");
        assert_eq!(picked["error"]["code"], "unknown-device", "{picked:#}");
    }

    // The cabling changes: what was proved is no longer what would be used.
    lab.on(2, "ip addr flush dev enp1s0f1np1");
    with_runner(&lab, "env", &["--host", "host-1", "--proved-by", "out"])
        .expect(3, &["was proved on", "run again"]);
    lab.assert_clean();
}

#[test]
fn init_writes_an_inventory_that_the_next_commands_take() {
    let Some(lab) = Lab::up(2) else { return };
    let words = [
        "init",
        "root@192.0.2.1",
        "root@192.0.2.2",
        "--name",
        "asked",
        "--out",
        "asked.toml",
    ];
    lab.output(&words).expect(0, &["wrote asked.toml"]);
    let written = fs::read_to_string(lab.path("asked.toml")).unwrap();
    for machine in [
        "machine_id = \"000000000000000000000000face0001\"",
        "face0002",
        "system = ",
    ] {
        assert!(written.contains(machine), "{written}");
    }
    let runner = lab::runner().display().to_string();
    lab.output(&["push", "asked.toml", "--runner", &runner])
        .expect(0, &["MB in"]);
    lab.output(&["plan", "asked.toml", "--ask", "--runner", &runner])
        .expect(0, &["rank 1 on"]);
    lab.output(&words).expect(2, &["asked.toml"]);
}

/// Case 13: three hosts of a ring of four. The link that would close it is missing, which is said before anything starts.
#[test]
fn hosts_that_no_rail_joins_are_refused_before_a_rank_starts() {
    let Some(lab) = Lab::up(3) else { return };
    with_runner(&lab, "push", &[]).expect(0, &[]);
    // Cables 1-2, 2-3, 3-4 and 4-1, a subnet each; host 4 is not there.
    let ends = [
        (1, "rocep1s0f0", "enp1s0f0np0", "198.51.100.1"),
        (1, "roceP2p1s0f0", "enP2p1s0f0np0", "198.51.100.193"),
        (2, "rocep1s0f1", "enp1s0f1np1", "198.51.100.2"),
        (2, "roceP2p1s0f1", "enP2p1s0f1np1", "198.51.100.66"),
        (3, "mlx5_0", "ens1f0", "198.51.100.67"),
        (3, "mlx5_3", "ens2f0", "198.51.100.131"),
    ];
    for (host, device, netdev, address) in ends {
        lab.on(
            host,
            &format!("ip addr flush dev {netdev} && ip addr add {address}/26 dev {netdev}"),
        );
        let octets: Vec<u8> = address.split('.').map(|o| o.parse().unwrap()).collect();
        let gid = format!(
            "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}\n",
            octets[0], octets[1], octets[2], octets[3]
        );
        for index in [2, 3] {
            let tree = lab.path(&format!(
                "hosts/host-{host}/infiniband/{device}/ports/1/gids/{index}"
            ));
            fs::write(tree, &gid).unwrap();
        }
    }
    let words = [
        "no-shared-rail",
        "rank 0 (host host-1) and rank 2 (host host-3) share no rail",
        "--steps",
    ];
    lab.run("out", &[]).expect(3, &words);
    assert!(!lab.path("out").exists());
    with_runner(&lab, "plan", &["--ask"]).expect(3, &words);
    // What picks nothing asks nothing of the ports.
    with_runner(
        &lab,
        "plan",
        &["--ask", "--arms", "none", "--steps", "suite-host"],
    )
    .expect(0, &["suite-host"]);
    let doctor = with_runner(&lab, "doctor", &["--json", "--no-collective"]);
    assert_eq!(doctor.code, 1, "{}", doctor.text);
    assert_eq!(findings(&json(&doctor), "rails").len(), 1, "{}", doctor.text);
    lab.assert_clean();
}
