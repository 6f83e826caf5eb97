//! Any texts that ranks trade when a backend opens.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::texts(data));
