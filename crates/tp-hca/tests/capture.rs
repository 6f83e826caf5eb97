//! A captured tree is replayed: what sysfs says becomes facts, and what it does not say stays unknown.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot build its own tree has failed"
)]
#![cfg(unix)]

use std::path::Path;
use tp_hca::facts::{LinkLayer, PortKind, PortState};
use tp_hca::{GidIndex, capture};

fn file(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{text}\n")).unwrap();
}

fn link(root: &Path, path: &str, target: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::os::unix::fs::symlink(target, path).unwrap();
}

/// A tree with one physical function, one virtual function under a bond, and one soft device.
fn tree() -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let port = |device: &str, state: &str, physical: &str| {
        let base = format!("sys/class/infiniband/{device}/ports/1");
        file(root, &format!("{base}/state"), state);
        file(root, &format!("{base}/phys_state"), physical);
        file(root, &format!("{base}/link_layer"), "Ethernet");
        file(root, &format!("{base}/rate"), "200 Gb/sec (4X HDR)");
        base
    };
    let base = port("rocep1s0f0", "4: ACTIVE", "5: LinkUp");
    for (slot, gid, kind) in [
        (0, "fe80:0000:0000:0000:0200:5eff:fe00:5301", "IB/RoCE v1"),
        (3, "0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2"),
        (4, "0000:0000:0000:0000:0000:0000:0000:0000", ""),
        (10, "0000:0000:0000:0000:0000:ffff:c633:6401", "RoCE v2"),
    ] {
        file(root, &format!("{base}/gids/{slot}"), gid);
        if !kind.is_empty() {
            file(root, &format!("{base}/gid_attrs/types/{slot}"), kind);
            let netdev = if slot == 10 {
                "enp1s0f0np0.7"
            } else {
                "enp1s0f0np0"
            };
            file(root, &format!("{base}/gid_attrs/ndevs/{slot}"), netdev);
        }
    }
    file(root, "sys/devices/pci0000:00/0000:01:00.0/numa_node", "1");
    file(root, "sys/devices/pci0000:00/0000:01:00.0/net/enp1s0f0np0/x", "");
    link(
        root,
        "sys/class/infiniband/rocep1s0f0/device",
        "../../../devices/pci0000:00/0000:01:00.0",
    );
    link(
        root,
        "sys/devices/pci0000:00/0000:01:00.0/driver",
        "../../../bus/pci/drivers/mlx5_core",
    );
    file(
        root,
        "sys/class/infiniband/rocep1s0f0/node_guid",
        "0200:5e00:5300:0001",
    );
    file(root, "sys/class/net/enp1s0f0np0/carrier", "1");
    file(root, "sys/class/net/enp1s0f0np0/phys_port_name", "p0");
    port("rxe_0", "1: DOWN", "3: Disabled");
    file(root, "sys/class/infiniband/rxe_0/parent", "eth0");
    port("bad-name", "4: ACTIVE", "5: LinkUp");
    file(root, "proc/sys/kernel/hostname", "spark-a");
    file(
        root,
        "ip-address.json",
        r#"[{"ifname":"enp1s0f0np0","addr_info":[{"family":"inet","local":"192.0.2.1","prefixlen":25}]}]"#,
    );
    file(
        root,
        "ip-route.json",
        r#"[{"dst":"192.0.2.0/25","dev":"enp1s0f0np0","prefsrc":"192.0.2.1"}]"#,
    );
    directory
}

#[test]
fn a_tree_becomes_facts() {
    let tree = tree();
    let captured = capture(tree.path());
    let facts = captured.facts;
    assert_eq!(facts.host.as_deref(), Some("spark-a"));
    assert_eq!(
        facts
            .ports
            .iter()
            .map(|port| port.device.as_str())
            .collect::<Vec<_>>(),
        ["rocep1s0f0", "rxe_0"]
    );
    assert!(
        captured.notes.iter().any(|note| note.contains("bad-name")),
        "{:?}",
        captured.notes
    );
    let port = &facts.ports[0];
    assert_eq!(port.state, Some(PortState::Active));
    assert_eq!(port.physical_state.as_deref(), Some("LINK_UP"));
    assert_eq!(port.link_layer, Some(LinkLayer::Ethernet));
    assert_eq!(port.netdev.as_deref(), Some("enp1s0f0np0"));
    assert_eq!(
        (port.carrier, port.speed_gbps, port.soft),
        (Some(true), Some(200.0), Some(false))
    );
    assert_eq!(
        (port.pci.as_deref(), port.numa_node),
        (Some("0000:01:00.0"), Some(1))
    );
    assert_eq!(
        (port.driver.as_deref(), port.kind),
        (Some("mlx5_core"), Some(PortKind::Pf))
    );
    assert_eq!((port.phys_port.as_deref(), port.openable), (Some("p0"), None));
    assert_eq!(port.active_mtu, None, "sysfs does not say it");
    let gids = port.gids.as_ref().unwrap();
    assert_eq!(
        gids.iter().map(|gid| gid.index.unwrap()).collect::<Vec<_>>(),
        [0, 3, 10].map(GidIndex)
    );
    assert_eq!(gids[2].netdev.as_deref(), Some("enp1s0f0np0.7"));
    let soft = &facts.ports[1];
    assert_eq!(
        (soft.soft, soft.kind, soft.state),
        (Some(true), Some(PortKind::Soft), Some(PortState::Down))
    );
    assert_eq!(
        (soft.netdev.as_deref(), soft.physical_state.as_deref()),
        (Some("eth0"), Some("DISABLED"))
    );
    assert_eq!(facts.addresses[0].address.unwrap().to_string(), "192.0.2.1/25");
    assert_eq!(facts.routes[0].netdev.as_deref(), Some("enp1s0f0np0"));
}

#[test]
fn a_captured_host_can_be_written_and_read_again() {
    let tree = tree();
    let facts = capture(tree.path()).facts;
    let document = tp_hca::Document::of_ranks(vec![facts.clone()]).unwrap();
    let again = tp_hca::Document::from_toml(&document.to_toml().unwrap()).unwrap();
    assert_eq!(again.ranks, [facts]);
}

#[test]
fn this_host_can_be_captured() {
    let facts = capture(Path::new("/")).facts;
    assert!(facts.host.is_some());
    let document = tp_hca::Document::of_ranks(vec![facts]).unwrap();
    assert!(
        tp_hca::pick(&document, &tp_hca::Options::default()).ok,
        "one rank alone needs no rail"
    );
}
