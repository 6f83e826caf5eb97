//! Thin entry point; the logic is in the library.
fn main() {}
