//! The Linux forms.

use nix::fcntl::OFlag;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::stat::Mode;
use nix::unistd::Pid;
use socket2::{SockRef, TcpKeepalive};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::time::Duration;

/// A pipe whose ends are closed in child processes and never block.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(nix::unistd::pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?)
}

/// A host that vanished without a word is noticed by the kernel after about 90 s, for connections that nobody watches.
pub(crate) fn set_keepalive(socket: &impl AsFd) -> io::Result<()> {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(30))
        .with_interval(Duration::from_secs(10))
        .with_retries(6);
    SockRef::from(socket).set_tcp_keepalive(&keepalive)
}

/// Bytes that a connection has taken and its peer's system has not acknowledged; `None` where the system does not say.
pub(crate) fn unacknowledged(socket: &impl AsFd) -> Option<u64> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the descriptor is open for the whole call, and this request writes one `int` to the address given.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    (result == 0).then(|| u64::try_from(bytes).unwrap_or(0))
}

/// What makes processes count as on one host: this boot of the kernel, and the network namespace.
pub(crate) fn host_id() -> io::Result<String> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let namespace = std::fs::read_link("/proc/self/ns/net")?;
    Ok(format!("{} {}", boot.trim(), namespace.display()))
}

/// The running executable, even where its file has been replaced since.
pub(crate) fn executable() -> io::Result<File> {
    File::open("/proc/self/exe")
}

/// Memory that could be had without swapping, bytes; `None` where the system does not say.
pub(crate) fn available_memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The CPUs that this thread may run on.
pub(crate) fn allowed_cpus() -> Vec<u32> {
    let Ok(set) = sched_getaffinity(Pid::from_raw(0)) else {
        return Vec::new();
    };
    let allowed = (0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false));
    allowed.filter_map(|cpu| u32::try_from(cpu).ok()).collect()
}

/// How fast the kernel thinks a CPU is, 1024 being the fastest; `None` where it does not say.
pub(crate) fn cpu_capacity(cpu: u32) -> Option<u64> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpu_capacity");
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// Keeps this thread on one CPU.
pub(crate) fn pin_to_cpu(cpu: u32) -> io::Result<()> {
    let mut set = CpuSet::new();
    let index = usize::try_from(cpu).map_err(io::Error::other)?;
    set.set(index)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Backs a range of a shared file with memory now, or says that there is none.
pub(crate) fn reserve(file: &impl AsFd, offset: u64, len: u64) -> io::Result<()> {
    let range = (
        i64::try_from(offset).map_err(io::Error::other)?,
        i64::try_from(len).map_err(io::Error::other)?,
    );
    Ok(nix::fcntl::posix_fallocate(file, range.0, range.1)?)
}

/// A file of shared memory that has no name and is for this user alone.
pub(crate) fn nameless_shared_file() -> io::Result<OwnedFd> {
    let flags = OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC;
    Ok(nix::fcntl::open(
        "/dev/shm",
        flags,
        Mode::S_IRUSR | Mode::S_IWUSR,
    )?)
}

/// What another process of this user has open as `fd`, opened anew.
pub(crate) fn open_descriptor_of(pid: u32, fd: i32) -> io::Result<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{fd}");
    // Where that number means another process here, what it has open may be anything.
    if !std::fs::metadata(&path)?.is_file() {
        return Err(io::Error::other(format!("{path} is no file")));
    }
    let mut options = File::options();
    options.read(true).write(true).custom_flags(libc::O_NONBLOCK);
    Ok(options.open(path)?.into())
}
