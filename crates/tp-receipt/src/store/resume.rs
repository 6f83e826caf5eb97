//! Taking up a run that was cut off.

use super::error::io;
use super::events::{self, EventsFile};
use super::sums::Sums;
use super::{Options, PLAN, Store, StoreError, files, plan_bytes};
use crate::receipt::{Deriver, Receipt, Verdict};
use crate::record::{Record, Resumed};
use crate::redact::Redactor;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// A run that is taken up again.
pub struct Resume {
    /// Where it goes on.
    pub store: Store,
    /// What was there: steps that are INCOMPLETE or missing are still to be run.
    pub receipt: Receipt,
}

impl Store {
    /// Takes up a run that did not come to its end. The plan must be the same. A half-written last line of the record
    /// is cut off and noted; a step that was under way counts for nothing and has its next attempt. The
    /// plan's hash depends on the hosts' pseudonyms: a redactor without a keyring must be told their names beforehand.
    ///
    /// # Errors
    /// The directory is no receipt, is broken, is finished, belongs to another plan, or is written by another run
    /// (exit code 2).
    pub fn resume(
        dir: &Path,
        plan: &Value,
        redactor: Redactor,
        options: Options,
        at: &str,
    ) -> Result<Resume, StoreError> {
        let refuse = |why: String| StoreError::Resume {
            path: dir.to_owned(),
            why,
        };
        // Before anything is read: what another run writes meanwhile must not be taken for the state to go on from.
        let file = match events::hold(dir) {
            Err(error @ StoreError::InUse { .. }) => return Err(error),
            other => other,
        };
        let checked = crate::verify::verify(dir, &crate::verify::Options::default());
        if let Some(first) = checked.broken.first() {
            return Err(refuse(first.to_string()));
        }
        if checked.verdict != Verdict::Incomplete {
            return Err(refuse(format!("the run has ended: {}", checked.verdict)));
        }
        let mut file = file?;
        for name in &checked.pending {
            if name == events::NAME {
                file = events::hold_temporary(dir)?;
            }
            files::put(dir, name)?;
        }
        let path = dir.join(events::NAME);
        let bytes = files::read(&path).map_err(io("read", &path))?;
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
        let mut deriver = Deriver::default();
        let mut known = None;
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            match Record::parse(line) {
                Ok(record) => {
                    if let Record::Run(run) = &record {
                        known = Some(run.clone());
                    }
                    deriver.push(&record);
                }
                Err(e) => return Err(refuse(format!("{}: {e}", events::NAME))),
            }
        }
        let Some(run) = known else {
            return Err(refuse(format!("{} does not say which run it is", events::NAME)));
        };
        redactor.recall(run.hosts.iter().map(|h| h.name.as_str()))?;
        if files::sha256(&plan_bytes(plan, &redactor)) != run.plan_sha256 {
            return Err(refuse(
                "its plan is another one: give the inventory and the options (--arms, --steps, …) that it was begun with; the \
                 program must be the same"
                    .into(),
            ));
        }
        let mut store = Self {
            dir: dir.to_owned(),
            events: EventsFile::reopen(dir, file, &bytes[..whole])?,
            redactor,
            options,
            deriver,
            sums: Sums::default(),
            step: None,
            logs: BTreeMap::new(),
            written: None,
            behind: false,
        };
        store.hash_what_is_there()?;
        let dropped_bytes = (bytes.len() - whole) as u64;
        store.record(Record::Resumed(Resumed {
            schema: crate::record::SCHEMA,
            at: at.into(),
            dropped_bytes,
            ..Resumed::default()
        }))?;
        store.checkpoint()?;
        let receipt = store.receipt();
        Ok(Resume { store, receipt })
    }

    /// The number that the next attempt at a step has: 1 for a step that never began.
    pub fn next_attempt(&self, arm: &str, step: &str) -> u32 {
        self.deriver
            .next_attempt(&self.redactor.line(arm), &self.redactor.line(step))
    }

    fn hash_what_is_there(&mut self) -> Result<(), StoreError> {
        let names = files::list(&self.dir).map_err(io("list", &self.dir))?;
        for name in names {
            let path = self.dir.join(&name);
            if files::is_empty_dir(&name) {
                files::remove_empty_above(&self.dir, &format!("{name}log"));
            } else if name.ends_with(files::TEMPORARY) {
                // Left from the moment of the cut; its final form was never in place.
                std::fs::remove_file(&path).map_err(io("remove", &path))?;
            } else if name == PLAN || name == super::sums::DOCUMENT || name.starts_with("logs/") {
                let (hash, _) = files::sha256_of(&path, None).map_err(io("read", &path))?;
                self.sums.files.insert(name, hash);
            }
        }
        Ok(())
    }
}
