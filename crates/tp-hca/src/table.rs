//! The pick as a table for people.
use crate::document::PickDocument;

/// Renders the pick for a terminal or a log.
pub fn table(_document: &PickDocument) -> String {
    String::new()
}
