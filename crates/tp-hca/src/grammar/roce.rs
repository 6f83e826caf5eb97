//! `TF_TP_ROCE_HCA`: `name[:gid-index]`, comma-separated, exact names, all entries with an index or none.

use super::{GrammarError, MAX_ENTRIES, pieces};
use crate::facts::is_device_name;
use crate::ids::GidIndex;

/// The variable's name.
pub const VARIABLE: &str = "TF_TP_ROCE_HCA";

/// Highest GID index that can be written.
const MAX_GID_INDEX: u32 = 255;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Exact device name.
    pub device: String,
    /// GID index, where pinned.
    pub gid_index: Option<GidIndex>,
    /// Character of the value at which the entry begins, from 1.
    pub column: usize,
}

/// Parses a value that is not empty.
pub fn parse(value: &str) -> Result<Vec<Entry>, GrammarError> {
    let mut entries: Vec<Entry> = Vec::new();
    for (column, piece) in pieces(value, 1) {
        let entry = parse_entry(value, column, piece)?;
        if let Some(first) = entries.iter().find(|known| known.device == entry.device) {
            let what = format!(
                "`{}` stands here again (first at character {})",
                entry.device, first.column
            );
            return Err(error(value, column, what, "name every device once"));
        }
        if let Some(first) = entries.first()
            && first.gid_index.is_some() != entry.gid_index.is_some()
        {
            let (with, without) = if first.gid_index.is_some() {
                (first, &entry)
            } else {
                (&entry, first)
            };
            let what = format!(
                "`{}` has a GID index and `{}` has none",
                with.device, without.device
            );
            return Err(error(
                value,
                column,
                what,
                "give an index to all entries or to none (none is better)",
            ));
        }
        entries.push(entry);
        if entries.len() > MAX_ENTRIES {
            let what = format!("more than {MAX_ENTRIES} entries");
            return Err(error(value, column, what, "name fewer devices"));
        }
    }
    Ok(entries)
}

fn parse_entry(value: &str, column: usize, piece: &str) -> Result<Entry, GrammarError> {
    if piece.is_empty() {
        return Err(error(
            value,
            column,
            "an empty entry",
            "remove the comma too many",
        ));
    }
    let (name, index) = match piece.split_once(':') {
        Some((name, index)) => (name, Some(index)),
        None => (piece, None),
    };
    check_name(value, column, name)?;
    let Some(text) = index else {
        return Ok(Entry {
            device: name.to_owned(),
            gid_index: None,
            column,
        });
    };
    let index_column = column + name.chars().count() + 1;
    let index = Some(text)
        .filter(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse::<u32>().ok())
        .filter(|&index| index <= MAX_GID_INDEX);
    match index {
        Some(index) => Ok(Entry {
            device: name.to_owned(),
            gid_index: Some(GidIndex(index)),
            column,
        }),
        None if text.contains(':') => Err(error(
            value,
            index_column,
            format!("`{text}` after the name"),
            "one `:` and a GID index may follow a name; port numbers have no place here",
        )),
        None => Err(error(
            value,
            index_column,
            format!("`{text}` is not a GID index"),
            format!("write a number from 0 to {MAX_GID_INDEX}, or leave `:` out to have it resolved"),
        )),
    }
}

fn check_name(value: &str, column: usize, name: &str) -> Result<(), GrammarError> {
    if is_device_name(name) {
        return Ok(());
    }
    let Some((offset, character)) = name
        .chars()
        .enumerate()
        .find(|(_, character)| !character.is_ascii_alphanumeric() && *character != '_')
    else {
        let (what, fix) = if name.is_empty() {
            ("no device name before `:`", "write `name` or `name:gid-index`")
        } else {
            (
                "a name of more than 63 characters",
                "RDMA device names are shorter; see /sys/class/infiniband",
            )
        };
        return Err(error(value, column, what, fix));
    };
    let fix = match character {
        '^' | '=' => {
            "names are exact here and nothing can be excluded; `^` and `=` belong to NCCL_IB_HCA".to_owned()
        }
        ' ' | '\t' => "remove the white space".to_owned(),
        _ => "device names have letters, digits and `_` only; entries are separated by `,`".to_owned(),
    };
    Err(error(
        value,
        column + offset,
        format!("`{}` cannot stand here", character.escape_debug()),
        fix,
    ))
}

fn error(value: &str, column: usize, what: impl Into<String>, fix: impl Into<String>) -> GrammarError {
    GrammarError {
        variable: VARIABLE,
        value: value.to_owned(),
        column,
        what: what.into(),
        fix: fix.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(value: &str) -> (usize, String) {
        let error = parse(value).unwrap_err();
        (error.column, error.what)
    }

    #[test]
    fn documented_forms_are_taken() {
        let plain = parse("rocep1s0f0,roceP2p1s0f0").unwrap();
        assert_eq!(plain.len(), 2);
        assert_eq!(plain[1].device, "roceP2p1s0f0");
        assert_eq!(plain[1].column, 12);
        let pinned = parse("mlx5_0:3,mlx5_1:5").unwrap();
        assert_eq!(pinned[1].gid_index, Some(GidIndex(5)));
    }

    #[test]
    fn refusals_name_the_character() {
        assert_eq!(refused("^mlx5_0").0, 1);
        assert_eq!(refused("==a,b").0, 1);
        assert_eq!(refused("a,=b").0, 3);
        assert_eq!(refused("a,,b"), (3, "an empty entry".into()));
        assert_eq!(refused("a,b,"), (5, "an empty entry".into()));
        assert_eq!(refused("a,b,a").0, 5);
        assert_eq!(refused("a:3,b").0, 5);
        assert_eq!(refused("a,b:3").0, 3);
        assert_eq!(refused("a:1:3").0, 3);
        assert_eq!(refused("a:x").0, 3);
        assert_eq!(refused("a:").0, 3);
        assert_eq!(refused("a:256").0, 3);
        assert_eq!(refused("a:+1").0, 3);
        assert_eq!(refused(":3").0, 1);
        assert_eq!(refused("a, b").0, 3);
        assert_eq!(refused("a/../b").0, 2);
        assert_eq!(refused("ä").0, 1);
        assert_eq!(refused(&"x".repeat(64)).0, 1);
        let many: Vec<String> = (0..33).map(|n| format!("d{n}")).collect();
        assert!(refused(&many.join(",")).1.contains("more than 32"));
    }
}
