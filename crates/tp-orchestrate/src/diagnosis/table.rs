//! Signatures of the host, the start of ranks and the control plane.

use super::{Sign, Signature};

const fn line(all: &'static [&'static str]) -> Sign {
    Sign::Line { all, any: &[] }
}

const fn one_of(all: &'static [&'static str], any: &'static [&'static str]) -> Sign {
    Sign::Line { all, any }
}

pub(super) const HOST: &[Signature] = &[
    Signature {
        code: "wrong-architecture",
        sign: line(&["exec format error"]),
        cause: "The runner was built for another processor architecture than this host's.",
        remedy: "Build the runner for the host's system (aarch64-linux on GB10, x86_64-linux elsewhere) and name it by \
                 --runner or `system`.",
        source: "field case 101; execve(2) ENOEXEC",
        example: "host twin-a: failed to start rank 1 (/opt/tf-tp-test): Exec format error (os error 8)",
    },
    Signature {
        code: "runner-busy",
        sign: line(&["text file busy"]),
        cause: "The runner's file is being written to, or a copy is replacing it in place, while it is to be started.",
        remedy: "Wait for the copy to end; replace a runner by renaming a new file over it, never by writing into it.",
        source: "field case 98; execve(2) ETXTBSY",
        example: "host twin-a: failed to start rank 1 (/opt/tf-tp-test): Text file busy (os error 26)",
    },
    Signature {
        code: "runner-not-executable",
        sign: one_of(&["failed to start"], &["permission denied"]),
        cause: "The runner's file is not executable, or its file system is mounted noexec.",
        remedy: "Run chmod +x on it, or put it on a file system without noexec.",
        source: "execve(2) EACCES",
        example: "host twin-a: failed to start rank 1 (/tmp/tf-tp-test): Permission denied (os error 13)",
    },
    Signature {
        code: "runner-missing",
        sign: one_of(&["failed to start"], &["no such file or directory"]),
        cause: "The runner is not where the plan starts it, or the loader that it names does not exist on this host.",
        remedy: "Build it (cargo build -p tf-tp-test), or name it by --runner; on NixOS use the portable binary.",
        source: "execve(2) ENOENT",
        example: "host twin-a: failed to start rank 1 (/opt/tf-tp-test): No such file or directory (os error 2)",
    },
    Signature {
        code: "port-in-use",
        sign: one_of(&[], &["address already in use", "is in use on this host"]),
        cause: "Another process took rank 0's TCP port between the moment it was found free and the moment rank 0 listened.",
        remedy: "Run the step again; if it comes back, look with `ss -ltnp` for the process that takes random ports.",
        source: "bind(2) EADDRINUSE",
        example: "port 29500 is in use on this host: another run or program listens there",
    },
    Signature {
        code: "rank0-refused",
        sign: one_of(&["connection refused"], &[]),
        cause: "Nothing listened at rank 0's address and port: rank 0 ended before, or `fabric` names another machine.",
        remedy: "Look at rank 0's own log first; then check that `fabric` of rank 0's host is an address of that host.",
        source: "field case 79; connect(2) ECONNREFUSED",
        example: "failed to reach rank 0 at 192.0.2.1:29500: Connection refused (os error 111)",
    },
    Signature {
        code: "rank0-filtered",
        sign: one_of(
            &["reach rank 0"],
            &[
                "no route to host",
                "network is unreachable",
                "host is unreachable",
                "timed out",
            ],
        ),
        cause: "No answer from rank 0's address: a firewall drops the packets, or there is no route to it.",
        remedy: "Open the step's TCP ports between the hosts (ufw, nftables), and check `ip route get ADDRESS`.",
        source: "field case 79; connect(2) EHOSTUNREACH, ENETUNREACH",
        example: "failed to reach rank 0 at 192.0.2.1 port 29500 within 60.0 s: No route to host (os error 113)",
    },
    Signature {
        code: "rank-never-came",
        sign: one_of(&["rank"], &["never came", "did not come to it"]),
        cause: "The named ranks did not reach rank 0 within the boot deadline.",
        remedy: "Look at the logs of the ranks that are named: they ended early, or they cannot reach rank 0's address.",
        source: "field case 113",
        example: "rank 1 never came within 60.0 s",
    },
    Signature {
        code: "binary-differs",
        sign: one_of(&["binary"], &["differ", "mismatch", "not the same"]),
        cause: "The ranks run different builds of the runner; equal version strings do not make them equal.",
        remedy: "Put the same file on every host (compare sha256sum) and run again.",
        source: "field case 97",
        example: "the ranks differ in binary_sha256: `4f1c` (rank 0 on a), `9a20` (rank 1 on b)",
    },
    Signature {
        code: "settings-differ",
        sign: one_of(
            &["rank"],
            &["ranks differ in", "settings differ", "settings mismatch"],
        ),
        cause: "The ranks were started with different values of a setting that must be equal.",
        remedy: "Give the named variable to every host in [defaults] env, not to one of them.",
        source: "design of the bootstrap's agreement",
        example: "the ranks differ in TF_TP_MAILBOX_MAX_KB: `256` (rank 0 on a), `512` (rank 1 on b)",
    },
    Signature {
        code: "secret-wrong",
        sign: one_of(&["secret"], &["differs", "does not know", "does not prove"]),
        cause: "A rank holds another session secret: it belongs to another run, or TF_TP_SECRET was set by hand.",
        remedy: "Look for leftovers of an earlier run on the hosts and end them; do not set TF_TP_SECRET in the inventory.",
        source: "design of the bootstrap",
        example: "rank 0 on a refused this rank: it does not know the secret: TF_TP_SECRET differs",
    },
    Signature {
        code: "lease-lost",
        sign: one_of(&["lease"], &["lost", "ended", "no beat", "closed"]),
        cause: "The orchestrator was gone or silent for 15 s, so the rank left.",
        remedy: "Run again with --resume DIR; keep the workstation awake while a run is under way.",
        source: "field case 107",
        example: "rank 1 leaves: the lease was lost, no beat for 15 s",
    },
    Signature {
        code: "step-deadline",
        sign: line(&["still ran at the step's deadline"]),
        cause: "A rank waited for something that never came and nothing ended it, or the step is slower here than its \
                deadline allows.",
        remedy: "Read the last lines of its log: a rank that still made progress needs a longer `step_limit_s` in \
                 [cluster], one that stood still says what it waits on.",
        source: "field cases 2, 119, 142",
        example: "rank 1 still ran at the step's deadline of 300 s",
    },
    Signature {
        code: "gpu-step-deadline",
        sign: line(&["the step on gpus", "did not end by its deadline"]),
        cause: "GPUs of one host that copy to each other directly can hang without an error on some boards.",
        remedy: "On one host with several GPUs try NCCL_P2P_DISABLE=1 in `env`.",
        source: "field cases 2, 119, 142",
        example: "the step on GPUs did not end by its deadline",
    },
    Signature {
        code: "no-exit-event",
        sign: line(&["without an exit event"]),
        cause: "The supervisor of the rank was killed, so nobody could say how the rank ended.",
        remedy: "Look in the kernel log (dmesg) for the out-of-memory killer, and for whoever kills processes on the host.",
        source: "field case 103",
        example: "rank 1: the supervisor ended (signal 9) without an exit event",
    },
    Signature {
        code: "memlock",
        sign: one_of(&[], &["memlock", "rlimit_memlock"]),
        cause: "The session may lock too little memory for RDMA to register its buffers.",
        remedy: "Set `* - memlock unlimited` in /etc/security/limits.d, or --ulimit memlock=-1 for the container, and log \
                 in anew.",
        source: "field case 76",
        example: "failed to register 4194304 B: RLIMIT_MEMLOCK is 8192 KiB",
    },
    Signature {
        code: "no-shm-space",
        sign: one_of(&["/dev/shm"], &["no space left", "too small", "full"]),
        cause: "The host's shared memory is full, usually a container with the default of 64 MB.",
        remedy: "Free /dev/shm, or start the container with --shm-size=1g.",
        source: "tmpfs(5) ENOSPC",
        example: "failed to make the region in /dev/shm: No space left on device (os error 28)",
    },
    Signature {
        code: "disk-full",
        sign: line(&["no space left on device"]),
        cause: "A file system is full.",
        remedy: "Free space where the log says, or name another directory by --out.",
        source: "write(2) ENOSPC",
        example: "failed to write events.jsonl: No space left on device (os error 28)",
    },
    Signature {
        code: "open-files",
        sign: one_of(&[], &["too many open files"]),
        cause: "The process reached its limit of open files.",
        remedy: "Raise it with `ulimit -n 65536` in the shell that starts the run.",
        source: "open(2) EMFILE",
        example: "failed to accept: Too many open files (os error 24)",
    },
    Signature {
        code: "killed",
        sign: Sign::Signal(9),
        cause: "Somebody killed the rank; when nobody did, it was the kernel's out-of-memory killer.",
        remedy: "Look in `dmesg` for `Out of memory: Killed process`; on unified-memory machines run fewer or smaller ranks.",
        source: "field case 29; signal(7)",
        example: "signal 9",
    },
    Signature {
        code: "bus-error",
        sign: Sign::Signal(7),
        cause: "The rank touched a mapped page that could not be supplied: /dev/shm ran full after the mapping was made.",
        remedy: "Free /dev/shm, or start the container with --shm-size=1g.",
        source: "signal(7) SIGBUS",
        example: "signal 7",
    },
    Signature {
        code: "illegal-instruction",
        sign: Sign::Signal(4),
        cause: "The runner was built for a newer processor than this host's.",
        remedy: "Build without -C target-cpu=native, or on the host itself.",
        source: "signal(7) SIGILL",
        example: "signal 4",
    },
    Signature {
        code: "crash",
        sign: Sign::Signal(11),
        cause: "The rank crashed: a fault of the runner or of a library it loaded.",
        remedy: "Run again with the `host` backend; if that passes, compare the versions of driver and NCCL in the receipt.",
        source: "signal(7) SIGSEGV",
        example: "signal 11",
    },
];
