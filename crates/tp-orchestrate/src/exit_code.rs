//! Exit codes of `tp-orchestrate`. Scripts may rely on them; a change is a new major version.

/// Everything that was run passed.
pub const PASSED: u8 = 0;
/// A step failed, or (`receipt verify`) something in the receipt is broken.
pub const FAILED: u8 = 1;
/// Wrong usage: options, the inventory, a file that is not there, an output that exists or cannot be written.
pub const USAGE: u8 = 2;
/// Preflight refused: a host, its runner, or what the plan needs is not there.
pub const REFUSED: u8 = 3;
/// Ended by SIGINT (Ctrl-C): 128 + 2.
pub const INTERRUPTED: u8 = 130;
/// Ended by SIGTERM: 128 + 15.
pub const TERMINATED: u8 = 143;
