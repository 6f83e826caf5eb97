//! Any bytes as frames of meetings, and whatever they hold.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::meeting(data));
