//! Completions and man pages, both made from the command line's own definition.

use super::args::{Cli, CompletionsArgs, ManArgs};
use super::out;
use crate::{Error, exit_code};
use clap::CommandFactory;
use std::path::Path;

pub(super) fn completions(args: &CompletionsArgs) -> Result<u8, Error> {
    let mut page = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tp-orchestrate", &mut page);
    out::bytes(&page)?;
    Ok(exit_code::PASSED)
}

pub(super) fn man(args: &ManArgs) -> Result<u8, Error> {
    let failed =
        |path: &Path, e: std::io::Error| Error::Usage(format!("failed to write {}: {e}", path.display()));
    let Some(dir) = &args.dir else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|e| Error::Refused(format!("failed to make the man page: {e}")))?;
        out::bytes(&page)?;
        return Ok(exit_code::PASSED);
    };
    std::fs::create_dir_all(dir).map_err(|e| failed(dir, e))?;
    clap_mangen::generate_to(Cli::command(), dir).map_err(|e| failed(dir, e))?;
    Ok(exit_code::PASSED)
}
