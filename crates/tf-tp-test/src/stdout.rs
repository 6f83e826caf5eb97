//! What a command prints on standard output, and what becomes of it where that cannot be written.

use crate::exit_code::Refusal;
use std::io::{self, ErrorKind, Write};

/// Prints `text` as it is. A reader that has closed the pipe has seen enough: that is no error, and the command ends with
/// the code that it has without. Anything else (a full disk) is a refusal with exit 2, as for every
/// output that cannot be written.
pub fn print(text: &str) -> Result<(), Refusal> {
    let mut out = io::stdout().lock();
    settle(out.write_all(text.as_bytes()).and_then(|()| out.flush()))
}

/// What the end of writing to standard output means, as [`print()`] has it.
pub fn settle(written: io::Result<()>) -> Result<(), Refusal> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Refusal::usage(format!(
            "cannot write to standard output: {error}"
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_that_is_gone_is_no_error_and_a_full_disk_is() {
        assert_eq!(settle(Ok(())), Ok(()));
        assert_eq!(settle(Err(ErrorKind::BrokenPipe.into())), Ok(()));
        let refusal = settle(Err(ErrorKind::StorageFull.into())).unwrap_err();
        assert_eq!(refusal.code, crate::exit_code::USAGE);
        assert!(refusal.text.starts_with("cannot write to standard output: "));
    }
}
