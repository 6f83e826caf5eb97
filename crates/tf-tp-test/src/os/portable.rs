//! Where there is no Linux: the same questions with the answers that POSIX has.

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;
use std::io;

/// There is no parent-death signal here; the lease on standard input does its work.
pub fn die_with_parent(_parent: u32) -> io::Result<()> {
    Ok(())
}

/// Not known here.
pub fn available_memory() -> Option<u64> {
    None
}

/// System name and release.
pub fn kernel_release() -> String {
    std::env::consts::OS.to_owned()
}

/// Not known.
pub fn nvidia_driver() -> Option<String> {
    None
}

/// There are none.
pub fn network_namespace() -> Option<String> {
    None
}

/// Shared-memory objects cannot be listed here.
pub fn ipc_leftovers(_prefix: &str) -> Vec<(String, u64)> {
    Vec::new()
}

/// Not known here.
pub fn libc_version() -> Option<String> {
    None
}

/// Processes cannot be listed here.
pub fn other_runners() -> Vec<super::OtherRunner> {
    Vec::new()
}

/// Waits for the child `pid` to end, reaps it and calls `ended`.
pub fn reap(pid: Pid, mut ended: impl FnMut()) -> Result<WaitStatus, Errno> {
    loop {
        match waitpid(pid, None) {
            Err(Errno::EINTR) => {}
            other => {
                ended();
                return other;
            }
        }
    }
}

/// Not known here.
pub fn is_stopped(_pid: Pid) -> bool {
    false
}

/// Not known here.
pub fn may_have_gpu() -> bool {
    true
}
