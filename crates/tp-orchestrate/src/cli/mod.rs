//! The command line: parsed whole and checked before anything is opened.

mod args;
mod doctor;
mod env;
mod hca;
mod hosts;
mod init;
mod out;
mod plan;
mod push;
mod receipt;
mod run;
mod shell;
mod stop;
mod version;

pub use args::Cli;
pub(crate) use version::{REVISION, VERSION};

use crate::{Error, exit_code};
use args::Command;
use clap::Parser;
use clap::error::ErrorKind;
use std::ffi::OsString;

/// The program: takes the arguments with the program's name in front, returns the exit code.
pub fn entry(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    if arguments.iter().skip(1).any(|a| a == "--version" || a == "-V")
        && let Some(code) = version::answer(&arguments)
    {
        return code.unwrap_or_else(|error| refuse(&error, false));
    }
    let json = arguments.iter().any(|a| a == "--json");
    match Cli::try_parse_from(&arguments) {
        Ok(cli) => match dispatch(cli) {
            Ok(code) => code,
            Err(error) => refuse(&error, json),
        },
        Err(error) => answer(&error, json),
    }
}

fn dispatch(cli: Cli) -> Result<u8, Error> {
    match cli.command {
        Command::Init(args) => init::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Env(args) => env::run(&args),
        Command::Hca(args) => hca::run(&args),
        Command::Plan(args) => plan::run(&args),
        Command::Push(args) => push::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Stop(args) => stop::run(&args),
        Command::Report(args) => receipt::report(&args),
        Command::Receipt(args) => receipt::run(&args),
        Command::Completions(args) => shell::completions(&args),
        Command::Man(args) => shell::man(&args),
    }
}

/// Help and version go to standard output; a mistake becomes one line.
fn answer(error: &clap::Error, json: bool) -> u8 {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Styled where a terminal reads it and nobody has turned colours off (NO_COLOR).
            let shown = if console::user_attended() && console::colors_enabled() {
                error.render().ansi().to_string()
            } else {
                error.render().to_string()
            };
            match out::text(&shown) {
                Ok(()) => exit_code::PASSED,
                Err(error) => refuse(&error, json),
            }
        }
        _ => refuse(&Error::Usage(one_line(error)), json),
    }
}

/// What the command line got wrong, in one line.
fn one_line(error: &clap::Error) -> String {
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
    ) {
        return "a command is missing; see tp-orchestrate --help".to_owned();
    }
    let text = error.to_string();
    let told = text.split("\n\nUsage:").next().unwrap_or(&text);
    let told = told.split("\n\nFor more information").next().unwrap_or(told);
    let line = told.split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{}; see --help", line.strip_prefix("error: ").unwrap_or(&line))
}

/// The error, where people or programs look for it.
fn refuse(error: &Error, json: bool) -> u8 {
    let code = error.exit_code();
    if json {
        let line = serde_json::json!({ "schema": 1, "ok": false, "error": { "text": error.to_string(), "exit": code } });
        // What cannot be said there is said on standard error.
        if let Err(unsaid) = out::line(line) {
            say(&unsaid.to_string());
        }
    } else {
        say(&error.to_string());
    }
    code
}

fn say(error: &str) {
    use std::io::Write;
    // Nobody is left to be told where standard error is closed too.
    let _ = writeln!(std::io::stderr(), "tp-orchestrate: {error}");
}
