//! Whether a receipt is whole: nothing changed since it was sealed, nothing in it that its own record does not bear out.
//!
//! A receipt of a run that was cut off is whole too, and INCOMPLETE. What may differ there follows from the order in
//! which the store writes; see [`crate::store`].

mod compare;
mod hashes;
mod plan;
mod record;
pub mod signature;

use crate::receipt::{Receipt, Verdict};
use crate::render::visible;
use crate::store::{events, files, sums};
use record::Read;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use sums::Sums;

/// What else to compare.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The runner's executable, whose hash every rank must have given.
    pub binary: Option<PathBuf>,
    /// An `allowed_signers` file of `ssh-keygen -Y`; a signature must then be there and be by one of them.
    pub allowed_signers: Option<PathBuf>,
    /// The signer's identity in that file; any of the file's when absent.
    pub signer: Option<String>,
}

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The file, relative to the receipt.
    pub file: String,
    /// What is wrong.
    pub what: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", visible(&self.file), visible(&self.what))
    }
}

/// What `verify` found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Everything that is broken; empty when the receipt is whole.
    pub broken: Vec<Broken>,
    /// What else is worth knowing: a cut-off last line, fields of a later version, no signature.
    pub notes: Vec<String>,
    /// The verdict, computed anew; UNKNOWN where `SHA256SUMS` cannot be read, as it alone says whether the run ended.
    pub verdict: Verdict,
    /// The receipt, computed anew from the record; absent when the record cannot be read.
    pub receipt: Option<Receipt>,
    /// Files that were compared with their hash.
    pub files: usize,
    /// The path is no receipt at all (exit code 2).
    pub usage: Option<String>,
    /// Files that lie complete under their temporary names, since the run was cut off between two renames.
    pub(crate) pending: BTreeSet<String>,
}

impl Report {
    /// 0 whole (also when the verdict is INCOMPLETE), 1 broken, 2 not a receipt.
    pub fn exit_code(&self) -> u8 {
        match (&self.usage, self.broken.is_empty()) {
            (Some(_), _) => 2,
            (None, true) => 0,
            (None, false) => 1,
        }
    }

    /// The report as lines for people.
    pub fn text(&self) -> String {
        if let Some(why) = &self.usage {
            return format!("{}\n", visible(why));
        }
        let mut out = String::new();
        for broken in &self.broken {
            out.push_str(&format!("BROKEN {broken}\n"));
        }
        for note in &self.notes {
            out.push_str(&format!("note: {}\n", visible(note)));
        }
        let headline = self
            .receipt
            .as_ref()
            .map_or_else(|| self.verdict.to_string(), Receipt::headline);
        let headline = visible(&headline);
        let files = self.files;
        if self.broken.is_empty() {
            out.push_str(&format!(
                "whole: {files} files compared; the run was {headline}\n"
            ));
        } else {
            // What it says of the run may be what was changed.
            out.push_str(&format!(
                "BROKEN: {files} files compared; its verdict cannot be trusted\n"
            ));
        }
        out
    }

    /// Where a file of the receipt lies.
    fn path(&self, dir: &Path, name: &str) -> PathBuf {
        if self.pending.contains(name) {
            files::temporary(dir, name)
        } else {
            dir.join(name)
        }
    }

    /// A file that every receipt has, and that cannot be read; said once, where it is listed and missing too.
    fn unreadable(&mut self, file: &str, error: &std::io::Error) {
        if !self.broken.iter().any(|b| b.file == file) {
            self.broken(file, format!("cannot be read: {error}"));
        }
    }

    fn broken(&mut self, file: impl Into<String>, what: impl Into<String>) {
        self.broken.push(Broken {
            file: file.into(),
            what: what.into(),
        });
    }
}

/// Verifies the receipt in a directory.
pub fn verify(dir: &Path, options: &Options) -> Report {
    let mut report = Report::default();
    let names = match files::list(dir) {
        Ok(names) => names,
        Err(e) => {
            report.usage = Some(format!("{} is no receipt: {e}", dir.display()));
            return report;
        }
    };
    if !names.iter().any(|n| n == sums::NAME) {
        without_sums(dir, &names, &mut report);
        report.verdict = Verdict::Other("UNKNOWN".into());
        return report;
    }
    let sums = match read_sums(dir) {
        Ok(sums) => Some(sums),
        Err(why) => {
            report.broken(sums::NAME, why);
            None
        }
    };
    let cut = sums
        .as_ref()
        .is_some_and(|sums| hashes::check(dir, sums, &names, &mut report));
    let sealed = sums.as_ref().is_some_and(|s| s.sealed) && !cut;
    let read = record::read(dir, sealed, &mut report);
    let document = compare::document(dir, &mut report);
    if let (Some(read), Some(document)) = (&read, &document) {
        compare::with_record(document, read, sealed, &mut report);
        if sealed {
            compare::statement(dir, document, read, &mut report);
        }
    }
    if let Some(read) = read {
        plan::check(dir, &read, &mut report);
        binary(options, &read, &mut report);
        settle(read, sealed, sums.is_some(), &mut report);
    }
    signature::check(dir, options, &mut report);
    report
}

fn read_sums(dir: &Path) -> Result<Sums, String> {
    let bytes = files::read(&dir.join(sums::NAME)).map_err(|e| format!("cannot be read: {e}"))?;
    let text = String::from_utf8(bytes).map_err(|_| "it is not UTF-8".to_owned())?;
    Sums::parse(&text)
}

/// A receipt has its sums from the moment at which it is there.
fn without_sums(dir: &Path, names: &[String], report: &mut Report) {
    if names.iter().any(|n| n == sums::DOCUMENT || n == events::NAME) {
        report.broken(sums::NAME, "it is missing");
    } else {
        report.usage = Some(format!(
            "{} is no receipt: it has no {}",
            dir.display(),
            sums::NAME
        ));
    }
}

fn binary(options: &Options, read: &Read, report: &mut Report) {
    let Some(path) = &options.binary else { return };
    // Not a file of the receipt: it may be a link.
    let hash = std::fs::File::open(path).and_then(|file| files::sha256_of_open(file, None));
    match hash {
        Err(e) => report.usage = Some(format!("cannot read {}: {e}", path.display())),
        Ok((hash, _)) => {
            let hosts = read.whole.hosts.iter();
            let others: Vec<_> = hosts
                .flat_map(|h| {
                    h.binary_sha256
                        .iter()
                        .filter(|b| **b != hash)
                        .map(|b| (&h.name, b))
                })
                .collect();
            for (host, other) in others {
                let what = format!(
                    "{host} ran a runner with SHA-256 {other}; {} has {hash}",
                    path.display()
                );
                report.broken(events::NAME, what);
            }
            if !read.whole.hosts.iter().any(|h| !h.binary_sha256.is_empty()) {
                report.broken(events::NAME, "no rank gave its runner's hash");
            }
        }
    }
}

/// The verdict: what the record says, and INCOMPLETE for everything that was not sealed.
fn settle(mut read: Read, sealed: bool, sums: bool, report: &mut Report) {
    if !sums {
        read.whole.verdict = Verdict::Other("UNKNOWN".into());
    } else if !sealed {
        read.whole.verdict = Verdict::Incomplete;
        report
            .notes
            .push("the run was cut off: the receipt is not sealed".into());
    }
    report.verdict = read.whole.verdict.clone();
    report.receipt = Some(read.whole);
}
