//! The table of all variables. The typed settings, `explain` and `docs/settings.md` are made from it.

use super::spec::{Kind, Reader, Spec};

const BASE: Spec = Spec {
    name: "",
    kind: Kind::Text,
    default: "",
    unset: "",
    unit: "",
    meaning: "",
    reader: Reader::Bootstrap,
    option: "",
    agree: false,
};

/// Most ranks that the bootstrap serves.
pub const MAX_WORLD: u32 = 4096;

macro_rules! table {
    ($($constant:ident $name:literal { $($field:ident: $value:expr),* $(,)? })*) => {
        $(
            #[doc = concat!("The row of `", $name, "`.")]
            pub static $constant: Spec = Spec { name: $name, $($field: $value,)* ..BASE };
        )*
        /// Every row, in the order of the page.
        pub static TABLE: &[&Spec] = &[$(&$constant),*];
    };
}

const MAX_RANK: u64 = MAX_WORLD as u64 - 1;

table! {
    RANK "TF_TP_RANK" {
        kind: Kind::Integer { min: 0, max: MAX_RANK }, default: "0", option: "rank",
        meaning: "This process's number in the group, from 0; below the world. Rank 0 is the one the others connect to.",
    }
    WORLD "TF_TP_WORLD" {
        kind: Kind::Integer { min: 1, max: MAX_WORLD as u64 }, default: "2", unit: "ranks", option: "world",
        meaning: "Number of ranks. Backends serve fewer than the bootstrap: the one-shot ones 8, NCCL and host 64.",
    }
    MASTER "TF_TP_MASTER" {
        kind: Kind::Host, default: "localhost", option: "master",
        meaning: "Where the other ranks reach rank 0: a name or an address, IPv4 or IPv6; every address of a name is tried. \
                  With a loopback address rank 0 listens on loopback only.",
    }
    PORT "TF_TP_PORT" {
        kind: Kind::Integer { min: 1, max: 65535 }, default: "29500", option: "port",
        meaning: "The TCP port that rank 0 listens on until all ranks are in.",
    }
    PLAN_PORT "TF_TP_PLAN_PORT" {
        kind: Kind::Integer { min: 1, max: 65535 }, unset: "TF_TP_PORT",
        meaning: "Overrides TF_TP_PORT where an engine keeps that one for itself.",
    }
    BOOT_TIMEOUT "TF_TP_BOOT_TIMEOUT" {
        kind: Kind::Seconds { min: 0.1, max: 86400.0 }, default: "60", unit: "s",
        meaning: "How long all ranks have to come together; then rank 0 names those that never came. Also the limit of each \
                  step of the boot after that.",
    }
    SECRET "TF_TP_SECRET" {
        kind: Kind::Secret, unset: "none: a warning on loopback, a refusal elsewhere",
        meaning: "What the ranks prove to each other before anything else is read. Make one with `tf-tp-test secret` and give \
                  it to every rank.",
    }
    INSECURE "TF_TP_INSECURE" {
        kind: Kind::Switch, default: "0",
        meaning: "Lets ranks meet beyond loopback without a secret. Whoever reaches the port can then join or disturb the run.",
    }
    SESSION "TF_TP_SESSION" {
        kind: Kind::Text, unset: "any session", option: "session",
        meaning: "Name of the run. A rank that names another session than rank 0's is refused.",
    }
    HOST_ID "TF_TP_HOST_ID" {
        kind: Kind::Text, unset: "boot id plus network namespace",
        meaning: "What makes two ranks count as on one host. Set it where containers of one machine share memory but not the \
                  network namespace, or to make one machine look like several.",
    }
    GRACE "TF_TP_FAILFAST_GRACE_S" {
        kind: Kind::Seconds { min: 0.0, max: 60.0 }, default: "1", unit: "s", reader: Reader::Fate,
        meaning: "The longest that abort hooks may take between a detected failure and exit 70. A process whose hooks are done \
                  leaves at once.",
    }
    HEARTBEAT "TF_TP_HEARTBEAT_S" {
        kind: Kind::Seconds { min: 0.01, max: 60.0 }, default: "0.25", unit: "s", reader: Reader::Fate, agree: true,
        meaning: "Time between two heartbeats, both ways between rank 0 and every other rank.",
    }
    HEARTBEAT_LIMIT "TF_TP_HEARTBEAT_LIMIT_S" {
        kind: Kind::Seconds { min: 0.05, max: 3600.0 }, default: "3", unit: "s", reader: Reader::Fate, agree: true,
        meaning: "Silence after which a rank counts as lost (stopped, cut off, without power); at least twice the heartbeat.",
    }
    PEER_MEM "TF_TP_PEER_MEM_S" {
        kind: Kind::Seconds { min: 0.01, max: 60.0 }, default: "0.5", unit: "s", reader: Reader::Fate,
        meaning: "How often a rank reports its host's available memory to rank 0.",
    }
    BACKEND "TF_COMM_BACKEND" {
        kind: Kind::Words(&["host", "nccl", "mailbox", "roce"]), unset: "the best this host has; host without a GPU",
        reader: Reader::Backend, option: "backend", agree: true,
        meaning: "What carries out the collectives.",
    }
    WIRE "TF_TP_ROCE_WIRE" {
        kind: Kind::Words(&["verbs", "shm", "tcp"]), unset: "verbs where both ends have a usable port, else shm on one host, else tcp",
        reader: Reader::Wire, option: "wire", agree: true,
        meaning: "How bytes get to the peer's inbox under the host and roce backends.",
    }
    SLOT_KB "TF_TP_MAILBOX_MAX_KB" {
        kind: Kind::Integer { min: 4, max: 16384 }, default: "256", unit: "KiB", reader: Reader::Backend, agree: true,
        meaning: "Slot size: the largest piece of one rank that the small path takes at once; a multiple of 4.",
    }
    WAIT "TF_TP_MAILBOX_TIMEOUT_S" {
        kind: Kind::Seconds { min: 0.001, max: 86400.0 }, default: "120", unit: "s", reader: Reader::Backend,
        meaning: "How long a collective waits for a peer's flag before it gives up and poisons the transport.",
    }
    INBOX "TF_TP_MAILBOX_INBOX" {
        kind: Kind::Words(&["pinned", "device"]), unset: "device where every GPU can map its peers' memory, else pinned",
        reader: Reader::Backend, agree: true,
        meaning: "Where the mailbox's inboxes lie: page-locked host memory, or the reader's device memory through CUDA IPC.",
    }
    LARGE "TF_TP_LARGE" {
        kind: Kind::Words(&["auto", "nccl", "own"]), default: "auto", reader: Reader::Backend, agree: true,
        meaning: "Who carries payloads beyond TF_TP_ROUTE_MAX_KB under mailbox and roce: NCCL, or the small path itself. auto: NCCL \
                  where every rank has it and no two share a GPU.",
    }
    ROUTE_MAX "TF_TP_ROUTE_MAX_KB" {
        kind: Kind::Integer { min: 0, max: 4_194_303 }, unset: "the measured crossover", unit: "KiB", reader: Reader::Backend, agree: true,
        meaning: "Largest payload of a rank that the small path carries where NCCL is there too.",
    }
    FAST_ORDER "TF_TP_FAST_ORDER" {
        kind: Kind::Switch, default: "0", reader: Reader::Backend, agree: true,
        meaning: "NCCL's own order for its reductions: faster, but not the oracle's bits above two ranks and for NaN.",
    }
    DEVICE "TF_TP_DEVICE" {
        kind: Kind::Integer { min: 0, max: 63 }, default: "0", reader: Reader::Backend,
        meaning: "CUDA ordinal of this rank's GPU.",
    }
    CUDA_LIB "TF_CUDA_LIB" {
        kind: Kind::Text, unset: "libcuda.so.1 by the loader, then in the usual folders", reader: Reader::Backend,
        meaning: "The CUDA driver's library to load, one file; nothing else is tried then.",
    }
    IBVERBS_LIB "TF_IBVERBS_LIB" {
        kind: Kind::Text, unset: "libibverbs.so.1 beside the program, by the loader, then in the usual folders", reader: Reader::Wire,
        meaning: "The libibverbs to load, one file; nothing else is tried then.",
    }
    NCCL_LIB "TF_NCCL_LIB" {
        kind: Kind::Text, default: "libnccl.so.2", reader: Reader::Backend,
        meaning: "The NCCL library to load, a path or a name the loader finds.",
    }
    ROCE_HCA "TF_TP_ROCE_HCA" {
        kind: Kind::RoceDevices, unset: "the pick", reader: Reader::Pick,
        meaning: "RDMA devices to use, comma-separated, exact names. The number is a GID index here; in \
                  NCCL_IB_HCA it is a port.",
    }
    ROCE_HCAS "TF_TP_ROCE_HCAS" {
        kind: Kind::Integer { min: 1, max: 32 }, unset: "all that there are, 32 at most", unit: "rails", reader: Reader::Pick,
        meaning: "Most rails that the pick takes for a pair of ranks.",
    }
    ROCE_SOFT "TF_TP_ROCE_SOFT" {
        kind: Kind::Switch, default: "0", reader: Reader::Pick,
        meaning: "Whether software RDMA devices (rxe, siw) may be taken; they prove the protocol and say nothing about hardware.",
    }
    ROCE_FALLBACK "TF_TP_ROCE_FALLBACK" {
        kind: Kind::Words(&["error", "nccl"]), default: "error", reader: Reader::Backend, agree: true,
        meaning: "What happens where RoCE cannot be set up on some rank: every rank refuses, or every rank goes on with NCCL.",
    }
    ROCE_TC "TF_TP_ROCE_TC" {
        kind: Kind::Integer { min: 0, max: 255 }, unset: "NCCL_IB_TC, else 0", reader: Reader::Wire,
        meaning: "Traffic class of RDMA packets.",
    }
    ROCE_CPU "TF_TP_ROCE_CPU" {
        kind: Kind::Integer { min: 0, max: 4095 }, unset: "not pinned", reader: Reader::Backend,
        meaning: "CPU to pin the proxy thread to.",
    }
    ROCE_FAST "TF_TP_ROCE_FAST" {
        kind: Kind::Switch, default: "0", reader: Reader::Backend,
        meaning: "Lean doorbell and extra pollers in the RoCE kernel.",
    }
    ROCE_POLLERS "TF_TP_ROCE_POLLERS" {
        kind: Kind::Integer { min: 1, max: 8 }, default: "1", reader: Reader::Backend,
        meaning: "With TF_TP_ROCE_FAST: pollers per flag and block.",
    }
    ROCE_STAGGER "TF_TP_ROCE_STAGGER_NS" {
        kind: Kind::Integer { min: 0, max: 65535 }, default: "150", unit: "ns", reader: Reader::Backend,
        meaning: "With TF_TP_ROCE_FAST: how far apart the pollers start.",
    }
    ROCE_BLOCKS "TF_TP_ROCE_BLOCKS" {
        kind: Kind::PowerOfTwo { min: 1, max: 16 }, default: "16", unit: "blocks", reader: Reader::Backend,
        meaning: "Largest grid of the RoCE kernel; changes the launch shape, never the bits.",
    }
    KERNEL_IMAGE "TF_TP_KERNEL_IMAGE" {
        kind: Kind::Text, unset: "the image built into the binary", reader: Reader::Backend,
        meaning: "Path of a kernel image to use instead of the built-in one.",
    }
    PLAN_LINK "TF_TP_PLAN_LINK" {
        kind: Kind::Words(&["blocking", "spin", "nccl", "tcp", "rdma"]), default: "blocking", reader: Reader::Plan,
        meaning: "How a follower waits for a plan: blocked, or polling first (spin). nccl and tcp are old words for blocking, \
                  rdma for spin.",
    }
    PLAN_SPIN "TF_TP_PLAN_SPIN_US" {
        kind: Kind::Integer { min: 0, max: 10_000_000 }, default: "5000", unit: "us", reader: Reader::Plan,
        meaning: "With spin: how long a follower polls before it blocks.",
    }
    PLAN_PIN "TF_TP_PLAN_PIN" {
        kind: Kind::Pin { max: 4095 }, default: "off", reader: Reader::Plan,
        meaning: "CPU to pin the plan thread to at its first plan; auto takes the fastest one, where CPUs differ.",
    }
    NCCL_IB_HCA "NCCL_IB_HCA" {
        kind: Kind::NcclDevices, unset: "the pick", reader: Reader::Pick,
        meaning: "NCCL's own list of devices, in NCCL's grammar; must agree with TF_TP_ROCE_HCA where both are set.",
    }
    NCCL_IB_TC "NCCL_IB_TC" {
        kind: Kind::Integer { min: 0, max: 255 }, unset: "NCCL's default", reader: Reader::Nccl,
        meaning: "NCCL's traffic class; also ours where TF_TP_ROCE_TC is unset.",
    }
    NCCL_SOCKET_IFNAME "NCCL_SOCKET_IFNAME" {
        kind: Kind::Text, unset: "by the route to the peers", reader: Reader::Nccl,
        meaning: "Network interface of NCCL's own bootstrap.",
    }
    NCCL_DEBUG "NCCL_DEBUG" {
        kind: Kind::Text, unset: "NCCL's default", reader: Reader::Nccl,
        meaning: "How much NCCL says.",
    }
}

/// Names that earlier tools took and this one does not, with what to do instead.
pub static RETIRED: &[(&str, &str)] = &[
    ("TF_TP_PLAN_TIMEOUT", "TF_TP_BOOT_TIMEOUT is its name here"),
    (
        "TF_TP_FAILFAST",
        "the fate channel is always on; TF_TP_FAILFAST_GRACE_S sets its grace",
    ),
    (
        "TF_TP_ROCE_CHUNKED_KB",
        "gathers beyond the slot are always cut to slots",
    ),
];

/// The row of a name.
pub fn find(name: &str) -> Option<&'static Spec> {
    TABLE.iter().copied().find(|spec| spec.name == name)
}
