//! `--version`: this program's version and revision, and the runner that it would start.

use crate::exec::{Runner, find_runner};
use crate::exit_code;
use crate::host::LocalHost;
use std::ffi::OsString;
use std::path::Path;

/// Version of this crate.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Source revision, `-dirty` behind it where the tree differed; `unknown` where it was built without one.
pub(crate) const REVISION: &str = env!("TP_REVISION");

/// Answers `tp-orchestrate --version [--runner FILE]`; `None` where the arguments are something else.
pub(super) fn answer(arguments: &[OsString]) -> Option<u8> {
    let mut runner = None;
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str()? {
            "--version" | "-V" => {}
            "--runner" => runner = Some(rest.next()?.clone()),
            _ => return None,
        }
    }
    println!("tp-orchestrate {VERSION}");
    println!("revision: {REVISION}");
    let asked = find_runner(runner.as_deref().map(Path::new))
        .and_then(|path| Runner::ask(&LocalHost::new("this machine", path)));
    match asked {
        Ok(runner) => {
            println!("runner: {} (sha256 {})", runner.path.display(), runner.sha256);
            for line in &runner.version {
                println!("  {line}");
            }
        }
        Err(error) => println!("runner: none: {error}"),
    }
    Some(exit_code::PASSED)
}
