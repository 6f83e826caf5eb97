//! A rank among its peers: introduces itself, boots, runs one job, and leaves in good order or by the fate channel.

use crate::bench;
use crate::devices;
use crate::exit_code::{self, Refusal};
use crate::failfast::{self, At, Injection};
use crate::os;
use crate::preflight::Job;
use crate::roce_host;
use crate::sink::Sink;
use crate::suite;
use crate::transport;
use crate::version;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tp_fabric::bootstrap::{BootConfig, Bootstrap};
use tp_fabric::fate::{Exit, FateReport, RealExit};
use tp_fabric::identity;
use tp_fabric::rails::{self, Agreed, RdmaConfig};
use tp_fabric::session::{Group, Session, SessionError, SessionHooks};
use tp_fabric::settings::{Settings, Source};
use tp_receipt::event::{Fate, Hello, Kind, Setting};

/// The session's name where nobody gave one.
const BY_HAND: &str = "by-hand";

/// Says who this rank is and which settings are in force.
pub fn introduce(settings: &Settings, sink: &Sink) -> Result<(), Refusal> {
    let binary_sha256 = identity::binary_sha256()
        .map_err(|e| Refusal::cannot(format!("failed to hash this program's own file: {e}")))?;
    let versions = [
        ("runner", version::VERSION),
        ("revision", version::REVISION),
        ("kernel", &os::kernel_release()),
    ];
    let session = if settings.session.is_empty() {
        BY_HAND
    } else {
        &settings.session
    };
    sink.event(Kind::Hello(Hello {
        world: settings.world.0,
        session: session.to_owned(),
        pid: std::process::id(),
        binary_sha256,
        image_sha256: devices::image_sha256(),
        versions: versions
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .into(),
    }));
    for row in settings.rows().iter().filter(|row| row.source != Source::Default) {
        sink.event(Kind::Setting(Setting {
            name: row.name.to_owned(),
            value: row.value.clone(),
            source: row.source.name().to_owned(),
        }));
    }
    for warning in settings.warnings() {
        sink.log("warn", Some(warning.code), &warning.text);
    }
    Ok(())
}

/// What the fate channel tells before it ends this process, and what all ranks must have been told to do.
pub fn hooks(command: &str, sink: &Sink) -> SessionHooks {
    let sink = sink.clone();
    let on_fate = move |report: &FateReport| {
        sink.event(Kind::Fate(Fate {
            reason: report.reason.clone(),
            culprit: Some(report.culprit.0),
            phase: report.phase.clone(),
        }));
    };
    let image = devices::image_sha256().unwrap_or_else(|| "none".to_owned());
    SessionHooks {
        on_fate: Some(Arc::new(on_fate)),
        agree: vec![
            ("kernel_image".to_owned(), image),
            ("command".to_owned(), command.to_owned()),
        ],
        exit: Arc::new(Stamped),
    }
}

/// Leaves like the real exit, after one line about when: the driver's teardown follows, and is not the fate channel's time.
struct Stamped;

impl Exit for Stamped {
    fn exit(&self, code: i32) {
        os::say_without_waiting(&format!("LEAVE {code} at {} ns\n", os::monotonic_ns()));
        RealExit.exit(code);
    }
}

/// A session's error with its exit code.
pub fn refusal(error: SessionError) -> Refusal {
    let code = u8::try_from(error.exit_code()).unwrap_or(exit_code::LOST);
    Refusal {
        code,
        text: error.to_string(),
    }
}

/// Boots and agrees on the rails.
pub fn agree_on_rails(
    phase: &str,
    settings: &Settings,
    rdma: &RdmaConfig,
    hooks: SessionHooks,
) -> Result<(Group, Agreed), Refusal> {
    let mut group = Group::open(settings, hooks).map_err(refusal)?;
    group.fate().set_phase(phase);
    match rails::agree(group.meeting(), rdma) {
        Ok(agreed) => Ok((group, agreed)),
        Err(error) => Err(refusal(group.settle(error))),
    }
}

/// The same for a job that is nothing without rails; `what` is its command.
fn with_rails(
    (phase, what): (&str, &str),
    settings: &Settings,
    rdma: &RdmaConfig,
    hooks: SessionHooks,
) -> Result<(Group, Agreed), Refusal> {
    let (group, agreed) = agree_on_rails(phase, settings, rdma, hooks)?;
    if let Some(error) = &agreed.document.error {
        let refusal = Refusal {
            code: error.exit_code(),
            text: format!("{what} needs rails: {error}"),
        };
        group.close();
        return Err(refusal);
    }
    if let Some(tell) = &rdma.on_pick {
        tell(&agreed.document);
    }
    Ok((group, agreed))
}

/// Boots, runs the job and leaves; the exit code is that of the job's checks.
pub fn run(job: &Job, settings: &Settings, rdma: Option<RdmaConfig>, sink: &Sink) -> Result<u8, Refusal> {
    if let Job::Failfast(injection, at) = job {
        before_the_group(*injection, *at, settings, sink)?;
    }
    let hooks = hooks(&job.words(), sink);
    match (job, &rdma) {
        (Job::Transport(plan), Some(rdma)) => {
            let names = ("transport", "failfast transport");
            return transport::run(plan, with_rails(names, settings, rdma, hooks)?, settings, sink);
        }
        (Job::Rails(calls), Some(rdma)) => {
            let names = ("bench", "bench --rails");
            return bench::rails::run(*calls, with_rails(names, settings, rdma, hooks)?, settings, sink);
        }
        (Job::Transport(_) | Job::Rails(_), None) => {
            return Err(Refusal::usage(
                "this command needs the verbs wire: leave --wire out, or give verbs",
            ));
        }
        _ => {}
    }
    let group = Group::open(settings, hooks).map_err(refusal)?;
    if let Job::Failfast(injection, At::Agreed) = job {
        let fate = group.fate();
        if injection.victim == settings.rank.0 {
            failfast::inject(*injection, "agreed", |phase, why| fate.fatal(phase, why), sink);
        }
    }
    let opening = Instant::now();
    let session = match job {
        Job::RoceHost(_) => roce_host::open(group, settings, rdma)?,
        _ => Session::on(group, settings, rdma).map_err(refusal)?,
    };
    tell(&session, opening.elapsed(), sink);
    work(job, &session, settings, sink);
    leave(session, job, sink)
}

/// The failures that strike before there is a fate channel.
fn before_the_group(injection: Injection, at: At, settings: &Settings, sink: &Sink) -> Result<(), Refusal> {
    if injection.victim != settings.rank.0 {
        return Ok(());
    }
    // Without a channel a rank that fails can only leave: its connections tell the others.
    let fatal = |_: &str, why: &str| {
        sink.log(
            "error",
            None,
            &format!("leaving with exit {}: {why}", exit_code::LOST),
        );
        os::exit_now(exit_code::LOST)
    };
    match at {
        At::Connect => failfast::inject(injection, "connect", fatal, sink),
        At::Met => {
            // Held until the injection: the others are in the agreement then.
            let met = Bootstrap::connect(BootConfig::from_settings(settings));
            let _met = met.map_err(|e| refusal(e.into()))?;
            failfast::inject(injection, "met", fatal, sink);
        }
        At::Agreed | At::Open | At::Run | At::Close => {}
    }
    Ok(())
}

/// One line about the boot, with its times as fields of the event (milliseconds).
fn tell(session: &Session, backend: Duration, sink: &Sink) {
    let report = &session.report;
    let on = session.collectives();
    let wire = on.wire().map_or("none", |wire| wire.name());
    for note in session.notes.iter().chain([&on.describe()]) {
        sink.log("info", Some("backend"), note);
    }
    let times = [
        ("identity", report.identity),
        ("connect", report.connect),
        ("agree", report.agree),
        ("backend", backend),
    ];
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let words: Vec<String> = times
        .iter()
        .map(|(what, time)| format!("{what} {:.1} ms", ms(*time)))
        .collect();
    let fields = times
        .iter()
        .map(|(what, time)| (format!("{what}_ms"), json!(ms(*time))))
        .collect();
    let place = format!(
        "rank {} of {} up: backend {}, wire {wire}",
        session.rank,
        session.world,
        on.backend()
    );
    sink.log_with(
        "info",
        Some("boot"),
        &format!("{place}; {}", words.join(", ")),
        fields,
    );
    if report.visitors.strangers > 0 {
        let text = format!(
            "{} connections to rank 0's port proved nothing and were dropped",
            report.visitors.strangers
        );
        sink.log("warn", Some("strangers"), &text);
    }
}

/// Runs the job. Where the transport fails, the fate channel ends every rank, this one too.
fn work(job: &Job, session: &Session, settings: &Settings, sink: &Sink) {
    let (on, fate, device) = (session.collectives(), session.fate(), session.device());
    match job {
        Job::Suite(only) => {
            fate.set_phase("suite");
            if let Err(suite::Broken(why)) = suite::run(on, device, only.as_deref(), sink) {
                sink.summary();
                session.collective_failed("suite", &why);
            }
        }
        Job::RoceHost(calls) => {
            fate.set_phase("roce-host");
            if let Err(why) = roce_host::run(on, *calls, sink) {
                sink.summary();
                session.collective_failed("roce-host", &why);
            }
        }
        Job::Bench(plan) => {
            fate.set_phase("bench");
            if let Err(why) = bench::run(on, device, plan, sink) {
                session.collective_failed("bench", &why);
            }
        }
        // Returned from before there was a session.
        Job::Transport(_) | Job::Rails(_) => {}
        Job::Failfast(injection, at) => {
            let patience = settings.heartbeat_limit + settings.grace;
            failfast::run(on, device, &fate, *injection, *at, patience, sink);
        }
    }
}

/// The clean end, then the totals.
fn leave(session: Session, job: &Job, sink: &Sink) -> Result<u8, Refusal> {
    let (rank, fate) = (session.rank.0, session.fate());
    if let Job::Failfast(injection, At::Close) = job
        && injection.victim == rank
    {
        failfast::inject(*injection, "close", |phase, why| fate.fatal(phase, why), sink);
    }
    session.close().map_err(refusal)?;
    let totals = sink.summary();
    Ok(if totals.failed == 0 {
        exit_code::PASSED
    } else {
        exit_code::FAILED
    })
}
