//! Any fields to agree on, from several ranks, and any comparison of them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::agreement(data));
