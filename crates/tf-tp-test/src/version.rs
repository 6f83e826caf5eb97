//! Which build this is.

use std::sync::LazyLock;

/// Version of this crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// Source revision, `-dirty` behind it where the tree differed; `unknown` where it was built without one.
pub const REVISION: &str = env!("TP_REVISION");

/// What `--version` prints after the program's name: version, revision, kernels.
pub fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        format!(
            "{VERSION}\nrevision: {REVISION}\nkernels: {}",
            crate::devices::kernels_line()
        )
    });
    &LONG
}
