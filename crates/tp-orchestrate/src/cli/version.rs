//! `--version`: this program's version and revision, and the runner that it would start.

use crate::exec::{Runner, find_runner};
use crate::host::LocalHost;
use crate::{Error, exit_code};
use std::ffi::OsString;
use std::path::Path;

/// Version of this crate.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Source revision, `-dirty` behind it where the tree differed; `unknown` where it was built without one.
pub(crate) const REVISION: &str = env!("TP_REVISION");

/// Answers `tp-orchestrate --version [--runner FILE]`; `None` where the arguments are something else.
pub(super) fn answer(arguments: &[OsString]) -> Option<Result<u8, Error>> {
    let mut runner = None;
    let mut rest = arguments.iter().skip(1);
    while let Some(argument) = rest.next() {
        match argument.to_str()? {
            "--version" | "-V" => {}
            "--runner" => runner = Some(rest.next()?.clone()),
            _ => return None,
        }
    }
    let mut lines = vec![
        format!("tp-orchestrate {VERSION}"),
        format!("revision: {REVISION}"),
    ];
    let asked = find_runner(runner.as_deref().map(Path::new))
        .and_then(|path| Runner::ask(&LocalHost::new("this machine", path), &[]));
    match asked {
        Ok(runner) => {
            let (path, sha256) = (runner.path.display(), &runner.sha256);
            lines.push(format!("runner: {path} (sha256 {sha256})"));
            lines.extend(runner.version.iter().map(|line| format!("  {line}")));
        }
        Err(error) => lines.push(format!("runner: none: {error}")),
    }
    Some(super::out::line(lines.join("\n")).map(|()| exit_code::PASSED))
}
