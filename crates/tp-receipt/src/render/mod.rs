//! A receipt in the forms that people and other programs read. Each is a pure function of the receipt.

mod intoto;
mod junit;
mod markdown;
mod terminal;
mod view;

pub use intoto::intoto;
pub use junit::junit;
pub use markdown::markdown;
pub use terminal::terminal;

use crate::receipt::Receipt;

/// The self-contained page.
pub fn html(receipt: &Receipt) -> String {
    receipt.headline()
}
