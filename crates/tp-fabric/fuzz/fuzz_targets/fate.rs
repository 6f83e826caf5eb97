//! Any bytes on the fate channel.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::fate(data));
