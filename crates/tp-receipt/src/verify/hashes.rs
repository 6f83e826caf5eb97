//! Every file against its hash.

use super::Report;
use crate::store::files::{self, TEMPORARY};
use crate::store::sums::{DOCUMENT, NAME, SIGNATURE, Sums};
use crate::store::{PLAN, events};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Written when a run ends; before that they may lie there from the run that is being taken up again.
const PAGES: &[&str] = &["receipt.md", "report.html", "junit.xml", "receipt.intoto.json"];

enum Is {
    Right,
    /// What is listed lies under the temporary name: the run was cut off between two renames.
    Waits,
    /// `receipt.json` as it was before the one that is listed: the run was cut off between two renames.
    Older,
    Wrong(String),
}

/// Files that are replaced while a run goes on.
const REPLACED: &[&str] = &[PLAN, events::NAME, DOCUMENT];

/// Compares everything; true when the run was cut off between the last two renames.
pub(super) fn check(dir: &Path, sums: &Sums, names: &[String], report: &mut Report) -> bool {
    let grown: Vec<_> = sums
        .grows
        .iter()
        .map(|(name, (bytes, hash))| (name, hash, Some(*bytes)))
        .collect();
    let listed: Vec<_> = sums
        .files
        .iter()
        .map(|(name, hash)| (name, hash, None))
        .chain(grown)
        .collect();
    let next = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, Is)>> = Mutex::new(Vec::new());
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((name, hash, limit)) = listed.get(at) else {
                return;
            };
            let is = one(dir, name, hash, *limit, sums);
            if let Ok(mut results) = results.lock() {
                results.push((at, is));
            }
        }
    };
    std::thread::scope(|scope| {
        let helpers = std::thread::available_parallelism().map_or(1, |n| n.get().min(8)) - 1;
        for _ in 0..helpers.min(listed.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_default();
    results.sort_by_key(|(at, _)| *at);
    report.files = results.len();
    let mut cut = false;
    for (at, is) in results {
        match is {
            Is::Right => {}
            Is::Waits => drop(report.pending.insert(listed[at].0.clone())),
            Is::Older => cut = true,
            Is::Wrong(why) => report.broken(listed[at].0.clone(), why),
        }
    }
    let known: BTreeSet<&str> = listed.iter().map(|(name, _, _)| name.as_str()).collect();
    for name in names.iter().filter(|n| !known.contains(n.as_str())) {
        if !may_be_there(name, sums.sealed, cut) {
            let what = if files::is_empty_dir(name) {
                "it is an empty directory, and nothing of a receipt".to_owned()
            } else {
                format!("it is not listed in {NAME}")
            };
            report.broken(name.clone(), what);
        } else if is_no_file(&dir.join(name)) && !files::is_empty_dir(name) {
            report.broken(name.clone(), files::NOT_PLAIN);
        }
    }
    cut
}

/// Whether it is there and no plain file; while a run goes on, what was there may have its other name by now.
fn is_no_file(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|meta| !meta.is_file())
}

fn one(dir: &Path, name: &str, hash: &str, limit: Option<u64>, sums: &Sums) -> Is {
    let path = dir.join(name);
    match std::fs::symlink_metadata(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Is::Wrong("it is missing".into()),
        Err(e) => return Is::Wrong(format!("cannot be looked at: {e}")),
        Ok(meta) if !meta.is_file() => return Is::Wrong(files::NOT_PLAIN.into()),
        Ok(_) => {}
    }
    match files::sha256_of(&path, limit) {
        Err(e) => Is::Wrong(format!("cannot be read: {e}")),
        Ok((found, bytes)) => match limit {
            _ if found == hash => Is::Right,
            _ if !sums.sealed && waits(dir, name, hash, limit) => Is::Waits,
            Some(limit) if bytes < limit => Is::Wrong(format!("it has {bytes} bytes of at least {limit}")),
            _ if name == DOCUMENT && sums.was.as_deref() == Some(&found) => Is::Older,
            Some(limit) => Is::Wrong(format!(
                "SHA-256 of its first {limit} bytes is {found}, listed is {hash}"
            )),
            None => Is::Wrong(format!("its SHA-256 is {found}, listed is {hash}")),
        },
    }
}

fn waits(dir: &Path, name: &str, hash: &str, limit: Option<u64>) -> bool {
    let found = || files::sha256_of(&files::temporary(dir, name), limit);
    REPLACED.contains(&name) && found().is_ok_and(|(found, _)| found == hash)
}

fn may_be_there(name: &str, sealed: bool, cut: bool) -> bool {
    if name == NAME || name == SIGNATURE {
        return true;
    }
    if files::is_empty_dir(name) {
        // The directory of a log comes before the log.
        return !sealed && name.starts_with("logs/");
    }
    let temporary = name.strip_suffix(TEMPORARY);
    if sealed {
        return cut && temporary == Some(DOCUMENT);
    }
    let page = |name: &str| PAGES.contains(&name);
    let log = name.starts_with("logs/") && name.ends_with(".log");
    log || page(name) || temporary.is_some_and(|n| page(n) || REPLACED.contains(&n) || n == NAME)
}
