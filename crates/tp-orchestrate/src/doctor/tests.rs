//! What hosts say, as they say it, held against an inventory. Numbers are those of the field's cases.

use super::*;
use std::path::Path;
use tp_receipt::doctor::{Item, State};

/// Two hosts on one cable with an address each; the second's pieces can be replaced.
const FACTS: &str = r#"
schema = 1
[[rank]]
rank = 0
[[rank.port]]
device = "DEVICE"
port = 1
state = "ACTIVE"
physical_state = "LINK_UP"
link_layer = "Ethernet"
netdev = "NETDEV"
carrier = true
active_mtu = 4096
speed_gbps = 200.0
gids = [{ index = 3, gid = "::ffff:ADDRESS", type = "RoCE v2", netdev = "NETDEV" }]
[[rank.address]]
netdev = "NETDEV"
address = "ADDRESS/24"
[[rank.route]]
destination = "192.0.2.0/24"
netdev = "NETDEV"
"#;

fn facts(device: &str, netdev: &str, address: &str) -> String {
    FACTS
        .replace("DEVICE", device)
        .replace("NETDEV", netdev)
        .replace("ADDRESS", address)
}

fn report(name: &str, device: &str, address: &str) -> HostReport {
    let text = serde_json::json!({
        "schema": 1,
        "host": {
            "name": name, "machine_id": format!("id-{name}"), "boot_id": format!("boot-{name}"),
            "network_namespace": "net:[1]", "system": "aarch64-linux", "kernel": "Linux 6.8", "runner": "0.1.0",
            "runner_sha256": "4f1c4f1c4f1c4f1c",
        },
        "items": [{ "name": "RDMA ports", "state": "ok", "text": "1 of 1 active" }],
        "gpus": [{ "index": 0, "name": "GB10", "compute_capability": "12.1" }],
        "libraries": [{ "library": "libnccl", "version": "2.28.9", "file": "/usr/lib/libnccl.so.2" }],
        "ports": [{ "device": device, "port": 1, "netdev_mtu": 9000, "pcie_width": null, "pcie_width_max": null,
                    "pcie_speed": null, "pcie_speed_max": null, "adapter": null }],
        "facts": facts(device, "enp1s0f1np1", address),
        "abilities": [],
    });
    serde_json::from_value(text).unwrap()
}

fn pair() -> (Inventory, [HostReport; 2]) {
    let text = "schema = 1\n[cluster]\nname = \"pair\"\n\
        [[host]]\nname = \"a\"\nfabric = \"192.0.2.1\"\ngpus = [0]\nmtu = 9000\n\
        [[host]]\nname = \"b\"\nfabric = \"192.0.2.2\"\ngpus = [0]\nmtu = 9000\n";
    let inventory = Inventory::parse("x.toml", text, Path::new(".")).unwrap();
    (
        inventory,
        [
            report("a", "rocep1s0f1", "192.0.2.1"),
            report("b", "mlx5_2", "192.0.2.2"),
        ],
    )
}

fn answers(reports: &[HostReport; 2]) -> Vec<Answer> {
    let answer = |(name, report): (&str, &HostReport)| Answer {
        name: name.to_owned(),
        report: Some(report.clone()),
        error: None,
        clock: None,
    };
    ["a", "b"].into_iter().zip(reports).map(answer).collect()
}

fn all(inventory: &Inventory, reports: &[HostReport; 2]) -> Vec<Finding> {
    let answers = answers(reports);
    let mut found = compare::findings(inventory, &answers);
    found.extend(rails::pick(inventory, &answers).findings);
    found
}

/// The one finding of this name; everything else must be well.
fn only(inventory: &Inventory, reports: &[HostReport; 2], name: &str) -> Finding {
    let found = all(inventory, reports);
    assert_eq!(found.len(), 1, "{found:#?}");
    assert_eq!(found[0].name, name);
    found[0].clone()
}

#[test]
fn two_sound_hosts_have_no_finding_and_a_rail_with_both_ends() {
    let (inventory, reports) = pair();
    assert_eq!(all(&inventory, &reports), []);
    let picked = rails::pick(&inventory, &answers(&reports));
    assert_eq!(picked.address.as_deref(), Some("192.0.2.1"));
    let [rail] = &picked.rails[..] else {
        panic!("{:?}", picked.rails)
    };
    assert_eq!(
        rail.ports,
        ["rocep1s0f1/1", "mlx5_2/1"],
        "names differ and carry no meaning"
    );
    assert_eq!(rail.addresses, ["192.0.2.1", "192.0.2.2"]);
    assert_eq!((rail.mtu, rail.active_mtu), ([Some(9000); 2], [Some(4096); 2]));
    assert_eq!(rail.speed_gbps, [Some(200.0); 2]);
}

/// Case 76: the host with the small limit is blamed, not the one that notices.
#[test]
fn the_host_that_may_lock_too_little_is_named() {
    let (inventory, mut reports) = pair();
    let text = "8192 KiB: registering memory for RDMA may fail";
    let item = Item::new("memlock", State::Warn, text).fix("ulimit -l unlimited");
    reports[1].items.push(item);
    let finding = only(&inventory, &reports, "memlock");
    assert_eq!((finding.host.as_deref(), finding.level), (Some("b"), Level::Bad));
}

/// Case 77: both MTUs are said, and which one counts.
#[test]
fn rdma_takes_the_smaller_mtu_of_both_ends() {
    let (inventory, mut reports) = pair();
    reports[1].facts = reports[1].facts.replace("active_mtu = 4096", "active_mtu = 1024");
    let finding = only(&inventory, &reports, "rail MTU");
    assert!(
        finding.text.contains("4096 and 1024 B; connections take 1024 B"),
        "{}",
        finding.text
    );
}

/// Case 140: a reboot reset one interface's MTU; cases 10 and 140: and the address is another one now.
#[test]
fn live_mtu_and_address_are_held_against_the_inventory() {
    let (inventory, mut reports) = pair();
    reports[1].ports[0].netdev_mtu = Some(1500);
    let found = all(&inventory, &reports);
    let names: Vec<_> = found
        .iter()
        .map(|f| (f.name.as_str(), f.host.as_deref()))
        .collect();
    assert_eq!(names, [("rail MTU", None), ("mtu", Some("b"))]);
    assert!(
        found[1]
            .text
            .contains("the inventory says MTU 9000 B, the interface has 1500 B")
    );
    let (inventory, mut reports) = pair();
    reports[1].facts = facts("mlx5_2", "enp1s0f1np1", "192.0.2.13");
    let finding = only(&inventory, &reports, "fabric");
    assert!(
        finding
            .text
            .contains("the inventory says fabric 192.0.2.2; the host has 192.0.2.13 on enp1s0f1np1"),
        "{}",
        finding.text
    );
}

/// Case 94, and what clones of one image look like.
#[test]
fn one_machine_under_two_names_is_told_from_clones_and_containers() {
    let (inventory, mut reports) = pair();
    reports[1].host.boot_id = reports[0].host.boot_id.clone();
    let finding = only(&inventory, &reports, "same machine");
    assert!(finding.level == Level::Bad && finding.text.contains("hosts a and b are one machine"));
    reports[1].host.network_namespace = Some("net:[2]".into());
    assert_eq!(only(&inventory, &reports, "same machine").level, Level::Note);
    let (inventory, mut reports) = pair();
    reports[1].host.machine_id = reports[0].host.machine_id.clone();
    let finding = only(&inventory, &reports, "machine-id");
    assert!(
        finding.level == Level::Warn && finding.text.contains("cloned"),
        "{}",
        finding.text
    );
}

/// Cases 95 and 143: a table host → version. Case 97: builds. Case 101: systems.
#[test]
fn what_differs_between_hosts_is_a_table() {
    let (inventory, mut reports) = pair();
    reports[1].libraries[0].version = Some("2.30.7".into());
    let finding = only(&inventory, &reports, "NCCL differs");
    assert_eq!(
        finding.text,
        "2.28.9: a from /usr/lib/libnccl.so.2; 2.30.7: b from /usr/lib/libnccl.so.2"
    );
    let (inventory, mut reports) = pair();
    reports[1].host.runner_sha256 = Some("9a209a209a209a20".into());
    assert_eq!(
        only(&inventory, &reports, "runner differs").text,
        "4f1c4f1c4f1c: a; 9a209a209a20: b"
    );
    reports[1].host.system = "x86_64-linux".into();
    let finding = only(&inventory, &reports, "system differs");
    assert_eq!(
        finding.level,
        Level::Note,
        "builds for two systems differ by nature"
    );
}

/// Case 19: another machine answers than the inventory means, or of another kind.
#[test]
fn another_machine_or_system_than_the_inventory_says() {
    let (mut inventory, reports) = pair();
    inventory.hosts[1].machine_id = Some("id-c".into());
    let finding = only(&inventory, &reports, "machine_id");
    assert!(
        finding.text.contains("says id-c") && finding.text.contains("has id-b"),
        "{}",
        finding.text
    );
    let (mut inventory, reports) = pair();
    inventory.hosts[1].system = Some("x86_64-linux".into());
    assert_eq!(only(&inventory, &reports, "system").host.as_deref(), Some("b"));
}

#[test]
fn a_gpu_that_is_not_there_is_named_with_those_that_are() {
    let (mut inventory, reports) = pair();
    inventory.hosts[1].gpus = crate::inventory::Gpus::Listed(vec![1]);
    let finding = only(&inventory, &reports, "gpus");
    assert_eq!(finding.text, "the inventory lists GPU 1; there are: 0 GB10");
}

/// Case 80: only a host that others are routed over is asked to forward.
#[test]
fn a_relay_that_drops_what_it_should_forward() {
    let (inventory, mut reports) = pair();
    // Both hosts say that Docker made them drop; nobody is routed over either.
    for report in &mut reports {
        (report.host.forwards, report.host.forward_policy) = (Some(true), Some("DROP".into()));
    }
    assert_eq!(all(&inventory, &reports), []);
    let text = "schema = 1\n[cluster]\nname = \"line\"\n[[host]]\nname = \"a\"\ngpus = [0]\n\
        [[host]]\nname = \"b\"\ngpus = [0]\n[[host]]\nname = \"c\"\ngpus = [0]\n";
    let inventory = Inventory::parse("x.toml", text, Path::new(".")).unwrap();
    let mut c = report("c", "rocep1s0f0", "192.0.2.3");
    c.facts.push_str(
        "[[rank.route]]\ndestination = \"192.0.2.1/32\"\nnetdev = \"enp1s0f1np1\"\nvia = \"192.0.2.2\"\n",
    );
    let mut three = answers(&reports);
    three.push(Answer {
        name: "c".into(),
        report: Some(c),
        error: None,
        clock: None,
    });
    let found = rails::pick(&inventory, &three).findings;
    let relays: Vec<_> = found.iter().filter(|f| f.name == "relay").collect();
    assert_eq!(relays.len(), 1, "{found:#?}");
    assert_eq!(relays[0].host.as_deref(), Some("b"));
    assert!(
        relays[0].text.contains("FORWARD policy is DROP"),
        "{}",
        relays[0].text
    );
}

/// Case 79: filtered and closed are told apart; closed is an answer.
#[test]
fn a_filtered_port_is_a_fault_and_a_closed_one_is_an_answer() {
    let reached = |outcome: &str| Reached {
        from: "b".into(),
        host: "a".into(),
        to: "192.0.2.1:20001".into(),
        outcome: outcome.into(),
        text: "x".into(),
    };
    assert_eq!(unreachable(&reached("refused")), None);
    for outcome in ["filtered", "no-route", "unknown-name", "failed"] {
        let finding = unreachable(&reached(outcome)).unwrap();
        assert_eq!((finding.host.as_deref(), finding.level), (Some("b"), Level::Bad));
    }
}

/// Case 124: a host that could not be looked at can never end with 0.
#[test]
fn a_host_that_did_not_answer_decides_the_exit_code() {
    let (inventory, reports) = pair();
    let mut answers = answers(&reports);
    answers[1] = Answer {
        name: "b".into(),
        report: None,
        error: Some("host b: failed to log in".into()),
        clock: None,
    };
    let found = compare::findings(&inventory, &answers);
    assert!(
        found
            .iter()
            .any(|f| f.host.as_deref() == Some("b") && f.level == Level::Bad)
    );
    assert_eq!(exit_code(&found, false), 3);
    assert_eq!(exit_code(&found, true), 1);
    assert_eq!(exit_code(&[], true), 0);
}
