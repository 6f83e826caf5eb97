//! The orchestrator's wall clock, for people; what is compared is measured on monotonic clocks.

/// Now, RFC 3339, UTC.
pub(crate) fn now() -> String {
    jiff::Timestamp::now().to_string()
}

/// Now, as part of a directory's name, in the user's time zone: `20260102-030405`.
pub(crate) fn stamp() -> String {
    jiff::Zoned::now().strftime("%Y%m%d-%H%M%S").to_string()
}
