//! What differs between operating systems, in one place.

#[cfg(all(target_os = "linux", not(portable_os)))]
mod linux;
#[cfg(any(not(target_os = "linux"), portable_os))]
mod portable;

#[cfg(all(target_os = "linux", not(portable_os)))]
pub use linux::{clock_with_sleep, wait_without_reaping};
#[cfg(any(not(target_os = "linux"), portable_os))]
pub use portable::{clock_with_sleep, wait_without_reaping};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Kills a process group by the id of its leader. A group that is gone is no error.
pub fn kill_group(leader: u32) {
    if let Some(leader) = i32::try_from(leader).ok().filter(|id| *id > 1) {
        let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
    }
}
