//! What an errno or a completion status usually means here, and so where to look.

use crate::sys::ibv_wc_status;

/// The usual cause of `errno` from `call`; none where there is no usual one.
pub fn of_errno(call: &str, errno: i32) -> Option<&'static str> {
    Some(match (call, errno) {
        ("ibv_modify_qp" | "ibv_query_gid", libc::ENODATA) => {
            "the GID entry is empty: addresses changed since it was read, resolve the index again"
        }
        ("ibv_modify_qp", libc::ETIMEDOUT) => {
            "the peer's address does not answer on this port: wrong rail or cable, no route, or a firewall"
        }
        ("ibv_modify_qp", libc::ENETUNREACH | libc::EHOSTUNREACH) => {
            "there is no route to the peer's address from this port"
        }
        ("ibv_modify_qp", libc::EINVAL) => {
            "an attribute does not fit this port: the GID's type or index, an MTU above the port's, or the state before"
        }
        ("ibv_reg_mr", libc::ENOMEM) => {
            "the limit of locked memory is too low here: ulimit -l unlimited, or memlock of the service or container"
        }
        ("ibv_reg_mr", libc::EFAULT) => "the range is not mapped",
        ("ibv_reg_mr", libc::EOPNOTSUPP) => "this driver cannot register such memory",
        ("ibv_open_device", libc::EACCES | libc::EPERM) => {
            "/dev/infiniband/uverbs* may not be opened: give this user or container access to it"
        }
        ("ibv_open_device", libc::ENOENT | libc::ENODEV | libc::ENXIO) => {
            "/dev/infiniband/uverbs* of the device is absent: pass --device /dev/infiniband to the container"
        }
        ("ibv_get_device_list", libc::ENOSYS) => "the kernel offers no RDMA to user space: load ib_uverbs",
        ("ibv_create_qp" | "ibv_create_cq", libc::ENOMEM) => {
            "the device is out of queue pairs or completion queues, or the limit of locked memory is too low"
        }
        ("ibv_create_qp" | "ibv_create_cq", libc::EINVAL) => {
            "more entries or inline bytes than the device has"
        }
        ("ibv_post_send", libc::ENOMEM) => "the send queue is full",
        ("ibv_post_send", libc::EINVAL) => "the queue pair is not ready to send, or the request is malformed",
        (_, libc::EMFILE | libc::ENFILE) => "too many open files",
        (_, libc::EIO) => "the device reported a fault: look at `dmesg`",
        _ => return None,
    })
}

/// The usual cause of a failed completion; none where there is no usual one.
pub fn of_status(status: ibv_wc_status) -> Option<&'static str> {
    Some(match status {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR => {
            "the peer did not acknowledge: it is gone, the path is cut, or the MTU along it is smaller than agreed"
        }
        ibv_wc_status::IBV_WC_REM_ACCESS_ERR => {
            "the peer's key or range is not what it registered: it was started anew, or its layout differs"
        }
        ibv_wc_status::IBV_WC_LOC_PROT_ERR => "the local key does not cover the local range",
        ibv_wc_status::IBV_WC_WR_FLUSH_ERR => "the queue pair had failed before: the first failure says why",
        ibv_wc_status::IBV_WC_LOC_QP_OP_ERR => "this port's link is down, or it lost the address of its GID",
        ibv_wc_status::IBV_WC_RNR_RETRY_EXC_ERR => "the peer had no receive posted",
        ibv_wc_status::IBV_WC_REM_OP_ERR => {
            "the peer's device could not carry the request out: look at its `dmesg`"
        }
        ibv_wc_status::IBV_WC_FATAL_ERR => "the device failed: look at `dmesg`",
        _ => return None,
    })
}
