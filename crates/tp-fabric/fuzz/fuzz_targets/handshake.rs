//! Any bytes at either side of a handshake: nobody is let in, or believed, without the proof.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::handshake(data));
