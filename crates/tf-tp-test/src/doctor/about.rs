//! Which host this is, in a form that can be compared with other hosts.

use super::host::nvidia_driver;
use crate::os;
use std::path::Path;
use tp_receipt::doctor::About;

/// Asks this host; `root` stands for `/` where files are read.
pub(super) fn here(root: &Path) -> About {
    let read = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let forwards = read("proc/sys/net/ipv4/ip_forward").map(|text| text == "1");
    About {
        name: os::host_name(),
        machine_id: read("etc/machine-id").or_else(|| read("var/lib/dbus/machine-id")),
        boot_id: read("proc/sys/kernel/random/boot_id"),
        network_namespace: os::network_namespace(),
        system: format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS),
        kernel: os::kernel_release(),
        libc: os::libc_version(),
        driver: nvidia_driver(),
        memlock: os::memlock_limit(),
        memory_available: os::available_memory(),
        cma_total: read("proc/meminfo").and_then(|text| cma_total(&text)),
        forwards,
        forward_policy: forwards.filter(|on| *on).and_then(|_| forward_policy()),
        runner_sha256: tp_fabric::identity::binary_sha256().ok(),
        runner: crate::version::VERSION.to_owned(),
    }
}

fn cma_total(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("CmaTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// What iptables says of the FORWARD chain. It takes privileges to ask; who lacks them learns nothing.
fn forward_policy() -> Option<String> {
    let output = std::process::Command::new("iptables")
        .args(["-S", "FORWARD"])
        .stdin(std::process::Stdio::null())
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    policy(&String::from_utf8_lossy(&output.stdout))
}

fn policy(text: &str) -> Option<String> {
    text.lines()
        .find_map(|line| line.strip_prefix("-P FORWARD "))
        .map(|policy| policy.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_told_from_others() {
        let about = here(Path::new("/"));
        assert!(!about.name.is_empty() && about.system.contains('-'), "{about:?}");
        assert_eq!(about.runner_sha256.map(|hash| hash.len()), Some(64));
    }

    #[test]
    fn what_is_read_is_read_right() {
        assert_eq!(
            cma_total("MemTotal: 1 kB\nCmaTotal:          65536 kB\n"),
            Some(65536 * 1024)
        );
        assert_eq!(cma_total("MemTotal: 1 kB\n"), None);
        assert_eq!(
            policy("-P FORWARD DROP\n-A FORWARD -j X\n").as_deref(),
            Some("DROP")
        );
        assert_eq!(policy(""), None);
    }
}
