//! What a row of the settings table says, and how its text becomes a value.

use std::fmt;
use std::time::Duration;
use tp_hca::grammar;

/// One variable: its name, what it takes, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The variable's name in the environment.
    pub name: &'static str,
    /// What its text may be.
    pub kind: Kind,
    /// The text in force when nothing sets it; empty means "unset".
    pub default: &'static str,
    /// What unset means, where the default is empty.
    pub unset: &'static str,
    /// Unit of the number, empty where it has none.
    pub unit: &'static str,
    /// What it does, for a person who has never seen it.
    pub meaning: &'static str,
    /// Which part reads it.
    pub reader: Reader,
    /// The command-line option that wins over it, without the dashes; empty where there is none.
    pub option: &'static str,
    /// Whether all ranks must have the same value; the agreement compares these.
    pub agree: bool,
}

/// Which part of the project acts on a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// The meeting of the ranks: bootstrap and agreement.
    Bootstrap,
    /// The fate channel.
    Fate,
    /// The plan link.
    Plan,
    /// The collectives and their backends.
    Backend,
    /// The wire under a backend.
    Wire,
    /// The choice of RDMA ports.
    Pick,
    /// NVIDIA NCCL; this project checks it and passes it on.
    Nccl,
}

impl Reader {
    /// The word that the page and `explain` use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bootstrap => "bootstrap",
            Self::Fate => "fate channel",
            Self::Plan => "plan link",
            Self::Backend => "backends",
            Self::Wire => "wires",
            Self::Pick => "port pick",
            Self::Nccl => "NCCL",
        }
    }
}

/// What the text of a variable may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A decimal whole number within both bounds.
    Integer {
        /// Smallest value taken.
        min: u64,
        /// Largest value taken.
        max: u64,
    },
    /// A whole number that is a power of two, within both bounds.
    PowerOfTwo {
        /// Smallest value taken.
        min: u64,
        /// Largest value taken.
        max: u64,
    },
    /// A decimal number of seconds within both bounds, fractions allowed.
    Seconds {
        /// Smallest value taken, seconds.
        min: f64,
        /// Largest value taken, seconds.
        max: f64,
    },
    /// One of a few words.
    Words(&'static [&'static str]),
    /// `1` or `on`, `0` or `off`.
    Switch,
    /// `auto`, `off` (also `-1`), or a CPU number up to the bound.
    Pin {
        /// Largest CPU number taken.
        max: u64,
    },
    /// A host name or an address; an IPv6 address may stand in brackets.
    Host,
    /// `TF_TP_ROCE_HCA`'s list of RDMA devices, in the grammar of [`tp_hca::grammar::roce`].
    RoceDevices,
    /// NCCL's list of RDMA devices, in the grammar of [`tp_hca::grammar::nccl`]; what NCCL would read otherwise than it
    /// looks is refused.
    NcclDevices,
    /// Any text; its reader has a grammar of its own.
    Text,
    /// A secret of at least [`crate::secret::MIN_BYTES`] bytes; shown as `set`, never as itself.
    Secret,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer { min, max } => write!(f, "whole number {min} to {max}"),
            Self::PowerOfTwo { min, max } => write!(f, "power of two, {min} to {max}"),
            Self::Seconds { min, max } => write!(f, "seconds, {min} to {max}"),
            Self::Words(words) => write!(f, "one of {}", words.join(", ")),
            Self::Switch => f.write_str("1 or 0 (on or off)"),
            Self::Pin { max } => write!(f, "auto, off, or a CPU number 0 to {max}"),
            Self::Host => f.write_str("host name or address"),
            Self::RoceDevices => f.write_str("name[:gid-index],…"),
            Self::NcclDevices => f.write_str("[^][=]name[:port[:rail[:plane]]],…"),
            Self::Text => f.write_str("text"),
            Self::Secret => write!(f, "text of at least {} bytes", crate::secret::MIN_BYTES),
        }
    }
}

/// A value that its row's kind has accepted.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Integer`] and [`Kind::PowerOfTwo`].
    Integer(u64),
    /// Of [`Kind::Seconds`].
    Seconds(Duration),
    /// Of [`Kind::Switch`].
    Switch(bool),
    /// Of [`Kind::Pin`].
    Pin(Pin),
    /// Of the others. A host stands without brackets.
    Text(String),
}

/// Where a thread may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// Wherever the system puts it.
    Off,
    /// The fastest allowed CPU, where CPUs differ.
    Auto,
    /// One CPU, by the system's number.
    Cpu(u32),
}

impl Kind {
    /// Reads the text of a variable. The error says what is wrong with it; the caller adds name and text.
    pub fn parse(self, text: &str) -> Result<Value, String> {
        let trimmed = text.trim_matches(' ');
        match self {
            Self::Integer { min, max } => whole(trimmed, min, max).map(Value::Integer),
            Self::PowerOfTwo { min, max } => match whole(trimmed, min, max)? {
                n if n.is_power_of_two() => Ok(Value::Integer(n)),
                _ => Err("is not a power of two".to_owned()),
            },
            Self::Seconds { min, max } => seconds(trimmed, min, max).map(Value::Seconds),
            Self::Words(words) if words.contains(&trimmed) => Ok(Value::Text(trimmed.to_owned())),
            Self::Words(_) => Err("is none of the words".to_owned()),
            Self::Switch => match trimmed {
                "1" | "on" => Ok(Value::Switch(true)),
                "0" | "off" => Ok(Value::Switch(false)),
                _ => Err("is not a switch".to_owned()),
            },
            Self::Pin { max } => match trimmed {
                "auto" => Ok(Value::Pin(Pin::Auto)),
                "off" | "-1" => Ok(Value::Pin(Pin::Off)),
                number => {
                    let cpu = whole(number, 0, max)?;
                    Ok(Value::Pin(Pin::Cpu(
                        u32::try_from(cpu).map_err(|e| e.to_string())?,
                    )))
                }
            },
            Self::Host => host(trimmed).map(Value::Text),
            Self::RoceDevices => match grammar::roce::parse(text) {
                Ok(_) => Ok(Value::Text(text.to_owned())),
                Err(error) => Err(error.of_value()),
            },
            Self::NcclDevices => match grammar::nccl::check(text) {
                Ok(_) => Ok(Value::Text(text.to_owned())),
                Err(error) => Err(error.of_value()),
            },
            Self::Text => Ok(Value::Text(text.to_owned())),
            Self::Secret if trimmed.len() < crate::secret::MIN_BYTES => {
                Err(format!("is {} bytes long", trimmed.len()))
            }
            Self::Secret => Ok(Value::Text(trimmed.to_owned())),
        }
    }
}

fn whole(text: &str, min: u64, max: u64) -> Result<u64, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err("is not a whole number".to_owned());
    }
    // Only digits are left, so the one possible failure is a number beyond 64 bits, which is beyond every range too.
    match text.parse::<u64>() {
        Ok(n) if (min..=max).contains(&n) => Ok(n),
        _ => Err("is out of range".to_owned()),
    }
}

fn seconds(text: &str, min: f64, max: f64) -> Result<Duration, String> {
    // `f64` also reads `inf`, `nan` and exponents, none of which a person means by a number of seconds.
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match text.parse::<f64>() {
        Ok(n) if plain && (min..=max).contains(&n) => Ok(Duration::from_secs_f64(n)),
        Ok(_) if plain => Err("is out of range".to_owned()),
        _ => Err("is not a number of seconds".to_owned()),
    }
}

/// Takes `name`, `192.0.2.1`, `2001:db8::1` and `[2001:db8::1]`; gives the form without brackets.
fn host(text: &str) -> Result<String, String> {
    let inner = match text.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((inner, "")) => inner,
            Some((_, after)) if after.starts_with(':') => return Err(port_belongs_elsewhere()),
            _ => return Err("has an unbalanced bracket".to_owned()),
        },
        None => text,
    };
    if inner.is_empty() {
        return Err("names no host".to_owned());
    }
    let address = inner.split_once('%').map_or(inner, |(address, _zone)| address);
    if address.parse::<std::net::IpAddr>().is_ok() {
        return Ok(inner.to_owned());
    }
    if inner.contains(':') {
        return Err(match inner.rsplit_once(':') {
            Some((_, port)) if port.bytes().all(|b| b.is_ascii_digit()) => port_belongs_elsewhere(),
            _ => "is not an address".to_owned(),
        });
    }
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if !inner.bytes().all(legal) || inner.len() > 253 {
        return Err("is not a host name".to_owned());
    }
    Ok(inner.to_owned())
}

fn port_belongs_elsewhere() -> String {
    "has a port in it; the port belongs in TF_TP_PORT".to_owned()
}
