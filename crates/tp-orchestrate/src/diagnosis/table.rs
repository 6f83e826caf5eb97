//! Signatures of the start of ranks and of the control plane.

use super::{Sign, Signature};

const fn line(all: &'static [&'static str], any: &'static [&'static str]) -> Sign {
    Sign::Line { all, any }
}

pub(super) const START: &[Signature] = &[
    Signature {
        code: "wrong-architecture",
        sign: line(&[], &["exec format error"]),
        cause: "The runner was built for another processor architecture than this host's.",
        remedy: "Build the runner for the host's system (aarch64-linux on GB10, x86_64-linux elsewhere) and name \
                it by --runner or `system`.",
        source: "field case 101; execve(2) ENOEXEC",
        example: "host twin-a: failed to start rank 1 (/opt/tf-tp-test): Exec format error (os error 8)",
    },
    Signature {
        code: "runner-busy",
        sign: line(&[], &["text file busy"]),
        cause: "The runner's file is being written to, or a copy is replacing it in place, while it is to be \
                started.",
        remedy: "Wait for the copy to end; replace a runner by renaming a new file over it, never by writing \
                into it.",
        source: "field case 98; execve(2) ETXTBSY",
        example: "host twin-a: failed to start rank 1 (/opt/tf-tp-test): Text file busy (os error 26)",
    },
    Signature {
        code: "container-engine-denied",
        sign: line(
            &[],
            &[
                "permission denied while trying to connect to the docker daemon",
                "cannot connect to the docker daemon",
            ],
        ),
        cause: "`run_prefix` starts a container and this user may not, or the engine does not run there.",
        remedy: "Add the user to the engine's group on that host (usermod -aG docker USER, then log in anew), or \
                use a rootless engine in `run_prefix`.",
        source: "container engine's own message",
        example: "permission denied while trying to connect to the Docker daemon socket at \
                unix:///var/run/docker.sock: dial unix /var/run/docker.sock: connect: permission denied",
    },
    Signature {
        code: "container-no-gpu",
        sign: line(
            &[],
            &[
                "could not select device driver",
                "nvidia-container-cli",
                "unknown or invalid runtime name: nvidia",
            ],
        ),
        cause: "The container engine cannot give GPUs to containers: NVIDIA's container toolkit is missing or \
                not configured.",
        remedy: "Install nvidia-container-toolkit on that host and run `nvidia-ctk runtime configure`, or leave \
                --gpus out of `run_prefix`.",
        source: "container engine's own message",
        example: "docker: Error response from daemon: could not select device driver \"\" with capabilities: \
                [[gpu]].",
    },
    Signature {
        code: "container-no-image",
        sign: line(
            &[],
            &[
                "unable to find image",
                "manifest unknown",
                "pull access denied",
                "no such image",
            ],
        ),
        cause: "The image that `run_prefix` names is not on that host and cannot be fetched.",
        remedy: "Fetch it on every host first (docker pull IMAGE), or correct its name in `run_prefix`.",
        source: "container engine's own message",
        example: "Unable to find image 'your-image-with-cuda-and-nccl:latest' locally",
    },
    Signature {
        code: "libc-too-old",
        sign: line(&["glibc_"], &["not found"]),
        cause: "The host's C library is older than the one that the runner was built against.",
        remedy: "Build the runner on the oldest system of the cluster, or take the portable binary; inside \
                `run_prefix` the container's library counts.",
        source: "ld.so(8)",
        example: "/opt/tp-bringup/tf-tp-test: /lib/x86_64-linux-gnu/libc.so.6: version `GLIBC_2.34' not found \
                (required by /opt/tp-bringup/tf-tp-test)",
    },
    Signature {
        code: "runner-not-executable",
        sign: line(&["failed to start"], &["permission denied"]),
        cause: "The runner's file is not executable, or its file system is mounted noexec.",
        remedy: "Run chmod +x on it, or put it on a file system without noexec.",
        source: "execve(2) EACCES",
        example: "host twin-a: failed to start rank 1 (/tmp/tf-tp-test): Permission denied (os error 13)",
    },
    Signature {
        code: "runner-missing",
        sign: line(&["failed to start"], &["no such file or directory"]),
        cause: "The runner is not where the plan starts it, or the loader that it names does not exist on this \
                host.",
        remedy: "Build it (cargo build -p tf-tp-test), or name it by --runner; on NixOS use the portable \
                binary.",
        source: "execve(2) ENOENT",
        example: "host twin-a: failed to start rank 1 (/opt/tf-tp-test): No such file or directory (os error 2)",
    },
    Signature {
        code: "slurm-no-controller",
        sign: line(
            &[],
            &["unable to contact slurm controller", "slurm_load_ctl_conf error"],
        ),
        cause: "The machine that starts the ranks does not reach Slurm's controller.",
        remedy: "Look at `scontrol ping` and `systemctl status slurmctld`; srun must run where slurm.conf names \
                the right controller.",
        source: "srun(1)",
        example: "srun: error: Unable to allocate resources: Unable to contact slurm controller (connect \
                failure)",
    },
    Signature {
        code: "slurm-cannot-allocate",
        sign: line(
            &["srun: error"],
            &[
                "requested node configuration is not available",
                "invalid node name",
                "more processors requested than permitted",
                "invalid account or account/partition",
                "required node not available",
            ],
        ),
        cause: "Slurm does not give the nodes or the tasks that the inventory asks for.",
        remedy: "Compare the hosts' names with `sinfo -N`, and tasks and GPUs a node with `scontrol show node \
                NAME`; inside an allocation (salloc) only its nodes count.",
        source: "srun(1)",
        example: "srun: error: Unable to allocate resources: Requested node configuration is not available",
    },
    Signature {
        code: "port-in-use",
        sign: line(&[], &["address already in use", "is in use on this host"]),
        cause: "Another process took rank 0's TCP port between the moment it was found free and the moment rank \
                0 listened.",
        remedy: "Run the step again; if it comes back, look with `ss -ltnp` for the process that takes random \
                ports.",
        source: "bind(2) EADDRINUSE",
        example: "[0] ERROR: port 52337 is in use on this host: another run or program listens there; choose \
                another TF_TP_PORT for all ranks",
    },
    Signature {
        code: "secret-wrong",
        sign: line(&["secret"], &["differs", "does not know", "does not prove"]),
        cause: "A rank holds another session secret: it belongs to another run, or TF_TP_SECRET was set by \
                hand.",
        remedy: "Look for leftovers of an earlier run on the hosts (tp-orchestrate doctor) and end them; do not \
                set TF_TP_SECRET in the inventory.",
        source: "design of the bootstrap",
        example: "[1] ERROR: 127.0.0.1:29480 does not answer as rank 0 of this session: it does not know the \
                secret: TF_TP_SECRET differs",
    },
    Signature {
        code: "session-differs",
        sign: line(&["this is session"], &["came for session"]),
        cause: "Two runs meet on one port: a rank of one came to rank 0 of another.",
        remedy: "Let one run end before the next begins on the same hosts, or look for leftovers (tp-orchestrate \
                doctor).",
        source: "design of the bootstrap; field case 115",
        example: "[1] ERROR: rank 0 on 127.0.0.1 refused this rank: this is session `a`, rank 1 came for session \
                `b`",
    },
    Signature {
        code: "not-rank-zero",
        sign: line(
            &["does not answer as rank 0"],
            &["another program", "accepts connections"],
        ),
        cause: "Something else answers at rank 0's address and port: a proxy, a firewall that answers itself, \
                or another service.",
        remedy: "Check that `fabric` of rank 0's host is an address of that host (ip address), and that no proxy \
                lies between the hosts.",
        source: "field case 115",
        example: "[1] ERROR: 203.0.113.9:29477 does not answer as rank 0 of this session: another program answers \
                on this port",
    },
    Signature {
        code: "unknown-host-name",
        sign: line(
            &[],
            &[
                "failed to resolve the master",
                "name or service not known",
                "temporary failure in name resolution",
            ],
        ),
        cause: "A host's name is not known on another host: names that the workstation resolves need not be \
                known there.",
        remedy: "Give `fabric` as an address, or put the name into /etc/hosts of every host.",
        source: "getaddrinfo(3) EAI_NONAME",
        example: "[1] ERROR: failed to resolve the master `nobody.invalid` within 3.0 s: failed to lookup address \
                information: Name or service not known; set TF_TP_MASTER to rank 0's address",
    },
    Signature {
        code: "rank0-refused",
        sign: line(&["reach rank 0"], &["closed (refused)", "connection refused"]),
        cause: "Nothing listened at rank 0's address and port: rank 0 ended before, or `fabric` names another \
                machine.",
        remedy: "Look at rank 0's own log first; then check that `fabric` of rank 0's host is an address of that \
                host.",
        source: "field case 79; connect(2) ECONNREFUSED",
        example: "[1] ERROR: failed to reach rank 0 at 192.0.2.1 port 29477 within 60.0 s: 192.0.2.1: closed \
                (refused): rank 0 is not started, or listens on another port",
    },
    Signature {
        code: "rank0-filtered",
        sign: line(
            &["reach rank 0"],
            &[
                "filtered (no answer)",
                "no route:",
                "no route to host",
                "network is unreachable",
                "host is unreachable",
                "timed out",
            ],
        ),
        cause: "No answer from rank 0's address: a firewall drops the packets, or there is no route to it.",
        remedy: "Open the step's TCP ports between the hosts (ufw, nftables), and check `ip route get ADDRESS`; \
                where a third host forwards, its FORWARD policy must accept (Docker sets it to DROP).",
        source: "field cases 79, 80; connect(2) ETIMEDOUT, EHOSTUNREACH, ENETUNREACH",
        example: "[1] ERROR: failed to reach rank 0 at 192.0.2.1 port 29500 within 60.0 s: 192.0.2.1: filtered \
                (no answer): a firewall drops it, or the host is down",
    },
    Signature {
        code: "address-not-here",
        sign: line(&[], &["cannot assign requested address"]),
        cause: "A rank was to use an address that its host does not have: it was moved, or the inventory names \
                another machine's.",
        remedy: "Compare `fabric` with `ip address` on that host; an address set by hand is lost with a reboot \
                unless netplan or nmcli keeps it.",
        source: "field cases 10, 140; bind(2) EADDRNOTAVAIL",
        example: "[0] ERROR: failed to listen on 192.0.2.1:29500: Cannot assign requested address (os error 99)",
    },
    Signature {
        code: "nccl-version-differs",
        sign: line(&["ranks differ in", "nccl"], &["version"]),
        cause: "The ranks load different versions of NCCL.",
        remedy: "Give every host the same libnccl (tp-orchestrate doctor lists host, version and file), or name \
                one file by TF_NCCL_LIB in `env`.",
        source: "field cases 95, 143",
        example: "[1] ERROR: the ranks differ in nccl_version: `2.28.9` (rank 0 on spark-a), `2.30.7` (rank 1 on \
                spark-b)",
    },
    Signature {
        code: "kernels-differ",
        sign: line(&["ranks differ in"], &["kernel", "image_sha256"]),
        cause: "The ranks' runners have different GPU kernels in them, or one was given another image.",
        remedy: "Put the same runner on every host and unset TF_TP_KERNEL_IMAGE.",
        source: "field case 97",
        example: "[1] ERROR: the ranks differ in kernel_image: `4f1c` (rank 0 on a), `9a20` (rank 1 on b)",
    },
    Signature {
        code: "binary-differs",
        sign: line(&["binary"], &["differ", "mismatch", "not the same"]),
        cause: "The ranks run different builds of the runner; equal version strings do not make them equal.",
        remedy: "Put the same file on every host (compare sha256sum) and run again.",
        source: "field case 97",
        example: "[1] ERROR: the ranks differ in binary_sha256: `4f1c` (rank 0 on a), `9a20` (rank 1 on b)",
    },
    Signature {
        code: "settings-differ",
        sign: line(&["ranks differ in"], &["tf_tp_", "tf_comm_", "settings"]),
        cause: "The ranks were started with different values of a setting that must be equal.",
        remedy: "Give the named variable to every host in [defaults] env, not to one of them.",
        source: "design of the bootstrap's agreement",
        example: "[1] ERROR: the ranks differ in TF_TP_MAILBOX_MAX_KB: `256` (rank 0 on a), `512` (rank 1 on b)",
    },
    Signature {
        code: "lease-lost",
        sign: line(&["lease"], &["no beat", "lost", "input closed", "standard input"]),
        cause: "The orchestrator was gone or silent for 15 s, so the rank left.",
        remedy: "Run again with --resume DIR; keep the workstation awake while a run is under way.",
        source: "field case 107",
        example: "[1] ERROR: leaving with exit 70: the lease was lost: no beat for 15 s",
    },
];
