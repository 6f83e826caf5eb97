//! Any answer to the challenge that opens a connection of the TCP wire.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::mesh(data));
