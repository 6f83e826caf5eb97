//! An allocator that counts, so that what a parser takes can be compared with what it may.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

/// Counts what a thread holds.
struct Counting;

#[global_allocator]
static COUNTING: Counting = Counting;

thread_local! {
    /// Bytes that this thread has allocated and not freed; negative where it freed what others had allocated.
    static HELD: Cell<isize> = const { Cell::new(0) };
    /// The most of it since the last reset.
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that is ending may be past its counters.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// No allocation is larger than `isize::MAX`.
fn signed(bytes: usize) -> isize {
    isize::try_from(bytes).unwrap_or(isize::MAX)
}

// SAFETY: every call goes to the system's allocator as it came; the counters are plain cells of this thread and allocate
// nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // Both exist while the bytes are moved.
        count(signed(size));
        count(-signed(layout.size()));
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

/// Runs a call and asserts that this thread never held more than `limit` bytes more than before it.
pub(crate) fn within<T>(what: &str, limit: usize, call: impl FnOnce() -> T) -> T {
    let before = HELD.get();
    MOST.set(before);
    let result = call();
    let most = MOST.get() - before;
    assert!(
        most <= signed(limit),
        "{what} took {most} bytes where {limit} are the most"
    );
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_counts_even_where_it_is_given_back() {
        within("a small vector", 4096, || {
            drop(std::hint::black_box(vec![0u8; 4000]))
        });
        let beyond = std::panic::catch_unwind(|| {
            within("a large vector", 4096, || {
                drop(std::hint::black_box(vec![0u8; 5000]))
            });
        });
        assert!(beyond.is_err());
    }
}
