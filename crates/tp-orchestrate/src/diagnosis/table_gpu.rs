//! Signatures of CUDA and NCCL.

use super::{Sign, Signature};

const fn line(all: &'static [&'static str], any: &'static [&'static str]) -> Sign {
    Sign::Line { all, any }
}

pub(super) const GPU: &[Signature] = &[
    Signature {
        code: "nccl-picked-wrong-ports",
        sign: line(&["ibv_query_port_speed", "protocol not supported"], &[]),
        cause: "NCCL chose its own ports instead of the picked ones, as it does with NCCL_IB_HCA unset (NCCL \
                selection).",
        remedy: "Hand NCCL the picked ports: NCCL_IB_HCA as the `hca` step prints it.",
        source: "field case 2",
        example: "[0] NCCL WARN Call to ibv_query_port_speed failed with error Protocol not supported",
    },
    Signature {
        code: "nccl-no-interface",
        sign: line(&["no socket interface found"], &[]),
        cause: "NCCL_SOCKET_IFNAME matches no interface; some builds do not know the exact form with a leading \
                `=`.",
        remedy: "Unset NCCL_SOCKET_IFNAME, or give the interface's name without `=`.",
        source: "field cases 136, 137",
        example: "[0] NCCL WARN Bootstrap : no socket interface found",
    },
    Signature {
        code: "nccl-duplicate-gpu",
        sign: line(&["duplicate gpu detected"], &[]),
        cause: "Two ranks use the same GPU and look like one host to NCCL.",
        remedy: "List one GPU a rank in `gpus`; to share one on purpose give each rank its own NCCL_HOSTID.",
        source: "NCCL's communicator init",
        example: "[1] NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    },
    Signature {
        code: "nccl-too-old-function",
        sign: line(&["nccl"], &["has no such function"]),
        cause: "The NCCL on this host is older than what the runner calls.",
        remedy: "Install NCCL 2.28 or newer, or name a newer file by TF_NCCL_LIB; a wheel's library in \
                LD_LIBRARY_PATH may hide the system's.",
        source: "dlsym(3)",
        example: "[0] ERROR: failed to call ncclCommRevoke: /usr/lib/x86_64-linux-gnu/libnccl.so.2 (NCCL 2.27.7) \
                has no such function; a newer NCCL is needed",
    },
    Signature {
        code: "nccl-missing",
        sign: line(
            &["libnccl"],
            &["cannot open shared object", "not found", "failed to load"],
        ),
        cause: "The NCCL library is not on this host or not where the loader looks.",
        remedy: "Install libnccl2, or name the file by TF_NCCL_LIB.",
        source: "dlopen(3)",
        example: "[0] ERROR: failed to load libnccl: tried libnccl.so.2: libnccl.so.2: cannot open shared object \
                file: No such file or directory; install NCCL 2.28 or newer (libnccl2, or nvidia-nccl-cu13 of \
                PyPI), or name the file in TF_NCCL_LIB",
    },
    Signature {
        code: "nccl-remote-gone",
        sign: line(
            &[],
            &[
                "remote process exited or there was a network error",
                "connection closed by remote peer",
            ],
        ),
        cause: "NCCL lost a peer's connection: that process ended, and this rank only noticed.",
        remedy: "Read the other ranks' logs for the one that ended first; its own last lines say why.",
        source: "ncclRemoteError; field case 112",
        example: "[0] ERROR: failed to call ncclCommGetAsyncError: remote process exited or there was a network \
                error (code 6)",
    },
    Signature {
        code: "nccl-system-error",
        sign: line(&["unhandled system error"], &[]),
        cause: "A system call or verbs call below NCCL failed; the line before it in NCCL's log says which.",
        remedy: "Run again with NCCL_DEBUG=WARN in `env` and read the line before; most often the ports are \
                wrong.",
        source: "field case 2",
        example: "[0] ERROR: ncclAllGather: unhandled system error (run with NCCL_DEBUG=INFO for details)",
    },
    Signature {
        code: "gpu-lost",
        sign: line(
            &[],
            &[
                "fallen off the bus",
                "cuda_error_ecc_uncorrectable",
                "uncorrectable ecc error",
                "nvrm: xid",
            ],
        ),
        cause: "The GPU itself failed; the driver's message has its number (Xid).",
        remedy: "Look up the Xid in `dmesg`; reset the GPU (nvidia-smi --gpu-reset) or reboot, and have the \
                board checked when it comes back.",
        source: "driver's own message",
        example: "NVRM: Xid (PCI:0000:01:00): 79, pid=4711, name=tf-tp-test, GPU has fallen off the bus.",
    },
    Signature {
        code: "cuda-illegal-address",
        sign: line(&[], &["illegal memory access", "cuda_error_illegal_address"]),
        cause: "A kernel touched memory that is not its own; every later CUDA call of that process reports it \
                too.",
        remedy: "Run again with CUDA_LAUNCH_BLOCKING=1 in `env` for the first failing call, and keep the receipt \
                for a report.",
        source: "CUDA error 700",
        example: "[1] ERROR: failed to wait for the stream: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access \
                was encountered",
    },
    Signature {
        code: "no-gpu",
        sign: line(
            &[],
            &[
                "no cuda-capable device is detected",
                "cuda_error_no_device",
                "no gpu is visible",
            ],
        ),
        cause: "The driver is there and shows no GPU to this process.",
        remedy: "Look at CUDA_VISIBLE_DEVICES and `nvidia-smi -L` on that host; in a container use --gpus all.",
        source: "CUDA error 100",
        example: "[0] ERROR: failed to find a GPU: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected",
    },
    Signature {
        code: "no-kernel-for-gpu",
        sign: line(&["kernel image"], &["no kernel image is available"]),
        cause: "The runner's kernels were not compiled for this GPU's architecture.",
        remedy: "Build with the GPU's architecture in TP_CUDA_ARCHS; `tf-tp-test --version` lists those that are \
                in.",
        source: "CUDA error 209; field case 100",
        example: "[0] ERROR: failed to load the kernels: CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is \
                available for execution on the device",
    },
    Signature {
        code: "driver-stub",
        sign: line(&[], &["cuda_error_stub_library", "toolkit's stub"]),
        cause: "The toolkit's stub of libcuda was loaded instead of the driver's own library.",
        remedy: "Take the folder `stubs` off LD_LIBRARY_PATH, or name the driver's file by TF_CUDA_LIB.",
        source: "CUDA error 34",
        example: "[0] ERROR: cuInit gave error 34: that is the toolkit's stub: take its folder off \
                LD_LIBRARY_PATH, or name the driver's file in TF_CUDA_LIB",
    },
    Signature {
        code: "driver-mismatch",
        sign: line(
            &[],
            &[
                "driver/library version mismatch",
                "cuda_error_system_driver_mismatch",
            ],
        ),
        cause: "The driver's library and its kernel module are of different versions, as after an update \
                without a reboot.",
        remedy: "Reboot the host; in a container use the host's driver files, which --gpus all mounts.",
        source: "CUDA error 803",
        example: "[0] ERROR: cuInit gave error 803: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH: system has unsupported \
                display driver / cuda driver combination",
    },
    Signature {
        code: "driver-too-old",
        sign: line(&["driver version is insufficient"], &[]),
        cause: "The CUDA driver is older than the CUDA that a library was built for, or there is no driver.",
        remedy: "Install the driver that the library needs (580 or newer for CUDA 13).",
        source: "CUDA error 35",
        example: "[0] ERROR: CUDA driver version is insufficient for CUDA runtime version",
    },
    Signature {
        code: "no-kernel",
        sign: line(
            &["kernel"],
            &[
                "nokernel",
                "kernels: none",
                "built without kernels",
                "without kernels",
                "has no gpu kernels",
                "needs gpu kernels",
            ],
        ),
        cause: "This runner was built without its GPU kernels: no nvcc was found at build time.",
        remedy: "Build where nvcc is (or TP_NVCC names it) with TP_KERNELS=require.",
        source: "field case 100",
        example: "[0] ERROR: backend mailbox needs GPU kernels: this build has no GPU kernels; backend host runs \
                without",
    },
    Signature {
        code: "gpu-step-deadline",
        sign: line(&["the step on gpus", "did not end by its deadline"], &[]),
        cause: "GPUs of one host that copy to each other directly can hang without an error on some boards.",
        remedy: "On one host with several GPUs try NCCL_P2P_DISABLE=1 in `env`.",
        source: "field cases 2, 119, 142",
        example: "the step on GPUs did not end by its deadline",
    },
    Signature {
        code: "out-of-memory",
        sign: line(
            &[],
            &[
                "cannot allocate memory",
                "out of memory",
                "are available: measure smaller",
            ],
        ),
        cause: "The host or the GPU has not enough free memory for what was asked.",
        remedy: "End what else uses it, or measure smaller --sizes; on unified-memory machines CPU and GPU share \
                it.",
        source: "field case 29; ENOMEM",
        example: "[0] ERROR: size 16 GiB needs 98304 MiB on this host (2 ranks of 49152 MiB), 90112 MiB are \
                available: measure smaller --sizes",
    },
];
