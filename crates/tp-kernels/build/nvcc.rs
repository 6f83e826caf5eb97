//! Finds a CUDA compiler.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The variables that decide where nvcc is looked for.
pub const VARIABLES: &[&str] = &["TP_NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "VIRTUAL_ENV"];

/// A compiler that runs.
#[derive(Debug)]
pub struct Nvcc {
    /// The program.
    pub path: PathBuf,
    /// Its release, such as `13.0.88`.
    pub release: String,
    /// The GPUs that it makes code for: `sm_90`, …
    pub codes: Vec<String>,
}

/// The places where nvcc may be, in order. `TP_NVCC` (the program, or a folder with `bin/nvcc`) is the only one where it
/// is set; else `CUDA_HOME`, `CUDA_PATH`, `PATH`, `/usr/local/cuda`, and the wheels of `VIRTUAL_ENV`.
pub fn candidates(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(given) = set("TP_NVCC") {
        return if given.is_dir() {
            vec![given.join("bin/nvcc"), given.join("nvcc")]
        } else {
            vec![given]
        };
    }
    let mut found = Vec::new();
    for variable in ["CUDA_HOME", "CUDA_PATH"] {
        found.extend(set(variable).map(|folder| folder.join("bin/nvcc")));
    }
    if let Some(path) = env("PATH") {
        found.extend(std::env::split_paths(&path).map(|folder| folder.join("nvcc")));
    }
    found.push(PathBuf::from("/usr/local/cuda/bin/nvcc"));
    if let Some(folder) = set("VIRTUAL_ENV") {
        found.extend(wheels(&folder));
    }
    found
}

/// nvcc of the Python wheels in a virtual environment.
fn wheels(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(prefix.join("lib")) else {
        return Vec::new();
    };
    let mut found: Vec<PathBuf> = entries
        .flatten()
        .map(|entry| entry.path().join("site-packages/nvidia/cu13/bin/nvcc"))
        .collect();
    found.sort();
    found
}

/// The first candidate that runs, or what each of them said.
pub fn find(env: &dyn Fn(&str) -> Option<OsString>) -> Result<Nvcc, Vec<String>> {
    let mut tried = Vec::new();
    for path in candidates(env) {
        match ask(&path, "--version").and_then(|version| Ok((version, ask(&path, "--list-gpu-code")?))) {
            Ok((version, codes)) => {
                return Ok(Nvcc {
                    release: release(&version),
                    codes: codes.lines().map(|line| line.trim().to_owned()).collect(),
                    path,
                });
            }
            Err(reason) => tried.push(format!("{} ({reason})", path.display())),
        }
    }
    Err(tried)
}

fn ask(nvcc: &Path, question: &str) -> Result<String, String> {
    let output = Command::new(nvcc)
        .arg(question)
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(format!("`{question}`: {}", output.status))
    }
}

/// `13.0.88` of a text with a line such as `Cuda compilation tools, release 13.0, V13.0.88`.
fn release(version: &str) -> String {
    let line = version
        .lines()
        .find(|line| line.contains("release"))
        .unwrap_or_default();
    line.rsplit(", V").next().unwrap_or_default().trim().to_owned()
}
