//! An address with the prefix length it really has, where that is known.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// An IP address and, where known, its prefix length: `192.0.2.1/24`, `2001:db8::1/64`, `192.0.2.1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct IfAddr {
    /// The address, host bits kept.
    pub ip: IpAddr,
    /// Prefix length in bits; none is not known (for a route's destination: one address).
    pub prefix_len: Option<u8>,
}

impl IfAddr {
    /// Bits of an address of this family.
    pub fn max_len(&self) -> u8 {
        if self.ip.is_ipv4() { 32 } else { 128 }
    }

    /// Length as a route's destination: an address alone is that one address.
    pub fn route_len(&self) -> u8 {
        self.prefix_len.unwrap_or(self.max_len())
    }
}

impl fmt::Display for IfAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix_len {
            Some(len) => write!(f, "{}/{len}", self.ip),
            None => self.ip.fmt(f),
        }
    }
}

impl FromStr for IfAddr {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "default" {
            return Ok(Self {
                ip: IpAddr::from([0, 0, 0, 0]),
                prefix_len: Some(0),
            });
        }
        let (ip, len) = match text.split_once('/') {
            Some((ip, len)) => (ip, Some(len)),
            None => (text, None),
        };
        let ip: IpAddr = ip
            .parse()
            .map_err(|_| format!("`{text}` is not an address such as 192.0.2.1/24"))?;
        let mut address = Self { ip, prefix_len: None };
        if let Some(len) = len {
            let bits: u8 = len
                .parse()
                .map_err(|_| format!("`{len}` in `{text}` is not a prefix length"))?;
            if bits > address.max_len() {
                return Err(format!(
                    "prefix length {bits} in `{text}` is above {}",
                    address.max_len()
                ));
            }
            address.prefix_len = Some(bits);
        }
        Ok(address)
    }
}

impl Serialize for IfAddr {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for IfAddr {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}
