//! What this host has of NCCL, without failing.

use std::path::PathBuf;

use crate::{Attempt, LoadError, Nccl, Search, Version};

/// The result of looking for libnccl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The file that would be used.
    pub path: Option<PathBuf>,
    /// Its version.
    pub version: Option<Version>,
    /// Optional functions that it lacks.
    pub absent: Vec<&'static str>,
    /// What was tried and not taken, in order.
    pub attempts: Vec<Attempt>,
    /// Why there is no library.
    pub error: Option<LoadError>,
}

impl Probe {
    /// One line about what was found: the version and what it cannot do, or why there is none.
    pub fn detail(&self) -> String {
        if let Some(error) = &self.error {
            return error.to_string();
        }
        let mut parts = Vec::new();
        if let Some(version) = self.version {
            parts.push(format!("NCCL {version}"));
            if version < Version::BINDINGS {
                parts.push(format!(
                    "older than {}, the oldest that is tested",
                    Version::BINDINGS
                ));
            }
        }
        if !self.absent.is_empty() {
            parts.push(format!("without {}", self.absent.join(", ")));
        }
        for attempt in &self.attempts {
            parts.push(format!("passed over {attempt}"));
        }
        parts.join("; ")
    }
}

/// Looks for libnccl as [`Nccl::load`] does and says what was found. No communicator is made and no GPU is touched.
pub fn probe(search: &Search) -> Probe {
    match Nccl::load(search) {
        Ok(nccl) => Probe {
            path: Some(nccl.path().to_owned()),
            version: Some(nccl.version()),
            absent: nccl.absent(),
            attempts: nccl.attempts().to_vec(),
            error: None,
        },
        Err(error) => Probe {
            path: None,
            version: None,
            absent: Vec::new(),
            attempts: error.attempts().to_vec(),
            error: Some(error),
        },
    }
}
