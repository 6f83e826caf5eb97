//! Any text in either variable is read or refused, and what is accepted reads the same again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tp_hca::grammar::{nccl, roce};

fuzz_target!(|text: &str| {
    let list = nccl::parse(text);
    assert!(list.entries.len() <= 32);
    if let Ok(checked) = nccl::check(text) {
        assert_eq!(checked, list);
    }
    if let Ok(entries) = roce::parse(text) {
        assert!(!entries.is_empty());
    }
});
