//! Redaction: what is replaced, what stays, and what happens to a file in which a name was left. Case 130.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use proptest::prelude::*;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use support::*;
use tp_receipt::event::{Kind, Setting};
use tp_receipt::receipt::Verdict;
use tp_receipt::redact::{Keyring, MASK, Redactor};
use tp_receipt::store::{Options, Store};
use tp_receipt::verify::{self, verify};

fn fresh() -> Redactor {
    let redactor = Redactor::with_key([3; 32]);
    redactor.host("spark-a.lab.example");
    redactor.host("spark-b.lab.example");
    redactor.user("alice");
    redactor
}

#[test]
fn every_form_is_replaced() {
    let r = fresh();
    let private = [
        "ssh alice@spark-a.lab.example failed",
        "SPARK-A: link down; spark-b up",
        "connect 10.1.2.3:29500 refused",
        "bound to [fd12:3456:789a::17]:4791",
        "between 10.1.2.3 and /fd12:3456:789a::17",
        "GID 3 fe80:0000:0000:0000:5aa2:e1ff:fe12:3456",
        "gid:fe80::5aa2:e1ff:fe12:3456%eth0",
        "GID ::ffff:192.168.100.11 v2",
        "GID 0000:0000:0000:0000:0000:ffff:c0a8:640b v2",
        "node_guid 58a2:e103:0012:3456",
        "guid 0x58a2e10300123456",
        "link/ether 58:a2:e1:12:34:56 brd ff:ff:ff:ff:ff:ff",
        "GPU-7a3c2f10-1b2c-4d5e-8f90-a1b2c3d4e5f6",
        "Serial Number: 1425424012345",
        "mail alice.b@corp.example.org now",
        "SHA256:AbCdEfGhIjKlMnOpQrStUvWxYz0123456789AbCdEfG",
        "open(\"/home/alice/.ssh/config\")",
        "LD_LIBRARY_PATH=/data/team/lib:/usr/lib",
        "cannot read /mnt/nfs/alice-run/x.toml.",
        "machine-id: 0123456789abcdef0123456789abcdef",
        "203.0.113.9 stays, 8.8.4.4 does not",
    ];
    let secrets = [
        "alice",
        "spark-a",
        "SPARK-A",
        "spark-b",
        "10.1.2.3",
        "fd12",
        "5aa2",
        "192.168.100.11",
        "c0a8:640b",
        "58a2",
        "58:a2",
        "7a3c2f10",
        "1425424012345",
        "corp.example",
        "AbCdEf",
        "/home",
        "/data/team",
        "nfs",
        "0123456789abcdef0",
        "8.8.4.4",
    ];
    for line in private {
        let out = r.line(line);
        assert_ne!(out, line);
        for secret in secrets {
            assert!(!out.contains(secret), "{line} -> {out}");
        }
        assert_eq!(r.line(&out), out, "a pseudonym is no name");
        assert!(
            r.scanner().remaining(out.as_bytes()).is_empty(),
            "{out}: {:?}",
            r.scanner().remaining(out.as_bytes())
        );
    }
    assert_eq!(r.line("203.0.113.9"), "203.0.113.9");
    let path = r.line("dlopen /opt/conda/lib/libnccl.so.2 failed");
    assert!(
        path.starts_with("dlopen /path-") && path.ends_with("/libnccl.so.2 failed"),
        "{path}"
    );
}

#[test]
fn what_names_nobody_stays() {
    let r = fresh();
    let public = [
        "host all_reduce sum bf16 4096 B in place",
        "NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE",
        "2026-03-01T12:00:01.123456Z rank 0 of 2",
        "10:55:03 up, pci 0000:01:00.0, mlx5_0/1, rocep1s0f0:1",
        "127.0.0.1:29500 and [::1]:29500 and 0.0.0.0 and 255.255.255.0",
        "2001:db8::7, 192.0.2.1/24, 198.51.100.4",
        "std::fmt::Error, tp_fabric::host::open",
        "driver 580.173.02, NCCL 2.30.7, version 1.2.3.4.5, CUDA 13.0",
        "200 Gb/s, 3/4 done, a/b, eager/graph, prefix /24, and/or",
        "/sys/class/infiniband/mlx5_0/ports/1, /usr/lib/libibverbs.so.1, /dev/shm/x, /proc/self/exe",
        "exit 70, errno 110 (Connection timed out), 0x1f, 0x7ffe8e3c1d20",
        "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "aes128-gcm@openssh.com",
        "malice and spark-ab are other words",
    ];
    for line in public {
        assert_eq!(r.line(line), line);
    }
}

#[test]
fn pseudonyms_are_stable_and_depend_on_the_key() {
    let (a, b) = (fresh(), fresh());
    let other = Redactor::with_key([4; 32]);
    assert_eq!(a.host("spark-a.lab.example"), b.host("spark-a.lab.example"));
    assert_eq!(a.host("Spark-A.lab.example"), b.host("spark-a.lab.example"));
    assert_ne!(a.host("spark-a.lab.example"), other.host("spark-a.lab.example"));
    assert_eq!(a.line("10.9.8.7"), b.line("10.9.8.7"));
    assert_eq!(a.host("localhost"), "localhost");
    // A host with the name of a thing of ours: replaced where it is known to be a host, not in every sentence.
    let named = a.host("roce");
    assert!(named.starts_with("host-"));
    assert_eq!(a.line("arm roce"), "arm roce");
}

/// A machine may be called `vm`: replaced as a word where it was given as a host, and only there.
#[test]
fn a_host_of_two_letters_is_replaced_as_a_word() {
    let r = fresh();
    assert_eq!(r.line("vm:12:34 [0] NCCL INFO on vm").matches("vm").count(), 1);
    let name = r.host("vm");
    assert!(name.starts_with("host-"));
    assert_eq!(
        r.line("rank 0 on vm: vm, nvm and kvm0"),
        format!("rank 0 on {name}: {name}, nvm and kvm0")
    );
    r.host("qa.lab.example");
    assert!(!r.line("connect to qa failed").contains("qa"));
    // A unit is one in every sentence.
    assert!(r.host("us").starts_with("host-"));
    assert_eq!(r.line("12 us to us"), "12 us to us");
}

fn common_bits(a: IpAddr, b: IpAddr) -> u32 {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => (u32::from(a) ^ u32::from(b)).leading_zeros(),
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros(),
        _ => 0,
    }
}

proptest! {
    #[test]
    fn subnets_are_kept(host_a in any::<u16>(), host_b in any::<u16>(), net in any::<u8>()) {
        let r = fresh();
        let of = |low: u16| IpAddr::V4(Ipv4Addr::from(0x0a00_0000 | u32::from(net) << 16 | u32::from(low)));
        let new = |a: IpAddr| r.line(&a.to_string()).parse::<IpAddr>().unwrap();
        let (a, b) = (of(host_a), of(host_b));
        prop_assert_eq!(common_bits(a, b), common_bits(new(a), new(b)));
        let of = |low: u16| IpAddr::V6(Ipv6Addr::from(0xfd00_1234_0000_0000_0000_0000_0001_0000u128 | u128::from(low)));
        let (a, b) = (of(host_a), of(host_b));
        prop_assert_eq!(common_bits(a, b), common_bits(new(a), new(b)));
    }

    #[test]
    fn networks_stay_networks(net in any::<u32>(), prefix in 9u32..32) {
        let r = fresh();
        let network = Ipv4Addr::from((0x0a00_0000 | (net & 0x00ff_ffff)) & !(u32::MAX >> prefix));
        let out = r.line(&format!("{network}/{prefix}"));
        let (address, bits) = out.split_once('/').unwrap();
        prop_assert_eq!(bits.parse::<u32>().unwrap(), prefix);
        prop_assert_eq!(u32::from(address.parse::<Ipv4Addr>().unwrap()) & (u32::MAX >> prefix), 0);
    }

    #[test]
    fn no_text_makes_it_panic_and_twice_is_once(text in prop_oneof![".{0,80}", "[0-9a-f:./@ -]{0,40}"]) {
        let r = fresh();
        let once = r.line(&text);
        prop_assert!(r.scanner().remaining(once.as_bytes()).is_empty());
        prop_assert_eq!(r.line(&once), once);
    }
}

/// An address right behind a path, where the two share letters that both may hold.
#[test]
fn a_path_ends_where_an_address_begins() {
    let r = fresh();
    for text in [
        "/@::a",
        "/::a",
        "/data/joe-::a",
        "/data/joe/a:fe80::1",
        "/data/joe/@fe80::1.",
        "/srv/02:11:22:33:44:55",
        "/srv/00aa:1122:3344:5566",
        "/srv/x,::a",
        "/@.2::",
        "../.::b:1",
        "/aa.2::",
        "::::2",
        "::b/::a",
        "/data/joe/a:fe80::1/64",
    ] {
        let once = r.line(text);
        assert_eq!(r.line(&once), once, "{text}");
        assert!(
            !once.contains("joe") && !once.ends_with("::a") && !once.contains("fe80::1"),
            "{text}: {once}"
        );
        assert!(!once.contains("22:33"), "{text}: {once}");
        assert!(!once.contains("1122"), "{text}: {once}");
    }
}

#[test]
fn secrets_are_masked_with_redaction_off_too() {
    let r = Redactor::off();
    r.secret("c0ffee00c0ffee00");
    assert_eq!(
        r.line("secret c0ffee00c0ffee00 on spark-a"),
        format!("secret {MASK} on spark-a")
    );
    let name = "TF_TP_SECRET".to_owned();
    let event = event(
        0,
        Kind::Setting(Setting {
            name,
            value: "hunter2".into(),
            source: "environment".into(),
        }),
    );
    assert!(r.event(&event).to_line().contains(MASK));
    let mut value = serde_json::json!({ "env": { "HF_TOKEN": "abc" } });
    r.value(&mut value);
    assert_eq!(value["env"]["HF_TOKEN"], MASK);
}

#[test]
fn key_and_map_are_private_and_lead_back() {
    let root = tempfile::tempdir().unwrap();
    let keyring = Keyring::at(root.path().join("state/tp-bringup"));
    let first = Redactor::open(keyring.clone()).unwrap();
    let pseudonym = first.host("spark-a.lab.example");
    let address = first.line("10.20.30.40");
    first.save().unwrap();
    let second = Redactor::open(keyring.clone()).unwrap();
    assert_eq!(second.host("spark-a.lab.example"), pseudonym);
    let map = keyring.map().unwrap();
    assert_eq!(map[&pseudonym].original, "spark-a.lab.example");
    assert_eq!(map[&address].original, "10.20.30.40");
    for path in [keyring.key_path(), keyring.map_path()] {
        assert_eq!(
            fs::metadata(&path).unwrap().mode() & 0o777,
            0o600,
            "{}",
            path.display()
        );
    }
    assert_eq!(fs::metadata(keyring.dir()).unwrap().mode() & 0o777, 0o700);
    fs::set_permissions(keyring.key_path(), fs::Permissions::from_mode(0o644)).unwrap();
    let error = Redactor::open(keyring.clone()).unwrap_err().to_string();
    assert!(error.contains("can be read by others (mode 644)"), "{error}");
    fs::set_permissions(keyring.key_path(), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(keyring.key_path(), "short\n").unwrap();
    assert!(
        Redactor::open(keyring)
            .unwrap_err()
            .to_string()
            .contains("is damaged")
    );
}

#[test]
fn a_receipt_holds_no_name() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    good_run(&dir, &Shape::default());
    let mut files = vec![];
    for entry in walk(&dir) {
        let text = String::from_utf8(fs::read(&entry).unwrap()).unwrap();
        for name in ["lab.example", "spark-0", "spark-1", "10.177.8."] {
            assert!(!text.contains(name), "{} holds {name}", entry.display());
        }
        files.push(entry);
    }
    assert!(files.len() > 30, "{}", files.len());
    let log = fs::read_to_string(dir.join("logs/none/suite-host/rank-0.log")).unwrap();
    assert!(
        log.starts_with("host-") && log.contains(":41:41 [0] NCCL INFO hello from host-"),
        "{log}"
    );
}

fn walk(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    let mut out = vec![];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            out.extend(walk(&path))
        } else {
            out.push(path)
        }
    }
    out
}

/// A name that becomes known only after it was written.
#[test]
fn a_file_in_which_a_name_remained_is_set_aside_and_said() {
    let root = tempfile::tempdir().unwrap();
    let dir = out_dir(&root);
    let keyring = Keyring::at(root.path().join("state"));
    let redactor = Redactor::open(keyring.clone()).unwrap();
    let shape = Shape {
        arms: vec!["none"],
        failfast: false,
        ..Shape::default()
    };
    let late = "late-name-77";
    let mut start = shape.start();
    start.cluster = Some(format!("cluster of {late}"));
    let mut store = Store::create(&dir, start, &plan(), redactor.clone(), Options::default()).unwrap();
    good_step(&mut store, &key("none", "hca", 1), &shape, 1);
    let step = key("none", "suite-host", 1);
    store.step_begin(step_start(&step, 2, 3)).unwrap();
    for event in good_events(&step, &shape) {
        store.event(&event).unwrap();
    }
    store.log(0, format!("connected to {late}\n").as_bytes()).unwrap();
    store.log(1, b"nothing of note\n").unwrap();
    store.step_end(step_end(&step, 4)).unwrap();
    good_step(&mut store, &key("none", "bench-host", 1), &shape, 5);
    redactor.host(late);
    let receipt = store.finish(end(9)).unwrap();
    assert_eq!(receipt.verdict, Verdict::Passed, "{:?}", receipt.reasons);
    let files: Vec<&str> = receipt.set_aside.iter().map(|s| s.file.as_str()).collect();
    assert_eq!(files, ["logs/none/suite-host/rank-0.log", "events.jsonl"]);
    assert!(!dir.join("logs/none/suite-host/rank-0.log").exists());
    assert!(dir.join("logs/none/suite-host/rank-1.log").exists());
    for path in walk(&dir) {
        assert!(
            !fs::read_to_string(&path).unwrap().contains(late),
            "{}",
            path.display()
        );
    }
    let kept: Vec<_> = walk(&keyring.dir().join("set-aside"));
    let log = kept
        .iter()
        .find(|p| p.ends_with("logs/none/suite-host/rank-0.log"))
        .unwrap();
    assert_eq!(fs::read_to_string(log).unwrap(), format!("connected to {late}\n"));
    assert_eq!(fs::metadata(log).unwrap().mode() & 0o077, 0);
    let report = verify(&dir, &verify::Options::default());
    assert_eq!(report.broken, vec![], "{}", report.text());
}
