//! What failed: the call, where, and why.

use std::fmt;
use std::path::PathBuf;

use crate::{Gid, PortNum, cause};

/// Where something failed, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// RDMA device.
    pub device: Option<String>,
    /// Its port.
    pub port: Option<PortNum>,
    /// This end's GID, with its index.
    pub gid: Option<(u32, Option<Gid>)>,
    /// The other end, in words: rank, GID.
    pub peer: Option<String>,
}

impl Place {
    /// A device and nothing more.
    pub fn device(name: impl Into<String>) -> Self {
        Self {
            device: Some(name.into()),
            ..Self::default()
        }
    }

    /// The same with a port.
    pub fn with_port(&self, port: PortNum) -> Self {
        Self {
            port: Some(port),
            ..self.clone()
        }
    }

    /// The same with an entry of the port's GID table; the GID itself where it is known.
    pub fn with_gid(&self, index: u32, gid: Option<Gid>) -> Self {
        Self {
            gid: Some((index, gid)),
            ..self.clone()
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        if let Some(device) = &self.device {
            write!(f, "device {device}")?;
            separator = ", ";
        }
        if let Some(port) = self.port {
            write!(f, "{separator}port {port}")?;
            separator = ", ";
        }
        match &self.gid {
            Some((index, Some(gid))) => write!(f, "{separator}GID {index} {gid}")?,
            Some((index, None)) => write!(f, "{separator}GID {index}")?,
            None => {}
        }
        if let (Some(_), None) = (&self.gid, &self.peer) {
            return Ok(());
        }
        if let Some(peer) = &self.peer {
            let separator = if self.gid.is_some() { ", " } else { separator };
            write!(f, "{separator}peer {peer}")?;
        }
        Ok(())
    }
}

/// A call of libibverbs that failed, or a device that is not as it must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(Box<Details>);

/// All that is known of a failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Details {
    /// What was being done: completes "failed to".
    pub action: &'static str,
    /// The function of libibverbs.
    pub call: &'static str,
    /// Where.
    pub place: Place,
    /// The system's error number; none where the failure is ours to name.
    pub errno: Option<i32>,
    /// What was found, where there is no error number.
    pub reason: Option<String>,
    /// The file that libibverbs was loaded from.
    pub library: PathBuf,
}

impl Error {
    pub(crate) fn new(details: Details) -> Self {
        Self(Box::new(details))
    }

    /// All that is known.
    pub fn details(&self) -> &Details {
        &self.0
    }

    /// The system's error number.
    pub fn errno(&self) -> Option<i32> {
        self.0.errno
    }

    /// The same failure, with the peer that it concerned.
    #[must_use]
    pub fn with_peer(mut self, peer: impl Into<String>) -> Self {
        self.0.place.peer = Some(peer.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let details = &self.0;
        write!(
            f,
            "failed to {} ({}): {}",
            details.action, details.call, details.place
        )?;
        if let Some(reason) = &details.reason {
            write!(f, ": {reason}")?;
        }
        if let Some(errno) = details.errno {
            let text = std::io::Error::from_raw_os_error(errno).to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            write!(f, ": {text} (errno {errno})")?;
            if let Some(cause) = cause::of_errno(details.call, errno) {
                write!(f, ": {cause}")?;
            }
        }
        write!(f, "; library {}", details.library.display())
    }
}

impl std::error::Error for Error {}
