//! The matrix over SSH: real servers, each with networks, routes, files and RDMA device names of its own.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;
mod lab;

use lab::Lab;
use serde_json::Value;
use tp_receipt::receipt::Verdict;

/// Settings, and what a rank says it was given, of one step.
fn of_step<'e>(events: &'e [Value], arm: &str, step: &str, event: &str) -> Vec<&'e Value> {
    events
        .iter()
        .filter(|e| e["event"] == event && e["arm"] == arm && e["step"] == step)
        .collect()
}

#[test]
fn two_hosts_pass_the_whole_matrix_with_other_device_names_and_nothing_is_left() {
    let Some(lab) = Lab::up(2) else { return };
    // What a profile of the host sets must not decide an arm.
    std::fs::write(
        lab.home(1).join(".ssh/environment"),
        "NCCL_IB_HCA=wrong_1\nTF_TP_ROCE_HCA=wrong_2\nNCCL_DEBUG=TRACE\n",
    )
    .unwrap();
    // Banners and profiles are noise, never read as anything else.
    std::fs::write(
        lab.home(2).join(".bashrc"),
        "echo Welcome to host-2; echo '{\"schema\":1}'\n",
    )
    .unwrap();
    // One arm's whole matrix, and of the others what an arm changes; with TP_LONG all of all three.
    let long = std::env::var_os("TP_LONG").is_some();
    if !long {
        let quick = "[defaults]\nenv = { TF_TP_HEARTBEAT_LIMIT_S = \"2\" }";
        lab.edit(|text| text.replace("[defaults]", quick));
        lab.run("whole", &["--arms", "none"]).expect(0, &["PASSED"]);
        assert_eq!(lab.receipt("whole").arms[0].steps.len(), WHOLE_MATRIX);
        assert_clocks(&lab.events("whole"), 6);
        lab.assert_verified("whole");
    }
    let steps: &[&str] = if long {
        &[]
    } else {
        &["--steps", "hca,failfast-host-kill-1"]
    };
    let said = lab.run("out", steps).expect(0, &["PASSED"]);
    let receipt = lab.receipt("out");
    assert_eq!(receipt.verdict, Verdict::Passed, "{}", said.text);
    assert_eq!(receipt.arms.len(), 3);
    lab.assert_verified("out");
    let events = lab.events("out");
    for arm in ["none", "nccl", "roce"] {
        let rails = of_step(&events, arm, "hca", "rail");
        let device = |rank: u64| {
            rails.iter().find(|r| r["rank"] == rank).unwrap()["device"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(
            (device(0), device(1)),
            ("rocep1s0f0".to_owned(), "rocep1s0f1".to_owned()),
            "{arm}"
        );
        // What rank 0 was given of the two variables, as it says itself.
        let given: Vec<(&str, &str)> = of_step(&events, arm, "hca", "setting")
            .into_iter()
            .filter(|e| e["rank"] == 0 && e["source"] != "derived")
            .filter_map(|e| Some((e["name"].as_str()?, e["value"].as_str()?)))
            .filter(|(name, value)| name.ends_with("_HCA") && !value.is_empty())
            .collect();
        let wanted: &[(&str, &str)] = match arm {
            "none" => &[],
            "nccl" => &[("NCCL_IB_HCA", "=rocep1s0f0:1,roceP2p1s0f0:1")],
            _ => &[("TF_TP_ROCE_HCA", "rocep1s0f0,roceP2p1s0f0")],
        };
        assert_eq!(given, wanted, "{arm}");
    }
    assert_clocks(&events, if long { 18 } else { 3 });
    lab.assert_clean();
}

/// Steps of one arm at two ranks without GPUs: hca, roce-host, suite, bench, and three kinds of failure at two victims.
const WHOLE_MATRIX: usize = 10;

/// Times of two hosts are brought to one clock in every fail-fast step, and the error is kept.
fn assert_clocks(events: &[Value], steps: usize) {
    let ends: Vec<&Value> = events.iter().filter(|e| e["clocks"].is_object()).collect();
    assert!(ends.len() >= steps, "{} steps with clocks", ends.len());
    for clock in ends
        .iter()
        .flat_map(|end| end["clocks"].as_object().unwrap().values())
    {
        assert!(clock["error_ns"].as_u64().unwrap() < 2_000_000_000, "{clock}");
    }
}

fn many(hosts: usize) {
    let Some(lab) = Lab::up(hosts) else { return };
    let some = ["--arms", "none,roce", "--steps", "hca,failfast-host-*-1"];
    let more: &[&str] = if std::env::var_os("TP_LONG").is_some() {
        &[]
    } else {
        &some
    };
    lab.run("out", more).expect(0, &["PASSED"]);
    assert_eq!(lab.receipt("out").verdict, Verdict::Passed);
    lab.assert_verified("out");
    let events = lab.events("out");
    let mut devices: Vec<String> = of_step(&events, "roce", "hca", "rail")
        .iter()
        .map(|rail| format!("{} {}", rail["rank"], rail["device"]))
        .collect();
    devices.sort();
    devices.dedup();
    // Two devices a host, no name on two hosts.
    assert_eq!(devices.len(), 2 * hosts, "{devices:?}");
    lab.assert_clean();
}

#[test]
fn three_hosts_pass() {
    many(3);
}

#[test]
fn four_hosts_pass() {
    many(4);
}

#[test]
fn without_a_fabric_address_the_ranks_meet_where_the_pick_says() {
    let Some(lab) = Lab::up(2) else { return };
    lab.edit(|text| {
        text.lines()
            .filter(|line| !line.starts_with("fabric"))
            .map(|line| format!("{line}\n"))
            .collect()
    });
    let plan = lab
        .output(&["plan", "inventory.toml"])
        .expect(0, &["--master $control", "--master $pick.r0.address"]);
    assert!(!plan.text.contains("192.0.2.1 --port"), "{}", plan.text);
    lab.run(
        "out",
        &["--arms", "none,roce", "--steps", "hca,failfast-host-fatal-0"],
    )
    .expect(0, &["PASSED"]);
    let launched: Vec<String> = lab
        .events("out")
        .iter()
        .filter(|e| e["event"] == "launch")
        .map(|e| format!("{} {}", e["step"], e["argv"]))
        .collect();
    // Redacted addresses keep what tells them apart.
    let masters = |step: &str| -> std::collections::BTreeSet<String> {
        let of = launched.iter().filter(|line| line.contains(step));
        of.map(|line| {
            line.split("--master\",\"")
                .nth(1)
                .unwrap()
                .split('"')
                .next()
                .unwrap()
                .to_owned()
        })
        .collect()
    };
    // Every arm makes its own pick, for which the control address is all there is; what comes after it meets on the rail.
    let (first, after) = (masters("\"hca\""), masters("failfast"));
    assert_eq!((first.len(), after.len()), (1, 1), "{launched:?}");
    assert!(first.is_disjoint(&after), "{launched:?}");
}

/// Case 92, 101: what `plan --ask` prints is what `run` executes, and nothing is brought anywhere by a dry run.
#[test]
fn the_plan_that_is_asked_for_is_the_one_that_runs() {
    let Some(lab) = Lab::up(2) else { return };
    let runner = lab::runner().display().to_string();
    let select = ["--arms", "none", "--steps", "hca"];
    let plan = |extra: &[&str]| {
        let fixed = ["plan", "inventory.toml", "--ask", "--runner", &runner];
        lab.output(&[&fixed, &select[..], extra].concat())
    };
    plan(&[]).expect(
        3,
        &["host host-1: failed to find the runner there", "push it first"],
    );
    lab.output(&["push", "inventory.toml", "--runner", &runner])
        .expect(0, &["MB in"]);
    let shown = plan(&[]).expect(0, &["backend nccl: rank 0 has no GPU"]);
    let hash = shown
        .text
        .lines()
        .find_map(|line| line.strip_prefix("sha256 "))
        .unwrap()
        .to_owned();
    lab.run("out", &select).expect(0, &[]);
    assert_eq!(lab.events("out")[0]["executed_plan_sha256"], hash.as_str());
}
