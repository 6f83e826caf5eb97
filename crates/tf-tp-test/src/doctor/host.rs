//! The host itself: processors, memory, limits, ports, files that an earlier run left.

use super::{Item, State};
use crate::os;
use std::collections::BTreeMap;
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
        uverbs(Path::new("/")),
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

/// Other runs on this host: under way, or left behind. One item a session; who looks too has none.
fn processes() -> Vec<Item> {
    by_session(&os::other_runners())
}

fn by_session(found: &[os::OtherRunner]) -> Vec<Item> {
    let mut sessions: BTreeMap<&str, Vec<&os::OtherRunner>> = BTreeMap::new();
    for other in found {
        if let Some(session) = &other.session {
            sessions.entry(session).or_default().push(other);
        }
    }
    let item = |(session, others): (&str, Vec<&os::OtherRunner>)| {
        let pids: Vec<String> = others.iter().map(|other| other.pid.to_string()).collect();
        let user = others.first().map_or(0, |other| other.user);
        let text = format!("session {session} of user {user}, pid {}", pids.join(", "));
        Item::new("other run", State::Warn, text).fix(
            "wait for that run, or end what an interrupted one left (tp-orchestrate stop); what others started is theirs to \
             end",
        )
    };
    sessions.into_iter().map(item).collect()
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

/// The files by which RDMA devices are opened, against the devices that sysfs shows; `root` stands for `/`.
fn uverbs(root: &Path) -> Item {
    let name = "RDMA device files";
    let seen = root
        .join("sys/class/infiniband")
        .read_dir()
        .is_ok_and(|mut d| d.next().is_some());
    let files = root.join("dev/infiniband").read_dir().map_or(0, |entries| {
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
            "visible in sysfs, cannot open uverbs: /dev/infiniband has no uverbs file",
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

    /// Case 74: a container with the devices in sysfs and no files to open them by.
    #[test]
    fn devices_that_are_visible_and_cannot_be_opened() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("sys/class/infiniband/rocep1s0f0")).unwrap();
        let item = uverbs(root.path());
        assert!(
            item.state == State::No && item.text.starts_with("visible in sysfs, cannot open uverbs"),
            "{item:?}"
        );
        assert!(item.fix.unwrap().contains("--device /dev/infiniband"));
        std::fs::create_dir_all(root.path().join("dev/infiniband")).unwrap();
        std::fs::write(root.path().join("dev/infiniband/uverbs0"), "").unwrap();
        assert_eq!(uverbs(root.path()).state, State::Ok);
    }

    #[test]
    fn other_runs_are_told_by_session() {
        let other = |pid, session: Option<&str>| os::OtherRunner {
            pid,
            user: 1000,
            session: session.map(str::to_owned),
        };
        let items = by_session(&[
            other(7, Some("b")),
            other(8, None),
            other(9, Some("a")),
            other(10, Some("b")),
        ]);
        let texts: Vec<_> = items.iter().map(|item| item.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "session a of user 1000, pid 9",
                "session b of user 1000, pid 7, 10"
            ]
        );
    }

    #[test]
    fn the_drivers_version_is_found_in_either_wording() {
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.95.05  Release Build\nGCC version: 13\n";
        assert_eq!(driver_version(open).as_deref(), Some("580.95.05"));
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\n";
        assert_eq!(driver_version(closed).as_deref(), Some("550.54.15"));
        assert_eq!(driver_version("nothing"), None);
    }
}
