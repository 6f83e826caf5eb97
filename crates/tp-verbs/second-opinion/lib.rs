//! Only tests; see `tests/layout.rs`.
