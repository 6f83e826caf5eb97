//! Where libibverbs is looked for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name under which every runtime package installs libibverbs.
pub(crate) const SONAME: &str = "libibverbs.so.1";

/// The candidates for libibverbs, in the order in which they are tried.
///
/// 1. `TF_IBVERBS_LIB`: that file alone.
/// 2. Beside the executable and in `../lib` of it.
/// 3. `libibverbs.so.1` by the system's loader: run path, `LD_LIBRARY_PATH`, its cache.
/// 4. Folders of systems whose loader is not told of them: the Debian multiarch folder (Ubuntu, DGX OS, NGC
///    containers), `/usr/lib64`, `/run/current-system/sw/lib` (NixOS).
///
/// Paths of 2 and 4 that do not exist are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    candidates: Vec<PathBuf>,
    overridden: bool,
}

impl Search {
    /// The search that a process with this environment makes.
    pub fn new(env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        if let Some(file) = env("TF_IBVERBS_LIB").filter(|file| !file.is_empty()) {
            return Self::only(file);
        }
        let mut candidates = Vec::new();
        if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
            candidates.push(folder.join(SONAME));
            candidates.push(folder.join("../lib").join(SONAME));
        }
        candidates.retain(|candidate| candidate.exists());
        candidates.push(PathBuf::from(SONAME));
        let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let known = [multiarch.as_str(), "/usr/lib64", "/run/current-system/sw/lib"];
        let known = known.into_iter().map(|folder| Path::new(folder).join(SONAME));
        candidates.extend(known.filter(|candidate| candidate.exists()));
        Self {
            candidates,
            overridden: false,
        }
    }

    /// The search of this process's environment.
    pub fn from_env() -> Self {
        Self::new(&|name| std::env::var_os(name))
    }

    /// That file and no other.
    pub fn only(file: impl Into<PathBuf>) -> Self {
        Self {
            candidates: vec![file.into()],
            overridden: true,
        }
    }

    /// These candidates, in order: paths, or bare names for the system's loader.
    pub fn of(candidates: impl IntoIterator<Item = PathBuf>) -> Self {
        Self {
            candidates: candidates.into_iter().collect(),
            overridden: false,
        }
    }

    /// What will be tried, in order.
    pub fn candidates(&self) -> &[PathBuf] {
        &self.candidates
    }

    /// Whether somebody named the one file that may be used.
    pub fn is_overridden(&self) -> bool {
        self.overridden
    }
}
