//! A part of the fuzz target `texts`.

use super::open::compare;

/// The fields that a peer gives when the host backend opens, against three of our own.
pub fn fields(bytes: &[u8]) {
    let mine = ["world=2", "slot bytes=4096", "host=alpha"].map(str::to_owned);
    let own = mine.join("\n").into_bytes();
    match compare(&mine, &[own, bytes.to_vec()]) {
        Ok(hosts) => assert_eq!((hosts.len(), hosts[0].as_str()), (2, "host=alpha")),
        Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
    }
}
