//! `receipt.json` against what the record says.

use super::Report;
use super::record::Read;
use crate::receipt::{DerivedFrom, Receipt, SCHEMA};
use crate::store::files;
use crate::store::sums::DOCUMENT;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// Differences that are named one by one.
const NAMED: usize = 20;

/// The document as it stands, and what has to be known of it to derive it anew.
pub(super) struct Document {
    text: String,
    head: Head,
}

#[derive(Deserialize)]
struct Head {
    schema: u32,
    #[serde(default)]
    derived_from: DerivedFrom,
}

/// Reads `receipt.json`.
pub(super) fn document(dir: &Path, report: &mut Report) -> Option<Document> {
    let text = match files::read_text(&report.path(dir, DOCUMENT)) {
        Ok(text) => text,
        Err(e) => {
            report.unreadable(DOCUMENT, &e);
            return None;
        }
    };
    match serde_json::from_str(&text) {
        Ok(head) => Some(Document { text, head }),
        Err(e) => {
            report.broken(DOCUMENT, format!("is no receipt: {e}"));
            None
        }
    }
}

/// Every figure must be the one that the record gives.
pub(super) fn with_record(document: &Document, read: &Read, sealed: bool, report: &mut Report) {
    let Document { text, head } = document;
    if sealed && head.derived_from.bytes != read.whole.derived_from.bytes {
        report.broken(
            DOCUMENT,
            "the run has ended, and it does not rest on the whole record",
        );
    }
    let Some(derived) = read.prefix(&head.derived_from) else {
        let bytes = head.derived_from.bytes;
        report.broken(
            DOCUMENT,
            format!("it rests on {bytes} bytes of the record, and no line ends there"),
        );
        return;
    };
    // Written as we write it, which says all; a receipt of many ranks is then read only once.
    if derived.to_json() == *text {
        return;
    }
    let said = serde_json::from_str(text).and_then(|said: Value| Receipt::from_json(text).map(|_| said));
    let said = match said {
        Ok(said) => said,
        Err(e) => {
            report.broken(DOCUMENT, format!("is no receipt: {e}"));
            return;
        }
    };
    let schema = head.schema;
    let newer = schema > SCHEMA;
    if newer {
        report.notes.push(format!(
            "{DOCUMENT} has schema {schema}; this program knows {SCHEMA} and checks that much"
        ));
    }
    let mut derived = serde_json::to_value(&derived).unwrap_or_default();
    if newer {
        derived["schema"] = schema.into();
    }
    let mut differences = Vec::new();
    differ("", &derived, &said, newer, &mut differences);
    name_some(DOCUMENT, differences, report);
}

fn differ(path: &str, derived: &Value, said: &Value, newer: bool, out: &mut Vec<String>) {
    match (derived, said) {
        (Value::Object(a), Value::Object(b)) => {
            for (key, derived) in a {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match b.get(key) {
                    Some(said) => differ(&path, derived, said, newer, out),
                    None => out.push(format!(
                        "`{path}` is missing; the record gives {}",
                        short(derived)
                    )),
                }
            }
            for key in b.keys().filter(|key| !a.contains_key(*key) && !newer) {
                out.push(format!("`{path}` has `{key}`, and the record gives none"));
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (i, (derived, said)) in a.iter().zip(b).enumerate() {
                differ(&format!("{path}[{i}]"), derived, said, newer, out);
            }
        }
        (Value::Array(a), Value::Array(b)) => {
            out.push(format!(
                "`{path}` has {} entries; the record gives {}",
                b.len(),
                a.len()
            ));
        }
        _ if derived == said => {}
        _ => out.push(format!(
            "`{path}` is {}; the record gives {}",
            short(said),
            short(derived)
        )),
    }
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 80 {
        text
    } else {
        format!("{}…", text.chars().take(80).collect::<String>())
    }
}

/// The in-toto Statement, which other programs act on, must be the one that the record and this `receipt.json` give.
pub(super) fn statement(dir: &Path, document: &Document, read: &Read, report: &mut Report) {
    const NAME: &str = "receipt.intoto.json";
    let text = match files::read_text(&dir.join(NAME)) {
        Ok(text) => text,
        Err(e) => return report.unreadable(NAME, &e),
    };
    let derived = crate::render::intoto(&read.whole, &document.text);
    if derived == text {
        return;
    }
    let parsed = |text: &str| serde_json::from_str::<Value>(text);
    let (derived, said) = match (parsed(&derived), parsed(&text)) {
        (Ok(derived), Ok(said)) => (derived, said),
        (Err(e), _) | (_, Err(e)) => return report.broken(NAME, format!("is no Statement: {e}")),
    };
    let newer = document.head.schema > SCHEMA;
    let mut differences = Vec::new();
    differ("", &derived, &said, newer, &mut differences);
    if differences.is_empty() && !newer {
        // A field that stands there twice reads as one or the other, by who reads it.
        differences.push("it is not in the one form that we write".into());
    }
    name_some(NAME, differences, report);
}

/// Names differences one by one, and counts those that are too many.
pub(super) fn name_some(file: &str, differences: Vec<String>, report: &mut Report) {
    let more = differences.len().saturating_sub(NAMED);
    for what in differences.into_iter().take(NAMED) {
        report.broken(file, what);
    }
    if more > 0 {
        report.broken(file, format!("{more} more differences from the record"));
    }
}
