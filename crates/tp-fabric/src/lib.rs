//! The collective library: settings, bootstrap, fate channel, plan link, collectives, backends, session.

pub mod collective;
pub mod host;
pub mod meeting;
pub mod types;
