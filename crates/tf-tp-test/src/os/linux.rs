//! Linux.

use super::OtherRunner;
use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::Pid;
use std::fs;
use std::io;
use std::path::Path;

/// Asks the kernel to send SIGKILL to this process when the thread that started it ends, and refuses to go on if the
/// parent `parent` is gone already. For use between fork and exec: only async-signal-safe calls.
pub fn die_with_parent(parent: u32) -> io::Result<()> {
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
    // A parent that died before the call above sends no signal any more.
    if u32::try_from(nix::unistd::getppid().as_raw()).ok() != Some(parent) {
        return Err(io::ErrorKind::BrokenPipe.into());
    }
    Ok(())
}

/// `MemAvailable` of the host, bytes; `None` where it cannot be read.
pub fn available_memory() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Whether there are signs of an NVIDIA GPU: its driver, or a display controller of that vendor on PCI. No library is
/// loaded. A driver that is not loaded yet may still be, so no device file is needed.
pub fn may_have_gpu() -> bool {
    let signs = [
        "/dev/nvidiactl",
        "/dev/dxg",
        "/dev/nvhost-gpu",
        "/proc/driver/nvidia",
    ];
    if signs.iter().any(|sign| Path::new(sign).exists()) {
        return true;
    }
    let Ok(devices) = fs::read_dir("/sys/bus/pci/devices") else {
        return false;
    };
    let is = |folder: &Path, file: &str, begin: &str| {
        fs::read_to_string(folder.join(file)).is_ok_and(|text| text.starts_with(begin))
    };
    devices
        .flatten()
        .any(|device| is(&device.path(), "vendor", "0x10de") && is(&device.path(), "class", "0x03"))
}

/// Kernel name and release.
pub fn kernel_release() -> String {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).unwrap_or_default();
    format!("{} {}", read("ostype").trim(), read("osrelease").trim())
        .trim()
        .to_owned()
}

/// What the NVIDIA kernel driver says of itself, where one is loaded.
pub fn nvidia_driver() -> Option<String> {
    fs::read_to_string("/proc/driver/nvidia/version").ok()
}

/// The network namespace of this process.
pub fn network_namespace() -> Option<String> {
    let link = fs::read_link("/proc/self/ns/net").ok()?;
    Some(link.display().to_string())
}

/// Shared-memory files whose names begin with `prefix`, with their sizes in bytes.
pub fn ipc_leftovers(prefix: &str) -> Vec<(String, u64)> {
    let Ok(entries) = fs::read_dir("/dev/shm") else {
        return Vec::new();
    };
    let mut found: Vec<(String, u64)> = entries
        .flatten()
        .filter_map(|e| Some((e.file_name().into_string().ok()?, e.metadata().ok()?.len())))
        .filter(|(name, _)| name.starts_with(prefix))
        .collect();
    found.sort();
    found
}

/// C library and version.
pub fn libc_version() -> Option<String> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: the function takes nothing and gives a static string.
        let version = unsafe { std::ffi::CStr::from_ptr(libc::gnu_get_libc_version()) };
        Some(format!("glibc {}", version.to_string_lossy()))
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Runners on this host that are neither this process nor above it.
pub fn other_runners() -> Vec<OtherRunner> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let mut above = vec![std::process::id()];
    while let Some(parent) = above
        .last()
        .and_then(|pid| parent_of(*pid))
        .filter(|pid| *pid > 1)
    {
        above.push(parent);
    }
    let mut found: Vec<OtherRunner> = entries
        .flatten()
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let words = fs::read(entry.path().join("cmdline")).ok()?;
            let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
            let program = Path::new(std::str::from_utf8(words.first()?).ok()?).file_name()?;
            if program != "tf-tp-test" || above.contains(&pid) {
                return None;
            }
            let session = words.iter().position(|word| *word == b"--session");
            let session = session
                .and_then(|at| words.get(at + 1))
                .map(|word| String::from_utf8_lossy(word).into_owned());
            let user = std::os::unix::fs::MetadataExt::uid(&entry.metadata().ok()?);
            Some(OtherRunner { pid, user, session })
        })
        .collect();
    found.sort_by_key(|other| other.pid);
    found
}

fn parent_of(pid: u32) -> Option<u32> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    text.lines()
        .find_map(|line| line.strip_prefix("PPid:"))?
        .trim()
        .parse()
        .ok()
}

/// Waits for the child `pid` to end, calls `ended` while its number cannot be used again yet, and reaps it.
pub fn reap(pid: Pid, mut ended: impl FnMut()) -> Result<WaitStatus, Errno> {
    again(|| waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT))?;
    ended();
    again(|| waitid(Id::Pid(pid), WaitPidFlag::WEXITED))
}

fn again<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            other => return other,
        }
    }
}

/// Whether the child `pid` is stopped (SIGSTOP) and would not hear anything.
pub fn is_stopped(pid: Pid) -> bool {
    let flags = WaitPidFlag::WSTOPPED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    matches!(waitid(Id::Pid(pid), flags), Ok(WaitStatus::Stopped(..)))
}
