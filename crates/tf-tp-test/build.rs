//! Tells the binary which source revision it is built from: `TP_REVISION` where the builder says it, else git, else
//! nothing. A missing git or a source tree without history is not an error.

use std::path::Path;
use std::process::Command;

fn git(args: &[&str]) -> Option<String> {
    let out = Command::new("git").args(args).output().ok()?;
    out.status
        .success()
        .then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// The revision with `-dirty` behind it where tracked files differ from it.
fn revision() -> Option<String> {
    let revision = git(&["rev-parse", "--short=12", "HEAD"])?;
    let dirty = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|s| !s.is_empty());
    Some(if dirty {
        format!("{revision}-dirty")
    } else {
        revision
    })
}

fn main() {
    println!("cargo:rerun-if-env-changed=TP_REVISION");
    // The log of HEAD changes with every commit and checkout; a path that does not exist would rebuild every time.
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"])
        && Path::new(&log).exists()
    {
        println!("cargo:rerun-if-changed={log}");
    }
    println!("cargo:rerun-if-changed=build.rs");
    let given = std::env::var("TP_REVISION").ok().filter(|s| !s.trim().is_empty());
    let revision = given.or_else(revision).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=TP_REVISION={revision}");
}
