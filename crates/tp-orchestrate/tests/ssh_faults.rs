//! What goes wrong in the middle of a run: the right verdict, the right exit code, and nothing left on any host.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;
mod lab;

use lab::{Lab, Said};
use std::fs;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tp_receipt::receipt::Verdict;

/// A step that goes on for long enough to be hurt, and one behind it that is short.
const LONG: [&str; 4] = ["--arms", "none", "--steps", "roce-host,failfast-host-fatal-0"];
/// What makes it long: links on which it would take hours.
const CRAWL: &str = "3mbit";
const SHORT: [&str; 4] = ["--arms", "none", "--steps", "hca"];

/// Every fault: its name and what plays it.
const FAULTS: [(&str, fn()); 8] = [
    (
        "a_host_that_goes_down_in_a_step_fails_it_and_the_others_end",
        a_host_that_goes_down_in_a_step_fails_it_and_the_others_end,
    ),
    (
        "a_host_that_is_cut_off_in_a_step_fails_it_and_the_others_end",
        a_host_that_is_cut_off_in_a_step_fails_it_and_the_others_end,
    ),
    (
        "an_orchestrator_that_is_killed_leaves_no_rank_and_its_run_is_resumed",
        an_orchestrator_that_is_killed_leaves_no_rank_and_its_run_is_resumed,
    ),
    (
        "a_workstation_that_sleeps_ends_its_run_incomplete",
        a_workstation_that_sleeps_ends_its_run_incomplete,
    ),
    (
        "ranks_that_are_killed_or_print_garbage",
        ranks_that_are_killed_or_print_garbage,
    ),
    (
        "a_port_that_is_taken_fails_its_step_and_no_other",
        a_port_that_is_taken_fails_its_step_and_no_other,
    ),
    (
        "two_runs_at_once_pass_and_stop_ends_only_ones_own",
        two_runs_at_once_pass_and_stop_ends_only_ones_own,
    ),
    (
        "a_skewed_clock_is_said_and_a_slow_link_waited_for",
        a_skewed_clock_is_said_and_a_slow_link_waited_for,
    ),
];

/// Labs at a time. They wait for leases and links more than they compute, but each brings up its hosts and a run, and with
/// all at once two processors are not enough for the limits that the tests set.
const AT_ONCE: usize = 3;

/// Each in a lab of its own. `TP_FAULT` chooses those whose names contain its value.
#[test]
fn every_fault_has_its_verdict_and_leaves_nothing() {
    let wanted = std::env::var("TP_FAULT").unwrap_or_default();
    let chosen: Vec<_> = FAULTS.iter().filter(|(name, _)| name.contains(&wanted)).collect();
    assert!(!chosen.is_empty(), "TP_FAULT names none");
    let (next, failed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some((name, play)) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let thread = std::thread::Builder::new().name((*name).to_owned());
                    if thread.spawn(*play).unwrap().join().is_err() {
                        failed.lock().unwrap().push(*name);
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "failed: {failed:?}");
}

fn finish(child: std::process::Child, began: Instant) -> Said {
    let output = child.wait_with_output().unwrap();
    Said::of(&output, began.elapsed())
}

/// Brings the runner while links are quick, limits every step, and makes the links crawl. What crawls holds heartbeats up too:
/// ranks are given a minute of them, so that a step ends by what the test does.
fn crawl(lab: &Lab, seconds: u32) {
    let runner = lab::runner().display().to_string();
    lab.output(&["push", "inventory.toml", "--runner", &runner])
        .expect(0, &[]);
    lab.edit(|text| {
        text.replace(
            "launcher = \"ssh\"",
            &format!("launcher = \"ssh\"\nstep_limit_s = {seconds}"),
        )
        .replace(
            "[defaults]",
            "[defaults]\nenv = { TF_TP_HEARTBEAT_LIMIT_S = \"60\" }",
        )
    });
    lab.lab("shape", &[CRAWL]);
}

/// Case 106: a host's power goes; the others end, the run goes on and is never PASSED.
fn a_host_that_goes_down_in_a_step_fails_it_and_the_others_end() {
    let Some(lab) = Lab::up(2) else { return };
    crawl(&lab, 120);
    let run = lab.run_in_background("down", &LONG);
    let began = Instant::now();
    lab.lab("stop", &["host-2"]);
    let words = ["FAILED", "rank 1", "failed to connect to 192.0.2.2:22"];
    let said = finish(run, began).expect(1, &words);
    assert!(said.took < Duration::from_secs(110), "{:?}", said.took);
    lab.await_quiet(&[1], 20);
    lab.lab("start", &["host-2"]);
    lab.assert_clean();
}

/// Case 103, 106: its cables go. Nobody hears how its rank ends, and it ends all the same.
fn a_host_that_is_cut_off_in_a_step_fails_it_and_the_others_end() {
    let Some(lab) = Lab::up(2) else { return };
    crawl(&lab, 120);
    let run = lab.run_in_background("cut", &["--arms", "none", "--steps", "roce-host"]);
    let began = Instant::now();
    lab.lab("cut", &["host-2"]);
    // Nothing of what it says comes through any more: how it ended is not known, and nobody claims to.
    let words = [
        "FAILED",
        "rank 1: the connection to its host was lost: nothing was heard for 20 s",
    ];
    let said = finish(run, began).expect(1, &words);
    assert!(said.took < Duration::from_secs(110), "{:?}", said.took);
    let receipt = lab.receipt("cut");
    assert_eq!(receipt.verdict, Verdict::Failed);
    let ranks = &receipt.arms[0].steps[0].ranks;
    assert_eq!((ranks[1].exit, ranks[1].signal), (None, None), "{ranks:?}");
    assert!(ranks[0].exit.is_some() || ranks[0].signal.is_some(), "{ranks:?}");
    lab.assert_verified("cut");
    // The rank on the host that nobody reaches has ended by its lease.
    lab.await_quiet(&[1, 2], 25);
    lab.assert_clean();
}

/// Case 107, and `stop`: the orchestrator is killed, or its machine sleeps; no rank outlives the lease, and the run can be
/// taken up again.
fn an_orchestrator_that_is_killed_leaves_no_rank_and_its_run_is_resumed() {
    let Some(lab) = Lab::up(2) else { return };
    crawl(&lab, 300);
    let mut run = lab.run_in_background("out", &LONG);
    Lab::signal(&run, "KILL");
    run.wait().unwrap();
    // The connection closes with its process, and with it the ranks' input.
    lab.await_quiet(&[1, 2], 10);
    lab.assert_verified("out");
    assert_eq!(lab.receipt("out").verdict, Verdict::Incomplete);
    lab.output(&["stop", "inventory.toml"])
        .expect(0, &["nothing of ours runs on these hosts"]);
    let runner = lab::runner().display().to_string();
    lab.lab("shape", &["none"]);
    let resume = ["run", "inventory.toml", "--runner", &runner, "--resume", "out"];
    let resume = [&resume[..], &LONG[..]].concat();
    lab.output(&resume).expect(0, &["PASSED"]);
    assert_eq!(lab.receipt("out").verdict, Verdict::Passed);
    lab.assert_clean();
}

fn a_workstation_that_sleeps_ends_its_run_incomplete() {
    let Some(lab) = Lab::up(2) else { return };
    crawl(&lab, 300);
    let run = lab.run_in_background("out", &LONG);
    let began = Instant::now();
    Lab::signal(&run, "STOP");
    // The lease is 15 s; the ranks leave while nobody is there to tell them.
    lab.await_quiet(&[1, 2], 25);
    let sleep = if std::env::var_os("TP_LONG").is_some() {
        60
    } else {
        18
    };
    std::thread::sleep(Duration::from_secs(sleep).saturating_sub(began.elapsed()));
    Lab::signal(&run, "CONT");
    finish(run, began).expect(1, &["INCOMPLETE"]);
    let receipt = lab.receipt("out");
    assert_eq!(receipt.verdict, Verdict::Incomplete);
    lab.assert_verified("out");
    lab.assert_clean();
}

/// A rank that is killed, and ranks that talk rubbish: the step fails and says why, the run goes on.
fn ranks_that_are_killed_or_print_garbage() {
    let Some(lab) = Lab::up(2) else { return };
    crawl(&lab, 120);
    let began = Instant::now();
    let run = lab.run_in_background("killed", &LONG);
    // The rank, and not the supervisor, whose command line has the same words behind its own.
    lab.on(
        2,
        "for p in $(pgrep -x tf-tp-test); do \
         tr '\\0' ' ' </proc/$p/cmdline | grep -q supervise || kill -KILL $p; done",
    );
    finish(run, began).expect(1, &["rank 1 ended by signal 9"]);
    let receipt = lab.receipt("killed");
    assert!(receipt.totals.steps_failed >= 1, "{:?}", receipt.totals);

    // Case 103: the supervisor is shot too, so that nobody reports how the rank ended.
    let run = lab.run_in_background("shot", &["--arms", "none", "--steps", "roce-host"]);
    lab.on(
        2,
        "kill -KILL $(pgrep -f 'tf-tp-test supervise --events' | head -n 1)",
    );
    finish(run, began).expect(
        1,
        &["rank 1: the supervisor ended (signal 9) without an exit event"],
    );
    lab.await_quiet(&[1, 2], 10);

    lab.lab("shape", &["none"]);
    let inventory = lab.inventory();
    lab.add_to_host(
        2,
        "run_prefix = [\"sh\", \"-c\", \"head -c 5000 /dev/urandom; echo; exec \\\"$@\\\"\", \"sh\"]",
    );
    // Of a program whose answers are wrapped in rubbish nothing is believed: refused before a rank starts.
    lab.run("garbage", &SHORT).expect(3, &["host host-2"]);
    let quiet = "case \"$*\" in *supervise*) head -c 5000 /dev/urandom; echo;; esac; exec \\\"$@\\\"";
    let quiet = quiet.replace("\"$*\"", "\\\"$*\\\"");
    lab.edit(|_| {
        inventory.replace(
            "name = \"host-2\"",
            &format!("name = \"host-2\"\nrun_prefix = [\"sh\", \"-c\", \"{quiet}\", \"sh\"]"),
        )
    });
    lab.run("noise", &SHORT).expect(0, &["PASSED"]);
    assert!(
        lab.events("noise").iter().any(|e| e["code"] == "noise"),
        "the rubbish is kept"
    );
    lab.assert_verified("noise");
    lab.await_quiet(&[1, 2], 10);
    lab.assert_clean();
}

/// Takes the first port that a rank is about to listen on, and keeps it.
const TAKER: &str = r#"
import glob, re, socket, time
while True:
    for name in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            line = open(name).read()
        except OSError:
            continue
        port = re.search("--port\0([0-9]+)\0", line)
        if port and "supervise" in line:
            taken = socket.socket(socket.AF_INET6)
            taken.bind(("::", int(port.group(1))))
            taken.listen()
            print("taken", port.group(1), flush=True)
            time.sleep(600)
    time.sleep(0.005)
"#;

/// The port that was free when the step began is somebody else's when rank 0 comes to it: that step fails and says so, the
/// next one takes another. A fixed port, which could be taken for good, cannot be given.
fn a_port_that_is_taken_fails_its_step_and_no_other() {
    let Some(lab) = Lab::up(2) else { return };
    let inventory = lab.inventory();
    // Time between the supervisor's start and the rank's: `run_prefix` stands in front of the whole command line.
    let slow = "run_prefix = [\"sh\", \"-c\", \"case \\\"$*\\\" in *supervise*) sleep 1;; esac; exec \\\"$@\\\"\", \"sh\"]";
    lab.add_to_host(1, slow);
    let mut taker = lab.spawn_on(1, &format!("exec python3 -c '{TAKER}'"));
    let said = lab.run(
        "taken",
        &["--arms", "none", "--steps", "roce-host,failfast-host-kill-1"],
    );
    let said = said.expect(1, &["FAILED", "is in use on this host", "took rank 0's TCP port"]);
    let receipt = lab.receipt("taken");
    let steps = &receipt.arms[0].steps;
    let verdicts: Vec<_> = steps
        .iter()
        .map(|step| (step.name.as_str(), step.verdict.clone()))
        .collect();
    let wanted = [
        ("roce-host", Verdict::Failed),
        ("failfast-host-kill-1", Verdict::Passed),
    ];
    assert_eq!(verdicts, wanted, "{}", said.text);
    // This host cannot, for now.
    assert_eq!(steps[0].ranks[0].exit, Some(3), "{:?}", steps[0].ranks);
    lab.assert_verified("taken");
    taker.kill().unwrap();
    taker.wait().unwrap();

    lab.edit(|_| inventory.replace("[defaults]", "[defaults]\nenv = { TF_TP_PLAN_PORT = \"29555\" }"));
    lab.run("fixed", &["--arms", "none", "--steps", "failfast-host-kill-1"])
        .expect(2, &["TF_TP_PLAN_PORT", "each step takes a free one"]);
    lab.await_quiet(&[1, 2], 10);
    lab.assert_clean();
}

/// Two runs on the same hosts do not disturb each other, see each other, and `stop` tells its own from a stranger's.
fn two_runs_at_once_pass_and_stop_ends_only_ones_own() {
    let Some(lab) = Lab::up(2) else { return };
    crawl(&lab, 300);
    let began = Instant::now();
    // One step: with another after it, its ranks would be there as soon as the stopped ones are gone.
    let first = lab.run_in_background("first", &["--arms", "none", "--steps", "roce-host"]);
    lab.run("second", &SHORT)
        .expect(0, &["another run's ranks are on these hosts", "PASSED"]);
    let listed = lab
        .output(&["stop", "inventory.toml"])
        .expect(0, &["left alone", "host-1", "host-2"]);
    assert!(!listed.text.contains(": ended"), "{}", listed.text);
    assert!(
        lab.ranks(1) > 0 && lab.ranks(2) > 0,
        "a run under way is not stopped"
    );

    // Named, it is ended all the same.
    let run = listed
        .text
        .split("session ")
        .nth(1)
        .unwrap()
        .split('-')
        .next()
        .unwrap()
        .to_owned();
    lab.output(&["stop", "inventory.toml", "--run", &run])
        .expect(0, &["ended"]);
    assert_eq!((lab.ranks(1), lab.ranks(2)), (0, 0));
    Lab::signal(&first, "INT");
    let ended = finish(first, began);
    assert!([1, 130].contains(&ended.code), "{}", ended.text);
    lab.await_quiet(&[1, 2], 20);
    lab.assert_clean();
}

/// A clock an hour ahead and a link that crawls change no verdict.
fn a_skewed_clock_is_said_and_a_slow_link_waited_for() {
    let Some(lab) = Lab::up(2) else { return };
    let faketime = [
        "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
        "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    ];
    let library = faketime.iter().find(|path| std::path::Path::new(path).exists());
    let runner = lab::runner().display().to_string();
    lab.output(&["push", "inventory.toml", "--runner", &runner])
        .expect(0, &[]);
    if let Some(library) = library {
        let environment = format!("LD_PRELOAD={library}\nFAKETIME=+1h\nFAKETIME_DONT_FAKE_MONOTONIC=1\n");
        fs::write(lab.home(2).join(".ssh/environment"), environment).unwrap();
    } else {
        use std::io::Write;
        let _ = std::io::stderr()
            .write_all(b"SKIPPED: no libfaketime (Debian: faketime) for a host with a wrong clock\n");
    }
    let kill = ["--arms", "none", "--steps", "hca,failfast-host-kill-*"];
    let said = lab.run("skewed", &kill).expect(0, &["PASSED"]);
    if library.is_some() {
        assert!(
            said.text.contains("host host-2: its clock is 3600 s ahead")
                || said.text.contains("its clock is 3599 s ahead"),
            "{}",
            said.text
        );
    }
    lab.assert_verified("skewed");
    fs::remove_file(lab.home(2).join(".ssh/environment")).unwrap_or_default();
    lab.lab("shape", &["256kbit"]);
    lab.run("slow", &SHORT).expect(0, &["PASSED"]);
    lab.assert_clean();
}
