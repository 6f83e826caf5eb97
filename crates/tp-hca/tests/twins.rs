//! The modelled pair that the demonstration runs on: every arm must come to the same rails.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read its own fixtures has failed"
)]

use std::path::PathBuf;
use tp_hca::{Document, Mode, Options, PickDocument, pick};

fn twins() -> Document {
    let facts = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../hosts/facts");
    Document::from_host_files(&[facts.join("twin-a.toml"), facts.join("twin-b.toml")]).unwrap()
}

fn with(arm: &[(u32, &str, &str)]) -> PickDocument {
    let mut document = twins();
    for (rank, name, value) in arm {
        document.rank_mut(*rank).unwrap().set_env(name, Some(value));
    }
    pick(&document, &Options::default())
}

fn rails(document: &PickDocument) -> serde_json::Value {
    assert!(document.ok, "{:?}", document.error);
    document
        .ranks
        .iter()
        .map(|rank| serde_json::to_value(&rank.rails).unwrap())
        .collect()
}

#[test]
fn all_three_arms_come_to_the_same_rails() {
    let none = with(&[]);
    assert_eq!(
        none.ranks[0].nccl_env["NCCL_IB_HCA"],
        "=rocep1s0f1:1,roceP2p1s0f1:1"
    );
    assert_eq!(none.ranks[1].nccl_env["NCCL_IB_HCA"], "=mlx5_2:1,mlx5_3:1");
    assert_eq!(none.ranks[0].rails[0].gid_index.0, 3);
    assert_eq!(none.ranks[1].rails[0].gid_index.0, 5);
    let nccl = with(&[
        (0, "NCCL_IB_HCA", &none.ranks[0].nccl_env["NCCL_IB_HCA"]),
        (1, "NCCL_IB_HCA", &none.ranks[1].nccl_env["NCCL_IB_HCA"]),
    ]);
    assert_eq!(nccl.ranks[0].mode, Mode::Nccl);
    let roce = with(&[
        (0, "TF_TP_ROCE_HCA", "rocep1s0f1,roceP2p1s0f1"),
        (1, "TF_TP_ROCE_HCA", "mlx5_3,mlx5_2"),
    ]);
    assert_eq!(roce.ranks[1].mode, Mode::Roce);
    assert_eq!(rails(&nccl), rails(&none));
    assert_eq!(rails(&roce), rails(&none));
    assert_eq!(roce.ranks[0].nccl_env, none.ranks[0].nccl_env);
}

#[test]
fn the_first_two_devices_of_either_host_reach_nobody() {
    for (rank, first) in [(0, "rocep1s0f0,roceP2p1s0f0"), (1, "mlx5_0,mlx5_1")] {
        for variable in ["TF_TP_ROCE_HCA", "NCCL_IB_HCA"] {
            let refused = with(&[(rank, variable, first)]);
            assert!(!refused.ok);
            assert_eq!(refused.exit_code(), 2, "{:?}", refused.error);
            // What the refusal says is to be written is right as it stands.
            let text = refused.error.unwrap().text;
            let (_, advice) = text.split_once("write ").unwrap_or_else(|| panic!("{text}"));
            let (assignment, _) = advice.split_once(", or unset it").unwrap();
            let (name, value) = assignment.split_once('=').unwrap();
            assert_eq!(name, variable);
            assert_eq!(rails(&with(&[(rank, name, value)])), rails(&with(&[])));
        }
    }
}

#[test]
fn every_host_without_a_port_is_named() {
    let mut document = twins();
    document.ranks.iter_mut().for_each(|facts| facts.ports.clear());
    let refused = pick(&document, &Options::default()).error.unwrap();
    assert_eq!(refused.code.as_str(), "no-port");
    assert!(
        refused.text.contains("twin-a") && refused.text.contains("twin-b"),
        "{refused}"
    );
}

#[test]
fn facts_travel_as_bytes() {
    for facts in twins().ranks {
        assert_eq!(tp_hca::RankFacts::from_bytes(&facts.to_bytes()).unwrap(), facts);
    }
    let text = twins().to_toml().unwrap();
    assert_eq!(Document::from_toml(&text).unwrap(), twins());
}

#[test]
fn redaction_keeps_the_pick() {
    // The documentation's addresses are nobody's and stay such; these are somebody's.
    let real = twins().to_toml().unwrap();
    let real = real
        .replace("192.0.2.", "172.20.9.")
        .replace("203.0.113.", "10.77.13.");
    let mut document = Document::from_toml(&real).unwrap();
    let plain = pick(&document, &Options::default());
    document
        .rank_mut(0)
        .unwrap()
        .set_env("NCCL_TOPO_FILE", Some("/home/somebody/topo.xml"));
    document.redact(b"seed");
    let text = document.to_toml().unwrap();
    for secret in ["172.20.9.", "twin-a", "10.77.13.", "somebody"] {
        assert!(!text.contains(secret), "{secret} is still in\n{text}");
    }
    let redacted = pick(&document, &Options::default());
    let names = |document: &PickDocument| -> Vec<std::collections::BTreeSet<(String, String)>> {
        document
            .ranks
            .iter()
            .map(|rank| {
                rank.rails
                    .iter()
                    .map(|rail| (rail.device.clone(), rail.peer_device.clone()))
                    .collect()
            })
            .collect()
    };
    assert_eq!(names(&redacted), names(&plain));
    assert_eq!(plain.ranks[0].rails.len(), 2);
}

/// What the port at the other end lacks is the reason, wherever a reason is given; and it costs a warning.
#[test]
fn a_partner_that_cannot_be_used_is_the_reason_that_is_told() {
    type Change = fn(&mut tp_hca::facts::Port);
    let changes: [(Change, &str, &str); 3] = [
        (
            |port| port.state = Some(tp_hca::facts::PortState::Down),
            "port-down",
            "state DOWN",
        ),
        (|port| port.carrier = Some(false), "port-down", "no carrier"),
        (
            |port| port.openable = Some(false),
            "not-openable",
            "cannot open uverbs",
        ),
    ];
    for (change, code, says) in changes {
        let mut document = twins();
        let ports = &mut document.rank_mut(1).unwrap().ports;
        change(ports.iter_mut().find(|port| port.device == "mlx5_3").unwrap());
        let got = pick(&document, &Options::default());
        assert_eq!((got.ok, got.ranks[0].rails.len()), (true, 1));
        let told = "its partner mlx5_3:1 on rank 1 is not usable";
        let row = got.ranks[0]
            .ports
            .iter()
            .find(|row| row.device == "roceP2p1s0f1")
            .unwrap();
        assert!(
            row.reason.contains(told) && row.reason.contains(says),
            "{}",
            row.reason
        );
        let mut warnings = got.ranks[0].warnings.iter();
        assert!(warnings.any(|w| w.code.as_str() == "lost-rail" && w.text.contains(told)));
        // Who names the healthy end is told of the other one.
        let rank = document.rank_mut(0).unwrap();
        rank.set_env("TF_TP_ROCE_HCA", Some("rocep1s0f1,roceP2p1s0f1"));
        let error = pick(&document, &Options::default()).error.unwrap();
        assert_eq!((error.code.as_str(), error.rank), (code, Some(1)), "{error}");
        assert!(error.text.contains(told), "{error}");
    }
    let whole = pick(&twins(), &Options::default());
    let mut warnings = whole.ranks.iter().flat_map(|rank| &rank.warnings);
    assert!(!warnings.any(|w| w.code.as_str() == "lost-rail"));
}

#[test]
fn a_port_number_where_a_gid_index_belongs_is_told_apart() {
    let mut document = twins();
    let facts = document.rank_mut(0).unwrap();
    let port = facts
        .ports
        .iter_mut()
        .find(|port| port.device == "rocep1s0f1")
        .unwrap();
    let gids = port.gids.as_mut().unwrap();
    if !gids.iter().any(|gid| gid.index.map(|index| index.0) == Some(1)) {
        let mut local = gids[0].clone();
        (local.index, local.gid) = (Some(tp_hca::GidIndex(1)), Some("fe80::1234".parse().unwrap()));
        local.kind = Some(tp_hca::facts::GidType::V2);
        gids.push(local);
    }
    facts.set_env("TF_TP_ROCE_HCA", Some("rocep1s0f1:1"));
    let error = pick(&document, &Options::default()).error.unwrap();
    let says = "`:1` is a GID index here, no port";
    assert!(
        error.text.contains(says) && error.text.ends_with("write TF_TP_ROCE_HCA=rocep1s0f1"),
        "{error}"
    );
}

#[test]
fn names_that_could_not_be_an_interface_are_no_facts() {
    for bad in ["", "a,b", "=x", "^x", "a\nb", "\u{1b}[31m", "sixteen-letters-"] {
        let mut document = twins();
        document.ranks[0].ports[0].netdev = Some(bad.to_owned());
        let text = document.to_toml().unwrap();
        let error = Document::from_toml(&text).unwrap_err().to_string();
        assert!(
            error.contains("not a network interface's name"),
            "{bad:?}: {error}"
        );
        assert!(!error.contains(['\n', '\u{1b}']), "{error:?}");
    }
}

#[test]
fn an_interface_that_is_not_there_is_warned_about() {
    let kept = |value: &str| {
        let got = with(&[(0, "NCCL_SOCKET_IFNAME", value)]);
        let mut warnings = got.ranks[0].warnings.iter();
        warnings.any(|w| w.code.as_str() == "env-kept")
    };
    assert!(kept("eth77") && kept("=enp1s0f1"));
    assert!(!kept("enp1s0f1") && !kept("=enp1s0f1np1") && !kept("^docker0"));
}
