//! Ranks that print garbage, hang, lie or cannot be started: the run goes on, says so, and is never PASSED.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

mod common;

use common::{Scratch, TWO, receipt, text, two_with_limit};
use std::path::Path;
use std::time::{Duration, Instant};
use tp_orchestrate::deploy::Bring;
use tp_orchestrate::display::{Reporter, StepReport};
use tp_orchestrate::exec::fleet::Fleet;
use tp_orchestrate::exec::{self, Begin, Context, Earlier, Interrupt, Ledger, ModelFacts, RunOptions};
use tp_orchestrate::inventory::Inventory;
use tp_orchestrate::plan::{self, Plan, Selection};
use tp_receipt::receipt::{Receipt, Verdict};
use tp_receipt::record::Record;
use tp_receipt::redact::Redactor;

fn run(scratch: &Scratch, extra: &[&str]) -> (i32, String, Duration) {
    let mut arguments = vec![
        "run",
        "inventory.toml",
        "--runner",
        "./fake-runner",
        "--out",
        "out",
    ];
    arguments.extend(extra);
    let began = Instant::now();
    let output = scratch.output(&arguments);
    (
        output.status.code().unwrap(),
        text(&output.stdout) + &text(&output.stderr),
        began.elapsed(),
    )
}

const ONE: &[&str] = &["--arms", "none", "--steps", "roce-host"];

#[test]
fn a_good_end_is_a_pass_and_noise_is_kept_beside_it() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner(
        "echo 'Welcome to the cluster'; printf '\\377\\376\\n'; hello\n\
         echo '{\"schema\":9,\"t\":0,\"event\":\"novelty\",\"x\":[1]}'; echo 'a word for people' >&2; summary; ended 0",
    );
    let (code, said, _) = run(&scratch, ONE);
    assert_eq!(code, 0, "{said}");
    let receipt = receipt(&scratch.path("out"));
    assert_eq!(receipt.verdict, Verdict::Passed);
    let log = std::fs::read_to_string(scratch.path("out/logs/none/roce-host/rank-1.log")).unwrap();
    assert!(
        log.contains("Welcome to the cluster") && log.contains("a word for people"),
        "{log}"
    );
    let events = std::fs::read_to_string(scratch.path("out/events.jsonl")).unwrap();
    assert!(events.contains("novelty"), "an unknown event is kept");
    assert_eq!(
        std::fs::read_dir(scratch.tmp()).unwrap().count(),
        0,
        "no working file is left"
    );
}

#[test]
fn one_rank_that_errs_ends_the_other_long_before_the_deadline() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner(
        "hello\nif [ $rank = 0 ]; then echo 'failed to open: Too many open files' >&2; ended 3; fi\n\
         while read line; do [ \"$line\" = end ] && ended 70; done",
    );
    let (code, said, took) = run(&scratch, ONE);
    assert_eq!(code, 1, "{said}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert!(
        said.contains("rank 0 ended with exit 3, expected exit 0"),
        "{said}"
    );
    assert!(said.contains("likely cause (open-files)"), "{said}");
    assert!(said.contains("out/logs/none/roce-host/rank-0.log"), "{said}");
    assert_eq!(receipt(&scratch.path("out")).verdict, Verdict::Failed);
}

#[test]
fn a_rank_that_hangs_is_ended_at_the_deadline_and_killed_when_it_does_not_listen() {
    let scratch = Scratch::new(&two_with_limit(0.5));
    scratch.fake_runner("hello\nif [ $rank = 0 ]; then summary; ended 0; fi\ntrap '' TERM; exec sleep 600");
    let (code, said, took) = run(&scratch, ONE);
    assert_eq!(code, 1, "{said}");
    assert!(
        took > Duration::from_secs(3) && took < Duration::from_secs(20),
        "{took:?}"
    );
    assert!(
        said.contains("rank 1 still ran at the step's deadline of 0.5 s"),
        "{said}"
    );
    assert!(said.contains("likely cause (step-deadline)"), "{said}");
}

#[test]
fn a_failing_step_is_not_the_end_of_the_run() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; [ $rank = 1 ] && ended 1; summary; ended 0");
    let (code, said, _) = run(&scratch, &["--arms", "none,roce", "--steps", "roce-host"]);
    assert_eq!(code, 1, "{said}");
    let receipt = receipt(&scratch.path("out"));
    assert_eq!(receipt.totals.steps_failed, 2, "{said}");
}

#[test]
fn fail_fast_stops_and_says_what_was_not_run() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; [ $rank = 1 ] && ended 1; summary; ended 0");
    let (code, said, _) = run(
        &scratch,
        &["--arms", "none,roce", "--steps", "roce-host", "--fail-fast"],
    );
    assert_eq!(code, 1, "{said}");
    let receipt = receipt(&scratch.path("out"));
    assert_eq!(
        (receipt.totals.steps_failed, receipt.verdict),
        (1, Verdict::Failed)
    );
    assert!(
        said.contains("not run: roce/roce-host: --fail-fast stopped the run after none/roce-host"),
        "{said}"
    );
}

#[test]
fn a_step_that_passes_on_retry_is_flaky_and_the_exit_code_is_not_0() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello\ncase $session in *-1) [ $rank = 1 ] && ended 1;; esac\nsummary; ended 0");
    let (code, said, _) = run(
        &scratch,
        &["--arms", "none", "--steps", "roce-host", "--retries", "2"],
    );
    assert_eq!(code, 1, "{said}");
    let receipt = receipt(&scratch.path("out"));
    assert_eq!(receipt.verdict, Verdict::Flaky, "{said}");
    assert_eq!(receipt.step("none", "roce-host").unwrap().attempts.len(), 2);
}

#[test]
fn repeat_runs_every_step_so_often() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; summary; ended 0");
    let (code, said, _) = run(
        &scratch,
        &["--arms", "none", "--steps", "roce-host", "--repeat", "3"],
    );
    assert_eq!(code, 0, "{said}");
    assert_eq!(
        receipt(&scratch.path("out"))
            .step("none", "roce-host")
            .unwrap()
            .attempts
            .len(),
        3
    );
}

#[test]
fn a_supervisor_that_dies_without_a_word_is_a_failure() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; summary; [ $rank = 0 ] && kill -9 $$; ended 0");
    let (code, said, _) = run(&scratch, ONE);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("rank 0: the supervisor ended (signal 9) without an exit event"),
        "{said}"
    );
}

#[test]
fn a_survivor_that_outlives_the_injection_fails_the_step() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner(
        "hello\nnow=$(cut -d' ' -f1 /proc/uptime | tr -d .)0000000\n\
         if [ $rank = 0 ]; then\n\
         printf '{\"schema\":1,\"t\":0,\"rank\":0,\"event\":\"inject\",\"what\":\"fatal\",\"victim\":0,\"monotonic_ns\":%s}\\n' $now\n\
         ended 70; fi\n\
         while read line; do [ \"$line\" = end ] && ended 70; done",
    );
    let (code, said, took) = run(&scratch, &["--arms", "none", "--steps", "failfast-host-fatal-0"]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("rank 1 had not left 2000 ms after the injection"),
        "{said}"
    );
    assert!(took < Duration::from_secs(20), "{took:?}");
}

#[test]
fn json_is_the_only_thing_on_standard_output() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("echo noise; echo more >&2; hello; summary; ended 0");
    let output = scratch.output(&[
        "run",
        "inventory.toml",
        "--runner",
        "./fake-runner",
        "--out",
        "out",
        "--json",
        "--arms",
        "none",
        "--steps",
        "roce-host",
    ]);
    assert_eq!(output.status.code(), Some(0));
    let lines: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let events = std::fs::read_to_string(scratch.path("out/events.jsonl")).unwrap();
    let first: serde_json::Value = serde_json::from_str(events.lines().next().unwrap()).unwrap();
    assert_eq!(lines[0]["record"], "run");
    assert_eq!(lines[0], first, "the run's record is that of the receipt");
    assert_eq!(lines.last().unwrap()["verdict"], "PASSED");
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

/// Case 92: the dry run shows what the run does.
#[test]
fn what_ran_is_what_the_plan_says() {
    let scratch = Scratch::new(TWO);
    scratch.fake_runner("hello; summary; ended 0");
    let select = [
        "--arms",
        "none",
        "--steps",
        "roce-host",
        "--runner",
        "./fake-runner",
    ];
    let plan = scratch.output(&[&["plan", "inventory.toml", "--json"], &select[..]].concat());
    let plan: tp_orchestrate::plan::Plan = serde_json::from_slice(&plan.stdout).unwrap();
    let output = scratch.output(
        &[
            &["run", "inventory.toml", "--out", "out", "--no-redact"],
            &select[..],
        ]
        .concat(),
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let events = std::fs::read_to_string(scratch.path("out/events.jsonl")).unwrap();
    let lines: Vec<serde_json::Value> = events
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines[0]["executed_plan_sha256"], plan.sha256());
    let stored: tp_orchestrate::plan::Plan =
        serde_json::from_str(&std::fs::read_to_string(scratch.path("out/plan.json")).unwrap()).unwrap();
    assert_eq!(stored, plan);
    for command in &plan.arms[0].steps[0].commands {
        let launched = lines
            .iter()
            .find(|l| l["event"] == "launch" && l["rank"] == command.rank)
            .unwrap();
        let argv: Vec<&str> = launched["argv"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_str().unwrap())
            .collect();
        assert_eq!(argv.len(), command.argv.len());
        for (ran, planned) in argv.iter().zip(&command.argv) {
            assert!(
                planned.starts_with('$') || ran == planned,
                "{ran} instead of {planned}"
            );
            assert!(!ran.starts_with('$'), "{ran} was not resolved");
        }
    }
}

/// Raises a signal when a step has ended.
struct SignalAfter {
    step: &'static str,
    interrupt: Interrupt,
}

impl Reporter for SignalAfter {
    fn begin(&mut self, _: &Plan, _: &Path) {}
    fn record(&mut self, _: &Record) {}
    fn step_ended(&mut self, report: &StepReport) {
        if report.key.step == self.step {
            self.interrupt.raise(signal_hook::consts::SIGTERM);
        }
    }
    fn tick(&mut self) {}
    fn end(&mut self, _: &Receipt, _: &Path) {}
}

/// A run of two steps with a signal right after one of them: steps passed, the verdict, the signal and the exit code.
fn run_with_a_signal_after(step: &'static str) -> (u64, Verdict, Option<String>, u8) {
    let scratch = Scratch::new(TWO);
    let runner = scratch.fake_runner("hello; summary; ended 0");
    let inventory = Inventory::load(&scratch.path("inventory.toml")).unwrap();
    let fleet = Fleet::open(&inventory, &[runner], Bring::Missing).unwrap();
    let selection = Selection {
        arms: vec!["none".to_owned()],
        steps: vec!["roce-host".to_owned(), "suite-host".to_owned()],
        ..Selection::default()
    };
    let plan = plan::build(&inventory, &fleet.capabilities, &selection).unwrap();
    let run_id = exec::new_run_id().unwrap();
    let interrupt = Interrupt::default();
    let begin = Begin {
        plan: &plan,
        run_id: &run_id,
        repeat: 1,
        versions: fleet.versions(),
        redactor: Redactor::off(),
    };
    let reporter = SignalAfter {
        step,
        interrupt: interrupt.clone(),
    };
    let ledger = Ledger::create(&scratch.path("out"), begin, Box::new(reporter)).unwrap();
    let options = RunOptions {
        fail_fast: false,
        repeat: 1,
        retries: 0,
    };
    let context = Context {
        run_id: &run_id,
        hosts: &fleet.hosts,
        facts: &ModelFacts::load(&inventory, &plan.places, &run_id).unwrap(),
        interrupt: &interrupt,
    };
    let (receipt, code) = exec::execute(&plan, options, &context, ledger, Earlier::default()).unwrap();
    let passed = receipt.totals.steps_passed;
    (passed, receipt.verdict, receipt.interrupted, code)
}

#[test]
fn a_signal_after_the_last_step_changes_nothing_and_one_before_it_is_said() {
    let last = run_with_a_signal_after("suite-host");
    assert_eq!(last, (2, Verdict::Passed, None, 0));
    let first = run_with_a_signal_after("roce-host");
    assert_eq!(first, (1, Verdict::Incomplete, Some("SIGTERM".to_owned()), 143));
}
