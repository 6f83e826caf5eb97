//! Any Unix.

/// Returns at once: the caller polls.
pub fn wait_without_reaping(_pid: u32) {}

/// Seconds of a clock; the portable one stands still while the machine sleeps.
pub fn clock_with_sleep() -> Option<std::time::Duration> {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).ok()?;
    Some(now.into())
}
