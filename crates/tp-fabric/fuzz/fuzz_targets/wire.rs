//! Any frames on a connection of the TCP wire, into a region that is consumed now and then.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| tp_fabric::fuzz::wire(data));
