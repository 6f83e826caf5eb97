//! What the runner asks of the operating system beyond the standard library. Calls that only Linux has are in `linux`;
//! `portable` has what stands in for them elsewhere, and `--cfg portable_os` builds it on Linux too.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

#[cfg(all(target_os = "linux", not(portable_os)))]
mod linux;
#[cfg(all(target_os = "linux", not(portable_os)))]
use linux as sys;

#[cfg(not(all(target_os = "linux", not(portable_os))))]
mod portable;
#[cfg(not(all(target_os = "linux", not(portable_os))))]
use portable as sys;

pub use sys::{
    available_memory, die_with_parent, ipc_leftovers, is_stopped, kernel_release, libc_version, may_have_gpu,
    network_namespace, nvidia_driver, other_runners, reap,
};

/// A runner that another run started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OtherRunner {
    /// Its process.
    pub pid: u32,
    /// The user's number.
    pub user: u32,
    /// The session that it was started for.
    pub session: Option<String>,
}

/// `CLOCK_MONOTONIC` of this host, nanoseconds: comparable among the processes of one host.
pub fn monotonic_ns() -> u64 {
    match nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC) {
        Ok(at) => {
            u64::try_from(at.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(at.tv_nsec()).unwrap_or(0)
        }
        Err(_) => 0,
    }
}

/// Ends the process now, with no destructor, no flush and no exit handler: a driver that hangs cannot hold it up.
pub fn exit_now(code: u8) -> ! {
    // SAFETY: `_exit` takes any integer and does not return.
    unsafe { libc::_exit(i32::from(code)) }
}

/// Puts a line on standard error if that can be done at once; with no lock, so that no other thread can hold it up.
pub fn say_without_waiting(line: &str) {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
    if matches!(poll(&mut fds, PollTimeout::ZERO), Ok(1)) {
        let _ = nix::unistd::write(stderr.as_fd(), line.as_bytes());
    }
}

/// Kills this process with SIGKILL.
pub fn kill_self() -> ! {
    loop {
        let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGKILL);
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Stops this process with SIGSTOP; returns when it is continued.
pub fn stop_self() {
    let _ = nix::sys::signal::kill(nix::unistd::getpid(), nix::sys::signal::Signal::SIGSTOP);
}

/// Waits until `fd` can be read (or is at its end), at most `limit`. `false` when the time is over.
pub fn wait_readable(fd: BorrowedFd<'_>, limit: Duration) -> std::io::Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let until = std::time::Instant::now() + limit;
    loop {
        let left = until.saturating_duration_since(std::time::Instant::now());
        // Rounded up, so that the wait never ends before the limit and spins.
        let ms = i32::try_from(left.as_micros().div_ceil(1000)).unwrap_or(i32::MAX);
        let timeout = PollTimeout::try_from(ms).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(fd.as_fd(), PollFlags::POLLIN)];
        match poll(&mut fds, timeout) {
            Ok(0) if std::time::Instant::now() >= until => return Ok(false),
            Ok(0) | Err(nix::errno::Errno::EINTR) => {}
            Ok(_) => return Ok(true),
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Locked-memory limit of this process, bytes; `None` is no limit.
pub fn memlock_limit() -> Option<u64> {
    use nix::sys::resource::{Resource, getrlimit};
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((soft, _)) if soft == libc::RLIM_INFINITY => None,
        Ok((soft, _)) => Some(soft),
        Err(_) => Some(0),
    }
}

/// Host name, for lines that people read on this host.
pub fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|n| n.into_string().ok())
        .unwrap_or_else(|| "unknown".to_owned())
}
