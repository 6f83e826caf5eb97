//! Any bytes on the plan link; batches are taken whole or not at all.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::plan(data));
