//! What usual failures mean: signature → cause → what to do.
//!
//! [`signatures()`] is the one table; a receipt's failures are explained from it and `docs/troubleshooting.md` is printed
//! from it ([`page()`]). A diagnosis stands beside a failure and never changes a verdict.

mod page;
mod table;
mod table_fabric;

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
    /// A line or an end as it was seen; the test of the signature.
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
    table::HOST.iter().chain(table_fabric::FABRIC)
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

fn matched(signature: &Signature, evidence: &Evidence) -> Option<Diagnosis> {
    let seen = match signature.sign {
        Sign::Line { all, any } => evidence.lines.iter().find_map(|(rank, line)| {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn evidence(signature: &Signature) -> Evidence {
        match signature.sign {
            Sign::Line { .. } => Evidence {
                lines: vec![(Some(1), signature.example.to_owned())],
                ..Evidence::default()
            },
            Sign::Signal(signal) => Evidence {
                signals: vec![(1, signal)],
                ..Evidence::default()
            },
        }
    }

    #[test]
    fn every_example_is_explained_by_its_own_signature_first() {
        for signature in signatures() {
            let found = diagnose(&evidence(signature));
            let first = found
                .first()
                .unwrap_or_else(|| panic!("{} does not match its example", signature.code));
            assert_eq!(first.code, signature.code, "{}", signature.example);
            assert!(first.evidence.contains("rank 1"), "{}", first.evidence);
        }
    }

    #[test]
    fn codes_are_unique_and_every_row_says_something() {
        let mut codes: Vec<_> = signatures().map(|s| s.code).collect();
        codes.sort_unstable();
        let all = codes.len();
        codes.dedup();
        assert_eq!(codes.len(), all);
        for s in signatures() {
            assert!(
                s.code
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'),
                "{}",
                s.code
            );
            assert!(
                s.cause.len() > 20 && s.remedy.len() > 20 && !s.source.is_empty(),
                "{}",
                s.code
            );
        }
    }

    #[test]
    fn ordinary_lines_are_not_explained() {
        let lines = [
            "PASS roce-host 1000 gathers, 1 B to 256 KiB, wire shm",
            "listening on 127.0.0.1:29500",
            "rank 1 failed in phase run: injected by failfast",
            "wire: shm (both ranks on one host)",
        ];
        for line in lines {
            let found = diagnose(&Evidence {
                lines: vec![(Some(0), line.to_owned())],
                ..Evidence::default()
            });
            assert!(found.is_empty(), "{line}: {found:?}");
        }
    }
}
