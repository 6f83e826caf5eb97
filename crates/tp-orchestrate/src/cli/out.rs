//! Standard output: every command prints here, whole or with an error that says why not.

use crate::Error;
use std::io::{ErrorKind, Write};

/// Prints a text as it is.
///
/// A reader that closed the pipe has seen enough, which is no error.
///
/// # Errors
/// Usage, as for every output that cannot be written: standard output takes no more, e.g. its disk is full.
pub(super) fn text(text: &str) -> Result<(), Error> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Error::Usage(format!("cannot write to standard output: {e}")))
        }
        _ => Ok(()),
    }
}

/// Prints a text and ends the line.
///
/// # Errors
/// As [`text`].
pub(super) fn line(line: impl std::fmt::Display) -> Result<(), Error> {
    text(&format!("{line}\n"))
}

/// Prints bytes that are a text.
///
/// # Errors
/// As [`text`].
pub(super) fn bytes(bytes: &[u8]) -> Result<(), Error> {
    text(&String::from_utf8_lossy(bytes))
}
