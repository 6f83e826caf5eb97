//! What usual failures mean: signature → cause → what to do.
//!
//! [`signatures()`] is the one table; a receipt's failures are explained from it and `docs/troubleshooting.md` is printed
//! from it ([`page()`]). A diagnosis stands beside a failure and never changes a verdict.

mod page;
mod table;
mod table_fabric;
mod table_gpu;
mod table_last;
mod table_machine;

pub use page::page;

use tp_receipt::receipt::Diagnosis;

/// One known failure.
#[derive(Clone, Copy, Debug)]
pub struct Signature {
    /// Stable name, words joined by hyphens.
    pub code: &'static str,
    /// How it is recognised.
    pub sign: Sign,
    /// What most probably happened.
    pub cause: &'static str,
    /// What to do about it.
    pub remedy: &'static str,
    /// Where the knowledge comes from.
    pub source: &'static str,
    /// A line as it was seen; it stands in the captured log `tests/logs/CODE.log`, which is the signature's test.
    pub example: &'static str,
}

/// How a failure is recognised.
#[derive(Clone, Copy, Debug)]
pub enum Sign {
    /// A line of a log or of an error has all of `all` and, where `any` is not empty, one of `any`; letter case does not
    /// matter.
    Line {
        /// All of these.
        all: &'static [&'static str],
        /// One of these.
        any: &'static [&'static str],
    },
    /// A rank ended by this signal although nobody meant it to.
    Signal(i32),
}

/// What is known of a failed step.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Lines: logs, reasons of failed checks and of fates, errors of the orchestrator; each with the rank that said it.
    pub lines: Vec<(Option<u32>, String)>,
    /// Signals that ended ranks and were not meant to.
    pub signals: Vec<(u32, i32)>,
}

/// Every signature, in the order in which they are tried.
pub fn signatures() -> impl Iterator<Item = &'static Signature> {
    let parts = [
        table::START,
        table_machine::MACHINE,
        table_fabric::FABRIC,
        table_gpu::GPU,
        table_last::CONSEQUENCES,
    ];
    parts.into_iter().flatten()
}

/// At most this many causes are named for one step: more would explain nothing.
const CAUSES_MAX: usize = 3;

/// The causes that fit, each once, in the order of the table.
pub fn diagnose(evidence: &Evidence) -> Vec<Diagnosis> {
    signatures()
        .filter_map(|signature| matched(signature, evidence))
        .take(CAUSES_MAX)
        .collect()
}

/// The runner's own `[rank] INFO: …`: says what is so, such as that a host has no RDMA, and explains no failure.
fn is_information(line: &str) -> bool {
    let said = match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((rank, said)) if rank.bytes().all(|b| b.is_ascii_digit()) => said,
        _ => line,
    };
    said.starts_with("INFO: ")
}

fn matched(signature: &Signature, evidence: &Evidence) -> Option<Diagnosis> {
    let seen = match signature.sign {
        Sign::Line { all, any } => evidence.lines.iter().find_map(|(rank, line)| {
            if is_information(line) {
                return None;
            }
            let lower = line.to_lowercase();
            let has = |word: &&str| lower.contains(&word.to_lowercase());
            let fits = all.iter().all(&has) && (any.is_empty() || any.iter().any(has));
            fits.then(|| rank.map_or_else(|| line.clone(), |r| format!("rank {r}: {line}")))
        }),
        Sign::Signal(signal) => evidence
            .signals
            .iter()
            .find(|(_, s)| *s == signal)
            .map(|(rank, s)| format!("rank {rank} ended by signal {s}")),
    }?;
    Some(Diagnosis {
        code: signature.code.to_owned(),
        cause: signature.cause.to_owned(),
        remedy: signature.remedy.to_owned(),
        evidence: seen,
        ..Diagnosis::default()
    })
}
