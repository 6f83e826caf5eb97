//! Where libnccl is looked for.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The name under which every runtime package installs NCCL.
const SONAME: &str = "libnccl.so.2";

/// The candidates for libnccl, in the order in which they are tried.
///
/// 1. `TF_NCCL_LIB`: that file alone.
/// 2. Beside the executable and in `../lib` of it: a bundle carries its own NCCL, equal on all hosts.
/// 3. `libnccl.so.2` by the system's loader: run path, `LD_LIBRARY_PATH`, its cache.
/// 4. `lib/python3*/site-packages/nvidia/nccl/lib` of `VIRTUAL_ENV` and `CONDA_PREFIX`: the wheel that torch brings.
/// 5. Folders of systems whose loader is not told of them: `/run/opengl-driver/lib` (NixOS), the Debian multiarch folder
///    (Ubuntu, DGX OS, NGC containers), `/usr/lib64`, `/usr/local/lib`, `/usr/local/cuda/lib64`.
///
/// Paths of 2, 4 and 5 that do not exist are left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    candidates: Vec<PathBuf>,
    overridden: bool,
}

impl Search {
    /// The search that a process with this environment makes.
    pub fn new(env: &dyn Fn(&str) -> Option<OsString>) -> Self {
        if let Some(file) = env("TF_NCCL_LIB").filter(|file| !file.is_empty()) {
            return Self::only(file);
        }
        let mut candidates = Vec::new();
        if let Some(folder) = std::env::current_exe().ok().as_deref().and_then(Path::parent) {
            candidates.push(folder.join(SONAME));
            candidates.push(folder.join("../lib").join(SONAME));
        }
        let by_loader = candidates.len();
        for variable in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
            if let Some(prefix) = env(variable).filter(|prefix| !prefix.is_empty()) {
                candidates.extend(wheels(Path::new(&prefix)));
            }
        }
        let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        for folder in [
            "/run/opengl-driver/lib",
            &multiarch,
            "/usr/lib64",
            "/usr/local/lib",
            "/usr/local/cuda/lib64",
        ] {
            candidates.push(Path::new(folder).join(SONAME));
        }
        let mut present = Vec::new();
        for (number, candidate) in candidates.into_iter().enumerate() {
            if number == by_loader {
                present.push(PathBuf::from(SONAME));
            }
            if candidate.exists() {
                present.push(candidate);
            }
        }
        Self {
            candidates: present,
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

/// The NCCL wheels of a Python prefix, in the order of their folders' names.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .map(|entry| entry.path().join("site-packages/nvidia/nccl/lib").join(SONAME))
        .filter(|file| file.exists())
        .collect();
    found.sort();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_is_the_only_candidate() {
        let search = Search::new(&|name| (name == "TF_NCCL_LIB").then(|| "/opt/nccl/libnccl.so.2".into()));
        assert_eq!(search.candidates(), [PathBuf::from("/opt/nccl/libnccl.so.2")]);
        assert!(search.is_overridden());
    }

    #[test]
    fn an_empty_override_searches_as_if_it_were_unset() {
        let search = Search::new(&|name| (name == "TF_NCCL_LIB").then(OsString::new));
        assert!(!search.is_overridden());
        assert!(search.candidates().contains(&PathBuf::from(SONAME)));
    }

    #[test]
    fn the_loader_comes_before_a_virtual_environments_wheel() {
        let prefix = tempfile::tempdir().unwrap();
        let folder = prefix.path().join("lib/python3.11/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(SONAME), "").unwrap();
        let search =
            Search::new(&|name| (name == "VIRTUAL_ENV").then(|| prefix.path().as_os_str().to_owned()));
        let at = |wanted: &Path| {
            search
                .candidates()
                .iter()
                .position(|candidate| candidate == wanted)
                .unwrap()
        };
        assert!(at(Path::new(SONAME)) < at(&folder.join(SONAME)));
    }
}
