//! The host itself: processors, memory, limits, ports, files that an earlier run left.

use super::{Item, State};
use crate::os;
use std::net::TcpListener;
use std::path::Path;
use tp_fabric::settings::Sources;

/// Names of this project's shared-memory files begin so: of the host backend's and of the mailbox's.
const SHM_PREFIXES: [&str; 2] = ["tf-tp-", "tp-inbox-"];
/// Shared memory below this is too little for the slots of eight ranks, bytes.
const SHM_LITTLE: u64 = 64 << 20;
/// Disk space below this is little, bytes.
const DISK_LITTLE: u64 = 256 << 20;
/// Locked memory below this is too little for registered regions, bytes.
const MEMLOCK_LITTLE: u64 = 64 << 20;

pub(super) fn items(sources: &Sources) -> Vec<Item> {
    let mut items = vec![
        system(),
        processors(),
        memory(),
        shared_memory(),
        memlock(),
        port(sources),
        uverbs(),
    ];
    items.extend(disks());
    items.extend(leftovers());
    items.extend(processes());
    items
}

fn system() -> Item {
    let mut text = format!("{} {}", os::kernel_release(), std::env::consts::ARCH);
    if let Some(libc) = os::libc_version() {
        text.push_str(&format!(", C library {libc}"));
    }
    if let Some(driver) = nvidia_driver() {
        text.push_str(&format!(", NVIDIA driver {driver}"));
    }
    Item::new("system", State::Ok, text)
}

/// Version of the NVIDIA kernel driver, where one is loaded.
pub(super) fn nvidia_driver() -> Option<String> {
    driver_version(&os::nvidia_driver()?)
}

/// The version in the driver's line, which differs between the open and the closed modules in the words before it.
fn driver_version(text: &str) -> Option<String> {
    let line = text.lines().find(|line| line.starts_with("NVRM version:"))?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    line.split_whitespace().find(is_version).map(str::to_owned)
}

/// Room where a run writes: temporary files, and the directory that the runner is in.
fn disks() -> Vec<Item> {
    let own = std::env::current_exe().ok();
    let own = own.as_deref().and_then(Path::parent).map(Path::to_owned);
    let mut places = vec![std::env::temp_dir()];
    places.extend(own);
    places.dedup();
    places.iter().map(|place| disk(place)).collect()
}

fn disk(place: &Path) -> Item {
    let name = format!("disk {}", place.display());
    match nix::sys::statvfs::statvfs(place) {
        Ok(fs) => {
            let free = free_bytes(&fs);
            let item = |state| Item::new(&name, state, format!("{} MiB free", free >> 20));
            if free < DISK_LITTLE {
                item(State::Warn).fix("free space there: the runner and its logs need some")
            } else {
                item(State::Ok)
            }
        }
        Err(e) => Item::new(&name, State::Warn, format!("cannot be asked: {e}")),
    }
}

fn free_bytes(fs: &nix::sys::statvfs::Statvfs) -> u64 {
    // The field types differ among systems.
    #[allow(
        clippy::useless_conversion,
        reason = "not useless where the fields are 32 bits wide"
    )]
    u64::from(fs.blocks_available()).saturating_mul(u64::from(fs.fragment_size()))
}

/// Other runners on this host: of a run that is under way, or that was left.
fn processes() -> Vec<Item> {
    os::other_runners().iter().map(process).collect()
}

fn process(found: &os::OtherRunner) -> Item {
    let session = found.session.as_deref().unwrap_or("none");
    let text = format!("pid {} of user {}, session {session}", found.pid, found.user);
    Item::new("other runner", State::Warn, text).fix(
        "wait for that run, or end what an interrupted one left (tp-orchestrate stop); what others started is theirs to end",
    )
}

fn processors() -> Item {
    match std::thread::available_parallelism() {
        Ok(n) if n.get() < 2 => Item::new(
            "processors",
            State::Warn,
            "1 for this process: ranks on this host take turns, latencies mean nothing",
        ),
        Ok(n) => Item::new("processors", State::Ok, format!("{n} for this process")),
        Err(e) => Item::new("processors", State::Warn, format!("cannot be counted: {e}")),
    }
}

fn memory() -> Item {
    match os::available_memory() {
        Some(bytes) => Item::new("memory", State::Ok, format!("{} MiB available", bytes >> 20)),
        None => Item::new(
            "memory",
            State::Warn,
            "cannot be asked for here: sizes are not checked against it",
        ),
    }
}

fn shared_memory() -> Item {
    let name = "shared memory";
    match nix::sys::statvfs::statvfs("/dev/shm") {
        Ok(fs) => {
            let free = free_bytes(&fs);
            let text = format!("/dev/shm has {} MiB free", free >> 20);
            if free < SHM_LITTLE {
                Item::new(name, State::Warn, text)
                    .fix("make it larger: --shm-size of the container, or mount -o remount,size=1G /dev/shm")
            } else {
                Item::new(name, State::Ok, text)
            }
        }
        Err(e) => Item::new(name, State::No, format!("/dev/shm cannot be used: {e}")).fix("take --wire tcp"),
    }
}

fn memlock() -> Item {
    match os::memlock_limit() {
        None => Item::new("memlock", State::Ok, "no limit"),
        Some(bytes) if bytes < MEMLOCK_LITTLE => Item::new(
            "memlock",
            State::Warn,
            format!("{} KiB: registering memory for RDMA may fail", bytes >> 10),
        )
        .fix("ulimit -l unlimited; in a container --ulimit memlock=-1"),
        Some(bytes) => Item::new("memlock", State::Ok, format!("{} MiB", bytes >> 20)),
    }
}

/// Whether the port that rank 0 would listen on is free. The socket is closed again at once.
fn port(sources: &Sources) -> Item {
    let text = |name: &str| sources.text(name).and_then(|(text, _)| text.into_string().ok());
    let wanted = text("TF_TP_PLAN_PORT")
        .or_else(|| text("TF_TP_PORT"))
        .unwrap_or_else(|| "29500".to_owned());
    let Ok(port) = wanted.trim().parse::<u16>() else {
        return Item::new(
            "port",
            State::No,
            format!("TF_TP_PORT `{wanted}` is no port number"),
        );
    };
    match TcpListener::bind(("127.0.0.1", port)) {
        Ok(_) => Item::new("port", State::Ok, format!("{port} is free")),
        Err(e) => Item::new("port", State::Warn, format!("{port} cannot be listened on: {e}"))
            .fix("choose another TF_TP_PORT for all ranks"),
    }
}

fn uverbs() -> Item {
    let name = "RDMA device files";
    let seen = Path::new("/sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut d| d.next().is_some());
    let files = Path::new("/dev/infiniband").read_dir().map_or(0, |entries| {
        entries
            .flatten()
            .filter(|e| e.file_name().to_string_lossy().starts_with("uverbs"))
            .count()
    });
    match (seen, files) {
        (_, n) if n > 0 => Item::new(name, State::Ok, format!("{n} in /dev/infiniband")),
        (true, _) => Item::new(
            name,
            State::No,
            "devices are visible in sysfs but /dev/infiniband has no uverbs file",
        )
        .fix("load ib_uverbs; start the container with --device /dev/infiniband"),
        (false, _) => Item::new(name, State::No, "none: /dev/infiniband has no uverbs file"),
    }
}

/// Shared-memory files that a killed run may have left; none where there are none.
fn leftovers() -> Option<Item> {
    let files: Vec<_> = SHM_PREFIXES.into_iter().flat_map(os::ipc_leftovers).collect();
    if files.is_empty() {
        return None;
    }
    let bytes: u64 = files.iter().map(|(_, bytes)| bytes).sum();
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let text = format!(
        "{} in /dev/shm with {} KiB: {}",
        files.len(),
        bytes >> 10,
        names.join(", ")
    );
    Some(Item::new("leftovers", State::Warn, text).fix("remove them when no run is under way"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_drivers_version_is_found_in_either_wording() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\nGCC version: 13\n";
        assert_eq!(driver_version(open).as_deref(), Some("580.95.05"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n";
        assert_eq!(driver_version(closed).as_deref(), Some("550.54.15"));
        assert_eq!(driver_version("nothing"), None);
    }
}
