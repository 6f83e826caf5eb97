//! The begin of a receipt: the directory appears with everything that makes it one, or not at all.

use super::events::{self, EventsFile};
use super::sums::{self, Sums};
use super::{Options, PLAN, Store, StoreError, files, plan_bytes};
use crate::receipt::Deriver;
use crate::record::{Record, RunStart};
use crate::redact::Redactor;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

/// The name, with a random word between the two, under which a directory is filled before it has its own.
const BEGINNING: (&str, &str) = (".tp-receipt-", ".begin");
/// A begin takes milliseconds: what is older was left by a process that was killed in one.
const STALE: Duration = Duration::from_secs(600);

impl Store {
    /// Makes the directory, which must not be there, and records that the run began. `plan` becomes `plan.json`;
    /// `start.plan_sha256` and `start.redacted` are filled here.
    ///
    /// # Errors
    /// [`StoreError::Exists`], [`StoreError::Create`], or a file could not be written: exit code 2, nothing left behind.
    pub fn create(
        dir: &Path,
        mut start: RunStart,
        plan: &Value,
        redactor: Redactor,
        options: Options,
    ) -> Result<Self, StoreError> {
        // A link that leads nowhere is there too.
        if std::fs::symlink_metadata(dir).is_ok() {
            return Err(StoreError::Exists(dir.to_owned()));
        }
        let parent = match dir.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| StoreError::Create { path, source }
        };
        std::fs::create_dir_all(parent).map_err(failed(parent))?;
        sweep(parent);
        for host in &start.hosts {
            redactor.host(&host.name);
        }
        let plan = plan_bytes(plan, &redactor);
        start.schema = crate::record::SCHEMA;
        start.plan_sha256 = files::sha256(&plan);
        start.redacted = redactor.is_on();
        let temporary = parent.join(format!(
            "{}{}{}",
            BEGINNING.0,
            word().map_err(failed(dir))?,
            BEGINNING.1
        ));
        std::fs::create_dir(&temporary).map_err(failed(dir))?;
        let begun = Self::fill(&temporary, start, &plan, redactor, options).and_then(|store| {
            std::fs::rename(&temporary, dir).map_err(|source| match source.kind() {
                // Somebody else was quicker.
                ErrorKind::AlreadyExists | ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory => {
                    StoreError::Exists(dir.to_owned())
                }
                _ => failed(dir)(source),
            })?;
            Ok(store)
        });
        match begun {
            Ok(mut store) => {
                store.dir = dir.to_owned();
                store.events.moved(dir);
                files::sync_dir(parent)?;
                Ok(store)
            }
            Err(error) => {
                // It is ours and holds nothing that anybody could miss.
                let _ = std::fs::remove_dir_all(&temporary);
                Err(error.not_within(&temporary, dir))
            }
        }
    }

    fn fill(
        dir: &Path,
        start: RunStart,
        plan: &[u8],
        redactor: Redactor,
        options: Options,
    ) -> Result<Self, StoreError> {
        files::write(dir, PLAN, plan)?;
        let mut store = Self {
            dir: dir.to_owned(),
            events: EventsFile::create(dir)?,
            redactor,
            options,
            deriver: Deriver::default(),
            sums: Sums::default(),
            step: None,
            logs: BTreeMap::new(),
            written: None,
            behind: false,
        };
        store.sums.files.insert(PLAN.into(), start.plan_sha256.clone());
        store.record(Record::Run(start))?;
        store.checkpoint()?;
        Ok(store)
    }
}

fn word() -> std::io::Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| std::io::Error::other(e.to_string()))?;
    Ok(hex::encode(bytes))
}

/// Takes away what begins that were killed have left. It holds nothing that a receipt would: a begin has no step.
fn sweep(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let ours = name.starts_with(BEGINNING.0) && name.ends_with(BEGINNING.1);
        if ours && is_stale(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

fn is_stale(dir: &Path) -> bool {
    const OURS: [&str; 4] = [PLAN, events::NAME, sums::NAME, sums::DOCUMENT];
    let age = std::fs::symlink_metadata(dir)
        .ok()
        .filter(std::fs::Metadata::is_dir)
        .and_then(|meta| meta.modified().ok()?.elapsed().ok());
    let ours = |name: &String| OURS.contains(&name.strip_suffix(files::TEMPORARY).unwrap_or(name));
    age.is_some_and(|age| age > STALE) && files::list(dir).is_ok_and(|names| names.iter().all(ours))
}
