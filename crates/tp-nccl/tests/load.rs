//! Loading: no library, the wrong file, a library that lacks symbols, failing calls, the real one.
#![expect(clippy::unwrap_used, reason = "a test's own files must be there")]

use std::path::{Path, PathBuf};
use std::process::Command;

use tp_nccl::{CallError, LoadError, Nccl, REQUIRED, Search, Version, probe};

/// A shared object compiled from `source`; none where there is no C compiler.
fn compiled(folder: &Path, name: &str, source: &str) -> Option<PathBuf> {
    let (code, object) = (
        folder.join(format!("{name}.c")),
        folder.join(format!("{name}.so")),
    );
    std::fs::write(&code, source).unwrap();
    let status = match Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .arg(&object)
        .arg(&code)
        .status()
    {
        Ok(status) => status,
        Err(error) => {
            eprintln!("skipped: no C compiler `cc` ({error})");
            return None;
        }
    };
    assert!(status.success(), "cc failed on {}", code.display());
    Some(object)
}

/// Every required function but `without`, with a version that can be recognised.
fn stand_in(without: &[&str]) -> String {
    let mut source = String::from(
        "int ncclGetVersion(int *v) { *v = 22915; return 0; }\n\
         const char *ncclGetErrorString(int r) { return r == 5 ? \"invalid usage\" : \"something else\"; }\n\
         const char *ncclGetLastError(void *c) { return \"Duplicate GPU detected\"; }\n\
         int ncclGroupEnd(void) { return 5; }\n\
         int ncclGroupStart(void) { return 7; }\n",
    );
    let written = [
        "ncclGetVersion",
        "ncclGetErrorString",
        "ncclGetLastError",
        "ncclGroupEnd",
        "ncclGroupStart",
    ];
    for name in REQUIRED
        .iter()
        .filter(|name| !written.contains(name) && !without.contains(name))
    {
        source.push_str(&format!("int {name}(void) {{ return 0; }}\n"));
    }
    source
}

#[test]
fn a_host_without_nccl_is_told_what_was_tried() {
    let missing = [
        PathBuf::from("libnccl-that-is-not-there.so.2"),
        PathBuf::from("/nowhere/libnccl.so.2"),
    ];
    let error = Nccl::load(&Search::of(missing.clone())).unwrap_err();
    let tried: Vec<_> = error
        .attempts()
        .iter()
        .map(|attempt| attempt.candidate.clone())
        .collect();
    assert_eq!(tried, missing);
    let text = error.to_string();
    assert!(
        text.contains("/nowhere/libnccl.so.2") && text.contains("TF_NCCL_LIB"),
        "{text}"
    );
    assert!(
        text.contains("No such file") || text.contains("no such file"),
        "the loader's words are kept: {text}"
    );
}

#[test]
fn an_override_to_a_wrong_file_is_refused_and_nothing_else_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libnccl.so.2");
    std::fs::write(&file, "not a library").unwrap();
    let error = Nccl::load(&Search::only(&file)).unwrap_err();
    assert!(matches!(error, LoadError::Override { .. }));
    let text = error.to_string();
    assert!(
        text.contains("TF_NCCL_LIB") && text.contains(file.to_str().unwrap()),
        "{text}"
    );
    let found = probe(&Search::only(&file));
    assert_eq!((found.path, found.version), (None, None));
}

#[test]
fn a_library_without_needed_functions_is_passed_over_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bad) = compiled(
        folder.path(),
        "lacking",
        &stand_in(&["ncclSend", "ncclCommAbort"]),
    ) else {
        return;
    };
    let error = Nccl::load(&Search::only(&bad)).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("ncclSend") && text.contains("ncclCommAbort"),
        "{text}"
    );
    assert!(!text.contains("ncclRecv"), "only what is absent is named: {text}");

    let Some(good) = compiled(folder.path(), "whole", &stand_in(&[])) else {
        return;
    };
    let nccl = Nccl::load(&Search::of([bad.clone(), good.clone()])).unwrap();
    assert_eq!(nccl.path(), good.canonicalize().unwrap());
    assert_eq!(nccl.attempts().len(), 1);
    assert_eq!(nccl.attempts()[0].candidate, bad);
    assert_eq!(
        nccl.version(),
        Version {
            major: 2,
            minor: 29,
            patch: 15
        }
    );
    assert!(probe(&Search::of([bad, good])).detail().contains("passed over"));
}

#[test]
fn a_failing_call_carries_its_name_its_code_and_nccls_own_words() {
    let folder = tempfile::tempdir().unwrap();
    let Some(file) = compiled(folder.path(), "failing", &stand_in(&[])) else {
        return;
    };
    let nccl = Nccl::load(&Search::only(&file)).unwrap();
    // SAFETY: the stand-in takes no argument.
    let error = unsafe { tp_nccl::call!(nccl, ncclGroupEnd()) }.unwrap_err();
    let text = error.to_string();
    for part in [
        "ncclGroupEnd",
        "invalid usage",
        "code 5",
        "Duplicate GPU detected",
    ] {
        assert!(text.contains(part), "`{part}` is missing in: {text}");
    }
    // SAFETY: as above.
    let started = unsafe { tp_nccl::call!(nccl, ncclGroupStart()) };
    assert_eq!(started, Ok(false), "in progress is not an error");
    // SAFETY: the function is absent, nothing is called.
    let error = unsafe { tp_nccl::call!(nccl, ncclMemFree(std::ptr::null_mut())) }.unwrap_err();
    assert!(matches!(
        error,
        CallError::Missing {
            call: "ncclMemFree",
            ..
        }
    ));
    assert!(nccl.absent().contains(&"ncclMemFree"));
}

#[test]
fn the_real_library_is_loaded_where_there_is_one() {
    let nccl = match Nccl::load(&Search::from_env()) {
        Ok(nccl) => nccl,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            eprintln!("skipped: {error}");
            return;
        }
    };
    assert!(nccl.path().is_absolute(), "{}", nccl.path().display());
    assert!(nccl.version().major >= 2);
    // SAFETY: a null communicator is refused by NCCL itself.
    let refused = unsafe { tp_nccl::call!(nccl, ncclCommAbort(std::ptr::null_mut())) };
    assert!(refused.is_err() || refused == Ok(true));
}
