//! `docs/troubleshooting.md`, printed from the table.

use super::{Sign, Signature, signatures};
use std::fmt::Write;

/// The whole page.
pub fn page() -> String {
    let mut out = String::from(
        "# Troubleshooting\n\n\
         What usual failures mean. A receipt names the code beside the failure; this page is printed from the same table \
         that the orchestrator uses (`TP_UPDATE_DOCS=1 cargo test -p tp-orchestrate --test docs` writes it again).\n\n\
         A cause is the most probable one, not a proof: the line that was seen stands beside it in the receipt. Start with \
         the rank that failed first, which the fail-fast line of every other rank names.\n",
    );
    for signature in signatures() {
        // Writing to a String cannot fail.
        let _ = section(&mut out, signature);
    }
    out
}

fn section(out: &mut String, signature: &Signature) -> std::fmt::Result {
    writeln!(out, "\n## {}\n", signature.code)?;
    match signature.sign {
        Sign::Line { .. } => writeln!(out, "Seen: `{}`\n", signature.example)?,
        Sign::Signal(signal) => writeln!(
            out,
            "Seen: a rank ended by signal {signal} that nobody meant to end\n"
        )?,
    }
    writeln!(out, "Cause: {}\n", signature.cause)?;
    writeln!(out, "What to do: {}\n", signature.remedy)?;
    writeln!(out, "Source: {}", signature.source)
}
