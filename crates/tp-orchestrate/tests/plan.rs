//! The plan is a pure value: snapshots of what is printed, and the rules that make it.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::path::Path;
use tp_orchestrate::Error;
use tp_orchestrate::inventory::Inventory;
use tp_orchestrate::plan::{Capabilities, Plan, Selection, build};

fn inventory(name: &str) -> Inventory {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../hosts")
        .join(name);
    Inventory::load(&path).unwrap()
}

fn select(arms: &[&str], steps: &[&str], backends: &[&str]) -> Selection {
    let own = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect();
    Selection {
        arms: own(arms),
        steps: own(steps),
        backends: own(backends),
        share_gpu: false,
    }
}

fn local(selection: &Selection) -> Result<Plan, Error> {
    build(&inventory("local.toml"), &Capabilities::host_only(), selection)
}

fn names(plan: &Plan) -> Vec<String> {
    plan.arms
        .iter()
        .flat_map(|arm| arm.steps.iter().map(|step| format!("{}/{}", arm.name, step.name)))
        .collect()
}

#[test]
fn the_local_plan_as_printed() {
    insta::assert_snapshot!(local(&select(&["none", "nccl"], &[], &[])).unwrap().to_text());
}

#[test]
fn the_plan_of_a_pair_over_ssh_as_printed() {
    let selection = select(&["roce"], &["hca", "suite-*"], &[]);
    let plan = build(
        &inventory("two-sparks.toml"),
        &Capabilities::unknown(),
        &selection,
    )
    .unwrap();
    insta::assert_snapshot!(plan.to_text());
}

#[test]
fn a_container_is_entered_by_the_prefix() {
    let selection = select(&["none"], &["suite-host"], &[]);
    let plan = build(
        &inventory("two-h100-nodes.toml"),
        &Capabilities::unknown(),
        &selection,
    )
    .unwrap();
    assert_eq!(plan.world, 16);
    let argv = &plan.arms[0].steps[0].commands[9].argv;
    assert_eq!(argv[..3], ["docker", "run", "--rm"]);
    assert_eq!(plan.places[9].gpu, Some(1));
}

/// Case 86: the address to log in at and the one that ranks meet at are two things. Case 2: a suite names its backend.
#[test]
fn control_and_fabric_addresses_are_two_things() {
    let selection = select(&["none"], &["suite-host"], &[]);
    let plan = build(
        &inventory("two-sparks.toml"),
        &Capabilities::unknown(),
        &selection,
    )
    .unwrap();
    assert_eq!(plan.places[1].via, "ssh nvidia@spark-b.lan");
    for command in &plan.arms[0].steps[0].commands {
        let at = command.argv.iter().position(|word| word == "--master").unwrap();
        assert_eq!(command.argv[at + 1], "192.0.2.1");
        assert_eq!(command.argv[command.argv.len() - 2..], ["suite", "host"]);
    }
}

#[test]
fn the_same_question_gives_the_same_plan_and_another_one_another_hash() {
    let all = select(&[], &[], &[]);
    let (one, two) = (local(&all).unwrap(), local(&all).unwrap());
    assert_eq!((&one, one.sha256()), (&two, two.sha256()));
    assert_ne!(
        one.sha256(),
        local(&select(&["none"], &[], &[])).unwrap().sha256()
    );
    let back: Plan = serde_json::from_str(&one.to_json()).unwrap();
    assert_eq!(back, one);
}

#[test]
fn the_whole_matrix_in_order() {
    let plan = local(&select(&[], &[], &[])).unwrap();
    let none: Vec<_> = names(&plan)
        .into_iter()
        .filter_map(|n| n.strip_prefix("none/").map(str::to_owned))
        .collect();
    assert_eq!(
        none,
        [
            "hca",
            "roce-host",
            "suite-host",
            "bench-host",
            "failfast-host-fatal-0",
            "failfast-host-fatal-1",
            "failfast-host-kill-0",
            "failfast-host-kill-1",
            "failfast-host-stall-0",
            "failfast-host-stall-1"
        ]
    );
    assert_eq!(plan.step_count(), 30);
    assert_eq!(
        plan.arms.iter().map(|a| a.name.as_str()).collect::<Vec<_>>(),
        ["none", "nccl", "roce"]
    );
}

#[test]
fn in_a_model_only_the_hca_step_gets_the_arms_variables() {
    let plan = local(&select(&["nccl"], &["hca", "suite-host"], &[])).unwrap();
    assert_eq!(
        names(&plan),
        ["none/hca", "nccl/hca", "nccl/suite-host"],
        "the pick that supplies the arm is added"
    );
    assert!(plan.arms[0].steps[0].added_because.is_some());
    let [hca, suite] = &plan.arms[1].steps[..] else {
        panic!("two steps")
    };
    assert!(hca.is_model());
    let facts_env = hca.commands[1].facts_env.as_ref().unwrap();
    assert_eq!(facts_env["NCCL_IB_HCA"], "$pick.r1.nccl_ib_hca");
    for command in hca.commands.iter().chain(&suite.commands) {
        assert_eq!(command.unset, ["NCCL_IB_HCA", "TF_TP_ROCE_HCA"]);
        assert!(command.settings.is_empty());
    }
    assert!(suite.commands[0].facts_env.is_none());
}

#[test]
fn with_ports_every_step_of_an_arm_gets_its_variable_and_never_the_other() {
    let plan = build(
        &inventory("two-sparks.toml"),
        &Capabilities::unknown(),
        &select(&[], &[], &["host"]),
    )
    .unwrap();
    for arm in &plan.arms {
        for command in arm.steps.iter().flat_map(|step| &step.commands) {
            let set: Vec<_> = ["NCCL_IB_HCA", "TF_TP_ROCE_HCA"]
                .into_iter()
                .filter(|name| command.settings.contains_key(*name))
                .collect();
            let expected: &[&str] = match arm.name.as_str() {
                "none" => &[],
                "nccl" => &["NCCL_IB_HCA"],
                _ => &["TF_TP_ROCE_HCA"],
            };
            assert_eq!(set, expected);
            assert_eq!(command.unset.len(), 2 - set.len(), "what is not set is removed");
        }
    }
}

#[test]
fn values_of_the_inventory_win_over_the_pick() {
    let text = "schema = 1\n[cluster]\nname = \"c\"\n[[host]]\nname = \"a\"\nfabric = \"192.0.2.1\"\ngpus = [0]\n\
                [host.arms]\nroce = { TF_TP_ROCE_HCA = \"mlx5_0:3\" }\n[[host]]\nname = \"b\"\ngpus = [0]\n";
    let inventory = Inventory::parse("x.toml", text, Path::new(".")).unwrap();
    let plan = build(
        &inventory,
        &Capabilities::unknown(),
        &select(&["roce"], &["hca"], &[]),
    )
    .unwrap();
    let commands = &plan.arms.iter().find(|a| a.name == "roce").unwrap().steps[0].commands;
    assert_eq!(commands[0].settings["TF_TP_ROCE_HCA"], "mlx5_0:3");
    assert_eq!(commands[1].settings["TF_TP_ROCE_HCA"], "$pick.r1.tf_tp_roce_hca");
}

#[test]
fn without_ports_and_facts_the_pick_is_left_out_and_said() {
    let text =
        "schema = 1\n[cluster]\nname = \"c\"\nlauncher = \"local\"\n[[host]]\nname = \"a\"\nranks = 1\n";
    let inventory = Inventory::parse("x.toml", text, Path::new(".")).unwrap();
    let plan = build(
        &inventory,
        &Capabilities::host_only(),
        &select(&["none"], &[], &[]),
    )
    .unwrap();
    assert_eq!(
        names(&plan),
        ["none/roce-host", "none/suite-host", "none/bench-host"]
    );
    let left_out: Vec<_> = plan.not_run.iter().map(|n| n.what.as_str()).collect();
    assert_eq!(
        left_out,
        [
            "backend nccl",
            "backend mailbox",
            "backend roce",
            "hca",
            "failfast-host-*"
        ],
        "a world of 1 has no survivors"
    );
}

#[test]
fn ranks_that_share_a_gpu_look_like_hosts_of_their_own_to_nccl_and_are_told_apart_in_the_scope() {
    let capabilities = Capabilities {
        gpus: Some(1),
        backends: Some(vec![("nccl".to_owned(), Ok(()))]),
        ..Capabilities::host_only()
    };
    let alone = select(&["none"], &["suite-nccl"], &["nccl"]);
    let place = inventory("local.toml");
    let refused = build(&place, &capabilities, &alone).unwrap_err().to_string();
    assert!(refused.contains("no GPU"), "{refused}");
    let shared = Selection {
        share_gpu: true,
        ..alone
    };
    let plan = build(&place, &capabilities, &shared).unwrap();
    assert_eq!(
        plan.places.iter().map(|p| p.gpu).collect::<Vec<_>>(),
        [Some(0), Some(0)]
    );
    let step = &plan.arms[0].steps[0];
    assert_eq!(step.scope, "shared-gpu");
    let ids: Vec<_> = step
        .commands
        .iter()
        .map(|c| c.settings["NCCL_HOSTID"].clone())
        .collect();
    assert!(ids[0] != ids[1], "{ids:?}");
}

#[test]
fn gpus_are_dealt_out_where_there_is_one_for_each_rank() {
    let capabilities = Capabilities {
        gpus: Some(2),
        host_gpus: Default::default(),
        cpus: None,
        rdma_ports: Some(false),
        host_facts: std::collections::BTreeMap::new(),
        backends: Some(
            ["host", "nccl", "mailbox", "roce"]
                .map(|b| (b.to_owned(), Ok(())))
                .to_vec(),
        ),
    };
    let plan = build(
        &inventory("local.toml"),
        &capabilities,
        &select(&["none"], &["suite-*"], &[]),
    )
    .unwrap();
    assert_eq!(
        names(&plan),
        [
            "none/suite-host",
            "none/suite-nccl",
            "none/suite-mailbox",
            "none/suite-roce"
        ]
    );
    assert_eq!(
        plan.places.iter().map(|p| p.gpu).collect::<Vec<_>>(),
        [Some(0), Some(1)]
    );
    assert_eq!(plan.arms[0].steps[1].commands[1].settings["TF_TP_DEVICE"], "1");
    let one = Capabilities {
        gpus: Some(1),
        ..capabilities
    };
    let plan = build(
        &inventory("local.toml"),
        &one,
        &select(&["none"], &["suite-*"], &[]),
    )
    .unwrap();
    assert_eq!(
        names(&plan),
        ["none/suite-host"],
        "one GPU is too few for two ranks"
    );
}

#[test]
fn selections_that_name_nothing_are_refused() {
    let refused = |selection: Selection| match local(&selection) {
        Ok(plan) => panic!("taken: {:?}", names(&plan)),
        Err(error) => (error.to_string(), error.exit_code()),
    };
    let (text, code) = refused(select(&["nncl"], &[], &[]));
    assert_eq!(
        (text.as_str(), code),
        ("--arms: `nncl` is unknown; did you mean `nccl`?", 2)
    );
    let (text, code) = refused(select(&[], &["siute-*"], &[]));
    assert!(
        text.starts_with("--steps: `siute-*` matches no step; steps here: hca, roce-host, suite-host"),
        "{text}"
    );
    assert_eq!(code, 2);
    let (text, code) = refused(select(&[], &["["], &[]));
    assert!(text.starts_with("--steps: `[` is no pattern:"), "{text}");
    assert_eq!(code, 2);
    let (text, code) = refused(select(&[], &[], &["nccl"]));
    assert_eq!(
        (text.as_str(), code),
        ("--backends: nccl cannot run here: rank 0 has no GPU", 3)
    );
}

#[test]
fn limits_follow_the_inventory() {
    let text = "schema = 1\n[cluster]\nname = \"c\"\nlauncher = \"local\"\nstep_limit_s = 2.5\n\
                [defaults]\nenv = { TF_TP_HEARTBEAT_LIMIT_S = \"1.5\" }\n[[host]]\nname = \"a\"\nranks = 2\n";
    let inventory = Inventory::parse("x.toml", text, Path::new(".")).unwrap();
    let selection = select(&["none"], &["failfast-host-stall-1"], &[]);
    let plan = build(&inventory, &Capabilities::host_only(), &selection).unwrap();
    let step = &plan.arms[0].steps[0];
    assert_eq!(step.limit_ms, 2500);
    let json = serde_json::to_value(&step.expect).unwrap();
    assert_eq!(
        json["within_ms"], 3500,
        "heartbeat limit 1.5 s, grace 1 s, and a second"
    );
}

#[test]
fn a_world_beyond_64_leaves_roce_host_out_and_says_why() {
    let inventory = crowd(65);
    let plan = build(&inventory, &Capabilities::host_only(), &Selection::default()).unwrap();
    assert_eq!(plan.step_count(), 0, "{}", plan.to_text());
    for what in ["roce-host", "backend host"] {
        let row = plan.not_run.iter().find(|row| row.what == what).unwrap();
        assert_eq!(row.reason, "it serves at most 64 ranks; the world is 65");
    }
}

fn crowd(ranks: u32) -> Inventory {
    let text = format!(
        "schema = 1\n[cluster]\nname = \"crowd\"\nlauncher = \"local\"\n[[host]]\nname = \"here\"\nranks = {ranks}\ngpus = []\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("inventory.toml");
    std::fs::write(&path, text).unwrap();
    Inventory::load(&path).unwrap()
}

#[test]
fn deadlines_grow_with_the_ranks_that_share_a_processor() {
    let limit = |ranks: u32, cpus: Option<u32>| {
        let capabilities = Capabilities {
            cpus,
            ..Capabilities::host_only()
        };
        let plan = build(
            &crowd(ranks),
            &capabilities,
            &select(&["none"], &["suite-host"], &[]),
        )
        .unwrap();
        plan.arms[0].steps[0].limit_ms
    };
    let alone = limit(2, Some(2));
    assert_eq!(limit(2, None), alone);
    assert_eq!(limit(2, Some(64)), alone);
    assert_eq!(limit(16, Some(16)), alone);
    assert_eq!(limit(16, Some(2)), 8 * alone);
}
