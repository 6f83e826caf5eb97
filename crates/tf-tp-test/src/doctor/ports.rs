//! RDMA ports as the hardware has them: state, GIDs, MTU, PCIe, functions of one cage, bonds, addresses without a link.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use tp_hca::RankFacts;
use tp_hca::facts::{GidType, LinkLayer, Port, PortState};
use tp_receipt::doctor::{Item, Look, State};

/// The MTU of Ethernet unless somebody raised it, bytes: RoCE packets then carry 1,024 bytes.
const MTU_PLAIN: u32 = 1500;

/// Looks at every port of the facts; `root` stands for `/`.
pub(super) fn look(facts: &RankFacts, root: &Path) -> Vec<Look> {
    facts.ports.iter().map(|port| of_port(port, root)).collect()
}

fn of_port(port: &Port, root: &Path) -> Look {
    let device = root.join("sys/class/infiniband").join(&port.device);
    let read = |path: &Path| {
        let text = fs::read_to_string(path).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let number = |name: &str| {
        read(&device.join("device").join(name))?
            .parse()
            .ok()
            .filter(|n| *n > 0)
    };
    let netdev = port
        .netdev
        .as_ref()
        .map(|netdev| root.join("sys/class/net").join(netdev).join("mtu"));
    Look {
        device: port.device.clone(),
        port: port.port.0,
        netdev_mtu: netdev.and_then(|path| read(&path)?.parse().ok()),
        pcie_width: number("current_link_width"),
        pcie_width_max: number("max_link_width"),
        pcie_speed: read(&device.join("device/current_link_speed")),
        pcie_speed_max: read(&device.join("device/max_link_speed")),
        adapter: read(&device.join("sys_image_guid")),
    }
}

pub(super) fn items(facts: &RankFacts, looks: &[Look], root: &Path) -> Vec<Item> {
    let mut items = vec![summary(&facts.ports)];
    for (port, look) in facts.ports.iter().zip(looks) {
        if is_active(port) {
            items.push(gids(port));
            items.extend(mtu(port, look));
            items.extend(pcie(port, look));
        }
    }
    items.extend(twins(&facts.ports, looks));
    items.extend(bonds(root));
    items.extend(without_link(facts, root));
    items
}

fn is_active(port: &Port) -> bool {
    port.state == Some(PortState::Active)
}

fn name(port: &Port) -> String {
    format!("{}/{}", port.device, port.port)
}

fn summary(ports: &[Port]) -> Item {
    if ports.is_empty() {
        return Item::new("RDMA ports", State::No, "none in /sys/class/infiniband");
    }
    let words: Vec<String> = ports
        .iter()
        .map(|p| {
            format!(
                "{} {}",
                name(p),
                p.state.map_or("unknown", |state| state.as_str())
            )
        })
        .collect();
    let active = ports.iter().filter(|p| is_active(p)).count();
    let text = format!("{active} of {} active: {}", ports.len(), words.join(", "));
    if active > 0 {
        Item::new("RDMA ports", State::Ok, text)
    } else {
        Item::new("RDMA ports", State::No, text).fix("look at cables and `rdma link`")
    }
}

/// The GIDs by which the port can be reached, or that there is none.
fn gids(port: &Port) -> Item {
    let label = format!("GIDs {}", name(port));
    let usable = port.gids.iter().flatten().filter(|gid| {
        let v2 = gid.kind.is_none_or(|kind| kind == GidType::V2);
        let link_local = gid.gid.is_some_and(|gid| (gid.segments()[0] & 0xffc0) == 0xfe80);
        v2 && !link_local
    });
    let words: Vec<String> = usable
        .filter_map(|gid| {
            let address = gid.gid?;
            let shown = address
                .to_ipv4_mapped()
                .map_or_else(|| address.to_string(), |v4| v4.to_string());
            Some(format!("{} at index {}", shown, gid.index?.0))
        })
        .collect();
    if port.link_layer == Some(LinkLayer::InfiniBand) {
        return Item::new(&label, State::Ok, "InfiniBand: reached by LID");
    }
    if words.is_empty() {
        return Item::new(&label, State::No, "no RoCE v2 GID but link-local ones").fix(format!(
            "give {} an address on the peer's subnet",
            port.netdev.as_deref().unwrap_or("its network interface")
        ));
    }
    Item::new(&label, State::Ok, words.join(", "))
}

fn mtu(port: &Port, look: &Look) -> Option<Item> {
    if port.link_layer == Some(LinkLayer::InfiniBand) {
        return None;
    }
    let (netdev, mtu) = (port.netdev.as_deref()?, look.netdev_mtu?);
    let active = port
        .active_mtu
        .map_or(String::new(), |mtu| format!(", RDMA packets {mtu} B"));
    let speed = port
        .speed_gbps
        .map_or(String::new(), |speed| format!(", {speed} Gbit/s"));
    let label = format!("MTU {}", name(port));
    let text = format!("{mtu} B on {netdev}{active}{speed}");
    Some(if mtu <= MTU_PLAIN {
        Item::new(&label, State::Warn, text).fix(format!(
            "raise it on both ends, and so that it stays after a reboot: ip link set dev {netdev} mtu 9000"
        ))
    } else {
        Item::new(&label, State::Ok, text)
    })
}

fn pcie(port: &Port, look: &Look) -> Option<Item> {
    let (width, most) = (look.pcie_width?, look.pcie_width_max?);
    let label = format!("PCIe {}", name(port));
    let speed = look.pcie_speed.as_deref().unwrap_or("speed unknown");
    let slower = look.pcie_speed_max.as_deref().is_some_and(|max| max != speed);
    let text = format!(
        "x{width} of x{most} at {speed} of {}",
        look.pcie_speed_max.as_deref().unwrap_or("unknown")
    );
    Some(if width < most || slower {
        Item::new(&label, State::Warn, text)
            .fix("put the adapter into a slot that has its lanes, seat it anew, and look at the BIOS's settings of the slot")
    } else {
        Item::new(&label, State::Ok, text)
    })
}

/// Functions of one adapter that share a cage: one alone has a part of the cable's rate.
fn twins(ports: &[Port], looks: &[Look]) -> Vec<Item> {
    let mut cages: BTreeMap<(&str, &str), Vec<&Port>> = BTreeMap::new();
    for (port, look) in ports.iter().zip(looks) {
        if let (Some(adapter), Some(cage)) = (look.adapter.as_deref(), port.phys_port.as_deref()) {
            cages.entry((adapter, cage)).or_default().push(port);
        }
    }
    let shared = cages.into_iter().filter(|(_, ports)| ports.len() > 1);
    let item = |((_, cage), ports): ((&str, &str), Vec<&Port>)| {
        let names: Vec<String> = ports.iter().map(|p| name(p)).collect();
        let active = ports.iter().filter(|p| is_active(p)).count();
        let text = format!("{} are functions of one cage ({cage})", names.join(" and "));
        let label = format!("twin functions {cage}");
        if active == 0 || active == ports.len() {
            Item::new(&label, State::Ok, text)
        } else {
            Item::new(&label, State::Warn, format!("{text}; {active} of {} active", ports.len()))
                .fix("bring the other one up with an address of its own: one function alone carries half of the cable")
        }
    };
    shared.map(item).collect()
}

/// Bonds whose partner does not answer, or of which a member is down.
fn bonds(root: &Path) -> Vec<Item> {
    let Ok(entries) = fs::read_dir(root.join("proc/net/bonding")) else {
        return Vec::new();
    };
    let read = |entry: fs::DirEntry| {
        let text = fs::read_to_string(entry.path()).ok()?;
        Some(bond(&entry.file_name().to_string_lossy(), &text))
    };
    entries.flatten().filter_map(read).collect()
}

fn bond(bond: &str, text: &str) -> Item {
    let label = format!("bond {bond}");
    let value = |line: &str, key: &str| line.trim().strip_prefix(key).map(|rest| rest.trim().to_owned());
    let lacp = text
        .lines()
        .any(|line| line.contains("802.3ad") && line.contains("Mode"));
    let partner = text.lines().find_map(|line| value(line, "Partner Mac Address:"));
    if lacp && partner.as_deref() == Some("00:00:00:00:00:00") {
        return Item::new(&label, State::Warn, "LACP has no partner (its address is all zeros)").fix(
            "configure LACP on the switch's or the peer's ports, or use another bonding mode: one member alone carries traffic",
        );
    }
    let mut member = None;
    for line in text.lines() {
        if let Some(name) = value(line, "Slave Interface:") {
            member = Some(name);
        }
        let down = value(line, "MII Status:").is_some_and(|status| status != "up");
        let churned = value(line, "Actor Churn State:").is_some_and(|state| state == "churned");
        if let (Some(name), true) = (&member, down || churned) {
            let what = if down {
                "is down"
            } else {
                "is churned: it does not join the aggregate"
            };
            return Item::new(&label, State::Warn, format!("member {name} {what}"))
                .fix("look at its cable and at the other end's LACP settings");
        }
    }
    Item::new(&label, State::Ok, "every member is up")
}

/// Addresses on interfaces without a link, where another interface is on the same subnet: the system may send packets for
/// the peer into the unplugged one.
fn without_link(facts: &RankFacts, root: &Path) -> Vec<Item> {
    let carrier = |netdev: &str| {
        let path = root.join("sys/class/net").join(netdev).join("carrier");
        fs::read_to_string(path).map(|text| text.trim() == "1").ok()
    };
    let subnet = |address: &tp_hca::facts::Address| {
        let address = address.address?;
        let len = address.prefix_len.filter(|len| *len < address.max_len())?;
        Some((mask(address.ip, len), len))
    };
    let mut items = Vec::new();
    for address in &facts.addresses {
        let (Some(netdev), Some(net)) = (address.netdev.as_deref(), subnet(address)) else {
            continue;
        };
        let rival = facts.addresses.iter().find(|other| {
            other.netdev.as_deref() != Some(netdev)
                && subnet(other) == Some(net)
                && other.netdev.as_deref().and_then(carrier) == Some(true)
        });
        // An interface that is down cannot be asked for its carrier.
        if let (Some(rival), Some(ip), None | Some(false)) = (rival, address.address, carrier(netdev)) {
            let text = format!(
                "{netdev} has no link and {} on the subnet of {}",
                ip.ip,
                rival.netdev.as_deref().unwrap_or("another interface")
            );
            items.push(
                Item::new("unplugged address", State::Warn, text)
                    .fix(format!("remove it (ip address del), or plug {netdev} in: packets for the peer may go there and be lost")),
            );
        }
    }
    items
}

/// The subnet's first address.
fn mask(ip: std::net::IpAddr, len: u8) -> std::net::IpAddr {
    match ip {
        std::net::IpAddr::V4(ip) => {
            let bits = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            std::net::Ipv4Addr::from_bits(ip.to_bits() & bits).into()
        }
        std::net::IpAddr::V6(ip) => {
            let bits = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
            std::net::Ipv6Addr::from_bits(ip.to_bits() & bits).into()
        }
    }
}

#[cfg(test)]
mod tests;
