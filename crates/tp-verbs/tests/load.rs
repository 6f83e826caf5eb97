//! Loading and probing: no library, the wrong file, a library that lacks functions, one without devices, no access.
#![expect(clippy::unwrap_used, reason = "a test's own files must be there")]

mod common;

use std::path::{Path, PathBuf};

use common::{compiled, stand_in};
use tp_verbs::{LoadError, Search, Verbs, probe};

#[test]
fn a_host_without_libibverbs_is_told_what_was_tried() {
    let missing = [
        PathBuf::from("libibverbs-that-is-not-there.so.1"),
        PathBuf::from("/nowhere/libibverbs.so.1"),
    ];
    let error = Verbs::load(&Search::of(missing.clone())).unwrap_err();
    let tried: Vec<_> = error
        .attempts()
        .iter()
        .map(|attempt| attempt.candidate.clone())
        .collect();
    assert_eq!(tried, missing);
    let text = error.to_string();
    assert!(
        text.contains("/nowhere/libibverbs.so.1") && text.contains("rdma-core"),
        "{text}"
    );
}

#[test]
fn an_override_to_a_wrong_file_is_refused_and_nothing_else_is_tried() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("libibverbs.so.1");
    std::fs::write(&file, "not a library").unwrap();
    let error = Verbs::load(&Search::only(&file)).unwrap_err();
    assert!(matches!(error, LoadError::Override { .. }));
    let text = error.to_string();
    assert!(
        text.contains("TF_IBVERBS_LIB") && text.contains(file.to_str().unwrap()),
        "{text}"
    );
}

#[test]
fn the_override_variable_is_the_only_candidate() {
    let search = Search::new(&|name| (name == "TF_IBVERBS_LIB").then(|| "/opt/libibverbs.so.1".into()));
    assert_eq!(search.candidates(), [PathBuf::from("/opt/libibverbs.so.1")]);
    let search = Search::new(&|_| None);
    assert_eq!(
        search
            .candidates()
            .iter()
            .filter(|c| c.as_path() == Path::new("libibverbs.so.1"))
            .count(),
        1
    );
}

#[test]
fn a_library_that_lacks_functions_is_refused_naming_them_all() {
    let folder = tempfile::tempdir().unwrap();
    let source = stand_in(&["ibv_modify_qp", "ibv_reg_mr"], "");
    let Some(file) = compiled(folder.path(), "lacking", &source) else {
        return;
    };
    let text = Verbs::load(&Search::only(&file)).unwrap_err().to_string();
    assert!(
        text.contains("ibv_modify_qp") && text.contains("ibv_reg_mr"),
        "{text}"
    );
    assert!(
        !text.contains("ibv_create_qp"),
        "only what is absent is named: {text}"
    );
}

#[test]
fn a_library_without_providers_or_devices_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let devices = "#include <errno.h>\nvoid *ibv_get_device_list(int *n) { errno = ENOSYS; return 0; }\n";
    let Some(file) = compiled(
        folder.path(),
        "bare",
        &stand_in(&["ibv_get_device_list"], devices),
    ) else {
        return;
    };
    let found = probe(&Search::only(&file), folder.path());
    assert_eq!(found.path, Some(file.canonicalize().unwrap()));
    assert!(found.providers.is_empty() && found.devices.is_empty() && !found.is_usable());
    let text = found.detail();
    assert!(
        text.contains("no provider") && text.contains("ib_uverbs"),
        "{text}"
    );
    assert!(found.fix().unwrap().contains("/sys/class/infiniband"));
}

#[test]
fn providers_are_read_from_beside_the_library() {
    let folder = tempfile::tempdir().unwrap();
    let devices = "static void *none[1]; void *ibv_get_device_list(int *n) { *n = 0; return none; }\n";
    let Some(file) = compiled(
        folder.path(),
        "with",
        &stand_in(&["ibv_get_device_list"], devices),
    ) else {
        return;
    };
    std::fs::create_dir(folder.path().join("libibverbs")).unwrap();
    for name in ["librxe-rdmav34.so", "libmlx5-rdmav34.so", "readme"] {
        std::fs::write(folder.path().join("libibverbs").join(name), "").unwrap();
    }
    assert_eq!(
        probe(&Search::only(&file), folder.path()).providers,
        ["mlx5", "rxe"]
    );
}

/// Case 74: a container that shows the host's sysfs but was given no device file.
#[test]
fn case_74_devices_in_sysfs_without_device_files_ask_for_the_container_option() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(root.path().join("sys/class/infiniband/mlx5_0")).unwrap();
    let devices = "static void *none[1]; void *ibv_get_device_list(int *n) { *n = 0; return none; }\n";
    let Some(file) = compiled(root.path(), "lib", &stand_in(&["ibv_get_device_list"], devices)) else {
        return;
    };
    let found = probe(&Search::only(&file), root.path());
    assert_eq!(found.in_sysfs, ["mlx5_0"]);
    let fix = found.fix().unwrap();
    assert!(
        fix.contains("mlx5_0") && fix.contains("--device /dev/infiniband"),
        "{fix}"
    );

    // With the file there but not ours to open, the advice is another one.
    let nodes = root.path().join("dev/infiniband");
    std::fs::create_dir_all(nodes.join("uverbs0")).unwrap();
    let found = probe(&Search::only(&file), root.path());
    assert_eq!(found.nodes.len(), 1);
    assert!(found.fix().unwrap().contains("may not open"), "{:?}", found.fix());
}

#[test]
fn the_real_library_is_loaded_where_there_is_one() {
    match Verbs::load(&Search::from_env()) {
        Ok(verbs) => {
            assert!(verbs.path().is_absolute(), "{}", verbs.path().display());
            let found = probe(&Search::from_env(), Path::new("/"));
            assert_eq!(found.path.as_deref(), Some(verbs.path()));
            assert!(found.is_usable() || found.fix().is_some());
        }
        Err(error) => eprintln!("skipped: {error}"),
    }
}
