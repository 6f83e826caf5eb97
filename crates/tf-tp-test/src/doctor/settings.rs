//! Every place that NCCL and the loader take settings from, since what is forgotten in one of them wins over what is
//! believed.

use std::path::{Path, PathBuf};
use tp_fabric::settings::Sources;
use tp_receipt::doctor::{Item, NcclSetting, State};

/// NCCL's settings: from the environment, from `/etc/nccl.conf` under `root`, from `.nccl.conf` of the home directory (or
/// the file that NCCL_CONF_FILE names in its place).
pub(super) fn nccl(sources: &Sources, root: &Path) -> Vec<NcclSetting> {
    let environment = sources.environment.iter();
    let mut found: Vec<NcclSetting> = environment
        .filter(|(name, _)| name.starts_with("NCCL_"))
        .map(|(name, value)| NcclSetting {
            name: name.clone(),
            value: value.to_string_lossy().into_owned(),
            source: "environment".to_owned(),
        })
        .collect();
    let of = |name: &str| sources.environment.get(name).filter(|value| !value.is_empty());
    let own = of("NCCL_CONF_FILE")
        .map(PathBuf::from)
        .or_else(|| of("HOME").map(|home| PathBuf::from(home).join(".nccl.conf")));
    for file in own.into_iter().chain([root.join("etc/nccl.conf")]) {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        let lines = text.lines().map(str::trim);
        for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            found.push(NcclSetting {
                name: name.trim().to_owned(),
                value: value.trim().to_owned(),
                source: file.display().to_string(),
            });
        }
    }
    found
}

pub(super) fn items(sources: &Sources, nccl: &[NcclSetting]) -> Vec<Item> {
    let mut items: Vec<Item> = nccl.iter().map(|setting| item(setting, nccl)).collect();
    items.extend(loader(sources));
    items
}

fn item(setting: &NcclSetting, all: &[NcclSetting]) -> Item {
    let text = format!("{} ({})", setting.value, setting.source);
    if setting.source != "environment" {
        let over = all
            .iter()
            .find(|other| other.name == setting.name && other.source == "environment");
        let text = match over {
            Some(other) => format!("{text}, but the environment says {}, which wins", other.value),
            None => text,
        };
        return Item::new(&setting.name, State::Warn, text).fix(format!(
            "set by a file: remove it from {} if it is not meant",
            setting.source
        ));
    }
    match (setting.name.as_str(), setting.value.as_str()) {
        ("NCCL_IB_GID_INDEX", _) => Item::new(&setting.name, State::Warn, text)
            .fix("unset it: indexes drift with every link event and differ between hosts"),
        (_, "") => Item::new(&setting.name, State::Warn, "set and empty (environment)")
            .fix("unset it: NCCL takes an empty text for a value"),
        ("NCCL_IB_DISABLE", "1") | ("NCCL_NET", "Socket") => {
            Item::new(&setting.name, State::Warn, text).fix("unset it: NCCL will not use RDMA at all")
        }
        _ => Item::new(&setting.name, State::Ok, text),
    }
}

/// Variables that put another NCCL or another library in the way of the one that is meant.
fn loader(sources: &Sources) -> Vec<Item> {
    let mut items = Vec::new();
    for name in ["LD_PRELOAD", "VLLM_NCCL_SO_PATH", "LD_LIBRARY_PATH"] {
        let Some(value) = sources.environment.get(name).filter(|value| !value.is_empty()) else {
            continue;
        };
        let text = format!("{} (environment)", value.to_string_lossy());
        let item = if name == "LD_LIBRARY_PATH" {
            Item::new(name, State::Ok, text)
        } else {
            Item::new(name, State::Warn, text).fix(
                "unset it unless it is meant: a library left by an earlier attempt wins over the system's",
            )
        };
        items.push(item);
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Case 25: a stale file is shown with its value beside what the environment says.
    #[test]
    fn every_source_of_nccls_settings_is_shown() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir(root.path().join("etc")).unwrap();
        std::fs::write(root.path().join("etc/nccl.conf"), "# old\nNCCL_IB_HCA = mlx5_0\n").unwrap();
        std::fs::write(root.path().join(".nccl.conf"), "NCCL_DEBUG=TRACE\n").unwrap();
        let home = root.path().display().to_string();
        let sources = Sources::of([
            ("HOME", home.as_str()),
            ("NCCL_IB_HCA", "=rocep1s0f1:1"),
            ("NCCL_IB_GID_INDEX", "3"),
            ("LD_PRELOAD", "/opt/libnccl.so.2"),
        ]);
        let found = nccl(&sources, root.path());
        let of = |name: &str| found.iter().filter(|s| s.name == name).count();
        assert_eq!(
            (of("NCCL_IB_HCA"), of("NCCL_DEBUG"), of("NCCL_IB_GID_INDEX")),
            (2, 1, 1)
        );
        let items = items(&sources, &found);
        let stale = items
            .iter()
            .find(|i| i.name == "NCCL_IB_HCA" && i.state == State::Warn)
            .unwrap();
        assert!(
            stale.text.starts_with("mlx5_0 (") && stale.text.contains("=rocep1s0f1:1, which wins"),
            "{}",
            stale.text
        );
        for name in ["NCCL_IB_GID_INDEX", "LD_PRELOAD", "NCCL_DEBUG"] {
            let item = items.iter().find(|i| i.name == name).unwrap();
            assert!(item.state == State::Warn && item.fix.is_some(), "{item:?}");
        }
    }
}
