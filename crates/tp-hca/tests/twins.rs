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
