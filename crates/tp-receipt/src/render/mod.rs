//! A receipt in the forms that people and other programs read. Each is a pure function of the receipt.

mod intoto;
mod junit;
mod markdown;

pub use intoto::intoto;
pub use junit::junit;
pub use markdown::markdown;

use crate::receipt::Receipt;

/// The self-contained page.
pub fn html(receipt: &Receipt) -> String {
    receipt.headline()
}

/// For a terminal.
pub fn terminal(receipt: &Receipt) -> String {
    markdown(receipt)
}
