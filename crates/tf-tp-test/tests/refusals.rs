//! What cannot be meant or cannot be done is refused with one clear line, before anything is opened.

mod common;

use common::{LIMIT, free_port, runner, start};
use std::net::TcpListener;

struct Case {
    args: &'static [&'static str],
    vars: &'static [(&'static str, &'static str)],
    code: i32,
    /// What the line must name.
    names: &'static [&'static str],
}

const fn case(args: &'static [&'static str], code: i32, names: &'static [&'static str]) -> Case {
    Case {
        args,
        vars: &[],
        code,
        names,
    }
}

/// A list of devices that cannot be read, on a rank that is alone: it does not wait for the others.
const fn broken_list(
    args: &'static [&'static str],
    vars: &'static [(&'static str, &'static str)],
    names: &'static [&'static str],
) -> Case {
    Case {
        args,
        vars,
        code: 2,
        names,
    }
}

/// Stands for what a refused GPU backend lacks here: kernels, where the runner has none, else a GPU.
const LACKING: &str = "LACKING";

/// What stands for [`LACKING`], by what the binary says of itself.
fn lacking() -> &'static str {
    let version = start(runner(&["--version"])).end(LIMIT).out;
    if version.contains("kernels: none") {
        "TP_NVCC"
    } else {
        "needs a GPU"
    }
}

const CASES: &[Case] = &[
    case(&[], 2, &["command", "--help"]),
    case(&["sweet"], 2, &["sweet"]),
    case(&["suite", "--wurld", "2"], 2, &["--wurld"]),
    case(&["suite", "gpu"], 2, &["TF_COMM_BACKEND", "gpu", "host"]),
    case(&["suite", "nccl", "--backend", "host"], 2, &["nccl", "host"]),
    case(&["suite", "--world", "0"], 2, &["TF_TP_WORLD", "0", "1 to"]),
    case(&["suite", "--world", "65"], 2, &["64", "65"]),
    case(&["suite", "--world", "99999"], 2, &["TF_TP_WORLD"]),
    case(&["suite", "--rank", "2"], 2, &["TF_TP_RANK", "2"]),
    case(&["suite", "--rank", "-1"], 2, &["TF_TP_RANK", "-1"]),
    case(&["suite", "--rank", ""], 2, &["--rank"]),
    case(&["suite", "--port", "0"], 2, &["TF_TP_PORT"]),
    case(&["suite", "--port", "70000"], 2, &["TF_TP_PORT", "70000"]),
    broken_list(
        &["hca"],
        &[("TF_TP_ROCE_HCA", "=x")],
        &["TF_TP_ROCE_HCA", "character 1"],
    ),
    broken_list(
        &["hca"],
        &[("NCCL_IB_HCA", "==x")],
        &["NCCL_IB_HCA", "character 2"],
    ),
    broken_list(
        &["roce-host"],
        &[("TF_TP_ROCE_HCA", "x,x")],
        &["TF_TP_ROCE_HCA", "character 3"],
    ),
    broken_list(
        &["roce-host", "--wire", "shm"],
        &[("NCCL_IB_HCA", "=^x")],
        &["NCCL_IB_HCA", "character 2"],
    ),
    broken_list(
        &["suite", "host"],
        &[("NCCL_IB_HCA", "x:y")],
        &["NCCL_IB_HCA", "character 3"],
    ),
    case(&["suite", "--wire", "pigeon"], 2, &["TF_TP_ROCE_WIRE", "pigeon"]),
    case(&["suite", "--lease", "tcp"], 2, &["--lease", "tcp"]),
    case(
        &["suite", "--master", "192.0.2.1"],
        2,
        &["TF_TP_SECRET", "tf-tp-test secret"],
    ),
    case(
        &["suite", "host", "--only", "zzz"],
        2,
        &["`zzz`", "host", "suite --list"],
    ),
    case(
        &["suite", "host", "--only", "zzz", "--list"],
        2,
        &["`zzz`", "suite --list"],
    ),
    // At world 2 NCCL needs no kernels of ours.
    case(&["suite", "nccl"], 3, &["nccl", "needs a GPU"]),
    case(&["suite", "mailbox"], 3, &["mailbox", LACKING]),
    case(&["bench", "--backend", "roce"], 3, &["roce", LACKING]),
    case(
        &["failfast", "0", "fatal", "--backend", "roce"],
        3,
        &["roce", LACKING],
    ),
    case(&["suite", "host", "--wire", "verbs"], 3, &["verbs", "tcp"]),
    case(&["roce-host", "--wire", "verbs"], 3, &["verbs"]),
    case(&["failfast"], 2, &["VICTIM"]),
    case(&["failfast", "0"], 2, &["KIND"]),
    case(&["failfast", "2", "kill"], 2, &["2", "world"]),
    case(&["failfast", "x", "kill"], 2, &["x", "VICTIM"]),
    case(&["failfast", "0", "explode"], 2, &["explode", "stall"]),
    case(&["failfast", "0", "kill", "--world", "1"], 2, &["survivor"]),
    case(
        &["failfast", "0", "kill", "--at", "lunch"],
        2,
        &["lunch", "agreed"],
    ),
    case(&["failfast", "0", "transport"], 3, &["transport", "verbs"]),
    case(&["bench", "--sizes", "4Q"], 2, &["--sizes", "4Q"]),
    case(&["bench", "--sizes", "7"], 2, &["--sizes", "7"]),
    case(&["bench", "--ops", "all_sum"], 2, &["--ops", "all_sum"]),
    case(&["bench", "--calls", "2"], 2, &["--calls", "2"]),
    case(
        &["bench", "--sizes", "60G", "--world", "64"],
        3,
        &["60 GiB", "available"],
    ),
    case(
        &["hca", "--facts", "/nonexistent/facts.toml"],
        2,
        &["/nonexistent/facts.toml"],
    ),
    case(
        &["hca", "--capture", "--facts", "x"],
        2,
        &["--capture", "--facts"],
    ),
    case(&["hca", "--redact"], 2, &["--capture"]),
    case(&["explain", "NO_SUCH"], 2, &["NO_SUCH"]),
    case(&["supervise"], 2, &["COMMAND"]),
    Case {
        args: &["suite"],
        vars: &[("TF_TP_WORLD", "two")],
        code: 2,
        names: &["TF_TP_WORLD", "two"],
    },
    Case {
        args: &["suite"],
        vars: &[("TF_TP_SECRET", "short")],
        code: 2,
        names: &["TF_TP_SECRET"],
    },
    Case {
        args: &["suite"],
        vars: &[("TF_TP_HEARTBEAT_S", "1e9")],
        code: 2,
        names: &["TF_TP_HEARTBEAT_S", "1e9"],
    },
    Case {
        args: &["roce-host"],
        vars: &[("TF_TP_MAILBOX_MAX_KB", "5")],
        code: 2,
        names: &["TF_TP_MAILBOX_MAX_KB"],
    },
];

#[test]
fn bad_input_is_one_line_with_its_code() {
    let lacking = lacking();
    let gpu = std::path::Path::new("/dev/nvidiactl").exists();
    for case in CASES {
        if gpu
            && case
                .names
                .iter()
                .any(|name| [LACKING, "needs a GPU"].contains(name))
        {
            eprintln!("SKIPPED: {:?}: this host has a GPU", case.args);
            continue;
        }
        let mut command = runner(case.args);
        // A case that is not refused would wait for a peer: it fails by its code, soon.
        command
            .env("TF_TP_BOOT_TIMEOUT", "0.3")
            .envs(case.vars.iter().copied());
        if !case.args.iter().any(|a| a.contains("192.0.2.1"))
            && !case.vars.iter().any(|(n, _)| *n == "TF_TP_SECRET")
        {
            command.env("TF_TP_SECRET", "0123456789abcdef0123456789abcdef");
        }
        let ended = start(command).end(LIMIT);
        let place = format!("{:?} {:?}: {}", case.args, case.vars, ended.err);
        assert_eq!(ended.code(), Some(case.code), "{place}");
        assert_eq!(ended.err.trim_end().lines().count(), 1, "{place}");
        assert_eq!(ended.out, "", "{place}");
        for name in case.names {
            let name = if *name == LACKING { lacking } else { *name };
            assert!(ended.err.contains(name), "{place} does not name {name}");
        }
        assert!(!ended.err.contains("panicked"), "{place}");
    }
}

#[test]
fn a_port_in_use_is_exit_3_and_named() {
    let port = free_port();
    let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    let number = port.to_string();
    let mut command = runner(&["suite", "--rank", "0", "--port", &number]);
    command.env("TF_TP_SECRET", "0123456789abcdef0123456789abcdef");
    let ended = start(command).end(LIMIT);
    assert_eq!(ended.code(), Some(3), "{}", ended.err);
    assert!(
        ended.err.contains(&number) && ended.err.contains("in use"),
        "{}",
        ended.err
    );
    assert_eq!(ended.err.lines().count(), 1, "{}", ended.err);
}
