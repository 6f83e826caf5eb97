//! The collective library: settings, bootstrap, fate channel, plan link, collectives, backends, session.

pub mod meeting;
pub mod types;
