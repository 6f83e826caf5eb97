//! Text of a receipt where people read it. A receipt may be anybody's, and its texts and file names may hold characters
//! that move a cursor, begin a line of their own or turn the order of what follows; these are shown, not obeyed.

use crate::receipt::Receipt;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt::Write;

/// Whether a character does something instead of standing for itself: controls, ends of lines, marks of direction.
pub fn is_hidden(c: char) -> bool {
    const MARKS: [char; 5] = ['\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}'];
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') || MARKS.contains(&c)
}

/// A text as one line in which nothing is hidden: `\x1b`, as in logs, or `\u{202e}`.
pub fn visible(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        let _ = match c {
            c if !is_hidden(c) => write!(out, "{c}"),
            c if c.is_ascii() => write!(out, "\\x{:02x}", u32::from(c)),
            c => write!(out, "{}", c.escape_unicode()),
        };
    }
    out.into()
}

/// A receipt of which every text is one line in which nothing is hidden; line feeds and tabs become spaces.
pub fn visible_receipt(receipt: &Receipt) -> Cow<'_, Receipt> {
    let Ok(Value::Object(mut fields)) = serde_json::to_value(receipt) else {
        return Cow::Borrowed(receipt);
    };
    if !of_map(&mut fields) {
        return Cow::Borrowed(receipt);
    }
    // Words of ours and numbers are as they were, so that it reads as a receipt again.
    match serde_json::from_value(Value::Object(fields)) {
        Ok(receipt) => Cow::Owned(receipt),
        Err(_) => Cow::Owned(Receipt::default()),
    }
}

/// Makes everything in it visible; whether anything was not.
fn of_value(value: &mut Value) -> bool {
    match value {
        Value::String(text) => of_text(text),
        Value::Array(all) => all.iter_mut().fold(false, |any, value| of_value(value) | any),
        Value::Object(map) => of_map(map),
        _ => false,
    }
}

fn of_map(map: &mut Map<String, Value>) -> bool {
    let mut changed = false;
    if map.keys().any(|key| key.contains(is_hidden)) {
        changed = true;
        let with_key = |(mut key, value): (String, Value)| {
            of_text(&mut key);
            (key, value)
        };
        *map = std::mem::take(map).into_iter().map(with_key).collect();
    }
    map.values_mut().fold(changed, |any, value| of_value(value) | any)
}

fn of_text(text: &mut String) -> bool {
    if !text.contains(is_hidden) {
        return false;
    }
    *text = visible(&text.replace(['\n', '\r', '\t'], " ")).into_owned();
    true
}
