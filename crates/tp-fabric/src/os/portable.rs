//! What any Unix can do.

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use socket2::SockRef;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A pipe whose ends are closed in child processes and never block. Another thread that starts a process between the
/// calls can leak an end to it; only Linux has the call that excludes this.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    let (read, write) = nix::unistd::pipe()?;
    for end in [&read, &write] {
        fcntl(end, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        fcntl(end, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    }
    Ok((read, write))
}

/// Asks for keep-alive probes at the system's own pace.
pub(crate) fn set_keepalive(socket: &impl AsFd) -> io::Result<()> {
    SockRef::from(socket).set_keepalive(true)
}

/// Not known.
pub(crate) fn unacknowledged(_socket: &impl AsFd) -> Option<u64> {
    None
}

/// What makes processes count as on one host: its name, for want of anything better.
pub(crate) fn host_id() -> io::Result<String> {
    Ok(super::host_name())
}

/// The running executable's file.
pub(crate) fn executable() -> io::Result<File> {
    File::open(std::env::current_exe()?)
}

/// Not known.
pub(crate) fn available_memory() -> Option<u64> {
    None
}

/// Not known.
pub(crate) fn allowed_cpus() -> Vec<u32> {
    Vec::new()
}

/// Not known.
pub(crate) fn cpu_capacity(_cpu: u32) -> Option<u64> {
    None
}

/// Not possible.
pub(crate) fn pin_to_cpu(_cpu: u32) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "this system pins no threads",
    ))
}

/// Not possible; memory that is missing shows when it is touched.
pub(crate) fn reserve(_file: &impl AsFd, _offset: u64, _len: u64) -> io::Result<()> {
    Ok(())
}

/// Not possible.
pub(crate) fn nameless_shared_file() -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Not possible.
pub(crate) fn open_descriptor_of(_pid: u32, _fd: i32) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}
