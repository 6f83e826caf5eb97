//! What must hold for every fabric, not only for those that somebody met.
#![expect(clippy::unwrap_used, reason = "a property that cannot be stated has failed")]

use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use tp_hca::document::{By, RailPick};
use tp_hca::facts::{Address, Gid, GidType, IfAddr, LinkLayer, Port, PortState, RankFacts, Route};
use tp_hca::grammar::{nccl, roce};
use tp_hca::{Document, GidIndex, Options, PickDocument, PortNum, pick};

#[derive(Clone, Debug)]
struct PortSeed {
    state: u8,
    layer: u8,
    carrier: Option<bool>,
    subnet: u8,
    prefix_len: u8,
    gid: u8,
    gid_index: u32,
    known_prefix: bool,
}

fn port_seed() -> impl Strategy<Value = PortSeed> {
    let carrier = prop_oneof![6 => Just(Some(true)), 1 => Just(Some(false)), 1 => Just(None)];
    let prefix_len = prop_oneof![6 => Just(24u8), 1 => Just(26), 1 => Just(30), 1 => Just(32)];
    // Of ten: a version 1 GID, a link-local one, an IPv6 one, and seven that are IPv4.
    let known = prop::bool::weighted(0.9);
    (
        0u8..10,
        0u8..10,
        carrier,
        0u8..3,
        prefix_len,
        0u8..10,
        0u32..12,
        known,
    )
        .prop_map(
            |(state, layer, carrier, subnet, prefix_len, gid, gid_index, known_prefix)| PortSeed {
                state,
                layer,
                carrier,
                subnet,
                prefix_len,
                gid,
                gid_index,
                known_prefix,
            },
        )
}

fn address(rank: u32, index: usize, seed: &PortSeed) -> IpAddr {
    // Within one /30 for the lowest hosts, so that every prefix length can be shared or not.
    let last = 1 + rank as u8 + 4 * index as u8;
    match seed.gid {
        8 => IpAddr::from([169, 254, seed.subnet, last]),
        9 => format!("2001:db8:{}::{last:x}", seed.subnet).parse().unwrap(),
        _ => IpAddr::from([198, 51, 100 + seed.subnet, last]),
    }
}

fn gid_of(ip: IpAddr) -> std::net::Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

fn rank_facts(rank: u32, seeds: &[PortSeed]) -> RankFacts {
    let mut facts = RankFacts {
        rank,
        host: Some(format!("host{rank}")),
        ..RankFacts::default()
    };
    for (index, seed) in seeds.iter().enumerate() {
        let ip = address(rank, index, seed);
        let netdev = format!("eth{index}");
        facts.ports.push(Port {
            device: format!("mlx5_{index}"),
            port: PortNum(1),
            state: Some(if seed.state == 0 {
                PortState::Down
            } else {
                PortState::Active
            }),
            link_layer: Some(if seed.layer == 0 {
                LinkLayer::InfiniBand
            } else {
                LinkLayer::Ethernet
            }),
            netdev: Some(netdev.clone()),
            carrier: seed.carrier,
            gids: Some(vec![Gid {
                index: Some(GidIndex(seed.gid_index)),
                gid: Some(gid_of(ip)),
                kind: Some(if seed.gid == 0 { GidType::V1 } else { GidType::V2 }),
                netdev: Some(netdev.clone()),
            }]),
            ..Port::default()
        });
        let prefix_len = if ip.is_ipv4() { seed.prefix_len } else { 64 };
        let address = IfAddr {
            ip,
            prefix_len: seed.known_prefix.then_some(prefix_len),
        };
        facts.addresses.push(Address {
            netdev: Some(netdev),
            address: Some(address),
        });
    }
    facts
}

/// Routes to single addresses of the other ranks; `astray` of ten leave by another port than the one of the same place.
fn add_routes(ranks: &mut [RankFacts], seeds: &[Vec<PortSeed>], outs: &[(u8, u8)]) {
    let mut outs = outs.iter().cycle();
    for (rank, facts) in ranks.iter_mut().enumerate() {
        for (peer, ports) in seeds.iter().enumerate().filter(|(peer, _)| *peer != rank) {
            for (index, seed) in ports.iter().enumerate() {
                let &(other, astray) = outs.next().unwrap();
                let out = if astray < 2 { usize::from(other) } else { index };
                let destination = IfAddr {
                    ip: address(peer as u32, index, seed),
                    prefix_len: None,
                };
                let netdev = Some(format!("eth{out}"));
                facts.routes.push(Route {
                    destination: Some(destination),
                    netdev,
                    ..Route::default()
                });
            }
        }
    }
}

prop_compose! {
    fn world()(
        mut seeds in prop::collection::vec(prop::collection::vec(port_seed(), 1..6), 2..4),
        outs in prop::collection::vec((0u8..6, 0u8..10), 7),
        routed in 0u8..3,
    ) -> Document {
        if routed == 0 {
            seeds.iter_mut().flatten().for_each(|seed| seed.prefix_len = 32);
        }
        let mut ranks: Vec<RankFacts> =
            seeds.iter().enumerate().map(|(rank, seeds)| rank_facts(rank as u32, seeds)).collect();
        if routed < 2 {
            add_routes(&mut ranks, &seeds, &outs);
        }
        Document::of_ranks(ranks).unwrap()
    }
}

/// Variables as people write them, some of them wrong.
fn variable() -> impl Strategy<Value = Option<String>> {
    let name = prop_oneof![3 => (0u8..6).prop_map(|n| format!("mlx5_{n}")), 1 => Just("mlx5".to_owned())];
    let entry = (name, prop_oneof![4 => Just(""), 1 => Just(":1"), 1 => Just(":3")]).prop_map(|(n, s)| n + s);
    let list = prop::collection::vec(entry, 1..4).prop_map(|list| list.join(","));
    let text = (
        prop_oneof![3 => Just(""), 2 => Just("="), 1 => Just("^"), 1 => Just("^=")],
        list,
    )
        .prop_map(|(h, l)| h.to_owned() + &l);
    prop::option::weighted(0.4, text)
}

fn with_variables(mut document: Document, variables: &[(Option<String>, Option<String>)]) -> Document {
    for (facts, (roce, nccl)) in document.ranks.iter_mut().zip(variables) {
        facts.set_env("TF_TP_ROCE_HCA", roce.as_deref());
        facts.set_env("NCCL_IB_HCA", nccl.as_deref());
    }
    document
}

fn port<'d>(document: &'d Document, rank: u32, device: &str) -> (&'d RankFacts, &'d Port) {
    let facts = document.ranks.iter().find(|facts| facts.rank == rank).unwrap();
    (
        facts,
        facts.ports.iter().find(|port| port.device == device).unwrap(),
    )
}

/// Rail k of a rank to a peer is rail k of the peer to the rank.
fn check_mirrored(got: &PickDocument) {
    let between = |rank: u32, peer: u32| -> Vec<&RailPick> {
        got.rank(rank)
            .unwrap()
            .rails
            .iter()
            .filter(|rail| rail.peer == peer)
            .collect()
    };
    for a in &got.ranks {
        for b in got.ranks.iter().filter(|b| b.rank != a.rank) {
            let (mine, theirs) = (between(a.rank, b.rank), between(b.rank, a.rank));
            assert_eq!(mine.len(), theirs.len());
            for (mine, theirs) in mine.iter().zip(&theirs) {
                assert_eq!(
                    (&mine.device, &mine.peer_device),
                    (&theirs.peer_device, &theirs.device)
                );
                assert_eq!(mine.by, theirs.by);
            }
        }
    }
}

/// Written anew from the rules, not by the code under test.
fn check_reachable(document: &Document, got: &PickDocument) {
    for rank in &got.ranks {
        for rail in &rank.rails {
            let (facts, own) = port(document, rank.rank, &rail.device);
            let (peer_facts, peer) = port(document, rail.peer, &rail.peer_device);
            for port in [own, peer] {
                assert_eq!(port.state, Some(PortState::Active));
                assert_eq!(port.link_layer, Some(LinkLayer::Ethernet));
                assert_ne!(port.carrier, Some(false));
            }
            let gid = |port: &Port| port.gids.as_ref().unwrap()[0].clone();
            let (a, b) = (gid(own), gid(peer));
            assert_eq!((a.kind, a.index), (Some(GidType::V2), Some(rail.gid_index)));
            let (ip, peer_ip) = (
                IpAddr::from(a.gid.unwrap()).to_canonical(),
                IpAddr::from(b.gid.unwrap()).to_canonical(),
            );
            assert_eq!(ip.to_string(), rail.address);
            assert_ne!(ip, peer_ip);
            assert!(got_pinned(document, rank.rank) || !is_link_local(ip));
            match rail.by {
                By::Subnet => assert!(
                    inside(facts, ip, peer_ip) && inside(peer_facts, peer_ip, ip),
                    "{ip} {peer_ip}"
                ),
                By::Route => assert!(leads(facts, own, peer_ip) && leads(peer_facts, peer, ip)),
                By::Explicit => assert!(!document.ranks[0].env.is_empty() || document.ranks.len() > 1),
            }
        }
    }
}

/// Two ranks with usable IPv4 ports in each other's subnets have at least one rail.
fn check_complete(document: &Document, got: &PickDocument) {
    let usable = |facts: &RankFacts| -> Vec<IpAddr> {
        let fit = |port: &&Port| {
            port.state == Some(PortState::Active)
                && port.link_layer == Some(LinkLayer::Ethernet)
                && port.carrier != Some(false)
                && port
                    .gids
                    .iter()
                    .flatten()
                    .all(|gid| gid.kind == Some(GidType::V2))
        };
        let ips = facts
            .ports
            .iter()
            .filter(fit)
            .flat_map(|port| port.gids.iter().flatten());
        let ips = ips.map(|gid| IpAddr::from(gid.gid.unwrap()).to_canonical());
        let known = |ip: &IpAddr| {
            facts.addresses.iter().any(|entry| {
                entry
                    .address
                    .is_some_and(|a| a.ip == *ip && a.prefix_len.is_some_and(|len| len < 32))
            })
        };
        ips.filter(|ip| ip.is_ipv4() && !is_link_local(*ip) && known(ip))
            .collect()
    };
    for low in &document.ranks {
        for high in document.ranks.iter().filter(|high| high.rank > low.rank) {
            let share = usable(low).into_iter().any(|a| {
                usable(high)
                    .into_iter()
                    .any(|b| a != b && inside(low, a, b) && inside(high, b, a))
            });
            let rails = got
                .rank(low.rank)
                .unwrap()
                .rails
                .iter()
                .filter(|rail| rail.peer == high.rank)
                .count();
            assert!(
                !share || rails > 0,
                "ranks {} and {} share a subnet",
                low.rank,
                high.rank
            );
        }
    }
}

fn got_pinned(document: &Document, rank: u32) -> bool {
    document
        .ranks
        .iter()
        .any(|facts| facts.rank == rank && facts.env.get("TF_TP_ROCE_HCA").is_some_and(|v| v.contains(':')))
}

fn is_link_local(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V4(v4) if v4.is_link_local())
}

fn inside(facts: &RankFacts, own: IpAddr, other: IpAddr) -> bool {
    let address = facts
        .addresses
        .iter()
        .filter_map(|entry| entry.address)
        .find(|address| address.ip == own)
        .unwrap();
    let net: ipnet::IpNet = format!("{own}/{}", address.prefix_len.unwrap()).parse().unwrap();
    net.contains(&other)
}

fn leads(facts: &RankFacts, port: &Port, to: IpAddr) -> bool {
    facts
        .routes
        .iter()
        .any(|route| route.destination.unwrap().ip == to && route.netdev == port.netdev)
}

/// NCCL, reading the text by its own rules, takes the picked ports and no other.
fn check_nccl(document: &Document, got: &PickDocument) {
    if !got.ok {
        assert!(
            got.ranks.iter().all(|rank| rank.nccl_env.is_empty()),
            "values of a refused pick"
        );
        return;
    }
    for rank in got.ranks.iter().filter(|rank| !rank.rails.is_empty()) {
        let list = nccl::parse(&rank.nccl_env["NCCL_IB_HCA"]);
        let facts = document
            .ranks
            .iter()
            .find(|facts| facts.rank == rank.rank)
            .unwrap();
        let taken: BTreeSet<&str> = facts
            .ports
            .iter()
            .filter(|port| port.state == Some(PortState::Active) && list.selects(&port.device, port.port))
            .map(|port| port.device.as_str())
            .collect();
        let chosen: BTreeSet<&str> = rank.rails.iter().map(|rail| rail.device.as_str()).collect();
        assert_eq!(taken, chosen);
        let marked: BTreeSet<&str> = rank
            .ports
            .iter()
            .filter(|port| port.chosen)
            .map(|port| port.device.as_str())
            .collect();
        assert_eq!(marked, chosen);
    }
}

/// Devices renamed, and ports, addresses and routes in another order.
fn disguised(document: &Document, salt: u64) -> (Document, BTreeMap<(u32, String), String>) {
    let mut names = BTreeMap::new();
    let mut other = document.clone();
    for facts in &mut other.ranks {
        for (index, port) in facts.ports.iter_mut().enumerate() {
            let scrambled = (index as u64 + 1)
                .wrapping_mul(salt | 1)
                .wrapping_add(u64::from(facts.rank))
                % 9973;
            let new = format!("dev{scrambled}_{index}");
            names.insert(
                (facts.rank, new.clone()),
                std::mem::replace(&mut port.device, new),
            );
        }
        let turn = |len: usize| if len == 0 { 0 } else { salt as usize % len };
        let (a, b, c) = (
            turn(facts.ports.len()),
            turn(facts.addresses.len()),
            turn(facts.routes.len()),
        );
        facts.ports.rotate_left(a);
        facts.addresses.rotate_left(b);
        facts.routes.rotate_left(c);
        facts.ports.reverse();
    }
    other.ranks.reverse();
    (other, names)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn rails_are_mirrored_reachable_and_what_nccl_takes(document in world()) {
        let got = pick(&document, &Options::default());
        check_mirrored(&got);
        check_reachable(&document, &got);
        check_complete(&document, &got);
        check_nccl(&document, &got);
    }

    #[test]
    fn variables_never_make_a_wrong_rail(
        document in world(),
        variables in prop::collection::vec((variable(), variable()), 4)
    ) {
        let document = with_variables(document, &variables);
        let got = pick(&document, &Options::default());
        check_mirrored(&got);
        check_reachable(&document, &got);
        check_nccl(&document, &got);
    }

    #[test]
    fn names_and_order_do_not_matter(document in world(), salt in any::<u64>()) {
        let (other, names) = disguised(&document, salt);
        let (plain, got) = (pick(&document, &Options::default()), pick(&other, &Options::default()));
        prop_assert_eq!(plain.error.as_ref().map(|e| (e.code, e.rank)), got.error.as_ref().map(|e| (e.code, e.rank)));
        for (a, b) in plain.ranks.iter().zip(&got.ranks) {
            let undone: Vec<RailPick> = b.rails.iter().map(|rail| RailPick {
                device: names[&(b.rank, rail.device.clone())].clone(),
                peer_device: names[&(rail.peer, rail.peer_device.clone())].clone(),
                ..rail.clone()
            }).collect();
            prop_assert_eq!(&a.rails, &undone);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "[\\^=,:a-c0-3_ \\-é]{0,40}") {
        let list = nccl::parse(&text);
        prop_assert!(list.entries.len() <= 32);
        if let Ok(checked) = nccl::check(&text) {
            prop_assert_eq!(checked, list);
        }
        if let Ok(entries) = roce::parse(&text) {
            let again: Vec<String> = entries.iter().map(|entry| match entry.gid_index {
                Some(index) => format!("{}:{index}", entry.device),
                None => entry.device.clone(),
            }).collect();
            prop_assert_eq!(roce::parse(&again.join(",")).unwrap().len(), entries.len());
        }
    }

    #[test]
    fn any_bytes_are_facts_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), text in "\\PC{0,200}") {
        let _ = RankFacts::from_bytes(&bytes);
        let _ = Document::from_toml(&text);
    }
}

/// The worlds above are worth checking: they have rails of each kind, and refusals.
#[test]
fn the_generated_worlds_are_not_empty() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut subnet, mut route, mut picked, mut refused) = (0, 0, 0, 0);
    for _ in 0..400 {
        let got = pick(
            &world().new_tree(&mut runner).unwrap().current(),
            &Options::default(),
        );
        *(if got.ok { &mut picked } else { &mut refused }) += 1;
        for rail in got.ranks.iter().flat_map(|rank| &rank.rails) {
            *(if rail.by == By::Route {
                &mut route
            } else {
                &mut subnet
            }) += 1;
        }
    }
    assert!(
        subnet > 100 && route > 10 && picked > 20 && refused > 20,
        "{subnet} {route} {picked} {refused}"
    );
}
