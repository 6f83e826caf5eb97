//! The runner's settings as far as an inventory may set them: a misspelt name or a value out of range is found where it
//! stands, before any host is asked.
//!
//! `settings.json` is what `tf-tp-test explain --json` says of each variable; a test keeps it current
//! (`TP_UPDATE_DOCS=1 cargo test -p tp-orchestrate --test settings`). The orchestrator knows no more of the fabric than that.

use super::nearest;
use serde::{Deserialize, Serialize};
use std::net::IpAddr;
use std::sync::OnceLock;
use tp_hca::grammar;

/// Names that begin so are the runner's own.
const OURS: [&str; 2] = ["TF_TP_", "TF_COMM_"];

/// The table of the runner's settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Every variable.
    pub variables: Vec<Variable>,
    /// Names that earlier tools took.
    pub retired: Vec<Retired>,
}

/// One variable.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// What its text may be.
    pub takes: Takes,
}

/// What a text may be, in the runner's own words.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Takes {
    /// `integer`, `power-of-two`, `seconds`, `words`, `switch`, `pin`, `host`, `roce-devices`, `nccl-devices`, `text`, `secret`.
    pub kind: String,
    /// Smallest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min: Option<serde_json::Number>,
    /// Largest number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max: Option<serde_json::Number>,
    /// The words.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
    /// The same for people.
    pub text: String,
}

/// A name that does nothing any more.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Retired {
    /// The name.
    pub name: String,
    /// What to do instead.
    pub instead: String,
}

/// The table that this program was built with.
pub fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    // The file is part of the program and tested to be readable and not empty.
    TABLE.get_or_init(|| serde_json::from_str(include_str!("settings.json")).unwrap_or_default())
}

/// Refuses a variable of the runner's that it does not have, or a text that it would not take. Other programs' variables
/// pass. The error says what is wrong and what to write.
pub fn check(name: &str, text: &str) -> Result<(), String> {
    let table = table();
    let Some(variable) = table.variables.iter().find(|v| v.name == name) else {
        return known(table, name);
    };
    let trimmed = text.trim_matches(' ');
    if trimmed.is_empty() {
        return Err(format!("`{name}` is empty: leave it out to have it unset"));
    }
    // A list of devices goes on as it stands, blanks and all.
    let judged = match variable.takes.kind.as_str() {
        "roce-devices" => grammar::roce::parse(text).map(drop).map_err(|e| e.of_value()),
        "nccl-devices" => grammar::nccl::check(text).map(drop).map_err(|e| e.of_value()),
        _ => variable.takes.check(trimmed).map_err(str::to_owned),
    };
    judged.map_err(|wrong| {
        let text = &variable.takes.text;
        format!("`{name}` is `{trimmed}`, which {wrong}: want {text}")
    })
}

fn known(table: &Table, name: &str) -> Result<(), String> {
    if let Some(retired) = table.retired.iter().find(|r| r.name == name) {
        return Err(format!("`{name}` does nothing: {}", retired.instead));
    }
    if !OURS.iter().any(|prefix| name.starts_with(prefix)) {
        return Ok(());
    }
    let names: Vec<&str> = table.variables.iter().map(|v| v.name.as_str()).collect();
    let hint = match nearest(name, &names) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "tf-tp-test explain lists all".to_owned(),
    };
    Err(format!(
        "`{name}` is no variable of the runner and would do nothing; {hint}"
    ))
}

impl Takes {
    /// What is wrong with a text that has no blanks around it; the caller says what is wanted.
    fn check(&self, text: &str) -> Result<(), &'static str> {
        match self.kind.as_str() {
            "integer" => self.whole(text).map(drop),
            "power-of-two" if self.whole(text)?.is_power_of_two() => Ok(()),
            "power-of-two" => Err("is not a power of two"),
            "seconds" => self.seconds(text),
            "words" if self.words.iter().any(|word| word == text) => Ok(()),
            "words" => Err("is none of the words"),
            "switch" if ["1", "on", "0", "off"].contains(&text) => Ok(()),
            "switch" => Err("is not a switch"),
            "pin" if ["auto", "off", "-1"].contains(&text) => Ok(()),
            "pin" => self.whole(text).map(drop),
            "host" => host(text),
            _ => Ok(()),
        }
    }

    fn whole(&self, text: &str) -> Result<u64, &'static str> {
        if !text.bytes().all(|b| b.is_ascii_digit()) {
            return Err("is not a whole number");
        }
        let bound =
            |number: &Option<serde_json::Number>| number.as_ref().and_then(serde_json::Number::as_u64);
        let range = bound(&self.min).unwrap_or(0)..=bound(&self.max).unwrap_or(u64::MAX);
        match text.parse::<u64>() {
            Ok(number) if range.contains(&number) => Ok(number),
            _ => Err("is out of range"),
        }
    }

    fn seconds(&self, text: &str) -> Result<(), &'static str> {
        let plain = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        let bound =
            |number: &Option<serde_json::Number>| number.as_ref().and_then(serde_json::Number::as_f64);
        let range = bound(&self.min).unwrap_or(0.0)..=bound(&self.max).unwrap_or(f64::MAX);
        match text.parse::<f64>() {
            Ok(number) if plain && range.contains(&number) => Ok(()),
            Ok(_) if plain => Err("is out of range"),
            _ => Err("is not a number of seconds"),
        }
    }
}

/// `name`, `192.0.2.1`, `2001:db8::1`, `[2001:db8::1]`, and no port.
fn host(text: &str) -> Result<(), &'static str> {
    let inner = match text.strip_prefix('[') {
        Some(rest) => rest
            .strip_suffix(']')
            .ok_or("has an unbalanced bracket or a port in it")?,
        None => text,
    };
    let literal = inner.split_once('%').map_or(inner, |(address, _zone)| address);
    if literal.parse::<IpAddr>().is_ok() {
        return Ok(());
    }
    if inner.contains(':') {
        return Err("is not an address, or has a port in it");
    }
    let legal = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if inner.is_empty() || inner.len() > 253 || !inner.bytes().all(legal) {
        return Err("is not a host name");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_there() {
        assert!(table().variables.len() > 30, "{}", table().variables.len());
        assert!(!table().retired.is_empty());
    }

    #[test]
    fn a_typing_error_names_the_nearest_and_other_programs_pass() {
        let error = check("TF_TP_HEARTBEAT_LIMITS", "3").unwrap_err();
        assert!(
            error.contains("did you mean `TF_TP_HEARTBEAT_LIMIT_S`?"),
            "{error}"
        );
        assert!(check("TF_TP_FAILFAST", "1").unwrap_err().contains("does nothing"));
        assert_eq!(check("NCCL_DEBUG", "WARN"), Ok(()));
        assert_eq!(check("PATH", ""), Ok(()));
    }
}
