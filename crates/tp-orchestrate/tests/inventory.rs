//! What an inventory may not say, and the one line that says so. Numbers are those of the field's cases.

#![allow(clippy::unwrap_used, reason = "a helper that fails is a test that fails")]

use std::path::Path;
use tp_orchestrate::inventory::{Gpus, Inventory};

const HEAD: &str = "schema = 1\n[cluster]\nname = \"c\"\nlauncher = \"ssh\"\n";

fn error(text: &str) -> String {
    match Inventory::parse("x.toml", text, Path::new(".")) {
        Ok(inventory) => panic!("taken: {inventory:?}"),
        Err(error) => {
            let line = error.to_string();
            assert!(!line.contains('\n'), "one line: {line}");
            line
        }
    }
}

fn hosts(tables: &str) -> String {
    format!("{HEAD}{tables}")
}

fn local(tables: &str) -> String {
    hosts(tables).replace("\"ssh\"", "\"local\"")
}

#[test]
fn every_wrong_thing_is_named_with_its_place() {
    let table: &[(String, &str)] = &[
        (
            String::new(),
            "x.toml:1:1: `schema` is missing; this format is `schema = 1`",
        ),
        (
            "schema = 2\n".into(),
            "x.toml:1:10: `schema` is 2; this program reads 1",
        ),
        (
            "schema = 1\n".into(),
            "x.toml:1:1: there is no [cluster] table with a `name`",
        ),
        (
            HEAD.into(),
            "x.toml:4:17: there is no [[host]]: the world would be 0",
        ),
        // Case 89: a typing error.
        (
            HEAD.replace("launcher", "lancher"),
            "x.toml:4:1: unknown key `lancher` in [cluster]; did you mean `launcher`?",
        ),
        (
            HEAD.replace("\"ssh\"", "\"shh\""),
            "x.toml:4:12: `launcher` of [cluster] is `shh`, which is none of local, ssh, slurm",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nslots = 1\n"),
            "x.toml:7:1: unknown key `slots` in [[host]] 1; known here: name, ssh, fabric, user, port, identity, gpus, ranks, rank, run_prefix, env, mtu, arms, machine_id, facts, system, dir",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nrnaks = 1\n"),
            "x.toml:7:1: unknown key `rnaks` in [[host]] 1; did you mean `ranks`?",
        ),
        (
            HEAD.replace("\"ssh\"", "\"slurm\"\ndeploy = \"push\""),
            "x.toml:2:1: `deploy = \"push\"` does not go with `launcher = \"slurm\"`: Slurm starts programs and sends none; put the runner where all nodes see it and leave `deploy` out",
        ),
        // What nobody sees, and what would tear a message in two.
        (
            hosts("[[host]]\nname = \"a\\nb\"\nranks = 1\n"),
            "x.toml:6:8: `a\\nb` has the character U+000A, which nobody sees; write it without",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nranks = 1\nenv = { A = \"x\\u0000y\" }\n"),
            "x.toml:8:13: `x\\0y` has the character U+0000, which nobody sees; write it without",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nranks = 1\nrun_prefix = [\"env\", \"\\u202etxt\"]\n"),
            "x.toml:8:22: `\\u{202e}txt` has the character U+202E, which nobody sees; write it without",
        ),
        // A host without ranks.
        (
            hosts("[[host]]\nname = \"a\"\nranks = 0\n"),
            "x.toml:7:9: `ranks` of host `a` is 0: a host without a rank has no place here",
        ),
        (
            hosts("[[host]]\nname = \"a\"\ngpus = []\n"),
            "x.toml:5:1: host `a` has `gpus = []` and no `ranks`: say how many ranks run without a GPU",
        ),
        (
            hosts("[[host]]\nname = \"a\"\ngpus = [0]\nranks = 2\n"),
            "x.toml:8:9: host `a` lists 1 GPU and `ranks = 2`; each entry carries one rank",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nranks = 5000\n"),
            "x.toml:7:9: `ranks` of [[host]] 1 is 5000; it must be from 0 to 4096",
        ),
        // A rank twice.
        (
            hosts("[[host]]\nname = \"a\"\nrank = 0\n[[host]]\nname = \"b\"\nrank = 0\n"),
            "x.toml:10:8: rank 0 is given twice: to host `a` and to host `b`",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nrank = 0\n[[host]]\nname = \"b\"\nrank = 5\n"),
            "x.toml:10:8: rank 5 of host `b` is outside the world of 2; ranks are 0 to 1",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nrank = 0\n[[host]]\nname = \"b\"\n"),
            "x.toml:8:1: host `b` has no `rank` though others have; give it to every host or to none",
        ),
        // Case 94: the same machine twice.
        (
            hosts("[[host]]\nname = \"a\"\n[[host]]\nname = \"A\"\n"),
            "x.toml:8:8: host `A` is there twice",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nssh = \"m\"\n[[host]]\nname = \"b\"\nssh = \"M\"\n"),
            "x.toml:10:7: hosts `a` and `b` have the same ssh `M`: the same machine twice; give one [[host]] more `gpus` or `ranks` instead",
        ),
        (
            hosts(
                "[[host]]\nname = \"a\"\nmachine_id = \"1f\"\n[[host]]\nname = \"b\"\nmachine_id = \"1f\"\n",
            ),
            "x.toml:10:14: hosts `a` and `b` have the same machine_id `1f`: the same machine twice; give one [[host]] more `gpus` or `ranks` instead",
        ),
        // Case 85: rank 0 at its own loopback address.
        (
            hosts("[[host]]\nname = \"a\"\nfabric = \"127.0.0.1\"\n[[host]]\nname = \"b\"\n"),
            "x.toml:7:10: host `a` has rank 0 and `fabric = \"127.0.0.1\"`: a rank on another host would reach its own host there; give the address at which others reach this one",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nfabric = \"192.0.2.1/24\"\n"),
            "x.toml:7:10: `fabric` is `192.0.2.1/24`, which is neither an IP address nor a host name (no port, no prefix length)",
        ),
        // Case 91: passwords.
        (
            hosts("[[host]]\nname = \"a\"\npassword = \"x\"\n"),
            "x.toml:7:1: `password` is refused: an inventory is shared and kept, so it never holds a password; load the key into ssh-agent or name it by `identity`",
        ),
        (
            hosts("[defaults]\nsudo_Password = \"x\"\n"),
            "x.toml:6:1: `sudo_Password` is refused: an inventory is shared and kept, so it never holds a password; load the key into ssh-agent or name it by `identity`",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { TF_TP_SECRET = \"x\" }\n"),
            "x.toml:7:9: `TF_TP_SECRET` is refused: an inventory never holds a secret; the session secret is made for each step",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { TF_TP_RANK = \"1\" }\n"),
            "x.toml:7:9: `TF_TP_RANK` is refused: the plan gives it to each rank; use `rank` or `ranks`",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { NCCL_IB_HCA = \"x\" }\n"),
            "x.toml:5:1: `NCCL_IB_HCA` does not belong into `env`: the arms set and unset it; give it under [host.arms]",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { A = 1 }\n"),
            "x.toml:7:13: `A` of [[host]] 1 must be a string in quotes, not a whole number",
        ),
        // Case 89: a variable that is misspelt, out of range, or retired would pass for one that is set.
        (
            hosts("[[host]]\nname = \"a\"\nenv = { TF_TP_HEARTBEET_S = \"1\" }\n"),
            "x.toml:7:9: `TF_TP_HEARTBEET_S` is no variable of the runner and would do nothing; did you mean `TF_TP_HEARTBEAT_S`?",
        ),
        (
            hosts("[defaults]\nenv = { TF_TP_MAILBOX_MAX_KB = \"99999\" }\n[[host]]\nname = \"a\"\n"),
            "x.toml:6:32: `TF_TP_MAILBOX_MAX_KB` is `99999`, which is out of range: want whole number 4 to 16384",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { TF_TP_ROCE_WIRE = \"udp\" }\n"),
            "x.toml:7:27: `TF_TP_ROCE_WIRE` is `udp`, which is none of the words: want one of verbs, shm, tcp",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { TF_TP_FAILFAST = \"1\" }\n"),
            "x.toml:7:9: `TF_TP_FAILFAST` does nothing: the fate channel is always on; TF_TP_FAILFAST_GRACE_S sets its grace",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { TF_TP_SESSION = \"x\" }\n"),
            "x.toml:7:9: `TF_TP_SESSION` is refused: the plan gives it to each rank; each step has a session of its own",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nenv = { NCCL_IB_TC = \"\" }\n"),
            "x.toml:7:22: `NCCL_IB_TC` is empty: leave it out to have it unset",
        ),
        (
            hosts("[[host]]\nname = \"a\"\ngpus = [64]\n"),
            "x.toml:7:9: `gpus` of [[host]] 1 is 64; it must be from 0 to 63",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nmtu = 900\n"),
            "x.toml:7:7: `mtu` of [[host]] 1 is 900; it must be from 1280 to 65535",
        ),
        // Case 89: `host:1`.
        (
            hosts("[[host]]\nname = \"a\"\nssh = \"a.lan:2222\"\n"),
            "x.toml:7:7: `ssh` is `a.lan:2222`: the port belongs in `port = 2222`, with `ssh = \"a.lan\"`",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nssh = \"me@a.lan\"\n"),
            "x.toml:7:7: `ssh` is `me@a.lan`: the user belongs in `user = \"me\"`, with `ssh = \"a.lan\"`",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nssh = \"-oProxyCommand=x\"\n"),
            "x.toml:7:7: `ssh` is `-oProxyCommand=x`: it is an address or an alias of the SSH configuration, without options",
        ),
        (
            hosts("[[host]]\nname = \"a:1\"\n"),
            "x.toml:6:8: `name` of a [[host]] is `a:1`; it becomes part of file names, so it takes at most 64 of A-Z a-z 0-9 . _ - and begins with a letter, a digit or _",
        ),
        // Case 94: one machine, its address written in two ways.
        (
            hosts(
                "[[host]]\nname = \"a\"\nfabric = \"2001:db8::1\"\n[[host]]\nname = \"b\"\nfabric = \"[2001:db8:0::1]\"\n",
            ),
            "x.toml:10:10: hosts `a` and `b` have the same fabric `2001:db8::1`: the same machine twice; give one [[host]] more `gpus` or `ranks` instead",
        ),
        (
            hosts("[[host]]\nname = \"a\"\n[[host]]\nname = \"b\"\nssh = \"a\"\nport = 22\n"),
            "x.toml:9:7: hosts `a` and `b` have the same ssh `a`: the same machine twice; give one [[host]] more `gpus` or `ranks` instead",
        ),
        // Case 50: one string in both variables.
        (
            hosts(
                "[[host]]\nname = \"a\"\n[host.arms]\nnccl = { NCCL_IB_HCA = \"rocep1s0f0:3\" }\nroce = { TF_TP_ROCE_HCA = \"rocep1s0f0:3\" }\n",
            ),
            "x.toml:9:27: `rocep1s0f0:3` stands in both variables: the number is a port in NCCL_IB_HCA and a GID index in TF_TP_ROCE_HCA; write `=NAME:PORT` in the first",
        ),
        // Case 49: what would become part of a path.
        (
            hosts("[[host]]\nname = \"a\"\narms = { nccl = { NCCL_IB_HCA = \"=a,../b\" } }\n"),
            "x.toml:7:33: `NCCL_IB_HCA` is `=a,../b`, which is wrong at character 4: `.` is in no device's name, so NCCL matches nothing; entries are separated by `,` alone, without white space: want [^][=]name[:port[:rail[:plane]]],…",
        ),
        (
            hosts("[[host]]\nname = \"a\"\narms = { nccl = { TF_TP_ROCE_HCA = \"a\" } }\n"),
            "x.toml:7:36: the `nccl` arm sets NCCL_IB_HCA only; `TF_TP_ROCE_HCA` would make it another arm",
        ),
        (
            hosts("[[host]]\nname = \"a\"\narms = { none = { A = \"a\" } }\n"),
            "x.toml:7:10: unknown key `none` in [arms]; known here: nccl, roce",
        ),
        (
            hosts("[[host]]\nname = \"../a\"\n"),
            "x.toml:6:8: `name` of a [[host]] is `../a`; it becomes part of file names, so it takes at most 64 of A-Z a-z 0-9 . _ - and begins with a letter, a digit or _",
        ),
        (
            hosts("[[host]]\nname = \"a\"\nfacts = \"f\"\n[[host]]\nname = \"b\"\n"),
            "x.toml:8:1: host `a` has a `facts` file and host `b` has none; a pick needs the facts of every rank",
        ),
        (
            local("[[host]]\nname = \"a\"\nssh = \"b\"\n"),
            "x.toml:7:7: `ssh` has no meaning with `launcher = \"local\"`; remove it, or set `launcher = \"ssh\"`",
        ),
        (
            format!("{HEAD}step_limit_s = 0\n"),
            "x.toml:5:16: `step_limit_s` of [cluster] must be above 0 and at most 86400 seconds",
        ),
    ];
    for (text, expected) in table {
        assert_eq!(error(text), *expected, "\n{text}");
    }
}

#[test]
fn broken_toml_is_one_line_with_its_place() {
    let line = error("schema = 1\n[cluster\n");
    assert!(line.starts_with("x.toml:2:"), "{line}");
}

#[test]
fn defaults_fill_what_a_host_leaves_out_and_env_is_joined() {
    let text = hosts(
        "[defaults]\nuser = \"u\"\nport = 2222\nenv = { A = \"1\", B = \"1\" }\n\
         [[host]]\nname = \"a\"\nenv = { B = \"2\" }\n[[host]]\nname = \"b\"\nuser = \"v\"\ngpus = [3, 1]\n",
    );
    let inventory = Inventory::parse("x.toml", &text, Path::new(".")).unwrap();
    let [a, b] = &inventory.hosts[..] else {
        panic!("two hosts")
    };
    assert_eq!(
        (a.user.as_deref(), a.port, a.ssh.as_deref()),
        (Some("u"), Some(2222), Some("a"))
    );
    assert_eq!((a.env["A"].as_str(), a.env["B"].as_str()), ("1", "2"));
    assert_eq!((b.user.as_deref(), b.ranks.as_slice()), (Some("v"), &[1, 2][..]));
    assert_eq!((&a.gpus, &b.gpus), (&Gpus::Auto, &Gpus::Listed(vec![3, 1])));
    assert_eq!(inventory.world(), 3);
}

#[test]
fn ranks_may_be_given_in_any_order() {
    let text = hosts("[[host]]\nname = \"a\"\nrank = 2\n[[host]]\nname = \"b\"\nrank = 0\nranks = 2\n");
    let inventory = Inventory::parse("x.toml", &text, Path::new(".")).unwrap();
    assert_eq!(inventory.host_of(0).unwrap().name, "b");
    assert_eq!(inventory.host_of(2).unwrap().name, "a");
}

#[test]
fn several_local_hosts_are_one_machine_and_that_is_meant() {
    let text = local(
        "[[host]]\nname = \"a\"\nfabric = \"127.0.0.1\"\n[[host]]\nname = \"b\"\nfabric = \"127.0.0.1\"\n",
    );
    assert_eq!(
        Inventory::parse("x.toml", &text, Path::new(".")).unwrap().world(),
        2
    );
}

/// Case 86: the control address and the fabric address are two things and may differ.
#[test]
fn control_and_fabric_address_are_two_things() {
    let text = hosts(
        "[[host]]\nname = \"a\"\nssh = \"198.51.100.7\"\nport = 2222\nfabric = \"192.0.2.1\"\n\
         [[host]]\nname = \"b\"\nssh = \"198.51.100.7\"\nport = 2223\nfabric = \"192.0.2.2\"\n",
    );
    let inventory = Inventory::parse("x.toml", &text, Path::new(".")).unwrap();
    assert_eq!(inventory.hosts[0].ssh.as_deref(), Some("198.51.100.7"));
    assert_eq!(inventory.hosts[0].fabric.as_deref(), Some("192.0.2.1"));
    assert_eq!(inventory.hosts[1].port, Some(2223));
}

#[test]
fn addresses_of_every_written_form_are_taken() {
    for fabric in [
        "192.0.2.1",
        "2001:db8::1",
        "[2001:db8::1]",
        "fe80::1%enp1s0",
        "node-1.example",
        "localhost",
    ] {
        let text = hosts(&format!("[[host]]\nname = \"a\"\nfabric = \"{fabric}\"\n"));
        assert!(
            Inventory::parse("x.toml", &text, Path::new(".")).is_ok(),
            "{fabric}"
        );
        let text = hosts(&format!("[[host]]\nname = \"a\"\nssh = \"{fabric}\"\n"));
        assert!(
            Inventory::parse("x.toml", &text, Path::new(".")).is_ok(),
            "{fabric}"
        );
    }
}
