//! Whole sessions as processes: agreement, plan link, close.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_support;

use control_support::{Process, Scene, play_if_rank};
use nix::sys::signal::Signal;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(30);

#[test]
fn rank_process() {
    play_if_rank();
}

fn pair(scene: &Scene, extra: [&[(&str, &str)]; 2], scripts: [&str; 2]) -> [Process; 2] {
    [0, 1].map(|rank: usize| scene.start(rank as u32, 2, extra[rank], scripts[rank]))
}

#[test]
fn plans_reach_every_follower_and_the_stop_word_ends_them() {
    let scene = Scene::new();
    let receive = "session recv recv recv close";
    let scripts = ["session plan:128 plan:0 end-plan close", receive, receive];
    let ranks: Vec<_> = (0..)
        .zip(scripts)
        .map(|(rank, script)| scene.start(rank, 3, &[], script))
        .collect();
    for (rank, end) in ranks.into_iter().map(|rank| rank.end(LIMIT)).enumerate() {
        end.code_is(0);
        if rank > 0 {
            end.says(&["plan true 128 8128", "plan true 0 0", "plan false 0 0"]);
        }
    }
}

#[test]
fn a_session_closes_cleanly_over_both_wires_and_over_ipv6() {
    let scene = Scene::new();
    for wire in ["shm", "tcp"] {
        let extra: &[(&str, &str)] = &[("TF_TP_ROCE_WIRE", wire)];
        for rank in pair(&scene, [extra, extra], ["session close"; 2]) {
            rank.end(LIMIT).code_is(0);
        }
    }
    if std::net::TcpListener::bind(("::1", 0)).is_ok() {
        let extra: &[(&str, &str)] = &[("TF_TP_MASTER", "[::1]")];
        for rank in pair(&scene, [extra, extra], ["session close"; 2]) {
            rank.end(LIMIT).code_is(0);
        }
    }
}

#[test]
fn other_settings_and_another_image_are_refused_by_name_on_every_rank() {
    let scene = Scene::new();
    let other: &[(&str, &str)] = &[("TF_TP_MAILBOX_MAX_KB", "512"), ("TP_FABRIC_TEST_IMAGE", "beef")];
    let this: &[(&str, &str)] = &[("TP_FABRIC_TEST_IMAGE", "cafe")];
    for rank in pair(&scene, [this, other], ["session close"; 2]) {
        rank.end(LIMIT).code_is(2).says(&[
            "TF_TP_MAILBOX_MAX_KB: `256` (rank 0",
            "`512` (rank 1",
            "image: `cafe`",
            "`beef`",
        ]);
    }
}

#[test]
fn another_binary_is_refused_with_both_hashes() {
    let scene = Scene::new();
    // A copy with one byte behind its end runs the same and is another file.
    let copy = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("another-binary");
    let mut bytes = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    bytes.push(0);
    std::fs::write(&copy, bytes).unwrap();
    let mode = std::fs::metadata(std::env::current_exe().unwrap())
        .unwrap()
        .permissions();
    std::fs::set_permissions(&copy, mode).unwrap();
    let ranks = [
        scene.start(0, 2, &[], "group close"),
        scene.start_by(std::process::Command::new(&copy), 1, 2, &[], "group close"),
    ];
    for rank in ranks {
        let end = rank.end(LIMIT);
        end.code_is(2)
            .says(&["the ranks differ in binary_sha256:", "(rank 0 on ", "(rank 1 on "]);
    }
    std::fs::remove_file(copy).unwrap();
}

#[test]
fn a_wrong_secret_costs_the_wrong_rank_alone() {
    let scene = Scene::new();
    let zero = scene.start(0, 2, &[], "group close");
    let wrong = scene.start(1, 2, &[("TF_TP_SECRET", "some other secret text")], "group close");
    wrong.end(LIMIT).code_is(2).says(&["TF_TP_SECRET differs"]);
    let right = scene.start(1, 2, &[], "group close");
    right.end(LIMIT).code_is(0);
    zero.end(LIMIT)
        .code_is(0)
        .says(&["up strangers=0 refused=[\"127.0.0.1: it does not know the secret"]);
}

#[test]
fn a_rank_killed_in_a_session_ends_the_other_in_a_plan_wait() {
    let scene = Scene::new();
    let mut ranks = pair(&scene, [&[], &[]], ["session hang", "session recv"]);
    for rank in &mut ranks {
        rank.line("up", LIMIT);
    }
    ranks[0].signal(Signal::SIGKILL);
    let [zero, one] = ranks.map(|rank| rank.end(LIMIT));
    // The plan link's own error and the fate channel race; either way the rank is out, at once, and says who.
    one.code_is(70).says(&["rank 0 on "]);
    assert!(one.at.saturating_duration_since(zero.at) < Duration::from_secs(1));
}

#[test]
fn the_port_is_free_again_at_once() {
    let scene = Scene::new();
    for _ in 0..3 {
        for rank in [0, 1].map(|rank| scene.start(rank, 2, &[], "session close")) {
            rank.end(LIMIT).code_is(0);
        }
    }
}

/// Boots that many processes, all started beforehand; the time that the slowest took to connect, prove and agree.
fn boot(world: u32) -> Duration {
    let scene = Scene::new();
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let at = now + Duration::from_millis(500 + 40 * u64::from(world));
    let script = format!("at:{} group barrier:x close", at.as_millis());
    let mut ranks: Vec<_> = (0..world)
        .map(|rank| scene.start(rank, world, &[], &script))
        .collect();
    let slowest = ranks.iter_mut().map(|rank| {
        let line = rank.line("boot_us=", LIMIT);
        line["boot_us=".len()..]
            .split(' ')
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    });
    let slowest = slowest.max().unwrap();
    for rank in ranks {
        rank.end(LIMIT).code_is(0);
    }
    Duration::from_micros(slowest)
}

#[test]
fn processes_boot_within_seconds() {
    let worlds: &[u32] = if std::env::var_os("TP_LONG").is_some() {
        &[2, 4, 8, 16, 32, 64]
    } else {
        &[2, 16]
    };
    for world in worlds {
        let mut times: Vec<_> = (0..3).map(|_| boot(*world)).collect();
        times.sort_unstable();
        println!(
            "boot of {world} processes, slowest rank: median {:?} of {times:?}",
            times[1]
        );
        assert!(times[1] < Duration::from_secs(10));
    }
}
