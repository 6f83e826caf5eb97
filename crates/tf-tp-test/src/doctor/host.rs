//! The host itself: processors, memory, limits, ports, files that an earlier run left.

use super::{Item, State};
use crate::os;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use tp_fabric::settings::Sources;
use tp_hca::facts::PortState;

/// Names of this project's shared-memory files begin so: of the host backend's and of the mailbox's.
const SHM_PREFIXES: [&str; 2] = ["tf-tp-", "tp-inbox-"];
/// Shared memory below this is too little for the slots of eight ranks, bytes.
const SHM_LITTLE: u64 = 64 << 20;
/// Locked memory below this is too little for registered regions, bytes.
const MEMLOCK_LITTLE: u64 = 64 << 20;

pub(super) fn items(sources: &Sources) -> Vec<Item> {
    let mut items = vec![
        Item::new(
            "system",
            State::Ok,
            format!("{} {}", os::kernel_release(), std::env::consts::ARCH),
        ),
        processors(),
        memory(),
        shared_memory(),
        memlock(),
        port(sources),
        uverbs(),
    ];
    items.push(rdma_ports());
    items.extend(leftovers());
    items.extend(nccl_settings(sources));
    items
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
            // The field types differ among systems.
            #[allow(
                clippy::useless_conversion,
                reason = "not useless where the fields are 32 bits wide"
            )]
            let bytes = |blocks| u64::from(blocks).saturating_mul(u64::from(fs.fragment_size()));
            let (size, free) = (bytes(fs.blocks()), bytes(fs.blocks_available()));
            let text = format!("/dev/shm has {} MiB, {} MiB free", size >> 20, free >> 20);
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

fn rdma_ports() -> Item {
    let capture = tp_hca::capture(Path::new("/"));
    let ports = &capture.facts.ports;
    if ports.is_empty() {
        return Item::new("RDMA ports", State::No, "none in /sys/class/infiniband");
    }
    let words: Vec<String> = ports
        .iter()
        .map(|p| {
            format!(
                "{}/{} {}",
                p.device,
                p.port,
                p.state.map_or("unknown", |state| state.as_str())
            )
        })
        .collect();
    let active = ports
        .iter()
        .filter(|p| p.state == Some(PortState::Active))
        .count();
    let state = if active > 0 { State::Ok } else { State::No };
    let item = Item::new(
        "RDMA ports",
        state,
        format!("{active} of {} active: {}", ports.len(), words.join(", ")),
    );
    if active > 0 {
        item
    } else {
        item.fix("look at cables and `rdma link`")
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

/// Every place that NCCL takes settings from, since what is forgotten in one of them wins over what is believed.
fn nccl_settings(sources: &Sources) -> Vec<Item> {
    let mut items = Vec::new();
    for (name, value) in sources
        .environment
        .iter()
        .filter(|(name, _)| name.starts_with("NCCL_"))
    {
        items.push(Item::new(
            name,
            State::Ok,
            format!("{} (environment)", value.to_string_lossy()),
        ));
    }
    let home = sources
        .environment
        .get("HOME")
        .map(|home| PathBuf::from(home).join(".nccl.conf"));
    for file in [Some(PathBuf::from("/etc/nccl.conf")), home]
        .into_iter()
        .flatten()
    {
        let Ok(text) = std::fs::read_to_string(&file) else {
            continue;
        };
        for line in text
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
        {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            let text = format!("{} ({})", value.trim(), file.display());
            items.push(
                Item::new(name.trim(), State::Warn, text)
                    .fix("set by a file: remove it there if it is not meant"),
            );
        }
    }
    items
}
