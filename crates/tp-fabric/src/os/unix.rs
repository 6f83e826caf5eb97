//! Calls that every Unix has, in the form that the rest of the crate wants.

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

/// Waits until something is ready or the deadline has passed; gives how many are ready. `None`: no deadline.
/// Interrupted waits are taken up again.
pub(crate) fn poll(fds: &mut [PollFd<'_>], deadline: Option<Instant>) -> io::Result<usize> {
    loop {
        let timeout = match deadline {
            None => PollTimeout::NONE,
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                // Rounded up: a wait of 0.4 ms must not become a busy loop. An hour at a time is as good as for ever.
                let ms = left.as_micros().div_ceil(1000).min(3_600_000);
                PollTimeout::try_from(i32::try_from(ms).unwrap_or(i32::MAX)).unwrap_or(PollTimeout::ZERO)
            }
        };
        match nix::poll::poll(fds, timeout) {
            Ok(ready) => return Ok(usize::try_from(ready).unwrap_or(0)),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Whether a read would find something: bytes, the end, or an error.
pub(crate) fn want_read(fd: &PollFd<'_>) -> bool {
    let ready = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    fd.revents().is_some_and(|flags| flags.intersects(ready))
}

/// Whether a write would find room or an error.
pub(crate) fn want_write(fd: &PollFd<'_>) -> bool {
    let ready = PollFlags::POLLOUT | PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL;
    fd.revents().is_some_and(|flags| flags.intersects(ready))
}

/// Ends the process at once: no destructors, no exit handlers, nothing that a driver could hang.
pub(crate) fn exit_now(code: i32) -> ! {
    // SAFETY: `_exit` takes any integer, touches no memory of ours and does not return.
    unsafe { libc::_exit(code) }
}

/// The host's name for people; `?` where the system has none.
pub(crate) fn host_name() -> String {
    nix::unistd::gethostname()
        .ok()
        .and_then(|name| name.into_string().ok())
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| "?".to_owned())
}

/// Lets this process open at least `wanted` files where the hard limit allows it.
pub(crate) fn raise_open_files(wanted: u64) {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < wanted
        && soft < hard
    {
        // A refusal shows later as "too many open files", with a name to it.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, wanted.min(hard), hard);
    }
}

/// What the file system of an open file could still take, bytes; `None` where it has no limit of its own.
pub(crate) fn free_bytes(file: &impl AsFd) -> io::Result<Option<u64>> {
    let stat = nix::sys::statvfs::fstatvfs(file)?;
    // The field types differ among systems.
    #[allow(clippy::unnecessary_cast, reason = "not unnecessary on every system")]
    let (blocks, free, size) = (
        stat.blocks() as u64,
        stat.blocks_available() as u64,
        stat.fragment_size() as u64,
    );
    Ok((blocks > 0).then(|| free.saturating_mul(size)))
}
