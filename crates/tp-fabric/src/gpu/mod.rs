//! GPUs of one host that trade bytes through shared inboxes: the driver side of the exchange kernels.
//!
//! [`Device`] is a GPU with the kernel image loaded. [`Mailbox`] joins the ranks of one host: every rank's kernel writes
//! into *lanes* that the others' kernels read, in page-locked host memory or in the readers' device memory
//! ([`InboxKind`]). Three protocols carry the bytes, [`Protocol::Lines`] and [`Protocol::Dense`] for small payloads and
//! [`Protocol::Chunks`] for large ones; the kernels say how they work, [`layout`] where their bytes lie, [`route`] which one a size takes.

pub mod args;
mod backend;
mod buffer;
mod choice;
mod config;
mod control;
mod core;
mod device;
#[cfg(test)]
mod dice;
mod error;
mod lanes;
pub mod layout;
#[cfg(test)]
mod lines_model;
mod mailbox;
mod memory;
mod nccl;
mod open;
mod posted;
#[cfg(test)]
mod posted_model;
pub mod route;
mod transfer;
pub mod two_shot;
#[cfg(test)]
mod two_shot_model;
mod work;

pub use backend::GpuBackend;
pub use buffer::DeviceBuffer;
pub use choice::{Capability, choose};
pub use config::MailboxConfig;
pub use control::FailureRecord;
pub use device::{Device, Kernels};
pub use error::GpuError;
pub use layout::{InboxKind, LaneShape};
pub use mailbox::Mailbox;
pub use open::{GpuConfig, Large, Opened, open};
pub use route::{LineTuning, Protocol, Route, Tuning};
pub use transfer::{Pairing, SmallPath, Transfer, Who};
pub use work::{Graph, Work};
