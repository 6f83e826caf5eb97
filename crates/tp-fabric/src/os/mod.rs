//! Every call that only one operating system has. `linux` has the real ones, `portable` what any Unix can do; with
//! `--cfg portable_os` the portable ones are built and tested on Linux too.

#[cfg(all(target_os = "linux", not(portable_os)))]
mod linux;
#[cfg(all(target_os = "linux", not(portable_os)))]
use linux as system;

#[cfg(any(not(target_os = "linux"), portable_os))]
mod portable;
#[cfg(any(not(target_os = "linux"), portable_os))]
use portable as system;

mod unix;

pub(crate) use system::{
    allowed_cpus, available_memory, cpu_capacity, executable, host_id, nameless_shared_file,
    open_descriptor_of, pin_to_cpu, pipe, reserve, set_keepalive, unacknowledged,
};
pub(crate) use unix::{exit_now, free_bytes, host_name, poll, raise_open_files, want_read, want_write};
