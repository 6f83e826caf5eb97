//! Any facts file or facts of a rank are read or refused, and a pick over them ends.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tp_hca::{Document, Options, RankFacts, pick};

fuzz_target!(|data: &[u8]| {
    let _ = RankFacts::from_bytes(data);
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(document) = Document::from_toml(text)
    {
        let picked = pick(&document, &Options::default());
        assert_eq!(picked.ok, picked.error.is_none());
    }
});
