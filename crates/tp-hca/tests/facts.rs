//! Facts files, the document's shape, and what is not known.
#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot read its own fixtures has failed"
)]

use tp_hca::pick::{Probe, propose};
use tp_hca::{Document, ErrorCode, Options, PickDocument, PickError, WarningCode, pick, table};

fn refused(text: &str) -> String {
    Document::from_toml(text).unwrap_err().to_string()
}

const PORT: &str = "[[rank]]\nrank = 0\n[[rank.port]]\ndevice = \"mlx5_0\"\nport = 1\n";

#[test]
fn errors_name_line_column_and_the_nearest_key() {
    let text = format!("{PORT}stat = \"ACTIVE\"\n");
    assert_eq!(
        refused(&text),
        "line 6, column 1: unknown key `stat` in [[rank.port]]; nearest is `state`"
    );
    let text = format!("{PORT}gids = [ {{ index = 3, gidd = \"::\" }} ]\n");
    assert_eq!(
        refused(&text),
        "line 6, column 23: unknown key `gidd` in a gid; nearest is `gid`"
    );
    assert!(refused("[[ranks]]\nrank = 0\n").contains("nearest is `rank`"));
    assert!(refused(&format!("{PORT}state = \"UP\"\n")).starts_with("line 6, column 9: "));
    assert!(refused(&format!("{PORT}active_mtu = \"big\"\n")).starts_with("line 6, column 14: "));
    let text = format!("{PORT}[[rank.address]]\naddress = \"192.0.2.1/33\"\n");
    assert!(refused(&text).contains("prefix length 33"), "{}", refused(&text));
    assert!(refused("rank = ").starts_with("line 1, "));
    assert!(refused("[[rank]]\nhost = \"a\"\n").contains("rank"));
}

#[test]
fn files_that_make_no_sense_are_refused() {
    assert!(refused("schema = 2\n[[rank]]\nrank = 0\n").contains("schema 2"));
    assert!(refused("schema = 1\n").contains("no [[rank]]"));
    assert!(refused("[[rank]]\nrank = 0\n[[rank]]\nrank = 0\n").contains("twice"));
    assert!(refused(&PORT.replace("mlx5_0", "../x")).contains("not a device name"));
    assert!(refused(&PORT.replace("port = 1", "port = 0")).contains("no port 0"));
    assert!(refused(&format!("{PORT}[[rank.port]]\ndevice = \"mlx5_0\"\nport = 1\n")).contains("twice"));
    for odd in ["-1", "-0.5", "nan", "inf", "-inf"] {
        let text = refused(&format!("{PORT}speed_gbps = {odd}\n"));
        assert!(text.contains("mlx5_0:1 has speed_gbps = "), "{odd}: {text}");
    }
    let missing = Document::load(std::path::Path::new("/nowhere/facts.toml")).unwrap_err();
    assert!(missing.text.starts_with("/nowhere/facts.toml: "));
    assert_eq!(PickError::from(missing).exit_code(), 2);
}

#[test]
fn a_refusal_is_still_one_document() {
    let error: PickError = Document::from_toml("[").unwrap_err().into();
    let value = serde_json::to_value(PickDocument::refused(error)).unwrap();
    assert_eq!(value["ok"], false);
    assert_eq!(value["error"]["code"], "bad-file");
    assert_eq!(value["error"]["rank"], serde_json::Value::Null);
    assert_eq!(value["ranks"], serde_json::json!([]));
}

/// Two hosts of one port each, in one subnet; `change` may take facts away.
fn pair(change: impl Fn(&mut tp_hca::RankFacts)) -> Document {
    let rank = |rank: u32| {
        format!(
            "[[rank]]\nrank = {rank}\nhost = \"h{rank}\"\n[[rank.port]]\ndevice = \"mlx5_0\"\nport = 1\nstate = \"ACTIVE\"\n\
             link_layer = \"Ethernet\"\nnetdev = \"eth0\"\ncarrier = true\nactive_mtu = {}\nspeed_gbps = {}\n\
             gids = [ {{ index = 3, gid = \"::ffff:192.0.2.1{rank}\", type = \"RoCE v2\", netdev = \"eth0\" }} ]\n\
             [[rank.address]]\nnetdev = \"eth0\"\naddress = \"192.0.2.1{rank}/24\"\n",
            4096 >> (2 * rank),
            200 - 100 * rank
        )
    };
    let mut document = Document::from_toml(&format!("{}{}", rank(0), rank(1))).unwrap();
    document.ranks.iter_mut().for_each(change);
    document
}

#[test]
fn the_document_has_the_published_shape() {
    let got = pick(&pair(|_| {}), &Options::default());
    let json = serde_json::to_string(&got).unwrap();
    assert!(
        json.starts_with(r#"{"schema":1,"ok":true,"error":null,"ranks":[{"rank":0,"mode":"auto","rails":["#)
    );
    let value: serde_json::Value = serde_json::from_str(&json).unwrap();
    let rank = &value["ranks"][0];
    assert_eq!(
        rank["rails"][0].to_string(),
        r#"{"peer":1,"device":"mlx5_0","port":1,"gid_index":3,"address":"192.0.2.10","peer_device":"mlx5_0","peer_port":1,"by":"subnet","probed":false}"#
    );
    assert_eq!(rank["nccl_env"]["NCCL_IB_HCA"], "=mlx5_0:1");
    assert_eq!(rank["ports"][0]["chosen"], true);
    let codes: Vec<&str> = rank["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|w| w["code"].as_str().unwrap())
        .collect();
    assert_eq!(codes, ["mtu-mismatch", "speed-mismatch", "unprobed"]);
    assert_eq!(serde_json::from_str::<PickDocument>(&json).unwrap(), got);
    let text = table(&got);
    assert!(
        text.contains("rank 1 mlx5_0:1 GID 3 192.0.2.10 -> mlx5_0:1 by subnet unprobed"),
        "{text}"
    );
    assert!(text.ends_with("picked: 1 rail between 2 ranks\n"), "{text}");
}

#[test]
fn what_is_not_known_is_said_and_not_guessed() {
    let code = |change: fn(&mut tp_hca::RankFacts)| {
        let got = pick(&pair(change), &Options::default());
        (
            got.error.map(|error| error.code),
            got.ranks[0].ports[0].reason.clone(),
        )
    };
    let unknown = Some(ErrorCode::UnknownFact);
    assert_eq!(
        code(|facts| facts.ports[0].state = None),
        (unknown, "state not known".into())
    );
    assert_eq!(
        code(|facts| facts.ports[0].link_layer = None),
        (unknown, "link layer not known".into())
    );
    assert_eq!(
        code(|facts| facts.ports[0].gids = None),
        (unknown, "GIDs not known".into())
    );
    let (error, reason) = code(|facts| facts.ports[0].gids.as_mut().unwrap()[0].kind = None);
    assert_eq!((error, reason.contains("RoCE version")), (unknown, true));
    let (error, reason) = code(|facts| facts.addresses.clear());
    assert_eq!(
        (error, reason.contains("prefix length of 192.0.2.10 not known")),
        (Some(ErrorCode::NoSharedRail), true)
    );
    let none = pick(&pair(|facts| facts.ports.clear()), &Options::default());
    assert_eq!(none.error.map(|error| error.code), Some(ErrorCode::NoPort));
    let got = pick(&pair(|facts| facts.ports[0].carrier = None), &Options::default());
    assert!(
        got.ok
            && got.ranks[0]
                .warnings
                .iter()
                .any(|w| w.code == WarningCode::UnknownFact)
    );
}

#[test]
fn both_ends_named_and_nothing_known_pairs_by_position() {
    let named = |facts: &mut tp_hca::RankFacts| {
        facts.addresses.clear();
        facts.set_env("TF_TP_ROCE_HCA", Some("mlx5_0"));
    };
    let got = pick(&pair(named), &Options::default());
    assert!(got.ok, "{:?}", got.error);
    assert_eq!(got.ranks[0].rails[0].by, tp_hca::document::By::Explicit);
    assert!(
        got.ranks[1]
            .warnings
            .iter()
            .any(|w| w.code == WarningCode::UnknownFact)
    );
}

#[test]
fn a_probe_decides() {
    let document = pair(|_| {});
    let proposals = propose(&document, &Options::default()).unwrap();
    assert_eq!(proposals.len(), 1);
    let mut options = Options::default();
    options.probes.insert(proposals[0].key.clone(), Probe::Passed);
    let got = pick(&document, &options);
    assert!(got.ok && got.ranks[0].rails[0].probed);
    assert!(
        got.ranks
            .iter()
            .all(|rank| rank.warnings.iter().all(|w| w.code != WarningCode::Unprobed))
    );
    options.probes.insert(
        proposals[0].key.clone(),
        Probe::Failed("no completion in 2 s".into()),
    );
    let got = pick(&document, &options);
    let error = got.error.clone().unwrap();
    assert_eq!((error.code, got.exit_code()), (ErrorCode::NoSharedRail, 3));
    assert!(error.text.contains("no completion in 2 s"), "{error}");
    assert!(got.ranks[0].ports[0].reason.contains("no completion in 2 s"));
}

#[test]
fn an_old_nccl_is_not_asked_for_what_it_lacks() {
    let ring = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases/14-ring-of-three.toml");
    let document = Document::load(&ring).unwrap();
    let with = |version| {
        pick(
            &document,
            &Options {
                nccl_version: Some(version),
                ..Options::default()
            },
        )
    };
    let (old, new) = (with((2, 30, 6)), with((2, 30, 7)));
    assert!(!old.ranks[0].nccl_env.contains_key("NCCL_IB_SUBNET_AWARE_ROUTING"));
    assert!(
        old.ranks[0]
            .warnings
            .iter()
            .any(|w| w.code == WarningCode::NcclTooOld)
    );
    assert_eq!(new.ranks[0].nccl_env["NCCL_IB_SUBNET_AWARE_ROUTING"], "1");
}

#[test]
fn what_the_user_set_for_nccl_is_kept_and_compared() {
    let got = pick(
        &pair(|facts| {
            facts.set_env("NCCL_SOCKET_IFNAME", Some("mgmt0"));
            facts.set_env("NCCL_IB_DISABLE", Some("1"));
        }),
        &Options::default(),
    );
    assert_eq!(got.ranks[0].nccl_env["NCCL_SOCKET_IFNAME"], "mgmt0");
    assert!(
        got.ranks[0]
            .warnings
            .iter()
            .any(|w| w.code == WarningCode::EnvKept && w.text.contains("NCCL_IB_DISABLE"))
    );
}

#[test]
fn ranks_of_one_host_need_no_rail() {
    let got = pick(
        &pair(|facts| facts.host = Some("one".into())),
        &Options::default(),
    );
    assert!(got.ok && got.ranks.iter().all(|rank| rank.rails.is_empty()));
    assert!(
        got.ranks[0]
            .warnings
            .iter()
            .any(|w| w.code == WarningCode::SameHost)
    );
}

#[test]
fn facts_from_a_rank_are_bounded_and_checked() {
    use tp_hca::RankFacts;
    assert!(
        RankFacts::from_bytes(&vec![b' '; tp_hca::facts::MAX_BYTES + 1])
            .unwrap_err()
            .text
            .contains("limit")
    );
    assert!(RankFacts::from_bytes(b"{}").is_err());
    let bad = br#"{"rank":1,"port":[{"device":"a/b","port":1}]}"#;
    assert!(
        RankFacts::from_bytes(bad)
            .unwrap_err()
            .text
            .contains("not a device name")
    );
}

/// Rank 0 has a second port in the subnet, listed first and with the higher address.
fn two_for_one(routed: Option<&str>) -> Document {
    let mut document = pair(|_| {});
    let facts = document.rank_mut(0).unwrap();
    let mut twin = facts.ports[0].clone();
    twin.device = "mlx5_1".into();
    twin.netdev = Some("eth1".into());
    let gid = &mut twin.gids.as_mut().unwrap()[0];
    gid.gid = Some("::ffff:192.0.2.99".parse().unwrap());
    gid.netdev = Some("eth1".into());
    facts.ports.insert(0, twin);
    let mut address = facts.addresses[0].clone();
    address.netdev = Some("eth1".into());
    address.address = Some("192.0.2.99/24".parse().unwrap());
    facts.addresses.push(address);
    if let Some(netdev) = routed {
        let destination = Some("192.0.2.0/24".parse().unwrap());
        let route = |netdev: &str, metric| tp_hca::facts::Route {
            destination,
            netdev: Some(netdev.into()),
            metric: Some(metric),
            ..Default::default()
        };
        facts
            .routes
            .extend([route("eth0", 200), route("eth1", 200), route(netdev, 100)]);
    }
    document
}

#[test]
fn where_one_end_has_two_ports_for_one_its_route_decides() {
    let chosen = |routed| {
        let got = pick(&two_for_one(routed), &Options::default());
        assert!(got.ok, "{:?}", got.error);
        let rank = &got.ranks[0];
        assert_eq!(rank.rails.len(), 1);
        let warned = rank
            .warnings
            .iter()
            .find(|w| w.code == WarningCode::DuplicateSubnet)
            .unwrap();
        assert!(warned.text.contains("mlx5_0:1 and mlx5_1:1"), "{}", warned.text);
        assert_eq!(got.ranks[1].rails[0].peer_device, rank.rails[0].device);
        rank.rails[0].device.clone()
    };
    assert_eq!(chosen(Some("eth1")), "mlx5_1");
    assert_eq!(chosen(Some("eth0")), "mlx5_0");
    assert_eq!(
        chosen(None),
        "mlx5_0",
        "the lower address, whatever comes first in the list"
    );
}
