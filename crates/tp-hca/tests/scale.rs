//! A fabric far larger than any that is likely.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot build its own fabric has failed"
)]

use std::net::Ipv4Addr;
use tp_hca::facts::{Address, Gid, GidType, IfAddr, LinkLayer, Port, PortState, RankFacts};
use tp_hca::{Document, GidIndex, Options, pick};

/// 10,000 ports on 64 ranks, every rank sharing its subnets with all others.
fn large() -> Document {
    let ranks = (0u32..64).map(|rank| {
        let mut facts = RankFacts {
            rank,
            host: Some(format!("h{rank}")),
            ..RankFacts::default()
        };
        for index in 0u32..157 {
            let ip = Ipv4Addr::new(10, 1, index as u8, rank as u8 + 1);
            let netdev = format!("eth{index}");
            facts.ports.push(Port {
                device: format!("mlx5_{index}"),
                state: Some(PortState::Active),
                link_layer: Some(LinkLayer::Ethernet),
                netdev: Some(netdev.clone()),
                carrier: Some(true),
                active_mtu: Some(4096),
                speed_gbps: Some(200.0),
                gids: Some(vec![Gid {
                    index: Some(GidIndex(3)),
                    gid: Some(ip.to_ipv6_mapped()),
                    kind: Some(GidType::V2),
                    netdev: Some(netdev.clone()),
                }]),
                ..Port::default()
            });
            let address = IfAddr {
                ip: ip.into(),
                prefix_len: Some(24),
            };
            facts.addresses.push(Address {
                netdev: Some(netdev),
                address: Some(address),
            });
        }
        facts
    });
    Document::of_ranks(ranks.collect()).unwrap()
}

#[test]
fn ten_thousand_ports_are_quick() {
    let text = large().to_toml().unwrap();
    let start = std::time::Instant::now();
    let document = Document::from_toml(&text).unwrap();
    let parsed = start.elapsed();
    let got = pick(&document, &Options::default());
    let picked = start.elapsed();
    assert!(got.ok, "{:?}", got.error);
    let json = serde_json::to_string(&got).unwrap();
    let total = start.elapsed();
    println!(
        "parse {parsed:?}, pick {:?}, json of {} bytes {:?}",
        picked - parsed,
        json.len(),
        total - picked
    );
    assert_eq!(
        got.ranks.iter().map(|rank| rank.rails.len()).sum::<usize>(),
        64 * 63 * 32
    );
    assert!(total.as_secs() < 30, "{total:?} for 10,048 ports");
}
