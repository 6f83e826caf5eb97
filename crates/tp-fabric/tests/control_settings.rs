//! Settings: what is taken, what is refused and how, who wins, and that the page is current.

#![allow(clippy::unwrap_used, reason = "a panic is how a test fails")]

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;
use tp_fabric::settings::{Kind, Pin, Settings, Source, Sources, TABLE, page};
use tp_fabric::types::{BackendKind, Rank, WireKind, World};

fn load(variables: &[(&str, &str)]) -> Result<Settings, String> {
    Settings::load(&Sources::of(variables.iter().copied())).map_err(|error| error.to_string())
}

fn refused(variables: &[(&str, &str)]) -> String {
    load(variables).expect_err("these settings are to be refused")
}

fn row<'a>(settings: &'a Settings, name: &str) -> (&'a str, Source) {
    let row = settings
        .rows()
        .iter()
        .find(|row| row.name == name)
        .expect("a row of the table");
    (&row.value, row.source)
}

#[test]
fn the_page_is_printed_from_the_table() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
    if std::env::var_os("UPDATE_PAGES").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let there = std::fs::read_to_string(path).unwrap();
    assert!(
        there == page(),
        "docs/settings.md is stale: run `UPDATE_PAGES=1 cargo test -p tp-fabric --test control_settings`"
    );
}

#[test]
fn every_default_is_a_value_of_its_own_row() {
    for spec in TABLE {
        if !spec.default.is_empty() {
            spec.kind
                .parse(spec.default)
                .unwrap_or_else(|wrong| panic!("{}: {wrong}", spec.name));
        }
        assert_eq!(
            spec.default.is_empty(),
            !spec.unset.is_empty(),
            "{} says what unset means",
            spec.name
        );
        assert!(
            !spec.meaning.is_empty() && spec.meaning.ends_with('.'),
            "{}",
            spec.name
        );
    }
}

#[test]
fn nothing_set_gives_the_documented_defaults() {
    let settings = load(&[]).unwrap();
    assert_eq!(
        (settings.rank, settings.world, settings.port),
        (Rank(0), World(2), 29500)
    );
    assert_eq!(settings.master, "localhost");
    assert_eq!(settings.boot_timeout, Duration::from_secs(60));
    assert_eq!(
        (settings.heartbeat, settings.heartbeat_limit),
        (Duration::from_millis(250), Duration::from_secs(3))
    );
    assert_eq!(settings.grace, Duration::from_secs(1));
    assert_eq!((settings.backend, settings.wire), (None, None));
    assert_eq!(settings.slot_bytes, 256 << 10);
    assert_eq!(row(&settings, "TF_TP_PORT"), ("29500", Source::Default));
    assert_eq!(row(&settings, "TF_TP_SECRET"), ("unset", Source::Default));
    let codes: Vec<_> = settings.warnings().iter().map(|warning| warning.code).collect();
    assert_eq!(codes, ["no-secret"]);
}

#[test]
fn values_become_typed() {
    let settings = load(&[
        ("TF_TP_RANK", " 3 "),
        ("TF_TP_WORLD", "4"),
        ("TF_TP_MASTER", "[2001:db8::7]"),
        ("TF_TP_PORT", "4000"),
        ("TF_TP_PLAN_PORT", "4007"),
        ("TF_TP_SECRET", "0123456789abcdef"),
        ("TF_COMM_BACKEND", "host"),
        ("TF_TP_ROCE_WIRE", "tcp"),
        ("TF_TP_MAILBOX_TIMEOUT_S", "0.5"),
        ("TF_TP_PLAN_LINK", "rdma"),
        ("TF_TP_PLAN_PIN", "7"),
        ("NCCL_IB_TC", "106"),
    ])
    .unwrap();
    assert_eq!((settings.rank, settings.world), (Rank(3), World(4)));
    assert_eq!(settings.master, "2001:db8::7");
    assert_eq!(settings.port, 4007);
    assert_eq!(
        (settings.backend, settings.wire),
        (Some(BackendKind::Host), Some(WireKind::Tcp))
    );
    assert_eq!(settings.wait, Duration::from_millis(500));
    assert_eq!(
        (settings.plan_spin, settings.plan_pin),
        (Duration::from_millis(5), Pin::Cpu(7))
    );
    assert_eq!(settings.roce.traffic_class, 106);
    assert_eq!(row(&settings, "TF_TP_SECRET"), ("set", Source::Environment));
    assert!(
        !format!("{settings:?}").contains("0123456789abcdef"),
        "a secret shows itself"
    );
}

#[test]
fn a_refusal_names_the_variable_the_text_and_what_is_wanted() {
    for (name, text, wants) in [
        (
            "TF_TP_WORLD",
            "two",
            "`two` is not a whole number: want whole number 1 to 4096",
        ),
        (
            "TF_TP_WORLD",
            "0",
            "`0` is out of range: want whole number 1 to 4096",
        ),
        ("TF_TP_WORLD", "4097", "`4097` is out of range"),
        ("TF_TP_WORLD", "+2", "not a whole number"),
        (
            "TF_TP_PORT",
            "65536",
            "out of range: want whole number 1 to 65535",
        ),
        ("TF_TP_PORT", "99999999999999999999999", "out of range"),
        ("TF_TP_BOOT_TIMEOUT", "soon", "not a number of seconds"),
        ("TF_TP_BOOT_TIMEOUT", "inf", "not a number of seconds"),
        ("TF_TP_BOOT_TIMEOUT", "1e3", "not a number of seconds"),
        ("TF_TP_BOOT_TIMEOUT", "0", "out of range"),
        (
            "TF_COMM_BACKEND",
            "gloo",
            "none of the words: want one of host, nccl, mailbox, roce",
        ),
        ("TF_TP_ROCE_BLOCKS", "3", "not a power of two"),
        ("TF_TP_ROCE_FAST", "yes", "not a switch"),
        ("TF_TP_PLAN_PIN", "4096", "out of range"),
        ("TF_TP_MAILBOX_MAX_KB", "6", "not a multiple of 4 KiB"),
        ("TF_TP_MASTER", "spark:29500", "the port belongs in TF_TP_PORT"),
        (
            "TF_TP_MASTER",
            "[2001:db8::7]:29500",
            "the port belongs in TF_TP_PORT",
        ),
        ("TF_TP_MASTER", "[2001:db8::7", "unbalanced bracket"),
        ("TF_TP_MASTER", "a b", "not a host name"),
        (
            "TF_TP_HEARTBEAT_LIMIT_S",
            "0.3",
            "less than twice TF_TP_HEARTBEAT_S",
        ),
    ] {
        let error = refused(&[(name, text)]);
        assert!(
            error.contains(name) && error.contains(wants),
            "{name}={text}: {error}"
        );
        assert!(!error.contains('\n'));
    }
}

#[test]
fn a_short_secret_is_refused_and_not_shown() {
    let error = refused(&[("TF_TP_SECRET", "hunter2")]);
    assert!(
        error.contains("TF_TP_SECRET") && error.contains("at least 16 bytes"),
        "{error}"
    );
    assert!(!error.contains("hunter2"), "{error}");
}

#[test]
fn a_rank_outside_of_the_world_is_refused() {
    let error = refused(&[("TF_TP_RANK", "2"), ("TF_TP_WORLD", "2")]);
    assert!(
        error.contains("TF_TP_RANK (or --rank) `2`") && error.contains("want 0 to 1"),
        "{error}"
    );
}

#[test]
fn every_problem_is_reported_at_once() {
    let error = refused(&[
        ("TF_TP_PORT", "0"),
        ("TF_TP_ROCE_TC", "256"),
        ("TF_TP_DEVICE", "x"),
    ]);
    for name in ["TF_TP_PORT", "TF_TP_ROCE_TC", "TF_TP_DEVICE"] {
        assert!(error.contains(name), "{error}");
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_by_name() {
    let mut sources = Sources::default();
    sources
        .environment
        .insert("TF_TP_MASTER".into(), OsString::from_vec(vec![b'a', 0xff]));
    let error = Settings::load(&sources).unwrap_err().to_string();
    assert!(
        error.contains("TF_TP_MASTER") && error.contains("not UTF-8"),
        "{error}"
    );
}

#[test]
fn an_empty_variable_is_unset_and_warned_about() {
    let settings = load(&[("TF_TP_PORT", ""), ("TF_TP_ROCE_HCA", " ")]).unwrap();
    assert_eq!(settings.port, 29500);
    assert_eq!(settings.roce.hca, None);
    let empty: Vec<_> = settings
        .warnings()
        .iter()
        .filter(|w| w.code == "empty-variable")
        .collect();
    assert_eq!(empty.len(), 2);
    assert!(empty[0].text.contains("TF_TP_PORT"), "{}", empty[0].text);
}

#[test]
fn an_unknown_variable_is_warned_about_with_the_nearest_name() {
    let settings = load(&[
        ("TF_TP_WROLD", "4"),
        ("TF_TP_PLAN_TIMEOUT", "5"),
        ("TF_TP_ZZZZZZZZZZZZ", "1"),
    ])
    .unwrap();
    let texts: Vec<_> = settings.warnings().iter().map(|w| w.text.as_str()).collect();
    assert!(
        texts
            .iter()
            .any(|t| t.contains("TF_TP_WROLD") && t.contains("did you mean TF_TP_WORLD?")),
        "{texts:?}"
    );
    assert!(
        texts
            .iter()
            .any(|t| t.contains("TF_TP_BOOT_TIMEOUT is its name here")),
        "{texts:?}"
    );
    assert!(
        texts
            .iter()
            .any(|t| t.contains("ZZZ") && !t.contains("did you mean")),
        "{texts:?}"
    );
}

#[test]
fn an_option_wins_over_the_orchestrator_and_that_over_the_environment() {
    let mut sources = Sources::of([
        ("TF_TP_PORT", "1001"),
        ("TF_TP_WORLD", "3"),
        ("TF_TP_DEVICE", "3"),
    ]);
    sources.orchestrator = Some(
        [("TF_TP_PORT", "1002"), ("TF_TP_WORLD", "4")]
            .map(|(a, b)| (a.into(), b.into()))
            .into(),
    );
    sources.options.insert("TF_TP_PORT".into(), "1003".into());
    sources.unset.insert("TF_TP_DEVICE".into());
    let settings = Settings::load(&sources).unwrap();
    assert_eq!(row(&settings, "TF_TP_PORT"), ("1003", Source::Option));
    assert_eq!(row(&settings, "TF_TP_WORLD"), ("4", Source::Orchestrator));
    assert_eq!(row(&settings, "TF_TP_DEVICE"), ("0", Source::Default));
}

#[test]
fn beyond_loopback_a_secret_is_needed_and_the_line_that_mends_it_is_printed() {
    let error = refused(&[("TF_TP_MASTER", "192.0.2.1")]);
    assert!(
        error.contains("export TF_TP_SECRET=$(tf-tp-test secret)"),
        "{error}"
    );
    for local in ["localhost", "127.0.0.1", "::1", "[::1]", "127.9.9.9"] {
        load(&[("TF_TP_MASTER", local)]).unwrap();
    }
    let open = load(&[("TF_TP_MASTER", "192.0.2.1"), ("TF_TP_INSECURE", "1")]).unwrap();
    assert!(
        open.warnings()
            .iter()
            .any(|w| w.code == "no-secret" && w.text.contains("everybody"))
    );
    load(&[
        ("TF_TP_MASTER", "192.0.2.1"),
        ("TF_TP_SECRET", "0123456789abcdef"),
    ])
    .unwrap();
    load(&[("TF_TP_MASTER", "192.0.2.1"), ("TF_TP_WORLD", "1")]).unwrap();
}

#[test]
fn the_innermost_launcher_gives_rank_world_and_master() {
    let secret = ("TF_TP_SECRET", "0123456789abcdef");
    let slurm = [
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_STEP_NODELIST", "gpu[03-06]"),
        secret,
    ];
    let settings = load(&slurm).unwrap();
    assert_eq!((settings.rank, settings.world), (Rank(3), World(4)));
    assert_eq!(settings.master, "gpu03");
    assert_eq!(row(&settings, "TF_TP_RANK"), ("3", Source::Launcher));

    let mut both = slurm.to_vec();
    both.extend([("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "192.0.2.9")]);
    let settings = load(&both).unwrap();
    assert_eq!(
        (settings.rank, settings.world, settings.master.as_str()),
        (Rank(1), World(2), "192.0.2.9")
    );

    let mpi = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
    ];
    assert_eq!(load(&mpi).unwrap().rank, Rank(1));
    let spread = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "1"),
    ];
    let error = refused(&spread);
    assert!(
        error.contains("TF_TP_MASTER is unset, and Open MPI does not say where rank 0 is"),
        "{error}"
    );
}

#[test]
fn a_variable_that_contradicts_the_launcher_is_refused() {
    let torchrun = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")];
    let with = |extra: (&'static str, &'static str)| {
        let mut all = torchrun.to_vec();
        all.push(extra);
        all
    };
    let error = refused(&with(("TF_TP_RANK", "0")));
    assert!(
        error.contains("TF_TP_RANK is `0`") && error.contains("torchrun") && error.contains("RANK `1`"),
        "{error}"
    );
    assert_eq!(
        load(&with(("TF_TP_RANK", "01"))).unwrap().rank,
        Rank(1),
        "the same number, written otherwise"
    );

    for (extra, says) in [
        (
            ("TF_TP_WORLD", "3"),
            "torchrun started this rank with WORLD_SIZE `2`: unset TF_TP_WORLD",
        ),
        (
            ("TF_TP_MASTER", "127.0.0.2"),
            "torchrun started this rank with MASTER_ADDR `localhost`: unset TF_TP_MASTER",
        ),
    ] {
        let error = refused(&with(extra));
        assert!(error.contains(extra.0) && error.contains(says), "{error}");
    }

    // An option is typed by whoever knows better, and an orchestrator has launched this rank itself.
    let mut sources = Sources::of(torchrun);
    sources.options.insert("TF_TP_RANK".into(), "0".into());
    assert_eq!(Settings::load(&sources).unwrap().rank, Rank(0));
    let mut sources = Sources::of(torchrun);
    sources.orchestrator = Some([("TF_TP_RANK".to_owned(), "0".to_owned())].into());
    assert_eq!(Settings::load(&sources).unwrap().rank, Rank(0));
}

#[test]
fn agreed_fields_do_not_depend_on_how_a_number_is_written() {
    let a = load(&[("TF_TP_HEARTBEAT_LIMIT_S", "3.0"), ("TF_TP_RANK", "0")]).unwrap();
    let b = load(&[("TF_TP_HEARTBEAT_LIMIT_S", "3"), ("TF_TP_RANK", "1")]).unwrap();
    assert_eq!(a.agreed_fields(), b.agreed_fields());
    let c = load(&[("TF_TP_MAILBOX_MAX_KB", "512")]).unwrap();
    assert_ne!(a.agreed_fields(), c.agreed_fields());
    assert!(
        TABLE
            .iter()
            .all(|spec| !(spec.agree && spec.kind == Kind::Secret)),
        "a secret crosses the wire"
    );
}

/// A launcher's variable is called by its own name, since that is where the person has to look.
#[test]
fn what_a_launcher_said_wrong_is_the_launchers_variable() {
    let error = refused(&[("RANK", "abc"), ("WORLD_SIZE", "2")]);
    assert!(
        error.starts_with("RANK `abc` is not a whole number") && !error.contains("TF_TP_RANK"),
        "{error}"
    );
    let error = refused(&[("RANK", "5"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "localhost")]);
    assert_eq!(
        error,
        "RANK `5` is not below the world: want 0 to 1 with WORLD_SIZE 2"
    );
}

#[test]
fn a_survey_shows_every_row_also_the_broken_ones() {
    let sources = Sources::of([("TF_TP_PORT", "many"), ("TF_TP_WORLD", "3"), ("TF_TP_RANK", "7")]);
    let survey = Settings::survey(&sources);
    assert_eq!(survey.rows.len(), TABLE.len());
    let row = |name: &str| survey.rows.iter().find(|row| row.name == name).unwrap();
    assert_eq!(row("TF_TP_PORT").value, "many");
    assert!(row("TF_TP_PORT").problem.as_ref().unwrap().contains("TF_TP_PORT"));
    assert_eq!(
        (row("TF_TP_WORLD").value.as_str(), &row("TF_TP_WORLD").problem),
        ("3", &None)
    );
    assert_eq!(survey.problems.len(), 1, "{:?}", survey.problems);
    let sound = Settings::survey(&Sources::of([("TF_TP_RANK", "7"), ("TF_TP_WORLD", "3")]));
    assert!(
        sound.problems[0].contains("is not below the world"),
        "{:?}",
        sound.problems
    );
}
