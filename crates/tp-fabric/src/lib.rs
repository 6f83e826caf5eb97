//! The collective library: settings, bootstrap, fate channel, plan link, collectives, backends, session.

pub mod collective;
pub mod fill;
pub mod host;
pub mod local;
pub mod meeting;
pub mod oracle;
pub mod types;
