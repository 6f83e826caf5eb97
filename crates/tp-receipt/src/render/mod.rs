//! A receipt in the forms that people and other programs read. Each is a pure function of the receipt.

mod html;
mod intoto;
mod junit;
mod markdown;
mod sheet;
mod terminal;
mod view;
mod visible;

pub use html::html;
pub use intoto::intoto;
pub use junit::junit;
pub use markdown::markdown;
pub use terminal::terminal;
pub use visible::{is_hidden, visible, visible_receipt};

pub use view::{Point, Series, latencies as latency_series, source as source_text};
