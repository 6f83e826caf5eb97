//! What a follower says of itself, as readable text.

use crate::text::{field, line};
use crate::types::{Rank, World};

/// Longest hello, bytes.
pub(super) const HELLO_MAX: usize = 2048;

/// Which of a follower's two connections one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Control,
    Plan,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Plan => "plan",
        }
    }
}

/// A follower's introduction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub world: World,
    pub rank: Rank,
    pub role: Role,
    /// Random, the same on both connections of one process.
    pub instance: String,
    /// Empty: any session.
    pub session: String,
    pub host: String,
    pub pid: u32,
}

impl Hello {
    // protocol 2.6
    pub fn to_text(&self) -> String {
        let Self {
            world,
            rank,
            role,
            instance,
            session,
            host,
            pid,
        } = self;
        let (role, session, host) = (role.name(), line(session, 128), line(host, 256));
        format!(
            "world={world}\nrank={rank}\nrole={role}\ninstance={instance}\nsession={session}\nhost={host}\npid={pid}\n"
        )
    }

    /// Reads a hello; fields it does not know are skipped. The error names the field.
    pub fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "its hello is not text".to_owned())?;
        let missing = |name: &str| format!("its hello has no usable `{name}`");
        let number = |name: &str| {
            field(text, name)
                .and_then(|v| v.parse().ok())
                .ok_or_else(|| missing(name))
        };
        let role = match field(text, "role") {
            Some("control") => Role::Control,
            Some("plan") => Role::Plan,
            _ => return Err(missing("role")),
        };
        let instance = field(text, "instance").filter(|text| !text.is_empty() && text.len() <= 64);
        Ok(Self {
            world: World(number("world")?),
            rank: Rank(number("rank")?),
            role,
            instance: line(instance.ok_or_else(|| missing("instance"))?, 64),
            session: line(field(text, "session").unwrap_or_default(), 128),
            host: line(field(text, "host").unwrap_or("?"), 256),
            pid: number("pid")?,
        })
    }
}
