//! The host backend: collectives on host memory, over any wire, without a GPU. The calling thread does what a kernel does
//! elsewhere.

mod backend;
mod config;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod gather;
mod open;
mod reduce;
mod shared;
mod turn;

pub use backend::HostBackend;
pub use config::{Delivery, HostConfig, OpenError};
pub use open::open;
pub(crate) use open::{Way, open_way};
pub(crate) use shared::{Shared, lock};
