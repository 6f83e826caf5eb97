//! Systems without symbol versions and without /proc: enough to build and to say that there is no RDMA.

use std::ffi::{CStr, c_void};
use std::io;

/// The address of `name` in an open library.
pub(crate) fn symbol(handle: *mut c_void, name: &CStr, _version: &CStr) -> *mut c_void {
    // SAFETY: the handle is open and the name is terminated.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// Nothing to ask of this system.
///
/// # Safety
/// `address` and `length` are a mapping of the caller.
pub(crate) unsafe fn keep_from_children_and_huge_pages(
    _address: *mut c_void,
    _length: usize,
) -> io::Result<()> {
    Ok(())
}
