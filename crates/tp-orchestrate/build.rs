//! Tells the crate which revision of the source it is built from.

use std::path::Path;
use std::process::Command;

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn main() {
    println!("cargo:rerun-if-env-changed=TP_REVISION");
    // HEAD and the branch behind it change with every commit; the index with what `dirty` looks at.
    let directory = git(&["rev-parse", "--absolute-git-dir"]);
    for file in ["HEAD", "logs/HEAD", "index"] {
        let path = directory.as_ref().map(|d| Path::new(d).join(file));
        if let Some(path) = path.filter(|p| p.exists()) {
            println!("cargo:rerun-if-changed={}", path.display());
        }
    }
    let given = std::env::var("TP_REVISION").ok().filter(|r| !r.is_empty());
    let revision = given.or_else(|| {
        let commit = git(&["rev-parse", "HEAD"])?;
        let changes = git(&["status", "--porcelain", "--untracked-files=no"])?;
        Some(if changes.is_empty() {
            commit
        } else {
            format!("{commit}-dirty")
        })
    });
    println!(
        "cargo:rustc-env=TP_REVISION={}",
        revision.unwrap_or_else(|| "unknown".to_owned())
    );
}
