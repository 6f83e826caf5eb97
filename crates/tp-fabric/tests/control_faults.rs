//! Faults of the boot and of the run, each with real processes: every rank ends as designed, names the culprit and leaves
//! nothing.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

mod control_support;

use control_support::{Process, Scene, play_if_rank};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(30);

/// The entry of the ranks' processes; does nothing in a test run.
#[test]
fn rank_process() {
    play_if_rank();
}

fn wait_up(ranks: &mut [Process]) {
    for rank in ranks {
        rank.line("up", LIMIT);
    }
}

#[test]
fn a_clean_stop_in_every_order_ends_every_rank_with_0() {
    let scene = Scene::new();
    // Every order of three, and all at once.
    for delays in [
        [0, 150, 300],
        [0, 300, 150],
        [150, 0, 300],
        [300, 0, 150],
        [150, 300, 0],
        [300, 150, 0],
        [0, 0, 0],
    ] {
        let scripts = delays.map(|delay| format!("group barrier:last sleep:{delay} close"));
        let scripts: Vec<&str> = scripts.iter().map(String::as_str).collect();
        for rank in scene.start_all(&[], &scripts) {
            rank.end(LIMIT).code_is(0);
        }
        std::net::TcpListener::bind(("127.0.0.1", scene.port)).expect("the port is free again");
    }
}

#[test]
fn a_killed_rank_ends_all_others_at_once_and_by_name() {
    let scene = Scene::new();
    for victim in [0u32, 1, 2] {
        let mut ranks = scene.start_all(&[], &["group hang"; 3]);
        wait_up(&mut ranks);
        ranks[victim as usize].signal(Signal::SIGKILL);
        let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
        let died = ends[victim as usize].at;
        assert_eq!(ends[victim as usize].signal, Some(9));
        for (rank, end) in ends
            .iter()
            .enumerate()
            .filter(|(rank, _)| *rank != victim as usize)
        {
            end.code_is(70).says(&[
                &format!("rank {victim} on "),
                "failed in phase",
                "went away without a clean stop",
            ]);
            let after = end.at.saturating_duration_since(died);
            assert!(
                after < Duration::from_secs(1),
                "rank {rank} left {after:?} after rank {victim} died"
            );
        }
    }
}

#[test]
fn a_failing_rank_names_itself_phase_and_reason_on_every_rank() {
    let scene = Scene::new();
    for victim in [0usize, 1] {
        let mut scripts = ["group hang"; 3];
        scripts[victim] = "group barrier:x phase:prefill fatal:disk-full";
        let other = "group barrier:x hang";
        let scripts: Vec<&str> = (0..3)
            .map(|rank| if rank == victim { scripts[victim] } else { other })
            .collect();
        for (rank, process) in scene.start_all(&[], &scripts).into_iter().enumerate() {
            let who = if rank == victim { "this rank (" } else { "rank " };
            process.end(LIMIT).code_is(70).says(&[
                &format!("{who}{victim} on "),
                "phase `test`",
                "disk-full",
            ]);
        }
    }
}

#[test]
fn a_stopped_rank_is_noticed_within_the_heartbeat_limit() {
    let scene = Scene::new();
    for victim in [0usize, 1] {
        let quick = [("TF_TP_HEARTBEAT_S", "0.05"), ("TF_TP_HEARTBEAT_LIMIT_S", "0.6")];
        let mut ranks: Vec<_> = (0..3)
            .map(|rank| scene.start(rank, 3, &quick, "group hang"))
            .collect();
        wait_up(&mut ranks);
        ranks[victim].signal(Signal::SIGSTOP);
        let stopped = Instant::now();
        let stalled = ranks.remove(victim);
        for rank in ranks {
            let end = rank.end(LIMIT);
            end.code_is(70)
                .says(&[&format!("rank {victim} on "), "no heartbeat for 0.6 s"]);
            let after = end.at.saturating_duration_since(stopped);
            assert!(after < Duration::from_millis(2500), "{after:?}");
        }
        // Woken up, the stalled one finds that it was given up.
        stalled.signal(Signal::SIGCONT);
        stalled.end(LIMIT).code_is(70);
    }
}

#[test]
fn two_ranks_killed_at_once_end_the_rest() {
    let scene = Scene::new();
    for pair in [[1, 3], [0, 2]] {
        let mut ranks = scene.start_all(&[], &["group hang"; 4]);
        wait_up(&mut ranks);
        for victim in pair {
            ranks[victim].signal(Signal::SIGKILL);
        }
        let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
        for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| !pair.contains(rank)) {
            end.code_is(70).says(&["went away without a clean stop"]);
            let names_one = pair.iter().any(|victim| {
                let name = format!("rank {victim} on ");
                end.stderr.contains(&name) || end.stdout.iter().any(|line| line.contains(&name))
            });
            assert!(names_one, "rank {rank}: {}", end.stderr);
        }
    }
}

#[test]
fn a_session_s_rank_killed_in_the_drain_is_a_failure() {
    let scene = Scene::new();
    // The stop word is out, its plans are read, and two ranks wait in the last barrier for the third.
    let scripts = [
        "session plan:128 end-plan close",
        "session recv recv close",
        "session recv recv sleep:20000 close",
    ];
    let mut ranks = scene.start_all(&[], &scripts);
    ranks[2].line("plan false", LIMIT);
    std::thread::sleep(Duration::from_millis(100));
    ranks[2].signal(Signal::SIGKILL);
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    for survivor in [0, 1] {
        ends[survivor].code_is(70).says(&["rank 2 on "]);
        let after = ends[survivor].at.saturating_duration_since(ends[2].at);
        assert!(after < Duration::from_secs(1), "{after:?}");
    }
}

#[test]
fn an_exit_without_a_clean_stop_is_a_failure() {
    let scene = Scene::new();
    let ranks = scene.start_all(&[], &["group barrier:x hang", "group barrier:x exit:0"]);
    let mut ends = ranks.into_iter().map(|rank| rank.end(LIMIT));
    ends.next()
        .unwrap()
        .code_is(70)
        .says(&["rank 1 on ", "went away without a clean stop"]);
    ends.next().unwrap().code_is(0);
}

#[test]
fn a_rank_killed_in_the_drain_is_a_failure() {
    let scene = Scene::new();
    let drain = "group barrier:x await-stop sleep:10000 close";
    let mut ranks = scene.start_all(&[], &["group barrier:x announce close", drain, drain]);
    ranks[1].line("stop seen", LIMIT);
    ranks[2].line("stop seen", LIMIT);
    ranks[2].signal(Signal::SIGKILL);
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    for survivor in [0, 1] {
        ends[survivor]
            .code_is(70)
            .says(&["rank 2 on ", "went away without a clean stop"]);
    }
}

#[test]
fn rank_0_killed_in_the_drain_is_a_failure() {
    let scene = Scene::new();
    let drain = "group barrier:x await-stop sleep:10000 close";
    let mut ranks = scene.start_all(&[], &["group barrier:x announce sleep:10000 close", drain]);
    ranks[1].line("stop seen", LIMIT);
    ranks[0].signal(Signal::SIGKILL);
    let follower = ranks.pop().unwrap();
    follower.end(LIMIT).code_is(70).says(&["rank 0 on ", "went away"]);
}

#[test]
fn a_rank_that_leaves_while_others_work_is_a_failure_after_the_limit() {
    let scene = Scene::new();
    let quick = [("TF_TP_HEARTBEAT_S", "0.05"), ("TF_TP_HEARTBEAT_LIMIT_S", "0.5")];
    let scripts = ["group barrier:x hang", "group barrier:x close"];
    let ranks: Vec<_> = (0..)
        .zip(scripts)
        .map(|(rank, script)| scene.start(rank, 2, &quick, script))
        .collect();
    let mut ends = ranks.into_iter().map(|rank| rank.end(LIMIT));
    ends.next()
        .unwrap()
        .code_is(70)
        .says(&["rank 1 on ", "still at work"]);
    ends.next().unwrap().code_is(0);
}

#[test]
fn a_hanging_abort_hook_delays_the_exit_by_the_grace_and_no_more() {
    let scene = Scene::new();
    let mut ranks = scene.start_all(&[], &["group hook:60000 hang", "group hang"]);
    wait_up(&mut ranks);
    std::thread::sleep(Duration::from_millis(100));
    ranks[1].signal(Signal::SIGKILL);
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    ends[0].code_is(70);
    let after = ends[0].at.saturating_duration_since(ends[1].at);
    assert!(
        (Duration::from_millis(900)..Duration::from_millis(2500)).contains(&after),
        "{after:?}"
    );
}

#[test]
fn a_rank_killed_at_any_phase_of_the_boot_ends_the_others() {
    let scene = Scene::new();
    // Connected and not yet agreed; agreed and in the first meeting; between two meetings.
    for (phase, others) in [
        // The pause lets the last rank come, whose own start takes its time.
        ("connect sleep:700 kill", "connect agree:x hang"),
        ("connect agree:x kill", "connect agree:x agree:y hang"),
        ("group kill", "group barrier:x hang"),
        ("group barrier:x kill", "group barrier:x barrier:y hang"),
    ] {
        for victim in [0usize, 1] {
            let scripts: Vec<&str> = (0..3)
                .map(|rank| if rank == victim { phase } else { others })
                .collect();
            let ends: Vec<_> = scene
                .start_all(&[], &scripts)
                .into_iter()
                .map(|rank| rank.end(LIMIT))
                .collect();
            let died = ends[victim].at;
            for (rank, end) in ends.iter().enumerate().filter(|(rank, _)| *rank != victim) {
                end.code_is(70).says(&[&format!("rank {victim}")]);
                let after = end.at.saturating_duration_since(died);
                assert!(
                    after < Duration::from_secs(2),
                    "{phase}: rank {rank} left {after:?} later"
                );
            }
        }
    }
}

#[test]
fn a_rank_that_dies_while_others_are_awaited_ends_the_boot() {
    let scene = Scene::new();
    let first = scene.start(0, 3, &[], "connect hang");
    let second = scene.start(1, 3, &[], "connect hang");
    std::thread::sleep(Duration::from_millis(400));
    second.signal(Signal::SIGKILL);
    let died = second.end(LIMIT).at;
    let end = first.end(LIMIT);
    end.code_is(70).says(&["lost rank 1 on ", "during the boot"]);
    assert!(end.at.saturating_duration_since(died) < Duration::from_secs(1));
}

#[test]
fn missing_ranks_are_named_at_the_deadline_on_every_rank() {
    let scene = Scene::new();
    let quick = [("TF_TP_BOOT_TIMEOUT", "4")];
    let ranks: Vec<_> = [0, 2]
        .map(|rank| scene.start(rank, 4, &quick, "group hang"))
        .into();
    let started = Instant::now();
    let mut ends = ranks.into_iter().map(|rank| rank.end(LIMIT));
    ends.next()
        .unwrap()
        .code_is(70)
        .says(&["rank 1, 3 never came within 4.0 s"]);
    ends.next()
        .unwrap()
        .code_is(70)
        .says(&["rank 1, 3 never came within 4.0 s"]);
    assert!(started.elapsed() < Duration::from_secs(15));
}

#[test]
fn ranks_out_of_step_are_told_which_call_each_is_in() {
    let scene = Scene::new();
    let ranks = scene.start_all(
        &[],
        &["group barrier:load", "group barrier:load", "group barrier:warm"],
    );
    let ends: Vec<_> = ranks.into_iter().map(|rank| rank.end(LIMIT)).collect();
    for end in &ends {
        assert_eq!(end.code, Some(70), "{}", end.stderr);
    }
    ends[0].says(&["out of step", "`load`", "rank 2", "`warm`"]);
    ends[2].says(&["out of step", "`warm`", "rank 0", "`load`"]);
}

#[test]
fn interrupted_calls_are_taken_up_again() {
    let scene = Scene::new();
    let script = "usr1 session sleep:300 plan:100000 end-plan close";
    let receives = "usr1 session recv recv close";
    let mut ranks = scene.start_all(&[], &[script, receives, receives]);
    for rank in &mut ranks {
        rank.line("handles", LIMIT);
    }
    let until = Instant::now() + Duration::from_millis(700);
    while Instant::now() < until {
        for rank in &ranks {
            rank.signal(Signal::SIGUSR1);
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    for rank in ranks {
        rank.end(LIMIT).code_is(0).says(&["closed"]);
    }
}
