//! Everything that went wrong, with the known cause and the end of the logs.

use super::{anchor, class, escape, section};
use crate::receipt::{Failure, Receipt};
use std::fmt::Write;

/// Failures beyond this stand in `receipt.json` alone.
const SHOWN: usize = 200;

/// The section, where there is anything to say.
pub fn failures(receipt: &Receipt, out: &mut String) {
    if receipt.failures.is_empty() {
        return;
    }
    section(out, "What went wrong");
    for (i, failure) in receipt.failures.iter().take(SHOWN).enumerate() {
        one(failure, i < 10, out);
    }
    if receipt.failures.len() > SHOWN {
        let more = receipt.failures.len() - SHOWN;
        let _ = writeln!(out, "<p>{more} more stand in receipt.json.</p>");
    }
    out.push_str("</section>\n");
}

fn one(failure: &Failure, open: bool, out: &mut String) {
    let id = anchor(&failure.arm, &failure.step);
    let id = if failure.attempt > 1 {
        format!("{id}-{}", failure.attempt)
    } else {
        id
    };
    let attempt = if failure.attempt > 1 {
        format!(", attempt {}", failure.attempt)
    } else {
        String::new()
    };
    let _ = write!(
        out,
        "<div class=\"fail {}\" id=\"{id}\">\n<h3>{} / {}{attempt}: {}</h3>\n<ul>\n",
        class(&failure.verdict),
        escape(&failure.arm),
        escape(&failure.step),
        escape(failure.verdict.as_str())
    );
    for problem in &failure.problems {
        let _ = writeln!(out, "<li>{}</li>", escape(problem));
    }
    out.push_str("</ul>\n");
    for cause in &failure.causes {
        let _ = write!(
            out,
            "<div class=\"cause\"><p><b>Cause:</b> {}</p><p><b>Do:</b> {}</p>",
            escape(&cause.cause),
            escape(&cause.remedy)
        );
        if !cause.evidence.is_empty() {
            let _ = write!(
                out,
                "<p class=\"dim\">Seen: <code>{}</code></p>",
                escape(&cause.evidence)
            );
        }
        out.push_str("</div>\n");
    }
    for (rank, lines) in failure.log_tails.iter().filter(|(_, lines)| !lines.is_empty()) {
        let _ = write!(
            out,
            "<details{}><summary>end of the log of rank {}</summary>\n<pre>{}</pre></details>\n",
            if open { " open" } else { "" },
            escape(rank),
            escape(&lines.join("\n"))
        );
    }
    out.push_str("</div>\n");
}
