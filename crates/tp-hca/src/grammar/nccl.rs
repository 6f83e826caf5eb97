//! `NCCL_IB_HCA` as NCCL 2.30 reads it.
//!
//! An optional `^` (everything but), then an optional `=` (exact names), both in front of the whole list only; then
//! entries `name[:port[:rail[:plane]]]` between commas. Without `=` a name matches every device that begins with it.
//! Numbers are read as C's `atoi` does: what is no number is 0. Empty entries vanish, a name is cut at 63 bytes, and of
//! more than 32 entries the rest is never seen. An empty list matches every port.
//!
//! [`parse`] says what NCCL does with any text at all; [`check`] refuses the texts that NCCL takes without a word and
//! reads otherwise than they look.

use super::{GrammarError, MAX_ENTRIES, pieces};
use crate::ids::PortNum;

/// The variable's name.
pub const VARIABLE: &str = "NCCL_IB_HCA";

/// Bytes of a name that NCCL keeps.
const NAME_BYTES: usize = 63;

/// What NCCL makes of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct List {
    /// `^`: the list says what to leave out.
    pub exclude: bool,
    /// `=`: names are exact.
    pub exact: bool,
    /// At most [`MAX_ENTRIES`].
    pub entries: Vec<Entry>,
}

/// One entry as NCCL keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name or prefix, cut at 63 bytes.
    pub name: String,
    /// Port; none is any.
    pub port: Option<i32>,
    /// Rail number for NCCL's topology.
    pub rail: Option<i32>,
    /// Plane number for NCCL's topology.
    pub plane: Option<i32>,
    /// Character of the value at which the entry begins, from 1.
    pub column: usize,
}

impl Entry {
    /// Whether NCCL matches a port against this entry.
    pub fn matches(&self, exact: bool, device: &str, port: PortNum) -> bool {
        let name = if exact {
            device == self.name
        } else {
            device.as_bytes().starts_with(self.name.as_bytes())
        };
        name && self
            .port
            .is_none_or(|wanted| i64::from(wanted) == i64::from(port.0))
    }
}

impl List {
    /// Whether NCCL takes a port, provided that it is ACTIVE and InfiniBand or Ethernet; others it never takes.
    pub fn selects(&self, device: &str, port: PortNum) -> bool {
        let listed = self.entries.is_empty()
            || self
                .entries
                .iter()
                .any(|entry| entry.matches(self.exact, device, port));
        listed != self.exclude
    }
}

/// What NCCL makes of a value; nothing is refused, as NCCL refuses nothing.
pub fn parse(value: &str) -> List {
    let (exclude, exact, body) = header(value);
    let first_column = value.chars().count() - body.chars().count() + 1;
    let entries = pieces(body, first_column)
        .filter_map(|(column, piece)| {
            let mut fields = piece.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let mut number = || {
                fields
                    .next()
                    .filter(|text| !text.is_empty())
                    .map(atoi)
                    .filter(|&n| n != -1)
            };
            let (port, rail, plane) = (number(), number(), number());
            Some(Entry {
                name: cut(name, NAME_BYTES).to_owned(),
                port,
                rail,
                plane,
                column,
            })
        })
        .take(MAX_ENTRIES)
        .collect();
    List {
        exclude,
        exact,
        entries,
    }
}

fn header(value: &str) -> (bool, bool, &str) {
    let (exclude, rest) = value
        .strip_prefix('^')
        .map_or((false, value), |rest| (true, rest));
    let (exact, body) = rest.strip_prefix('=').map_or((false, rest), |body| (true, body));
    (exclude, exact, body)
}

/// C's `atoi`: white space, a sign, digits; 0 where there is no digit. Values beyond an `int` are clamped.
fn atoi(text: &str) -> i32 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\x0b', '\x0c', '\r']);
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1i64, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let value = digits
        .bytes()
        .take_while(u8::is_ascii_digit)
        .fold(0i64, |value, digit| {
            (value * 10 + i64::from(digit - b'0')).min(i64::from(i32::MAX))
        });
    i32::try_from(sign * value).unwrap_or(i32::MAX)
}

/// At most `len` bytes, and no half character.
fn cut(text: &str, len: usize) -> &str {
    let mut end = len.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// Refuses what NCCL would take without a word and read otherwise than it looks. What ports there are does not matter
/// here.
pub fn check(value: &str) -> Result<List, GrammarError> {
    let (exclude, _, body) = header(value);
    let mut column = value.chars().count() - body.chars().count() + 1;
    let mut count = 0;
    for (at, piece) in pieces(body, column) {
        column = at;
        if piece.is_empty() {
            continue;
        }
        check_entry(value, at, piece)?;
        count += 1;
        if count > MAX_ENTRIES {
            let what = format!("NCCL reads {MAX_ENTRIES} entries and drops this one and all after it");
            return Err(error(
                value,
                at,
                what,
                "name fewer devices, or a prefix that covers them",
            ));
        }
    }
    if count == 0 {
        let what = if exclude {
            "an empty list excludes every port"
        } else {
            "an empty list matches every port"
        };
        return Err(error(
            value,
            column,
            what,
            "name the devices, or unset the variable",
        ));
    }
    Ok(parse(value))
}

fn check_entry(value: &str, column: usize, piece: &str) -> Result<(), GrammarError> {
    let mut at = column;
    for (number, field) in piece.split(':').enumerate() {
        match number {
            0 => check_name(value, at, field)?,
            1..=3 => check_number(value, at, field, number)?,
            _ => {
                let what = format!("NCCL ignores `:{field}` here");
                return Err(error(
                    value,
                    at - 1,
                    what,
                    "an entry is name[:port[:rail[:plane]]]",
                ));
            }
        }
        at += field.chars().count() + 1;
    }
    Ok(())
}

fn check_name(value: &str, column: usize, name: &str) -> Result<(), GrammarError> {
    if name.is_empty() {
        return Err(error(
            value,
            column,
            "NCCL drops an entry without a name",
            "write name[:port]",
        ));
    }
    if let Some((offset, sign)) = name
        .chars()
        .enumerate()
        .find(|(_, sign)| matches!(sign, '^' | '='))
    {
        let what = format!("NCCL reads this `{sign}` as part of a device name");
        let fix = "`^` and then `=` may stand in front of the whole list only, as in `=mlx5_0,mlx5_1` or `^=mlx5_0`";
        return Err(error(value, column + offset, what, fix));
    }
    if let Some((offset, sign)) = name
        .chars()
        .enumerate()
        .find(|(_, sign)| !sign.is_ascii_alphanumeric() && *sign != '_')
    {
        let what = format!(
            "`{}` is in no device's name, so NCCL matches nothing",
            sign.escape_debug()
        );
        return Err(error(
            value,
            column + offset,
            what,
            "entries are separated by `,` alone, without white space",
        ));
    }
    if name.len() > NAME_BYTES {
        let what = format!("NCCL cuts this name at {NAME_BYTES} bytes");
        return Err(error(
            value,
            column,
            what,
            "RDMA device names are shorter; see /sys/class/infiniband",
        ));
    }
    Ok(())
}

fn check_number(value: &str, column: usize, field: &str, number: usize) -> Result<(), GrammarError> {
    let what = ["port", "rail", "plane"][number - 1];
    if field.is_empty() {
        return Ok(());
    }
    if !field.bytes().all(|byte| byte.is_ascii_digit()) || field.len() > 6 {
        let read = atoi(field);
        let text = format!("`{field}` is not a {what} number, NCCL reads it as {read}");
        return Err(error(
            value,
            column,
            text,
            "write name[:port[:rail[:plane]]] with decimal numbers",
        ));
    }
    if number == 1 && field.parse() == Ok(0u32) {
        return Err(error(
            value,
            column,
            "ports count from 1",
            "write `:1`, or leave the port out for any",
        ));
    }
    Ok(())
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

    fn selected<'a>(value: &str, ports: &[(&'a str, u32)]) -> Vec<(&'a str, u32)> {
        let list = parse(value);
        ports
            .iter()
            .copied()
            .filter(|&(device, port)| list.selects(device, PortNum(port)))
            .collect()
    }

    const PORTS: &[(&str, u32)] = &[
        ("mlx5_0", 1),
        ("mlx5_1", 1),
        ("mlx5_11", 1),
        ("mlx5_11", 2),
        ("rocep1s0f0", 1),
    ];

    #[test]
    fn names_are_prefixes_unless_exact() {
        assert_eq!(
            selected("mlx5_1", PORTS),
            [("mlx5_1", 1), ("mlx5_11", 1), ("mlx5_11", 2)]
        );
        assert_eq!(selected("=mlx5_1", PORTS), [("mlx5_1", 1)]);
        assert_eq!(selected("^mlx5_1", PORTS), [("mlx5_0", 1), ("rocep1s0f0", 1)]);
        assert_eq!(selected("^=mlx5_1", PORTS).len(), 4);
        assert_eq!(selected("mlx5_11:2", PORTS), [("mlx5_11", 2)]);
    }

    #[test]
    fn headers_hold_for_the_whole_list_only() {
        // The second `=` becomes part of a name that no device has.
        assert_eq!(selected("==mlx5_0,mlx5_1", PORTS), [("mlx5_1", 1)]);
        assert_eq!(selected("mlx5_0,^mlx5_1", PORTS), [("mlx5_0", 1)]);
        // `=` in front of `^` makes `^` part of the name.
        assert_eq!(selected("=^mlx5_0", PORTS), []);
    }

    #[test]
    fn empty_lists_match_everything() {
        assert_eq!(selected("", PORTS).len(), 5);
        assert_eq!(selected("=", PORTS).len(), 5);
        assert_eq!(selected(",,", PORTS).len(), 5);
        assert_eq!(selected("^", PORTS), []);
        assert_eq!(selected(":1,mlx5_0", PORTS), [("mlx5_0", 1)]);
    }

    #[test]
    fn numbers_are_read_as_atoi_does() {
        assert_eq!(parse("a:x").entries[0].port, Some(0));
        assert_eq!(parse("a: 2x").entries[0].port, Some(2));
        assert_eq!(parse("a:-1").entries[0].port, None);
        assert_eq!(
            parse("a::7").entries[0],
            Entry {
                name: "a".into(),
                port: None,
                rail: Some(7),
                plane: None,
                column: 1
            }
        );
        let full = &parse("^=a:1:2:3:4").entries[0];
        assert_eq!(
            (full.port, full.rail, full.plane, full.column),
            (Some(1), Some(2), Some(3), 3)
        );
        assert_eq!(parse("a:99999999999999999999").entries[0].port, Some(i32::MAX));
    }

    #[test]
    fn lists_and_names_are_cut() {
        let many: Vec<String> = (0..40).map(|n| format!("d{n}")).collect();
        assert_eq!(parse(&many.join(",")).entries.len(), 32);
        assert_eq!(parse(&"x".repeat(80)).entries[0].name.len(), 63);
    }

    #[test]
    fn silent_misreadings_are_refused_with_their_place() {
        let column = |value: &str| check(value).unwrap_err().column;
        assert_eq!(column("==a,b"), 2);
        assert_eq!(column("a,=b"), 3);
        assert_eq!(column("a,^b"), 3);
        assert_eq!(column("=^a"), 2);
        assert_eq!(column("a:x"), 3);
        assert_eq!(column("a:0"), 3);
        assert_eq!(column("a:1:2:3:4"), 8);
        assert_eq!(column("a, b"), 3);
        assert_eq!(column("^"), 2);
        assert_eq!(column("="), 2);
        assert_eq!(column(&vec!["ab"; 33].join(",")), 97);
        assert!(check("a,,b").is_ok());
        assert!(check("^=a:1:2:3,b").is_ok());
    }
}
