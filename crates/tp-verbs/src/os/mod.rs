//! What differs between systems: symbol versions, and the kernel's account of a mapping.

#[cfg(all(target_os = "linux", not(portable_os)))]
mod linux;
#[cfg(not(all(target_os = "linux", not(portable_os))))]
mod portable;

#[cfg(all(target_os = "linux", not(portable_os)))]
pub(crate) use linux::{keep_from_children_and_huge_pages, symbol};
#[cfg(not(all(target_os = "linux", not(portable_os))))]
pub(crate) use portable::{keep_from_children_and_huge_pages, symbol};
