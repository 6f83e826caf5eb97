//! The runner: one process is one rank.
//!
//! [`entry`] is the whole program: it parses and checks what was asked before anything is opened ([`preflight`]), runs
//! one command, and returns one of the documented [`exit_code`]s. What a rank says goes through [`sink`].

pub mod bench;
pub mod cli;
pub mod devices;
pub mod doctor;
pub mod exit_code;
pub mod explain;
pub mod failfast;
pub mod group;
pub mod hca;
pub mod lease;
pub mod logging;
pub mod os;
pub mod preflight;
pub mod relay;
pub mod roce_host;
pub mod sink;
pub mod start;
pub mod stdout;
pub mod suite;
pub mod supervise;
pub mod transport;
pub mod version;

use clap::Parser;
use clap::error::ErrorKind;
use cli::{Cli, Command, HcaArgs};
use exit_code::Refusal;
use sink::Sink;
use start::Inputs;
use std::ffi::OsString;
use std::io::Write;
use tp_fabric::secret::Secret;
use tp_fabric::settings::{self, Sources};

/// The program: takes the arguments with the program's name in front, returns the exit code.
pub fn entry(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return answer(&error),
    };
    let sink = Sink::new(cli.global.events);
    match dispatch(cli, &sink) {
        // What was to be recorded and is not cannot count as proved.
        Ok(exit_code::PASSED) if sink.torn() => exit_code::FAILED,
        Ok(code) => code,
        Err(refusal) => {
            refuse(&refusal, &sink);
            refusal.code
        }
    }
}

/// Help and version go to standard output; a mistake becomes one line on standard error.
fn answer(error: &clap::Error) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = error.print().and_then(|()| std::io::stdout().flush());
            match stdout::settle(printed) {
                Ok(()) => exit_code::PASSED,
                Err(refusal) => {
                    eprintln!("tf-tp-test: {refusal}");
                    refusal.code
                }
            }
        }
        _ => {
            eprintln!("{}", one_line(error));
            exit_code::USAGE
        }
    }
}

/// What the command line got wrong, in one line.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let told = text.split("\n\nUsage:").next().unwrap_or(&text);
    let told = told.split("\n\nFor more information").next().unwrap_or(told);
    // A guess at what may have been meant is not what is wrong.
    let told = told.split("\n\n  tip: to pass").next().unwrap_or(told);
    let words: Vec<&str> = told.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line);
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        || error.kind() == ErrorKind::MissingSubcommand
    {
        return "tf-tp-test: a command is missing; see tf-tp-test --help".to_owned();
    }
    format!("tf-tp-test: {line}; see tf-tp-test --help")
}

/// The one line about why it ends, for people and as an event.
fn refuse(refusal: &Refusal, sink: &Sink) {
    sink.log("error", None, &refusal.text);
}

/// Every command comes through here: first what was told, then what can be refused, then the work.
fn dispatch(cli: Cli, sink: &Sink) -> Result<u8, Refusal> {
    // Its input is not its own: the lines go to the rank.
    if let Command::Supervise(args) = &cli.command {
        return supervise::run(&args.command, sink);
    }
    if let Command::Relay(args) = &cli.command {
        return relay::run(args, sink);
    }
    if let Command::Secret = &cli.command {
        refuse_options(&cli)?;
    }
    let mut inputs = Inputs::gather(&cli.global)?;
    // SAFETY: no thread has been started yet.
    unsafe { inputs.export() };
    logging::init(sink);
    inputs.keep_lease(sink)?;
    let sources = &mut inputs.sources;
    match &cli.command {
        Command::Secret => secret(),
        Command::Explain(args) => explain::run(args, sources, sink),
        Command::Doctor(args) => doctor::run(args, sources),
        Command::Hca(args) => hca(args, sources, sink),
        other => on_the_group(other, sources, sink),
    }
}

/// A secret belongs to no rank: an option that could only be a mistake is not passed over.
fn refuse_options(cli: &Cli) -> Result<(), Refusal> {
    let given = cli
        .global
        .settings()
        .into_iter()
        .find(|(_, value)| value.is_some());
    match given.and_then(|(variable, _)| settings::find(variable)) {
        Some(spec) => Err(Refusal::usage(format!(
            "{} takes no --{}: it has nothing to do with a rank",
            cli.command.name(),
            spec.option
        ))),
        None => Ok(()),
    }
}

/// A new secret on standard output.
fn secret() -> Result<u8, Refusal> {
    let secret = Secret::generate().map_err(|e| Refusal::cannot(format!("failed to make a secret: {e}")))?;
    stdout::print(secret.reveal().as_str())?;
    stdout::print("\n")?;
    Ok(exit_code::PASSED)
}

fn hca(args: &HcaArgs, sources: &mut Sources, sink: &Sink) -> Result<u8, Refusal> {
    if args.capture {
        return hca::capture(args, sources, sink);
    }
    if let Some(file) = &args.facts {
        // In a step of a run each rank answers for itself; by hand the whole file is shown.
        let rank = sources
            .text("TF_TP_RANK")
            .and_then(|(text, _)| text.to_str()?.trim().parse().ok());
        if let Some(rank) = rank {
            sink.set_rank(rank);
            if sink.events() {
                group::introduce(&preflight::settings(sources, None)?, sink)?;
            }
        }
        return hca::from_file(file, args, rank, sink);
    }
    let settings = preflight::settings(sources, None)?;
    sink.set_rank(settings.rank.0);
    group::introduce(&settings, sink)?;
    hca::live(
        &hca::Live {
            args,
            settings: &settings,
            sources,
        },
        sink,
    )
}

fn on_the_group(command: &Command, sources: &mut Sources, sink: &Sink) -> Result<u8, Refusal> {
    let named = match command {
        Command::Suite(args) => args.which.as_deref(),
        _ => None,
    };
    let settings = preflight::settings(sources, named)?;
    sink.set_rank(settings.rank.0);
    if let Command::Suite(args) = command
        && args.list
    {
        stdout::print(&preflight::checks(args, &settings)?)?;
        return Ok(exit_code::PASSED);
    }
    let Some(job) = preflight::job(command, &settings)? else {
        return Err(Refusal::usage(format!("{} runs on no group", command.name())));
    };
    group::introduce(&settings, sink)?;
    let rdma = hca::rdma(sources, &settings, sink);
    sink.keep_apart().map_err(|e| {
        Refusal::cannot(format!(
            "failed to keep the events apart from libraries' output: {e}"
        ))
    })?;
    group::run(&job, &settings, rdma, sink)
}
