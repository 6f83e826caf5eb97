//! x
use crate::receipt::Receipt;
/// In-toto Statement with the test-result predicate. `document` is the text of `receipt.json`.
pub fn intoto(receipt: &Receipt, document: &str) -> String {
    format!("{}{}", receipt.headline(), document.len())
}
