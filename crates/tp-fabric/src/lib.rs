//! The collective library: settings, bootstrap, fate channel, plan link, collectives, backends, session.

pub mod bootstrap;
pub mod collective;
pub mod devices;
pub mod fate;
pub mod fill;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod gpu;
pub mod host;
pub mod identity;
pub mod local;
pub mod meeting;
pub mod oracle;
mod os;
pub mod plan;
pub mod proxy;
pub mod rails;
pub mod region;
pub mod secret;
pub mod session;
pub mod settings;
mod text;
pub mod types;
pub mod wire;
