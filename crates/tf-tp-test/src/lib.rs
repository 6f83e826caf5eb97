//! The runner: one process is one rank.
