//! x
use crate::receipt::Receipt;
/// Markdown tables.
pub fn markdown(receipt: &Receipt) -> String {
    receipt.headline()
}
