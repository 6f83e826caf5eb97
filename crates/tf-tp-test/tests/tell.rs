//! Commands that tell: hca on facts files, explain, doctor, secret, version.

#![allow(clippy::unwrap_used, reason = "a helper that fails fails its test")]

mod common;

use common::{Ended, LIMIT, group, run, runner, start};
use std::path::{Path, PathBuf};
use tp_receipt::event::{Kind, Rail};

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The modelled pair of the repository's own inventory, as one file.
fn pair() -> tempfile::NamedTempFile {
    let files = ["twin-a.toml", "twin-b.toml"].map(|name| repository().join("hosts/facts").join(name));
    let text = tp_hca::Document::from_host_files(&files)
        .unwrap()
        .to_toml()
        .unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text).unwrap();
    file
}

fn rails(ended: &Ended) -> Vec<Rail> {
    let of = |e: tp_receipt::event::Event| match e.kind {
        Kind::Rail(rail) => Some(rail),
        _ => None,
    };
    ended.events().into_iter().filter_map(of).collect()
}

#[test]
fn a_facts_file_gives_one_document_and_nothing_else() {
    let file = pair();
    let ended = run(&["hca", "--facts", file.path().to_str().unwrap(), "--json"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    let document: tp_hca::PickDocument = serde_json::from_str(&ended.out).unwrap();
    assert!(document.ok);
    assert_eq!(document.ranks.len(), 2);
    for rank in &document.ranks {
        assert!(!rank.rails.is_empty());
        assert!(rank.nccl_env["NCCL_IB_HCA"].starts_with('='));
    }
    // A variable of this process decides nothing.
    let mut command = runner(&["hca", "--facts", file.path().to_str().unwrap(), "--json"]);
    command.env("TF_TP_ROCE_HCA", "nonsense").env("NCCL_IB_HCA", "^");
    assert_eq!(start(command).end(LIMIT).out, ended.out);
}

#[test]
fn a_refused_pick_is_a_document_too() {
    let ended = run(&["hca", "--facts", "/nonexistent", "--json"]);
    assert_eq!(ended.code(), Some(2));
    let document: tp_hca::PickDocument = serde_json::from_str(&ended.out).unwrap();
    assert!(!document.ok && document.error.is_some());
}

#[test]
fn as_a_step_each_rank_says_its_own_part_marked_as_a_model() {
    let file = pair();
    let all = group(
        2,
        &["hca", "--facts", file.path().to_str().unwrap(), "--events"],
        &[],
    );
    let [a, b] = [rails(&all[0]), rails(&all[1])];
    assert!(!a.is_empty() && a.len() == b.len());
    for (mine, theirs) in a.iter().zip(&b) {
        assert!(mine.model && theirs.model && !mine.probed);
        assert_eq!(
            (&mine.device, &mine.peer_device),
            (&theirs.peer_device, &theirs.device)
        );
    }
    for (rank, ended) in all.iter().enumerate() {
        assert_eq!(ended.code(), Some(0), "{}", ended.err);
        assert_eq!(ended.summary(), (1, 0, 0));
        assert!(ended.events().iter().all(|e| e.rank == u32::try_from(rank).ok()));
    }
    // By hand the only line on standard output is the variable.
    let by_hand = run(&["hca", "--facts", file.path().to_str().unwrap(), "--rank", "1"]);
    assert_eq!(by_hand.out.lines().count(), 1, "{}", by_hand.out);
    assert!(by_hand.out.starts_with("NCCL_IB_HCA=="), "{}", by_hand.out);
}

#[test]
fn a_capture_is_a_facts_file() {
    let ended = run(&["hca", "--capture"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    let document = tp_hca::Document::from_toml(&ended.out).unwrap();
    assert_eq!(document.ranks.len(), 1);
    let redacted = run(&["hca", "--capture", "--redact"]);
    let host = document.ranks[0].host.clone().unwrap_or_default();
    assert!(
        host.is_empty() || !redacted.out.contains(&format!("\"{host}\"")),
        "{}",
        redacted.out
    );
}

#[test]
fn a_live_pick_ends_alike_on_all_ranks() {
    let all = group(3, &["hca", "--events"], &[]);
    let codes: Vec<_> = all.iter().map(Ended::code).collect();
    assert!(codes.iter().all(|code| *code == codes[0]), "{codes:?}");
    // 0 where this machine has RDMA ports, 3 where it has none.
    assert!(matches!(codes[0], Some(0 | 3)), "{}", all[0].err);
}

#[test]
fn explain_shows_who_set_what_and_never_the_secret() {
    let mut command = runner(&["explain", "--rank", "1"]);
    command
        .env("TF_TP_SECRET", "0123456789abcdef0123456789abcdef")
        .env("TF_TP_WORLD", "3")
        .env("TF_TP_PROT", "1");
    let ended = start(command).end(LIMIT);
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    for line in [
        "TF_TP_RANK, --rank = 1   (option)",
        "TF_TP_WORLD, --world = 3 ranks   (environment)",
    ] {
        assert!(ended.out.contains(line), "{line}: {}", ended.out);
    }
    assert!(
        ended.out.contains("TF_TP_SECRET = set   (environment)"),
        "{}",
        ended.out
    );
    assert!(!ended.out.contains("0123456789abcdef"));
    assert!(
        ended.err.contains("TF_TP_PROT") && ended.err.contains("TF_TP_PORT"),
        "{}",
        ended.err
    );
    let page = run(&["explain", "--markdown"]);
    assert_eq!(page.out, tp_fabric::settings::page());
}

/// Whoever asks is about to mend it: a broken setting is shown and not refused.
#[test]
fn explain_shows_what_is_broken() {
    let broken = |arguments: &[&str]| {
        let mut command = runner(arguments);
        command.env("TF_TP_PORT", "many").env("TF_TP_WORLD", "3");
        start(command).end(LIMIT)
    };
    let ended = broken(&["explain"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    for line in [
        "TF_TP_PORT, --port = many   (environment)",
        "BROKEN: TF_TP_PORT (or --port) `many` is not a whole number",
        "TF_TP_WORLD, --world = 3 ranks   (environment)",
    ] {
        assert!(ended.out.contains(line), "{line}: {}", ended.out);
    }
    assert!(
        ended.err.contains("no rank starts so: TF_TP_PORT"),
        "{}",
        ended.err
    );
    let json = broken(&["explain", "--json"]);
    assert_eq!((json.code(), json.err.as_str()), (Some(0), ""));
    let document: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(document["ok"], false);
    let variables = document["variables"].as_array().unwrap();
    let of = |name: &str| variables.iter().find(|v| v["name"] == name).unwrap();
    assert!(of("TF_TP_PORT")["problem"].as_str().unwrap().contains("many"));
    assert_eq!(of("TF_TP_DEVICE")["takes"]["max"], 63);
    assert_eq!(of("TF_TP_WORLD")["value"], "3");
}

#[test]
fn a_secret_takes_no_option_of_a_rank() {
    let ended = run(&["secret", "--rank", "99"]);
    assert_eq!((ended.code(), ended.out.as_str()), (Some(2), ""));
    assert!(ended.err.contains("secret takes no --rank"), "{}", ended.err);
}

#[test]
fn doctor_says_what_runs_here_and_what_was_not_tried() {
    let ended = run(&["doctor"]);
    assert_eq!(ended.code(), Some(0), "{}", ended.err);
    for word in [
        "memlock",
        "shared memory",
        "libcuda",
        "libnccl",
        "libibverbs",
        "kernels",
        "suite host",
        "not tried",
    ] {
        assert!(ended.out.contains(word), "{word}: {}", ended.out);
    }
    let json = run(&["doctor", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(document["schema"], 1);
    assert_eq!(document["ok"], true);
    assert!(document["items"].as_array().is_some_and(|items| items.len() > 8));
    assert!(document["gpus"].is_array(), "{}", json.out);
}

/// A driver with one GPU of compute capability 8.9.
const DRIVER: &str = "#include <string.h>
int cuInit(unsigned f) { return 0; }
int cuDriverGetVersion(int *v) { *v = 13000; return 0; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *n, int l, int d) { strncpy(n, \"Testing GPU\", l); return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 8 : 9; return 0; }
";

#[test]
fn doctor_lists_the_gpus_of_the_driver_that_the_environment_names() {
    let folder = tempfile::tempdir().unwrap();
    let (code, library) = (folder.path().join("cuda.c"), folder.path().join("libcuda.so.1"));
    std::fs::write(&code, DRIVER).unwrap();
    let compiled = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &code])
        .status();
    if !compiled.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no C compiler `cc`");
        return;
    }
    let mut command = runner(&["doctor", "--json"]);
    command.env("TF_CUDA_LIB", &library);
    let json = start(command).end(LIMIT);
    let document: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let gpu = serde_json::json!({ "index": 0, "name": "Testing GPU", "compute_capability": "8.9" });
    assert_eq!(document["gpus"], serde_json::json!([gpu]), "{}", json.out);
    let none = {
        let mut command = runner(&["doctor", "--json"]);
        command.env("TF_CUDA_LIB", folder.path().join("nowhere.so"));
        start(command).end(LIMIT)
    };
    let document: serde_json::Value = serde_json::from_str(&none.out).unwrap();
    assert_eq!(document["gpus"], serde_json::json!([]), "{}", none.out);
}

#[test]
fn a_secret_is_new_each_time_and_long_enough() {
    let [a, b] = [run(&["secret"]), run(&["secret"])];
    assert_ne!(a.out, b.out);
    assert_eq!(a.out.trim().len(), 64);
    assert_eq!(a.err, "");
}

#[test]
fn the_version_names_revision_and_kernels() {
    let ended = run(&["--version"]);
    assert_eq!(ended.code(), Some(0));
    assert!(
        ended
            .out
            .starts_with(&format!("tf-tp-test {}\n", env!("CARGO_PKG_VERSION"))),
        "{}",
        ended.out
    );
    assert!(
        ended.out.contains("revision: ") && ended.out.contains("kernels: "),
        "{}",
        ended.out
    );
    let help = run(&["--help"]);
    for command in [
        "hca",
        "roce-host",
        "suite",
        "failfast",
        "bench",
        "secret",
        "explain",
        "doctor",
        "supervise",
    ] {
        assert!(help.out.contains(command), "{command}");
    }
}
