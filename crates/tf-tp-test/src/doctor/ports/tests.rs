//! Trees as sysfs has them on the machines of the field's cases.

use super::*;
use tp_hca::Document;

/// A host with two functions of one cage, of which one is down, behind a slot with half of the lanes.
const FACTS: &str = r#"
schema = 1
[[rank]]
rank = 0
[[rank.port]]
device = "rocep1s0f0"
port = 1
state = "ACTIVE"
link_layer = "Ethernet"
netdev = "enp1s0f0np0"
active_mtu = 1024
speed_gbps = 200
phys_port = "p0"
gids = [
  { index = 1, gid = "fe80::1", type = "RoCE v2" },
  { index = 3, gid = "::ffff:192.0.2.1", type = "RoCE v2" },
]
[[rank.port]]
device = "roceP2p1s0f0"
port = 1
state = "DOWN"
link_layer = "Ethernet"
netdev = "enP2p1s0f0np0"
phys_port = "p0"
[[rank.port]]
device = "rocep1s0f1"
port = 1
state = "ACTIVE"
link_layer = "Ethernet"
netdev = "enp1s0f1np1"
phys_port = "p1"
gids = [{ index = 1, gid = "fe80::2", type = "RoCE v2" }]
[[rank.address]]
netdev = "enp1s0f0np0"
address = "192.0.2.1/24"
[[rank.address]]
netdev = "enP2p1s0f0np0"
address = "192.0.2.2/24"
"#;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Self {
        let tree = Self(tempfile::tempdir().unwrap());
        for device in ["rocep1s0f0", "roceP2p1s0f0", "rocep1s0f1"] {
            let folder = format!("sys/class/infiniband/{device}");
            tree.write(&format!("{folder}/sys_image_guid"), "5c25:7303:0012:3456\n");
            tree.write(&format!("{folder}/device/current_link_width"), "4\n");
            tree.write(&format!("{folder}/device/max_link_width"), "8\n");
            tree.write(&format!("{folder}/device/current_link_speed"), "32.0 GT/s PCIe\n");
            tree.write(&format!("{folder}/device/max_link_speed"), "32.0 GT/s PCIe\n");
        }
        for (netdev, mtu, carrier) in [
            ("enp1s0f0np0", "1500", "1"),
            ("enP2p1s0f0np0", "9000", "0"),
            ("enp1s0f1np1", "9000", "1"),
        ] {
            tree.write(&format!("sys/class/net/{netdev}/mtu"), mtu);
            tree.write(&format!("sys/class/net/{netdev}/carrier"), carrier);
        }
        tree
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn items(&self) -> Vec<Item> {
        let facts = Document::from_toml(FACTS)
            .unwrap()
            .into_single(0, "test")
            .unwrap();
        items(&facts, &look(&facts, self.0.path()), self.0.path())
    }
}

fn find<'a>(items: &'a [Item], name: &str) -> &'a Item {
    items
        .iter()
        .find(|item| item.name == name)
        .unwrap_or_else(|| panic!("{name}: {items:?}"))
}

#[test]
fn gids_mtu_lanes_twins_and_unplugged_addresses() {
    let items = Tree::new().items();
    assert!(find(&items, "RDMA ports").text.starts_with("2 of 3 active"));
    assert_eq!(find(&items, "GIDs rocep1s0f0/1").text, "192.0.2.1 at index 3");
    let none = find(&items, "GIDs rocep1s0f1/1");
    assert!(
        none.state == State::No && none.fix.as_ref().unwrap().contains("enp1s0f1np1"),
        "{none:?}"
    );
    let mtu = find(&items, "MTU rocep1s0f0/1");
    assert_eq!(mtu.text, "1500 B on enp1s0f0np0, RDMA packets 1024 B, 200 Gbit/s");
    assert!(mtu.state == State::Warn && mtu.fix.as_ref().unwrap().contains("mtu 9000"));
    let pcie = find(&items, "PCIe rocep1s0f0/1");
    assert!(
        pcie.state == State::Warn && pcie.text.starts_with("x4 of x8"),
        "{pcie:?}"
    );
    let twins = find(&items, "twin functions p0");
    assert!(
        twins.state == State::Warn && twins.text.contains("rocep1s0f0/1 and roceP2p1s0f0/1"),
        "{twins:?}"
    );
    let unplugged = find(&items, "unplugged address");
    assert!(
        unplugged.text.contains("enP2p1s0f0np0 has no link and 192.0.2.2"),
        "{unplugged:?}"
    );
}

/// Case 68: a bond whose LACP partner is all zeros is a finding, and so is a churned member.
#[test]
fn a_bond_without_a_partner_or_with_a_lame_member() {
    let tree = Tree::new();
    let head = "Bonding Mode: IEEE 802.3ad Dynamic link aggregation\nMII Status: up\n";
    tree.write(
        "proc/net/bonding/bond0",
        &format!("{head}802.3ad info\n\tPartner Mac Address: 00:00:00:00:00:00\n"),
    );
    tree.write(
        "proc/net/bonding/bond1",
        &format!(
            "{head}\tPartner Mac Address: 02:00:00:00:00:01\nSlave Interface: ens1f0\nMII Status: up\n\
             Actor Churn State: none\nSlave Interface: ens1f1\nMII Status: up\nActor Churn State: churned\n"
        ),
    );
    tree.write(
        "proc/net/bonding/bond2",
        &format!("{head}\tPartner Mac Address: 02:00:00:00:00:01\nSlave Interface: ens2f0\nMII Status: up\n"),
    );
    let items = tree.items();
    assert!(find(&items, "bond bond0").text.contains("no partner"));
    assert!(
        find(&items, "bond bond1")
            .text
            .starts_with("member ens1f1 is churned")
    );
    assert_eq!(find(&items, "bond bond2").state, State::Ok);
}
