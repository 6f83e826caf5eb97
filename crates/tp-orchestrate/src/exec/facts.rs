//! The facts file of a `model` step: the inventory's one-rank files, joined, with the arm's variables in it.

use crate::Error;
use crate::inventory::Inventory;
use crate::plan::symbol::Values;
use crate::plan::{Place, Step};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tp_hca::Document;
use tp_receipt::record::StepKey;

/// The facts of every rank as its host told them, with the host's name and variables; `told` gives the text of each host
/// in the inventory's order. None where a host did not tell, or what it told is no facts file of one rank.
pub fn of_hosts<'a>(
    inventory: &Inventory,
    told: impl IntoIterator<Item = Option<&'a str>>,
) -> Option<Document> {
    let mut ranks = Vec::new();
    for (host, text) in inventory.hosts.iter().zip(told) {
        let facts = Document::from_toml(text?).ok()?;
        for rank in &host.ranks {
            let mut own = facts.clone().into_single(*rank, &host.name).ok()?;
            own.host = Some(host.name.clone());
            own.env = host.env.clone();
            ranks.push(own);
        }
    }
    Document::of_ranks(ranks).ok()
}

/// Facts of every rank, and a private directory for the joined files, which goes with this value.
#[derive(Debug, Default)]
pub struct ModelFacts {
    document: Option<Document>,
    dir: Option<PathBuf>,
    /// Held on the directory while its owner lives: the system lets go of it however the owner ends.
    #[expect(dead_code, reason = "held, not read")]
    lock: Option<File>,
}

/// How the working directories' names begin.
const PREFIX: &str = "tp-orchestrate-";
/// A directory that is younger may not have been locked yet by its owner.
const SWEEP_AGE: Duration = Duration::from_secs(60);

/// Removes the working directories of owners that were killed: nobody holds their lock.
fn sweep(parent: &Path) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    for entry in entries.flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| {
            let id = name.strip_prefix(PREFIX).unwrap_or_default();
            id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        // A link's own metadata is looked at, so that a link is never followed.
        let Ok(about) = entry
            .metadata()
            .and_then(|m| Ok((m.is_dir(), m.uid(), m.modified()?)))
        else {
            continue;
        };
        let (is_dir, uid, modified) = about;
        let old = modified.elapsed().is_ok_and(|age| age > SWEEP_AGE);
        if ours && is_dir && old && uid == nix::unistd::geteuid().as_raw() {
            let path = entry.path();
            // The ranks of a killed owner have read their file when they began.
            if File::open(&path).is_ok_and(|file| file.try_lock().is_ok()) {
                let _ = std::fs::remove_dir_all(&path);
            }
        }
    }
}

impl ModelFacts {
    /// Reads the facts of every place of the plan; nothing where the plan has no model.
    pub fn load(inventory: &Inventory, places: &[Place], run_id: &str) -> Result<Self, Error> {
        let Some(document) = document(inventory, places)? else {
            return Ok(Self::default());
        };
        let parent = std::env::temp_dir();
        sweep(&parent);
        let dir = parent.join(format!("{PREFIX}{run_id}"));
        DirBuilder::new().mode(0o700).create(&dir).map_err(|e| {
            Error::Refused(format!(
                "failed to make the working directory {}: {e}",
                dir.display()
            ))
        })?;
        let own = Self {
            document: Some(document),
            lock: File::open(&dir).ok().filter(|file| file.try_lock().is_ok()),
            dir: Some(dir),
        };
        Ok(own)
    }

    /// Whether steps pick on facts files.
    pub fn is_used(&self) -> bool {
        self.document.is_some()
    }

    /// Writes the file of one step and gives its path.
    pub(super) fn write(&self, step: &Step, key: &StepKey, values: &Values) -> Result<PathBuf, String> {
        let (Some(document), Some(dir)) = (&self.document, &self.dir) else {
            return Err("the step picks on facts files and the inventory names none".to_owned());
        };
        let mut document = document.clone();
        for command in &step.commands {
            let Some(facts) = document.rank_mut(command.rank) else {
                continue;
            };
            for name in &command.unset {
                facts.set_env(name, None);
            }
            for (name, value) in command.facts_env.iter().flatten() {
                let value = values.resolve(value).map_err(|e| e.to_string())?;
                facts.set_env(name, Some(&value));
            }
        }
        let path = dir.join(format!("{}-{}-{}.toml", key.arm, key.step, key.attempt));
        let text = document.to_toml().map_err(|e| e.to_string())?;
        write_new(&path, &text).map_err(|e| format!("failed to write {}: {e}", path.display()))?;
        Ok(path)
    }
}

impl Drop for ModelFacts {
    fn drop(&mut self) {
        if let Some(dir) = &self.dir {
            // Nothing but our own files is in it; what cannot be removed is in the way of nobody.
            let _ = std::fs::remove_dir_all(dir);
        }
    }
}

/// The facts of all ranks as one document, with no HCA variable in it; `None` where the places have no facts files.
pub fn document(inventory: &Inventory, places: &[Place]) -> Result<Option<Document>, Error> {
    let mut ranks = Vec::new();
    for place in places {
        let Some(facts) = &place.facts else {
            return Ok(None);
        };
        let path = inventory.facts_path(facts);
        let document = Document::load(&path).map_err(|e| usage(&path, &e))?;
        let mut facts = document
            .into_single(place.rank, &path.display().to_string())
            .map_err(|e| usage(&path, &e))?;
        facts.host.get_or_insert_with(|| place.host.clone());
        ranks.push(facts);
    }
    Document::of_ranks(ranks)
        .map(Some)
        .map_err(|e| Error::Usage(format!("failed to join the facts files: {e}")))
}

fn usage(path: &Path, error: &tp_hca::facts::FactsError) -> Error {
    let text = error.to_string();
    let name = path.display().to_string();
    Error::Usage(if text.contains(&name) {
        text
    } else {
        format!("{name}: {text}")
    })
}

fn write_new(path: &Path, text: &str) -> std::io::Result<()> {
    let mut file: File = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::SystemTime;

    #[test]
    fn only_old_directories_without_a_living_owner_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let make = |name: &str, age: u64| {
            let path = parent.path().join(name);
            std::fs::create_dir(&path).unwrap();
            std::fs::write(path.join("none-hca-1.toml"), "").unwrap();
            let file = File::open(&path).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age))
                .unwrap();
            (path, file)
        };
        let (dead, _) = make("tp-orchestrate-00112233445566aa", 3600);
        let (alive, lock) = make("tp-orchestrate-00112233445566bb", 3600);
        lock.try_lock().unwrap();
        let (young, _) = make("tp-orchestrate-00112233445566cc", 0);
        let (other, _) = make("tp-orchestrate-notes", 3600);
        sweep(parent.path());
        assert!(!dead.exists());
        assert!(alive.exists() && young.exists() && other.exists());
    }
}
