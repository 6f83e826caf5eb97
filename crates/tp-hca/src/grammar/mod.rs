//! The two HCA variables.
