//! What a run leaves behind: events, receipts, rendering, verification, comparison.
//!
//! The runner writes [`event::Event`]s, one JSON object a line; the orchestrator reads them, keeps them as
//! [`record::Record`]s, and derives everything else (tables, `receipt.json`, JUnit) from them. [`control`] is the other
//! direction: the one line and the beats that the orchestrator sends to a rank's standard input. [`doctor`] is what a host
//! says of itself when the orchestrator asks it.

pub mod control;
pub mod diff;
pub mod doctor;
pub mod event;
pub mod floor;
mod os;
pub mod receipt;
pub mod record;
pub mod redact;
pub mod render;
pub mod schema;
pub mod store;
pub mod verify;
