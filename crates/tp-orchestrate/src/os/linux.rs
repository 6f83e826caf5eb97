//! Linux.

use nix::errno::Errno;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;

/// Blocks until the child has ended, and leaves it to be reaped by its owner.
pub fn wait_without_reaping(pid: u32) {
    let Ok(pid) = i32::try_from(pid) else { return };
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    while waitid(Id::Pid(Pid::from_raw(pid)), flags) == Err(Errno::EINTR) {}
}

/// Seconds of a clock that goes on while the machine sleeps.
pub fn clock_with_sleep() -> Option<std::time::Duration> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    Some(now.into())
}
