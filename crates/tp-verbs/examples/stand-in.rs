//! A libibverbs that moves no data: it checks what it is asked, keeps count of what it gave out, and fails where the name of
//! the device says so. Built as a shared object for `tests/objects.rs`.
//!
//! The device's name is the call that fails and the error number, such as `ibv_reg_mr=12`; `good` fails nowhere.
#![allow(
    clippy::missing_safety_doc,
    missing_docs,
    reason = "stands in for C functions, which their manual pages document"
)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

use tp_verbs::sys::*;

const DEVICES: [&CStr; 9] = [
    c"good",
    c"ibv_open_device=13",
    c"ibv_alloc_pd=12",
    c"ibv_reg_mr=12",
    c"ibv_create_cq=22",
    c"ibv_create_qp=12",
    c"ibv_modify_qp=110",
    c"ibv_post_send=12",
    c"ibv_query_gid=61",
];

/// Objects given out and not yet given back, and wrong uses seen.
static LIVE: AtomicI64 = AtomicI64::new(0);
static WRONG: AtomicI64 = AtomicI64::new(0);

/// Requests posted since the last poll: numbers of those that ask for a completion.
static POSTED: std::sync::Mutex<Vec<(u64, u32)>> = std::sync::Mutex::new(Vec::new());

#[unsafe(no_mangle)]
pub extern "C" fn stand_in_live() -> i64 {
    LIVE.load(SeqCst)
}

#[unsafe(no_mangle)]
pub extern "C" fn stand_in_wrong() -> i64 {
    WRONG.load(SeqCst)
}

/// An object with the count of those made from it, which must be gone before it is.
#[repr(C)]
struct Counted<T> {
    object: T,
    parent: *const AtomicI64,
    children: AtomicI64,
}

unsafe fn give<T>(object: T, parent: *const AtomicI64) -> *mut T {
    LIVE.fetch_add(1, SeqCst);
    // SAFETY: null, or the count of a live object.
    if let Some(count) = unsafe { parent.as_ref() } {
        count.fetch_add(1, SeqCst);
    }
    Box::into_raw(Box::new(Counted {
        object,
        parent,
        children: AtomicI64::new(0),
    }))
    .cast()
}

unsafe fn children<T>(object: *mut T) -> *const AtomicI64 {
    // SAFETY: every object that is given out is a `Counted`.
    unsafe { &raw const (*object.cast::<Counted<T>>()).children }
}

unsafe fn take_back<T>(object: *mut T) -> c_int {
    // SAFETY: as above; it came from a Box and is given back once.
    unsafe {
        let counted = Box::from_raw(object.cast::<Counted<T>>());
        if counted.children.load(SeqCst) != 0 {
            WRONG.fetch_add(1, SeqCst);
        }
        if let Some(count) = counted.parent.as_ref() {
            count.fetch_sub(1, SeqCst);
        }
    }
    LIVE.fetch_sub(1, SeqCst);
    0
}

/// The error number with which `call` fails on the device; 0 if it does not.
unsafe fn failing(context: *mut ibv_context, call: &str) -> c_int {
    // SAFETY: the context is one of ours, and so is its device.
    let name = unsafe { CStr::from_ptr(ibv_get_device_name((*context).device)) }.to_string_lossy();
    name.strip_prefix(call)
        .and_then(|rest| rest.strip_prefix('=')?.parse().ok())
        .unwrap_or(0)
}

fn set_errno(errno: c_int) {
    #[cfg(not(target_vendor = "apple"))]
    use libc::__errno_location as location;
    #[cfg(target_vendor = "apple")]
    use libc::__error as location;
    // SAFETY: the thread's own variable.
    unsafe { *location() = errno };
}

/// A null pointer and the error number if the call is to fail; else what `make` gives.
unsafe fn unless_failing<T>(context: *mut ibv_context, call: &str, make: impl FnOnce() -> *mut T) -> *mut T {
    // SAFETY: as the caller's.
    match unsafe { failing(context, call) } {
        0 => make(),
        errno => {
            set_errno(errno);
            std::ptr::null_mut()
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    LIVE.fetch_add(1, SeqCst);
    // SAFETY: the caller gives a live int.
    unsafe { *count = DEVICES.len() as c_int };
    let list: Vec<*mut ibv_device> = DEVICES
        .iter()
        .map(|name| name.as_ptr() as *mut ibv_device)
        .collect();
    Box::into_raw(list.into_boxed_slice()).cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    LIVE.fetch_sub(1, SeqCst);
    // SAFETY: the list was made above, of that length.
    drop(unsafe { Box::from_raw(std::ptr::slice_from_raw_parts_mut(list, DEVICES.len())) });
}

/// A device is its name's address: nothing looks inside.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char {
    device.cast()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: all-zero is a context without operations; the C type has no other rule.
    let mut context: ibv_context = unsafe { std::mem::zeroed() };
    context.device = device;
    context.ops.post_send = Some(post_send);
    context.ops.poll_cq = Some(poll_cq);
    // SAFETY: the variable is live while the call looks at it.
    unsafe {
        unless_failing(&raw mut context, "ibv_open_device", || {
            let mut ends = [0; 2];
            libc::pipe(ends.as_mut_ptr());
            libc::close(ends[1]);
            let context = give(context, std::ptr::null());
            (*context).async_fd = ends[0];
            context
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: given out above.
    unsafe {
        libc::close((*context).async_fd);
        take_back(context)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_device(_: *mut ibv_context, _: *mut ibv_device_attr) -> c_int {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_port(
    _: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller gives a live struct.
    unsafe {
        (*attributes).state = ibv_port_state::IBV_PORT_ACTIVE;
        (*attributes).active_mtu = ibv_mtu(5);
        (*attributes).gid_tbl_len = 4;
        (*attributes).link_layer = 2;
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    _: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller gives a live context and union.
    unsafe {
        set_errno(failing(context, "ibv_query_gid"));
        let first = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, 1];
        (*gid).raw = if index == 1 { first } else { [0; 16] };
        if failing(context, "ibv_query_gid") == 0 {
            0
        } else {
            -1
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the context is live.
    unsafe {
        unless_failing(context, "ibv_alloc_pd", || {
            give(ibv_pd { context, handle: 0 }, children(context))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: given out above.
    unsafe { take_back(domain) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // Local and remote write, nothing else: no relaxed ordering.
    if access != 3 {
        WRONG.fetch_add(1, SeqCst);
    }
    // SAFETY: the domain is live; all-zero is a region without fields set.
    unsafe {
        let mut region: ibv_mr = std::mem::zeroed();
        (region.addr, region.length, region.lkey, region.rkey) = (address, length, 0x1234, 0x5678);
        unless_failing((*domain).context, "ibv_reg_mr", || give(region, children(domain)))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    // SAFETY: given out above.
    unsafe { take_back(region) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    _: c_int,
    _: *mut c_void,
    _: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    // SAFETY: the context is live; all-zero is a queue without fields set.
    unsafe {
        let mut queue: ibv_cq = std::mem::zeroed();
        queue.context = context;
        unless_failing(context, "ibv_create_cq", || give(queue, children(context)))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    // SAFETY: given out above.
    unsafe { take_back(queue) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(domain: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: domain and struct are live; all-zero is a queue pair without fields set.
    unsafe {
        if (*init).qp_type != ibv_qp_type::IBV_QPT_RC || (*init).sq_sig_all != 0 {
            WRONG.fetch_add(1, SeqCst);
        }
        let mut pair: ibv_qp = std::mem::zeroed();
        (pair.context, pair.qp_num) = ((*domain).context, 0x11);
        unless_failing((*domain).context, "ibv_create_qp", || {
            give(pair, children(domain))
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, _: c_int) -> c_int {
    // SAFETY: pair and struct are live. Only the step to ready-to-receive can miss the peer.
    unsafe {
        (*pair).state = (*attributes).qp_state;
        if (*attributes).qp_state == ibv_qp_state::IBV_QPS_RTR {
            failing((*pair).context, "ibv_modify_qp")
        } else {
            0
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    pair: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _: c_int,
    _: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: pair and struct are live.
    unsafe { (*attributes).qp_state = (*pair).state };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int {
    // SAFETY: given out above.
    unsafe { take_back(pair) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(_: *mut ibv_context, _: *mut ibv_async_event) -> c_int {
    set_errno(libc::EAGAIN);
    -1
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_wc_status_str(_: ibv_wc_status) -> *const c_char {
    c"transport retry counter exceeded".as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_event_type_str(_: ibv_event_type) -> *const c_char {
    c"event".as_ptr()
}

/// Takes a list of RDMA writes; those that are signaled complete at the next poll, number 99 with a failure.
unsafe extern "C" fn post_send(
    pair: *mut ibv_qp,
    first: *mut ibv_send_wr,
    _: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's list is live and ends in null.
    unsafe {
        let errno = failing((*pair).context, "ibv_post_send");
        if errno != 0 {
            return errno;
        }
        let mut next = first;
        while let Some(request) = next.as_ref() {
            if request.opcode != ibv_wr_opcode::IBV_WR_RDMA_WRITE || request.num_sge != 1 {
                WRONG.fetch_add(1, SeqCst);
            }
            if request.send_flags & ibv_send_flags::IBV_SEND_SIGNALED.0 != 0
                && let Ok(mut posted) = POSTED.lock()
            {
                posted.push((request.wr_id, (*pair).qp_num));
            }
            next = request.next;
        }
    }
    0
}

unsafe extern "C" fn poll_cq(_: *mut ibv_cq, _: c_int, entries: *mut ibv_wc) -> c_int {
    let Ok(mut posted) = POSTED.lock() else { return -1 };
    let Some((id, pair)) = posted.pop() else { return 0 };
    let status = if id == 99 {
        ibv_wc_status::IBV_WC_RETRY_EXC_ERR
    } else {
        ibv_wc_status::IBV_WC_SUCCESS
    };
    // SAFETY: the caller's array has at least one entry.
    unsafe {
        *entries = ibv_wc {
            wr_id: id,
            qp_num: pair,
            status,
            ..ibv_wc::default()
        }
    };
    1
}
