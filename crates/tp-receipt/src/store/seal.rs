//! The end of a run: the scan for known secrets, the pages for people, the seal.

use super::error::io;
use super::events::{self, EventsFile};
use super::{PLAN, Store, StoreError, files, redacted};
use crate::receipt::{Receipt, SetAside};
use crate::record::{Record, RunEnd, StepEnd};
use crate::redact::Scanner;
use crate::render;
use std::collections::BTreeMap;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

impl Store {
    pub(super) fn seal(&mut self, end: RunEnd) -> Result<Receipt, StoreError> {
        if let Some(key) = self.step.as_ref().map(|open| open.given.clone()) {
            let ended = end.ended.clone();
            let cut = StepEnd {
                key,
                ended,
                took_ms: 0.0,
                errors: Vec::new(),
                interrupted: true,
                causes: Vec::new(),
                clocks: BTreeMap::new(),
                tails: BTreeMap::new(),
                extra: serde_json::Map::new(),
            };
            self.step_end(cut)?;
        }
        self.scan()?;
        self.record(Record::RunEnd(end))?;
        self.events.sync()?;
        self.redactor.save()?;
        let receipt = self.receipt();
        let document = receipt.to_json();
        let pages = [
            ("receipt.md", render::markdown(&receipt)),
            ("junit.xml", render::junit(&receipt)),
            ("report.html", render::html(&receipt)),
            ("receipt.intoto.json", render::intoto(&receipt, &document)),
        ];
        for (name, text) in pages {
            files::write(&self.dir, name, text.as_bytes())?;
            self.sums
                .files
                .insert(name.into(), files::sha256(text.as_bytes()));
        }
        self.sync_logs()?;
        let at = &receipt.derived_from;
        self.sums.grows.clear();
        self.sums.files.insert(events::NAME.into(), at.sha256.clone());
        self.sums.sealed = true;
        self.replace_document(document.as_bytes(), &[])?;
        Ok(receipt)
    }

    fn sync_logs(&self) -> Result<(), StoreError> {
        crate::os::sync_files(
            &self.dir,
            self.sums.files.keys().filter(|n| n.starts_with("logs/")),
        )
        .map_err(io("sync the logs in", &self.dir))
    }

    /// Looks for names that were not yet known when a file was written. A log that still holds one is moved out of the
    /// receipt; the record and the plan are copied out and written anew with the name replaced.
    fn scan(&mut self) -> Result<(), StoreError> {
        self.events.flush()?;
        let logs: Vec<String> = self
            .sums
            .files
            .keys()
            .filter(|n| n.starts_with("logs/"))
            .cloned()
            .collect();
        let scanner = self.redactor.scanner();
        let mut moved = Vec::new();
        for name in logs {
            if let Some(why) = self.remains(&scanner, &name)? {
                self.copy_out(&name)?;
                self.sums.files.remove(&name);
                self.record(Record::SetAside(SetAside {
                    file: name.clone(),
                    why,
                    ..SetAside::default()
                }))?;
                moved.push(name);
            }
        }
        if !moved.is_empty() {
            // A file that is missing is one that the sums no longer list.
            self.checkpoint()?;
            for name in moved {
                let path = self.dir.join(&name);
                std::fs::remove_file(&path).map_err(io("remove", &path))?;
                files::remove_empty_above(&self.dir, &name);
            }
        }
        self.events.flush()?;
        let plan = self.remains(&scanner, PLAN)?;
        let events = self.remains(&scanner, events::NAME)?;
        if plan.is_none() && events.is_none() {
            return Ok(());
        }
        for (name, why) in [(PLAN, plan), (events::NAME, events)] {
            let Some(why) = why else { continue };
            let instead = "written anew with pseudonyms".into();
            let row = SetAside {
                file: name.into(),
                why,
                instead,
                ..SetAside::default()
            };
            self.record(Record::SetAside(row))?;
        }
        self.rewrite()
    }

    /// What of the known names is left in a file, in words.
    fn remains(&self, scanner: &Scanner, name: &str) -> Result<Option<String>, StoreError> {
        let path = self.dir.join(name);
        let bytes = files::read(&path).map_err(io("read", &path))?;
        let found = scanner.remaining(&bytes);
        if found.is_empty() {
            return Ok(None);
        }
        let words: Vec<String> = found
            .iter()
            .map(|(kind, count)| format!("{kind} {count} times"))
            .collect();
        Ok(Some(format!("known names remained in it: {}", words.join(", "))))
    }

    /// Writes plan and record anew from what they held, with everything replaced that is known by now.
    fn rewrite(&mut self) -> Result<(), StoreError> {
        self.events.flush()?;
        let path = self.dir.join(events::NAME);
        let old = files::read_text(&path).map_err(io("read", &path))?;
        let plan_path = self.dir.join(PLAN);
        let plan = files::read_text(&plan_path).map_err(io("read", &plan_path))?;
        // The originals first, so that they are never lost; then the new ones in their place.
        self.copy_out(events::NAME)?;
        self.copy_out(PLAN)?;
        let plan = self.redactor.line(&plan);
        let plan_sha256 = files::sha256(plan.as_bytes());
        let mut text = String::with_capacity(old.len());
        let mut deriver = crate::receipt::Deriver::default();
        for line in old.lines() {
            let Ok(record) = Record::parse(line) else { continue };
            let mut record = match record {
                Record::Event(mut event) => {
                    event.event = self.redactor.event(&event.event);
                    Record::Event(event)
                }
                other => redacted(other, &self.redactor),
            };
            if let Record::Run(run) = &mut record {
                run.plan_sha256 = plan_sha256.clone();
            }
            deriver.push(&record);
            text.push_str(&record.to_line());
            text.push('\n');
        }
        files::write_temporary(&self.dir, PLAN, plan.as_bytes())?;
        files::write_temporary(&self.dir, events::NAME, text.as_bytes())?;
        let file = events::hold_temporary(&self.dir)?;
        self.sums.files.insert(PLAN.into(), plan_sha256);
        self.events = EventsFile::reopen(&self.dir, file, text.as_bytes())?;
        self.deriver = deriver;
        self.checkpoint_with(&[PLAN, events::NAME])
    }

    /// A private directory outside of the receipt: with the redaction key, else beside the receipt.
    fn aside(&self, name: &str) -> Result<PathBuf, StoreError> {
        let run = self
            .dir
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        let id = self.deriver.receipt().run_id;
        let dir = match self.redactor.private_dir() {
            Some(dir) => dir
                .join("set-aside")
                .join(files::component(&format!("{run}-{id}"))),
            None => self.dir.with_file_name(format!("{run}.set-aside")),
        };
        let path = dir.join(name);
        let parent = path.parent().unwrap_or(Path::new("."));
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(parent)
            .map_err(io("create", parent))?;
        Ok(path)
    }

    fn copy_out(&self, name: &str) -> Result<(), StoreError> {
        let to = self.aside(name)?;
        std::fs::copy(self.dir.join(name), &to).map_err(io("write", &to))?;
        crate::os::make_private(&to).map_err(io("protect", &to))?;
        // On the disk before the one in the receipt is gone.
        let copy = std::fs::File::open(&to).map_err(io("open", &to))?;
        copy.sync_all().map_err(io("sync", &to))
    }
}
