//! Linux: versioned symbols; madvise, checked in /proc/self/smaps.

use std::ffi::{CStr, c_void};
use std::io;

/// The address of `name` in an open library, of that version where the library has versions.
pub(crate) fn symbol(handle: *mut c_void, name: &CStr, version: &CStr) -> *mut c_void {
    // SAFETY: the handle is open and the strings are terminated.
    unsafe {
        let address = libc::dlvsym(handle, name.as_ptr(), version.as_ptr());
        if address.is_null() {
            libc::dlsym(handle, name.as_ptr())
        } else {
            address
        }
    }
}

/// Keeps a mapping out of forked children and out of transparent huge pages, and checks that the kernel says so.
///
/// # Safety
/// `address` and `length` are a mapping of the caller, in whole pages.
pub(crate) unsafe fn keep_from_children_and_huge_pages(
    address: *mut c_void,
    length: usize,
) -> io::Result<()> {
    for advice in [libc::MADV_DONTFORK, libc::MADV_NOHUGEPAGE] {
        // SAFETY: the caller's mapping; neither advice changes its content.
        if unsafe { libc::madvise(address, length, advice) } != 0 {
            let error = io::Error::last_os_error();
            // A kernel without transparent huge pages does not know the advice, and cannot break it either.
            if advice == libc::MADV_NOHUGEPAGE && error.raw_os_error() == Some(libc::EINVAL) {
                continue;
            }
            return Err(error);
        }
    }
    let smaps = std::fs::read_to_string("/proc/self/smaps")?;
    let start = address as usize;
    match check_flags(&smaps, start, start + length) {
        Ok(()) => Ok(()),
        Err(reason) => Err(io::Error::other(reason)),
    }
}

/// Whether every mapping that overlaps `start..end` carries `dc` (not copied on fork) and, where the kernel has huge
/// pages, `nh`. Neighbouring mappings merge, so the range may be a part of one.
fn check_flags(smaps: &str, start: usize, end: usize) -> Result<(), String> {
    let mut covered = start;
    let mut inside = None;
    for line in smaps.lines() {
        if let Some(range) = range_of(line) {
            inside = (range.0 < end && range.1 > start).then_some(range);
        } else if let (Some(range), Some(flags)) = (inside, line.strip_prefix("VmFlags:")) {
            let flags: Vec<&str> = flags.split_whitespace().collect();
            if !flags.contains(&"dc") {
                return Err(format!(
                    "the mapping {:x}-{:x} would be copied by fork",
                    range.0, range.1
                ));
            }
            // `hg` is the opposite advice; a kernel without huge pages shows neither.
            if flags.contains(&"hg") {
                return Err(format!(
                    "the mapping {:x}-{:x} may use huge pages",
                    range.0, range.1
                ));
            }
            if range.0 <= covered {
                covered = covered.max(range.1);
            }
        }
    }
    if covered >= end {
        Ok(())
    } else {
        Err(format!("{covered:x} is in no mapping of this process"))
    }
}

/// The address range that heads a mapping's lines; none for the lines below it.
fn range_of(line: &str) -> Option<(usize, usize)> {
    let (low, high) = line.split_ascii_whitespace().next()?.split_once('-')?;
    Some((
        usize::from_str_radix(low, 16).ok()?,
        usize::from_str_radix(high, 16).ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MERGED: &str = "7000-9000 rw-p 00000000 00:00 0 \nSize: 8 kB\nVmFlags: rd wr mr mw me ac dc nh \n\
                          9000-a000 rw-p 00000000 00:00 0 \nVmFlags: rd wr mr mw me ac \n";

    #[test]
    fn a_region_inside_a_merged_mapping_is_found() {
        assert_eq!(check_flags(MERGED, 0x8000, 0x9000), Ok(()));
    }

    #[test]
    fn a_region_that_reaches_into_a_mapping_without_the_flag_is_refused() {
        assert!(
            check_flags(MERGED, 0x8000, 0xa000)
                .unwrap_err()
                .contains("9000-a000")
        );
    }

    #[test]
    fn a_region_with_a_hole_is_refused() {
        assert!(check_flags(MERGED, 0x6000, 0x8000).unwrap_err().contains("6000"));
        assert!(check_flags("", 0x6000, 0x8000).is_err());
    }
}
