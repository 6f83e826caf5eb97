//! Facts files: TOML, with errors that point at line and column.

use super::{Document, RankFacts, SCHEMA};
use crate::code::ErrorCode;
use crate::document::PickError;
use std::ops::Range;
use std::path::Path;
use toml::de::{DeTable, DeValue};

/// A facts file, or facts from a rank, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct FactsError {
    /// One clear line, with the place in front where there is one.
    pub text: String,
}

impl FactsError {
    pub(crate) fn of_text(text: impl Into<String>) -> Self {
        Self { text: text.into() }
    }

    fn at(source: &str, span: Option<Range<usize>>, text: impl AsRef<str>) -> Self {
        let text = text.as_ref();
        match span {
            Some(span) => {
                let (line, column) = line_column(source, span.start);
                Self::of_text(format!("line {line}, column {column}: {text}"))
            }
            None => Self::of_text(text),
        }
    }
}

impl From<FactsError> for PickError {
    fn from(error: FactsError) -> Self {
        PickError::new(ErrorCode::BadFile, None, error.text)
    }
}

/// Line and column, both from 1, the column in characters.
fn line_column(source: &str, offset: usize) -> (usize, usize) {
    let before = source.get(..offset).unwrap_or(source);
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().map_or(0, |text| text.chars().count()) + 1;
    (line, column)
}

/// The keys of a table of the format; tables below it under the same names.
struct Shape {
    name: &'static str,
    keys: &'static [&'static str],
    below: &'static [(&'static str, &'static Shape)],
}

const GID: Shape = Shape {
    name: "a gid",
    keys: &["index", "gid", "type", "netdev"],
    below: &[],
};
const PORT: Shape = Shape {
    name: "[[rank.port]]",
    keys: &[
        "device",
        "port",
        "state",
        "physical_state",
        "link_layer",
        "netdev",
        "carrier",
        "active_mtu",
        "speed_gbps",
        "soft",
        "gids",
        "pci",
        "numa_node",
        "driver",
        "kind",
        "phys_port",
        "openable",
        "node_guid",
    ],
    below: &[("gids", &GID)],
};
const ADDRESS: Shape = Shape {
    name: "[[rank.address]]",
    keys: &["netdev", "address"],
    below: &[],
};
const ROUTE: Shape = Shape {
    name: "[[rank.route]]",
    keys: &["destination", "netdev", "via", "metric", "source"],
    below: &[],
};
const RANK: Shape = Shape {
    name: "[[rank]]",
    keys: &["rank", "host", "env", "port", "address", "route"],
    below: &[("port", &PORT), ("address", &ADDRESS), ("route", &ROUTE)],
};
const TOP: Shape = Shape {
    name: "a facts file",
    keys: &["schema", "rank"],
    below: &[("rank", &RANK)],
};

impl Document {
    /// Reads a facts file. Unknown keys are refused with the nearest known one; errors name line and column.
    pub fn from_toml(source: &str) -> Result<Self, FactsError> {
        let table =
            DeTable::parse(source).map_err(|error| FactsError::at(source, error.span(), error.message()))?;
        check_keys(source, table.get_ref(), &TOP)?;
        let document: Self =
            toml::from_str(source).map_err(|error| FactsError::at(source, error.span(), error.message()))?;
        if document.schema != SCHEMA {
            return Err(FactsError::of_text(format!(
                "schema {} is not known here, only {SCHEMA}; use a newer tool",
                document.schema
            )));
        }
        if document.ranks.is_empty() {
            return Err(FactsError::of_text(
                "no [[rank]] in the facts file; give at least one",
            ));
        }
        for facts in &document.ranks {
            facts.check()?;
        }
        Self::of_ranks(document.ranks)
    }

    /// Reads a facts file from disk; the error names the file.
    pub fn load(path: &Path) -> Result<Self, FactsError> {
        let source = std::fs::read_to_string(path)
            .map_err(|error| FactsError::of_text(format!("{}: cannot be read: {error}", path.display())))?;
        Self::from_toml(&source)
            .map_err(|error| FactsError::of_text(format!("{}: {}", path.display(), error.text)))
    }

    /// The document as a facts file.
    pub fn to_toml(&self) -> Result<String, FactsError> {
        toml::to_string(self)
            .map_err(|error| FactsError::of_text(format!("facts cannot be written: {error}")))
    }
}

impl RankFacts {
    /// Every interface that the facts name.
    fn netdevs(&self) -> impl Iterator<Item = &str> {
        let ports = self.ports.iter().flat_map(|port| {
            let gids = port.gids.iter().flatten().filter_map(|gid| gid.netdev.as_deref());
            port.netdev.as_deref().into_iter().chain(gids)
        });
        let addresses = self.addresses.iter().filter_map(|entry| entry.netdev.as_deref());
        let routes = self.routes.iter().filter_map(|route| route.netdev.as_deref());
        ports.chain(addresses).chain(routes)
    }

    /// Checks what types do not: device and interface names (they become paths and variable text) and repeated ports.
    pub(crate) fn check(&self) -> Result<(), FactsError> {
        if let Some(name) = self.netdevs().find(|name| !is_netdev_name(name)) {
            return Err(FactsError::of_text(format!(
                "rank {}: `{}` is not a network interface's name: at most 15 printable characters without space, `/`, `,`, `=`, `^`",
                self.rank,
                crate::facts::shown(name)
            )));
        }
        let mut seen = std::collections::BTreeSet::new();
        for port in &self.ports {
            if !is_device_name(&port.device) {
                return Err(FactsError::of_text(format!(
                    "rank {}: `{}` is not a device name: letters, digits and `_`, at most 63",
                    self.rank,
                    crate::facts::shown(&port.device)
                )));
            }
            if !(1..=255).contains(&port.port.0) {
                return Err(FactsError::of_text(format!(
                    "rank {}: {} has no port {}: ports count from 1 to 255",
                    self.rank, port.device, port.port
                )));
            }
            if let Some(speed) = port.speed_gbps
                && !(speed.is_finite() && speed >= 0.0)
            {
                return Err(FactsError::of_text(format!(
                    "rank {}: {}:{} has speed_gbps = {speed}: a speed is a finite number of Gbit/s, not below 0",
                    self.rank, port.device, port.port
                )));
            }
            if !seen.insert((&port.device, port.port)) {
                return Err(FactsError::of_text(format!(
                    "rank {}: port {}:{} is given twice",
                    self.rank, port.device, port.port
                )));
            }
        }
        Ok(())
    }
}

/// Whether a text can be a network interface's name and stand in NCCL's list of them.
fn is_netdev_name(text: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'/' | b',' | b'=' | b'^');
    (1..=15).contains(&text.len()) && text.bytes().all(legal) && text != "." && text != ".."
}

/// Whether a text can be an RDMA device's name; only then may it become part of a path.
pub fn is_device_name(text: &str) -> bool {
    (1..=63).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

fn check_keys(source: &str, table: &DeTable<'_>, shape: &Shape) -> Result<(), FactsError> {
    for (key, value) in table {
        let name: &str = key.get_ref();
        if !shape.keys.contains(&name) {
            let near = nearest(name, shape.keys);
            return Err(FactsError::at(
                source,
                Some(key.span()),
                format!(
                    "unknown key `{}` in {}; nearest is `{near}`",
                    crate::facts::shown(name),
                    shape.name
                ),
            ));
        }
        let Some((_, below)) = shape.below.iter().find(|(key, _)| *key == name) else {
            continue;
        };
        if let DeValue::Array(items) = value.get_ref() {
            for item in items {
                if let DeValue::Table(inner) = item.get_ref() {
                    check_keys(source, inner, below)?;
                }
            }
        }
    }
    Ok(())
}

/// The known word that is closest to `name` by edit distance; the first of equals.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> &'a str {
    known
        .iter()
        .min_by_key(|word| strsim::damerau_levenshtein(name, word))
        .copied()
        .unwrap_or_default()
}
