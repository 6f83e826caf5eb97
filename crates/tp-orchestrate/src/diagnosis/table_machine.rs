//! Signatures of the machine: memory, files, devices, signals.

use super::{Sign, Signature};

const fn line(all: &'static [&'static str], any: &'static [&'static str]) -> Sign {
    Sign::Line { all, any }
}

pub(super) const MACHINE: &[Signature] = &[
    Signature {
        code: "memlock",
        sign: line(&[], &["memlock", "limit of locked memory"]),
        cause: "The session may lock too little memory for RDMA to register its buffers.",
        remedy: "Set `* - memlock unlimited` in /etc/security/limits.d, LimitMEMLOCK=infinity for a service \
                (slurmd, sshd), or --ulimit memlock=-1 for the container, and log in anew.",
        source: "field case 76",
        example: "[1] ERROR: failed to register memory (ibv_reg_mr): device rocep1s0f1, port 1: Cannot allocate \
                memory (errno 12): the limit of locked memory is too low here: ulimit -l unlimited, or memlock \
                of the service or container; library /usr/lib/aarch64-linux-gnu/libibverbs.so.1.14.50.0",
    },
    Signature {
        code: "no-shm-space",
        sign: line(&["/dev/shm"], &["no space left", "too small", "full"]),
        cause: "The host's shared memory is full, usually a container with the default of 64 MB.",
        remedy: "Free /dev/shm, start the container with --shm-size=1g, or do without it: TF_TP_ROCE_WIRE=tcp in \
                `env`.",
        source: "tmpfs(5) ENOSPC",
        example: "[0] ERROR: rank 0: failed to open the host backend: /dev/shm: No space left on device (os error \
                28): make it larger (mount -o remount,size=1G /dev/shm, for containers --shm-size=1g), or set \
                TF_TP_ROCE_WIRE=tcp",
    },
    Signature {
        code: "shm-read-only",
        sign: line(&["/dev/shm"], &["read-only file system", "permission denied"]),
        cause: "Ranks of one host may not write to /dev/shm: it is mounted read-only, as in containers with \
                --read-only.",
        remedy: "Mount it writable (--tmpfs /dev/shm:rw,size=1g for the container, mount -o remount,rw \
                /dev/shm), or set TF_TP_ROCE_WIRE=tcp in `env`.",
        source: "shm_open(3) EROFS",
        example: "[1] ERROR: rank 1: failed to open the host backend: /dev/shm: Read-only file system (os error \
                30): make it writable (mount -o remount,rw /dev/shm), or set TF_TP_ROCE_WIRE=tcp",
    },
    Signature {
        code: "disk-full",
        sign: line(&[], &["no space left on device", "disk quota exceeded"]),
        cause: "A file system is full.",
        remedy: "Free space where the log says, or name another directory by --out.",
        source: "write(2) ENOSPC, EDQUOT",
        example: "failed to write events.jsonl: No space left on device (os error 28)",
    },
    Signature {
        code: "open-files",
        sign: line(&[], &["too many open files"]),
        cause: "The process reached its limit of open files.",
        remedy: "Raise it with `ulimit -n 65536` in the shell that starts the run.",
        source: "open(2) EMFILE",
        example: "[0] ERROR: failed to accept: Too many open files (os error 24)",
    },
    Signature {
        code: "threads-limit",
        sign: line(&["thread"], &["resource temporarily unavailable"]),
        cause: "The user, or the container, may start no more threads.",
        remedy: "Raise `ulimit -u`, pids.max of the container (--pids-limit=-1), or TasksMax of the service.",
        source: "clone(2) EAGAIN",
        example: "[1] ERROR: failed to start the lease thread: Resource temporarily unavailable (os error 11)",
    },
    Signature {
        code: "no-uverbs",
        sign: line(&[], &["/dev/infiniband", "uverbs"]),
        cause: "The devices are visible in sysfs and cannot be opened: the container was not given them, or the \
                user may not.",
        remedy: "Start the container with --device /dev/infiniband; on the host load ib_uverbs and give the user \
                read and write access to /dev/infiniband/uverbs*.",
        source: "field case 74",
        example: "[0] ERROR: rocep1s0f0 visible in sysfs, but there is no /dev/infiniband/uverbs*: pass --device \
                /dev/infiniband to the container, or load the kernel module ib_uverbs",
    },
    Signature {
        code: "reg-mr-nomem",
        sign: line(&["reg_mr", "cannot allocate memory"], &[]),
        cause: "Memory could not be registered although little was asked for: the locked-memory limit, or a \
                kernel whose contiguous memory area is empty (CmaTotal 0).",
        remedy: "Compare `ulimit -l` in the session used and `grep Cma /proc/meminfo`; with CmaTotal 0 boot \
                another kernel.",
        source: "field notes on kernel 7.0.0-1019; ibv_reg_mr ENOMEM",
        example: "[0] NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory",
    },
    Signature {
        code: "pcie-power",
        sign: line(&[], &["insufficient power on the pcie slot"]),
        cause: "The adapter says that its slot gives too little power and throttles: firmware or driver, not \
                MTU or TCP.",
        remedy: "Update the adapter's firmware and the kernel, and compare both rails together with one rail: \
                equal figures are a throttle. The line stays in dmesg after the fix and is no fault alone.",
        source: "field case 28",
        example: "mlx5_core 0000:01:00.0: Detected insufficient power on the PCIe slot (27W).",
    },
    Signature {
        code: "killed",
        sign: Sign::Signal(9),
        cause: "Somebody killed the rank; when nobody did, it was the kernel's out-of-memory killer.",
        remedy: "Look in `dmesg` for `Out of memory: Killed process`; on unified-memory machines run fewer or \
                smaller ranks.",
        source: "field case 29; signal(7)",
        example: "signal 9",
    },
    Signature {
        code: "bus-error",
        sign: Sign::Signal(7),
        cause: "The rank touched a mapped page that could not be supplied: /dev/shm ran full after the mapping \
                was made.",
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
        remedy: "Run again with the `host` backend; if that passes, compare the versions of driver and NCCL in \
                the receipt.",
        source: "signal(7) SIGSEGV",
        example: "signal 11",
    },
];
