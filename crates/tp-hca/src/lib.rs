//! Which RDMA port reaches which peer.
//!
//! [`facts`] says what is known of a host's ports, addresses and routes, [`grammar`] what the two HCA variables mean,
//! and [`pick()`] turns the facts of all ranks into the rails between them. All of it is pure: the same facts give the
//! same answer on every rank, so ranks that hold the same [`facts::Document`] need no further word to agree.
//!
//! Only [`sysfs`] and [`route`] read anything from a machine; [`capture()`] joins the two.

pub mod capture;
pub mod code;
pub mod document;
pub mod facts;
pub mod grammar;
mod ids;
pub mod nccl_log;
pub mod pick;
pub mod route;
pub mod sysfs;
pub mod table;

pub use capture::capture;
pub use code::{ErrorCode, WarningCode};
pub use document::{Mode, PickDocument, PickError};
pub use facts::{Document, RankFacts};
pub use ids::{GidIndex, PortNum};
pub use pick::{Options, pick};
pub use table::table;
