//! x
use crate::receipt::Receipt;
/// JUnit XML.
pub fn junit(receipt: &Receipt) -> String {
    receipt.headline()
}
