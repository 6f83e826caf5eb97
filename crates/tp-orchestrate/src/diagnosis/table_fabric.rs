//! Signatures of the fabric: port selection, verbs, NCCL, CUDA.

use super::{Sign, Signature};

const fn line(all: &'static [&'static str]) -> Sign {
    Sign::Line { all, any: &[] }
}

const fn one_of(all: &'static [&'static str], any: &'static [&'static str]) -> Sign {
    Sign::Line { all, any }
}

pub(super) const FABRIC: &[Signature] = &[
    Signature {
        code: "hca-bad-syntax",
        sign: line(&["bad-syntax"]),
        cause: "NCCL_IB_HCA or TF_TP_ROCE_HCA is written in a way that its reader would refuse or silently misread.",
        remedy: "Correct it at the position that the line names; `:N` is a port in NCCL_IB_HCA and a GID index in \
                 TF_TP_ROCE_HCA.",
        source: "field cases 49, 50",
        example: "bad-syntax: NCCL_IB_HCA: `^` inside the list at position 9",
    },
    Signature {
        code: "hca-mixed-modes",
        sign: line(&["mixed-modes"]),
        cause: "NCCL_IB_HCA and TF_TP_ROCE_HCA are both set and name different devices.",
        remedy: "Unset one of the two, or make them name the same devices.",
        source: "field case 50",
        example: "mixed-modes: NCCL_IB_HCA has rocep1s0f1, TF_TP_ROCE_HCA has rocep1s0f0",
    },
    Signature {
        code: "hca-unknown-device",
        sign: line(&["unknown-device"]),
        cause: "A variable names an RDMA device that this host does not have; names differ from host to host.",
        remedy: "Take the names from `rdma link` on that host and give them per host under [host.arms].",
        source: "field cases 22, 32",
        example: "unknown-device: TF_TP_ROCE_HCA names mlx5_7; this host has rocep1s0f0, rocep1s0f1",
    },
    Signature {
        code: "hca-port-down",
        sign: one_of(&[], &["port-down", "port 1 is not active"]),
        cause: "The port that is asked for has no link.",
        remedy: "Check the cable and the peer's port; `rdma link` must say state ACTIVE and physical_state LINK_UP.",
        source: "field cases 4, 26",
        example: "port-down: roceP2p1s0f0 port 1 is DOWN",
    },
    Signature {
        code: "hca-no-gid",
        sign: one_of(&[], &["no-gid"]),
        cause: "The port has no RoCE v2 GID of an address that could reach a peer.",
        remedy: "Give its network interface an address on the peer's subnet; link-local addresses alone do not count.",
        source: "field cases 5, 23, 55",
        example: "no-gid: rocep1s0f1 port 1 has link-local GIDs only",
    },
    Signature {
        code: "hca-wrong-link-layer",
        sign: line(&["wrong-link-layer"]),
        cause: "An InfiniBand port was named where RoCE needs an Ethernet port.",
        remedy: "Leave the port out of the variable, or switch its link layer with mlxconfig (LINK_TYPE).",
        source: "field cases 44, 46",
        example: "wrong-link-layer: mlx5_0 port 1 is InfiniBand",
    },
    Signature {
        code: "hca-no-shared-rail",
        sign: line(&["no-shared-rail"]),
        cause: "No port of one rank is on a subnet, or on a route, that leads to the other rank.",
        remedy: "Compare the ports' addresses and prefix lengths on both hosts (tp-orchestrate hca) with the cabling.",
        source: "field cases 1, 8, 20",
        example: "no-shared-rail: ranks 0 and 1 have no subnet or route in common",
    },
    Signature {
        code: "hca-disagree",
        sign: line(&["disagree:"]),
        cause: "One rank's variable names ports whose counterparts the other rank's choice leaves out.",
        remedy: "Name both ends of each rail, or set the variable on no host and let the pick decide.",
        source: "HCA selection rules",
        example: "disagree: rank 0 names rocep1s0f1, whose peer port rank 1 leaves out",
    },
    Signature {
        code: "nccl-picked-wrong-ports",
        sign: line(&["ibv_query_port_speed", "protocol not supported"]),
        cause: "NCCL chose its own ports instead of the picked ones, as it does with NCCL_IB_HCA unset.",
        remedy: "Hand NCCL the picked ports: NCCL_IB_HCA as the `hca` step prints it.",
        source: "field case 2",
        example: "NCCL WARN Call to ibv_query_port_speed failed with error Protocol not supported",
    },
    Signature {
        code: "nccl-no-interface",
        sign: line(&["no socket interface found"]),
        cause: "NCCL_SOCKET_IFNAME matches no interface; some builds do not know the exact form with a leading `=`.",
        remedy: "Unset NCCL_SOCKET_IFNAME, or give the interface's name without `=`.",
        source: "field case 136",
        example: "NCCL WARN Bootstrap : no socket interface found",
    },
    Signature {
        code: "nccl-duplicate-gpu",
        sign: line(&["duplicate gpu detected"]),
        cause: "Two ranks use the same GPU and look like one host to NCCL.",
        remedy: "List one GPU a rank in `gpus`; to share one on purpose give each rank its own NCCL_HOSTID.",
        source: "NCCL's communicator init",
        example: "NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
    },
    Signature {
        code: "nccl-missing",
        sign: one_of(&["libnccl"], &["cannot open shared object", "not found"]),
        cause: "The NCCL library is not on this host or not where the loader looks.",
        remedy: "Install libnccl2, or name the file by TF_NCCL_LIB.",
        source: "dlopen(3)",
        example: "libnccl.so.2: cannot open shared object file: No such file or directory",
    },
    Signature {
        code: "driver-too-old",
        sign: line(&["driver version is insufficient"]),
        cause: "The CUDA driver is older than the CUDA that a library was built for, or there is no driver.",
        remedy: "Install the driver that the library needs (580 or newer for CUDA 13).",
        source: "CUDA error 35",
        example: "CUDA driver version is insufficient for CUDA runtime version",
    },
    Signature {
        code: "no-kernel",
        sign: one_of(
            &["kernel"],
            &[
                "nokernel",
                "kernels: none",
                "built without kernels",
                "without kernels",
            ],
        ),
        cause: "This runner was built without its GPU kernels: no nvcc was found at build time.",
        remedy: "Build where nvcc is (or TP_NVCC names it) with TP_KERNELS=require.",
        source: "field case 100",
        example: "mailbox: this binary was built without kernels",
    },
    Signature {
        code: "verbs-empty-gid",
        sign: one_of(&["errno 61"], &[]),
        cause: "The GID index that was used is an empty entry of the table: indexes drift with every link event.",
        remedy: "Unset NCCL_IB_GID_INDEX and give no index in TF_TP_ROCE_HCA; the index is looked up at every start.",
        source: "ENODATA from modify_qp; field cases 55, 59",
        example: "failed to modify_qp to RTR: rocep1s0f0 port 1 GID 3: errno 61 (No data available)",
    },
    Signature {
        code: "verbs-unreachable",
        sign: one_of(&["modify_qp"], &["errno 110", "connection timed out"]),
        cause: "The address behind the peer's GID does not answer: these two ports are not connected to each other.",
        remedy: "Check which cable goes where; on rail-only fabrics set NCCL_CROSS_NIC=0.",
        source: "field case 37; ETIMEDOUT from modify_qp",
        example: "Call to ibv_modify_qp failed with 110 Connection timed out",
    },
    Signature {
        code: "verbs-retry-exceeded",
        sign: one_of(
            &[],
            &[
                "retry_exc",
                "retry exceeded",
                "status 12",
                "transport retry counter exceeded",
            ],
        ),
        cause: "The peer's adapter stopped acknowledging: the path was cut, or the MTU of the two ends differs.",
        remedy: "Compare active_mtu and the interface MTU of both ends and test with ping -M do -s 8972.",
        source: "IBV_WC_RETRY_EXC_ERR; field case 140",
        example: "completion with status 12 (RETRY_EXC_ERR) from rocep1s0f0",
    },
    Signature {
        code: "no-uverbs",
        sign: one_of(&[], &["/dev/infiniband", "uverbs"]),
        cause: "The devices are visible in sysfs and cannot be opened: the container was not given them.",
        remedy: "Start the container with --device /dev/infiniband.",
        source: "field case 74",
        example: "rocep1s0f0 is visible in sysfs, cannot open uverbs: pass --device /dev/infiniband",
    },
    Signature {
        code: "nccl-system-error",
        sign: line(&["unhandled system error"]),
        cause: "A system call or verbs call below NCCL failed; the line before it in NCCL's log says which.",
        remedy: "Run again with NCCL_DEBUG=WARN in `env` and read the line before; most often the ports are wrong.",
        source: "field case 2",
        example: "ncclAllGather: unhandled system error",
    },
    Signature {
        code: "out-of-memory",
        sign: one_of(&[], &["cannot allocate memory", "out of memory"]),
        cause: "The host or the GPU has not enough free memory for what was asked.",
        remedy: "End what else uses it; on unified-memory machines CPU and GPU share it.",
        source: "field case 29; ENOMEM",
        example: "failed to map 1073741824 B: Cannot allocate memory (os error 12)",
    },
    Signature {
        code: "peer-silent",
        sign: line(&["no heartbeat for"]),
        cause: "The named rank gave no sign of life although its connection stands: it is stopped, its host is frozen, or the \
                link is cut.",
        remedy: "Look at the named host: is it up, is the process stopped (state T in ps), is the cable in?",
        source: "the fate channel's heartbeats",
        example: "rank 1 on b failed in phase `run`: no heartbeat for 3.0 s: it is stopped, cut off or without power",
    },
    Signature {
        code: "peer-lost",
        sign: line(&["went away without a clean stop"]),
        cause: "The named rank ended or was killed while the others were still at work; they left because of it.",
        remedy: "Read the named rank's own log: what ended it stands there, not in this one.",
        source: "field case 112; the fate channel",
        example: "rank 1 on b failed in phase `run`: went away without a clean stop (end of stream): it failed, exited or \
                  was killed",
    },
];
