//! Signatures of port selection and verbs.

use super::{Sign, Signature};

const fn line(all: &'static [&'static str], any: &'static [&'static str]) -> Sign {
    Sign::Line { all, any }
}

pub(super) const FABRIC: &[Signature] = &[
    Signature {
        code: "hca-bad-syntax",
        sign: line(&["bad-syntax"], &[]),
        cause: "NCCL_IB_HCA or TF_TP_ROCE_HCA is written in a way that its reader would refuse or silently \
                misread.",
        remedy: "Correct it at the position that the line names; `:N` is a port in NCCL_IB_HCA and a GID index \
                in TF_TP_ROCE_HCA.",
        source: "field cases 49, 50",
        example: "[0] ERROR: bad-syntax: NCCL_IB_HCA: `^` inside the list at position 9",
    },
    Signature {
        code: "hca-mixed-modes",
        sign: line(&["mixed-modes"], &[]),
        cause: "NCCL_IB_HCA and TF_TP_ROCE_HCA are both set and name different devices.",
        remedy: "Unset one of the two, or make them name the same devices.",
        source: "field case 50",
        example: "[0] ERROR: mixed-modes: NCCL_IB_HCA has rocep1s0f1, TF_TP_ROCE_HCA has rocep1s0f0",
    },
    Signature {
        code: "hca-unknown-device",
        sign: line(&["unknown-device"], &[]),
        cause: "A variable names an RDMA device that this host does not have; names differ from host to host.",
        remedy: "Take the names from `rdma link` on that host and give them per host under [host.arms].",
        source: "field cases 22, 32",
        example: "[1] ERROR: unknown-device: TF_TP_ROCE_HCA names mlx5_7; this host has rocep1s0f0, rocep1s0f1",
    },
    Signature {
        code: "hca-port-down",
        sign: line(&[], &["port-down", "port 1 is not active"]),
        cause: "The port that is asked for has no link.",
        remedy: "Check the cable and the peer's port; `rdma link` must say state ACTIVE and physical_state \
                LINK_UP.",
        source: "field cases 4, 26",
        example: "[0] ERROR: port-down: roceP2p1s0f0 port 1 is DOWN",
    },
    Signature {
        code: "hca-no-gid",
        sign: line(&[], &["no-gid"]),
        cause: "The port has no RoCE v2 GID of an address that could reach a peer.",
        remedy: "Give its network interface an address on the peer's subnet; link-local addresses alone do not \
                count.",
        source: "field cases 5, 23, 55",
        example: "[0] ERROR: no-gid: rocep1s0f1 port 1 has link-local GIDs only",
    },
    Signature {
        code: "hca-wrong-link-layer",
        sign: line(&["wrong-link-layer"], &[]),
        cause: "An InfiniBand port was named where RoCE needs an Ethernet port.",
        remedy: "Leave the port out of the variable, or switch its link layer with mlxconfig (LINK_TYPE).",
        source: "field cases 44, 46",
        example: "[0] ERROR: wrong-link-layer: mlx5_0 port 1 is InfiniBand",
    },
    Signature {
        code: "hca-no-shared-rail",
        sign: line(&["no-shared-rail"], &[]),
        cause: "No port of one rank is on a subnet, or on a route, that leads to the other rank.",
        remedy: "Compare the ports' addresses and prefix lengths on both hosts (tp-orchestrate hca) with the \
                cabling; in a ring without a switch every two ranks need a cable of their own.",
        source: "field cases 1, 8, 13, 20",
        example: "[0] ERROR: no-shared-rail: ranks 0 and 1 have no subnet or route in common",
    },
    Signature {
        code: "hca-disagree",
        sign: line(&["disagree:"], &[]),
        cause: "One rank's variable names ports whose counterparts the other rank's choice leaves out.",
        remedy: "Name both ends of each rail, or set the variable on no host and let the pick decide.",
        source: "HCA selection rules",
        example: "[0] ERROR: disagree: rank 0 names rocep1s0f1, whose peer port rank 1 leaves out",
    },
    Signature {
        code: "gid-changed",
        sign: line(&[], &["gid changed", "gid_change"]),
        cause: "The addresses of a port changed while the run was under way: a link event, netplan, or a second \
                program that configures it.",
        remedy: "Let the network settle and run again; keep NetworkManager or netplan from touching the port \
                during a run.",
        source: "field case 61; IBV_EVENT_GID_CHANGE",
        example: "[1] ERROR: GID changed on spark-b: device rocep1s0f1, port 1, GID 3: the run cannot go on",
    },
    Signature {
        code: "verbs-empty-gid",
        sign: line(&["errno 61"], &[]),
        cause: "The GID index that was used is an empty entry of the table: indexes drift with every link \
                event.",
        remedy: "Unset NCCL_IB_GID_INDEX and give no index in TF_TP_ROCE_HCA; the index is looked up at every \
                start.",
        source: "ENODATA from modify_qp; field cases 55, 58, 59",
        example: "[0] ERROR: failed to connect the queue pair (ibv_modify_qp): device rocep1s0f0, port 1, GID 3: \
                No data available (errno 61): the GID entry is empty: addresses changed since it was read, \
                resolve the index again; library /usr/lib/aarch64-linux-gnu/libibverbs.so.1.14.50.0",
    },
    Signature {
        code: "verbs-unreachable",
        sign: line(
            &["modify_qp"],
            &["errno 110", "connection timed out", "no route to the peer"],
        ),
        cause: "The address behind the peer's GID does not answer: these two ports are not connected to each \
                other.",
        remedy: "Check which cable goes where; on rail-only fabrics set NCCL_CROSS_NIC=0.",
        source: "field cases 8, 37; ETIMEDOUT from modify_qp",
        example: "[1] NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_3:1, curr \
                state INIT, next state RTR",
    },
    Signature {
        code: "verbs-wrong-attribute",
        sign: line(&["modify_qp"], &["errno 22", "invalid argument"]),
        cause: "The two ends of a connection do not fit: link layers mixed, a GID of the wrong type, or an MTU \
                above the port's.",
        remedy: "Leave InfiniBand ports out of a RoCE job and RoCE ports out of an InfiniBand one; let the pick \
                choose ports and GIDs.",
        source: "field case 46; EINVAL from modify_qp",
        example: "[0] NCCL WARN Call to ibv_modify_qp failed with 22 Invalid argument, on dev mlx5_2:1, curr \
                state INIT, next state RTR",
    },
    Signature {
        code: "verbs-retry-exceeded",
        sign: line(
            &[],
            &[
                "retry_exc",
                "retry exceeded",
                "status 12",
                "transport retry counter exceeded",
                "status=12",
            ],
        ),
        cause: "The peer's adapter stopped acknowledging: the path was cut, or the MTU of the two ends \
                differs.",
        remedy: "Compare active_mtu and the interface MTU of both ends (tp-orchestrate doctor) and test with \
                ping -M do -s 8972.",
        source: "IBV_WC_RETRY_EXC_ERR; field cases 77, 140",
        example: "[0] ERROR: rail 0 to rank 1: transport retry counter exceeded (status 12): the peer did not \
                acknowledge: it is gone, the path is cut, or the MTU along it is smaller than agreed",
    },
    Signature {
        code: "verbs-remote-access",
        sign: line(&[], &["remote access error", "status 10", "rem_access_err"]),
        cause: "The peer refused a write: its memory was registered anew or laid out otherwise, so this rank \
                talks to another process than it met.",
        remedy: "Look for leftovers of an earlier run on the named host (tp-orchestrate doctor), then run \
                again.",
        source: "IBV_WC_REM_ACCESS_ERR",
        example: "[0] ERROR: rail 0 to rank 1: remote access error (status 10): the peer's key or range is not \
                what it registered: it was started anew, or its layout differs",
    },
];
