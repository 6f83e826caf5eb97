//! The runner: one process is one rank.
//!
//! [`entry`] is the whole program: it parses and checks what was asked before anything is opened ([`preflight`]), runs
//! one command, and returns one of the documented [`exit_code`]s. What a rank says goes through [`sink`].

pub mod cli;
pub mod devices;
pub mod exit_code;
pub mod lease;
pub mod logging;
pub mod os;
pub mod sink;
pub mod supervise;
pub mod vars;
pub mod version;

use clap::Parser;
use clap::error::ErrorKind;
use cli::{Cli, Command};
use exit_code::Refusal;
use sink::Sink;
use std::ffi::OsString;

/// The program: takes the arguments with the program's name in front, returns the exit code.
pub fn entry(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return answer(&error),
    };
    let sink = Sink::new(cli.global.events);
    match dispatch(cli, &sink) {
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
            // A reader that closed the pipe has seen enough.
            let _ = error.print();
            exit_code::PASSED
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

fn dispatch(cli: Cli, sink: &Sink) -> Result<u8, Refusal> {
    match cli.command {
        Command::Supervise(args) => supervise::run(&args.command, sink),
        other => Err(Refusal::cannot(format!("{} is not built yet", other.name()))),
    }
}
