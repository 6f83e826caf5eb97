//! Linux.

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

/// Kernel name and release.
pub fn kernel_release() -> String {
    let read = |name: &str| fs::read_to_string(Path::new("/proc/sys/kernel").join(name)).unwrap_or_default();
    format!("{} {}", read("ostype").trim(), read("osrelease").trim())
        .trim()
        .to_owned()
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
