//! Stand-ins for libibverbs, compiled by the system's C compiler.

use std::path::{Path, PathBuf};
use std::process::Command;

use tp_verbs::REQUIRED;

/// A shared object compiled from `source`; none where there is no C compiler.
pub fn compiled(folder: &Path, name: &str, source: &str) -> Option<PathBuf> {
    let (code, object) = (
        folder.join(format!("{name}.c")),
        folder.join(format!("{name}.so")),
    );
    std::fs::write(&code, source).unwrap();
    match Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&object)
        .arg(&code)
        .status()
    {
        Ok(status) => assert!(status.success(), "cc failed on {}", code.display()),
        Err(error) => {
            eprintln!("skipped: no C compiler `cc` ({error})");
            return None;
        }
    }
    Some(object)
}

/// Every function that is needed, but for `without`, doing nothing; and `more` source.
pub fn stand_in(without: &[&str], more: &str) -> String {
    let mut source = more.to_owned();
    for name in REQUIRED.iter().filter(|name| !without.contains(name)) {
        source.push_str(&format!("void *{name}() {{ return 0; }}\n"));
    }
    source
}
