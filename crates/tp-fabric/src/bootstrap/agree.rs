//! The agreement: readable `name=value` fields that must be equal on all ranks.

use super::{BootError, Bootstrap, gather};
use crate::meeting::MeetingError;
use crate::text::line;
use crate::types::Rank;
use std::collections::BTreeMap;
use std::fmt;

/// Longest name and value of a field, bytes; longer ones are cut, which both sides do alike.
const NAME_MAX: usize = 128;
const VALUE_MAX: usize = 1024;
/// Most fields that a rank gives.
const FIELDS_MAX: usize = 1024;
/// Length of the comparison from which on no further field is added to it, bytes.
const COMPARISON_MAX: usize = 16 << 20;
/// What a rank that does not have a field counts as having.
const ABSENT: &str = "(absent)";

/// The fields in which ranks differ.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Disagreement {
    /// All of them, by name.
    pub differences: Vec<Difference>,
}

/// One field and who has which value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The field.
    pub name: String,
    /// Every value with the ranks that have it, each with its host's name; rank 0's comes first.
    pub values: Vec<(String, Vec<(Rank, String)>)>,
}

impl fmt::Display for Disagreement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the ranks differ in ")?;
        for (index, difference) in self.differences.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; in " };
            write!(f, "{separator}{difference}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.name)?;
        for (index, (value, ranks)) in self.values.iter().enumerate() {
            let separator = if index == 0 { "" } else { "," };
            let shown = ranks
                .iter()
                .take(8)
                .map(|(rank, host)| format!("rank {rank} on {host}"));
            let mut who = shown.collect::<Vec<_>>().join(", ");
            if ranks.len() > 8 {
                who += &format!(" and {} more", ranks.len() - 8);
            }
            write!(f, "{separator} `{value}` ({who})")?;
        }
        Ok(())
    }
}

/// Compares the fields; see [`Bootstrap::agree`].
pub(super) fn agree(boot: &mut Bootstrap, op: &str, fields: &[(String, String)]) -> Result<(), BootError> {
    // protocol 3.7
    let mine: String = fields
        .iter()
        .map(|(name, value)| {
            format!(
                "{}={}\n",
                line(name, NAME_MAX).replace('=', " "),
                line(value, VALUE_MAX)
            )
        })
        .collect();
    let hosts = boot.hosts.clone();
    let answer = gather::exchange(boot, op, mine.as_bytes(), |all| {
        let compared = compare(all, &hosts).map_err(|(rank, reason)| MeetingError::Refused {
            op: op.to_owned(),
            rank,
            reason,
        });
        compared.map(String::into_bytes)
    })?;
    let differences = parse(&String::from_utf8_lossy(&answer)).ok_or_else(|| {
        let reason = "its comparison is garbled".to_owned();
        MeetingError::Lost {
            op: op.to_owned(),
            rank: Rank(0),
            reason,
        }
    })?;
    if differences.is_empty() {
        Ok(())
    } else {
        Err(Disagreement { differences }.into())
    }
}

/// Lines of `name`, `value` and `rank host …`, separated by tabs; none where all agree. An error is a rank and what is
/// wrong with its fields.
// protocol 3.8
pub(super) fn compare(all: &[Vec<u8>], hosts: &[String]) -> Result<String, (Rank, String)> {
    let mut names = Vec::new();
    let mut tables = Vec::with_capacity(all.len());
    for (rank, blob) in (0..).map(Rank).zip(all) {
        tables.push(table(blob, &mut names).map_err(|reason| (rank, reason))?);
    }
    let mut out = String::new();
    for name in names {
        let mut values: Vec<(&str, Vec<String>)> = Vec::new();
        for (rank, table) in tables.iter().enumerate() {
            let value = table.get(&name).map_or(ABSENT, String::as_str);
            let host = hosts.get(rank).map_or("?", String::as_str);
            let who = format!("{rank} {}", host.replace(' ', "_"));
            match values.iter_mut().find(|(known, _)| *known == value) {
                Some((_, ranks)) => ranks.push(who),
                None => values.push((value, vec![who])),
            }
        }
        if values.len() > 1 && out.len() < COMPARISON_MAX {
            for (value, ranks) in values {
                out += &format!("{name}\t{value}\t{}\n", ranks.join(" "));
            }
        }
    }
    Ok(out)
}

/// A rank's fields; `names` collects every name in the order of its first appearance.
fn table(blob: &[u8], names: &mut Vec<String>) -> Result<BTreeMap<String, String>, String> {
    let text = String::from_utf8_lossy(blob);
    let mut table = BTreeMap::new();
    let fields = text.lines().filter_map(|line| line.split_once('='));
    for (number, (name, value)) in fields.enumerate() {
        if number == FIELDS_MAX {
            return Err(format!("gave more than {FIELDS_MAX} fields to agree on"));
        }
        // The wire's own separators cannot stand in what it carries.
        let (name, value) = (line(name, NAME_MAX), line(value, VALUE_MAX));
        if !names.contains(&name) {
            names.push(name.clone());
        }
        table.insert(name, value);
    }
    Ok(table)
}

pub(super) fn parse(text: &str) -> Option<Vec<Difference>> {
    let mut differences: Vec<Difference> = Vec::new();
    for row in text.lines() {
        let mut columns = row.split('\t');
        let (name, value, who) = (columns.next()?, columns.next()?, columns.next()?);
        let mut ranks = Vec::new();
        let mut words = who.split(' ');
        while let Some(rank) = words.next() {
            ranks.push((Rank(rank.parse().ok()?), words.next()?.to_owned()));
        }
        let entry = (value.to_owned(), ranks);
        match differences.last_mut().filter(|last| last.name == name) {
            Some(last) => last.values.push(entry),
            None => differences.push(Difference {
                name: name.to_owned(),
                values: vec![entry],
            }),
        }
    }
    Some(differences)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_difference_is_named_with_every_value_and_rank() {
        let all = [
            b"protocol=1\nslot=256\nimage=abc\n".to_vec(),
            b"protocol=1\nslot=512\n".to_vec(),
            b"protocol=1\nslot=512\nimage=abc\nextra=x\n".to_vec(),
        ];
        let hosts = ["alpha", "beta", "gamma"].map(str::to_owned);
        let differences = parse(&compare(&all, &hosts).unwrap()).unwrap();
        let text = Disagreement { differences }.to_string();
        assert_eq!(
            text,
            "the ranks differ in slot: `256` (rank 0 on alpha), `512` (rank 1 on beta, rank 2 on gamma); \
             in image: `abc` (rank 0 on alpha, rank 2 on gamma), `(absent)` (rank 1 on beta); \
             in extra: `(absent)` (rank 0 on alpha, rank 1 on beta), `x` (rank 2 on gamma)"
        );
    }

    #[test]
    fn equal_fields_in_another_order_agree() {
        let all = [b"a=1\nb=2\n".to_vec(), b"b=2\na=1\n".to_vec()];
        assert_eq!(compare(&all, &[]).unwrap(), "");
    }

    #[test]
    fn more_fields_than_anybody_needs_are_the_givers_error() {
        let fields = |count: usize| {
            (0..count)
                .map(|n| format!("f{n}=1\n"))
                .collect::<String>()
                .into_bytes()
        };
        let all = [fields(FIELDS_MAX), fields(FIELDS_MAX)];
        assert_eq!(compare(&all, &[]).unwrap(), "");
        let all = [fields(1), fields(FIELDS_MAX + 1)];
        let (rank, reason) = compare(&all, &[]).unwrap_err();
        assert_eq!(rank, Rank(1));
        assert!(reason.contains("more than 1024 fields"), "{reason}");
    }
}
