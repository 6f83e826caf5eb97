//! The orchestrator: one process drives all hosts.
//!
//! An [`inventory`] names hosts and ranks; [`plan`] turns it into an immutable, printable value; [`exec`] executes
//! exactly that value through [`host`]s, shows it with a [`display`] and leaves a receipt. [`diagnosis`] knows what
//! usual failures mean. The binary is a thin shell over [`cli`].

pub mod cli;
pub mod deploy;
pub mod diagnosis;
pub mod display;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod exec;
pub mod exit_code;
pub mod host;
pub mod init;
pub mod inventory;
mod machine;
mod os;
pub mod plan;

pub use error::Error;
