//! Reading TOML with positions: every value remembers where it stands, so that every refusal can point at it.

use super::settings;
use std::collections::BTreeMap;
use std::ops::Range;
use toml::Spanned;
use toml::de::{DeTable, DeValue};
use tp_receipt::render::is_hidden;

/// What is wrong with an inventory and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}:{column}: {text}")]
pub struct InventoryError {
    /// The file as the user named it.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong and what to do, one line.
    pub text: String,
}

/// The file that is read: its name for messages and its text.
#[derive(Clone, Copy)]
pub struct Source<'s> {
    /// The file as the user named it.
    pub file: &'s str,
    /// Its whole text.
    pub text: &'s str,
}

impl Source<'_> {
    /// Refuses keys and strings of a table, however deep, with hidden characters in them: no name, address, path or value
    /// of a variable has any, and they would tear or turn around what is said of it.
    pub fn refuse_hidden(&self, table: &DeTable<'_>) -> Result<(), InventoryError> {
        self.refuse_hidden_in(table, false)
    }

    /// `lines`: the values of variables, which may have several.
    fn refuse_hidden_in(&self, table: &DeTable<'_>, lines: bool) -> Result<(), InventoryError> {
        for (key, value) in table {
            self.refuse_hidden_text(key.get_ref(), key.span().start, false)?;
            self.refuse_hidden_value(value, lines || key.get_ref() == "env")?;
        }
        Ok(())
    }

    fn refuse_hidden_value(&self, value: &Spanned<DeValue<'_>>, lines: bool) -> Result<(), InventoryError> {
        match value.get_ref() {
            DeValue::String(text) => self.refuse_hidden_text(text, value.span().start, lines),
            DeValue::Array(items) => items
                .iter()
                .try_for_each(|item| self.refuse_hidden_value(item, lines)),
            DeValue::Table(table) => self.refuse_hidden_in(table, lines),
            _ => Ok(()),
        }
    }

    fn refuse_hidden_text(&self, text: &str, offset: usize, lines: bool) -> Result<(), InventoryError> {
        match text
            .chars()
            .find(|c| is_hidden(*c) && !(lines && matches!(c, '\n' | '\t')))
        {
            None => Ok(()),
            Some(c) => Err(self.error(
                offset,
                format!(
                    "`{}` has the character U+{:04X}, which nobody sees; write it without",
                    text.escape_debug(),
                    u32::from(c)
                ),
            )),
        }
    }

    /// An error at a byte offset of the text.
    pub fn error(&self, offset: usize, text: impl Into<String>) -> InventoryError {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        InventoryError {
            file: self.file.to_owned(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
            text: text.into(),
        }
    }
}

/// Variables that a plan gives to each rank itself, and what decides them.
const GIVEN: &[(&str, &str)] = &[
    ("TF_TP_RANK", "use `rank` or `ranks`"),
    ("TF_TP_WORLD", "use `ranks` or `gpus`"),
    ("TF_TP_MASTER", "use `fabric` of rank 0's host"),
    ("TF_TP_PORT", "each step takes a free one"),
    ("TF_TP_PLAN_PORT", "each step takes a free one"),
    ("TF_TP_SESSION", "each step has a session of its own"),
    ("TF_TP_DEVICE", "use `gpus`"),
    ("TF_COMM_BACKEND", "use --backends"),
];

/// A value and the byte offset where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// Byte offset in the file.
    pub offset: usize,
}

/// One table of the file, with the name that messages give it.
pub struct Section<'s> {
    source: Source<'s>,
    name: String,
    table: &'s DeTable<'s>,
    span: Range<usize>,
}

impl<'s> Section<'s> {
    /// A section over `table`; refuses keys that are not in `known` and every key that looks like a password.
    pub fn new(
        source: Source<'s>,
        name: impl Into<String>,
        table: &'s DeTable<'s>,
        span: Range<usize>,
        known: &[&str],
    ) -> Result<Self, InventoryError> {
        let section = Self {
            source,
            name: name.into(),
            table,
            span,
        };
        section.refuse_secrets()?;
        section.refuse_unknown(known)?;
        Ok(section)
    }

    /// Where the table begins.
    pub fn offset(&self) -> usize {
        self.span.start
    }

    /// An error that points at the table itself.
    pub fn error(&self, text: impl Into<String>) -> InventoryError {
        self.source.error(self.span.start, text)
    }

    fn refuse_secrets(&self) -> Result<(), InventoryError> {
        for key in self.table.keys() {
            let lower = key.get_ref().to_lowercase();
            if ["password", "passwd", "passphrase"]
                .iter()
                .any(|word| lower.contains(word))
            {
                return Err(self.source.error(
                    key.span().start,
                    format!(
                        "`{}` is refused: an inventory is shared and kept, so it never holds a password; load the key into \
                         ssh-agent or name it by `identity`",
                        key.get_ref()
                    ),
                ));
            }
        }
        Ok(())
    }

    fn refuse_unknown(&self, known: &[&str]) -> Result<(), InventoryError> {
        let mut unknown: Vec<_> = self
            .table
            .keys()
            .filter(|key| !known.contains(&key.get_ref().as_ref()))
            .collect();
        unknown.sort_by_key(|key| key.span().start);
        let Some(key) = unknown.first() else { return Ok(()) };
        let hint = match nearest(key.get_ref(), known) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known here: {}", known.join(", ")),
        };
        Err(self.source.error(
            key.span().start,
            format!("unknown key `{}` in {}; {hint}", key.get_ref(), self.name),
        ))
    }

    fn get(&self, key: &str) -> Option<&'s Spanned<DeValue<'s>>> {
        self.table.get(key)
    }

    fn wrong(&self, key: &str, value: &Spanned<DeValue<'s>>, wanted: &str) -> InventoryError {
        let found = match value.get_ref() {
            DeValue::String(_) => "a string",
            DeValue::Integer(_) => "a whole number",
            DeValue::Float(_) => "a number",
            DeValue::Boolean(_) => "true or false",
            DeValue::Datetime(_) => "a date",
            DeValue::Array(_) => "a list",
            DeValue::Table(_) => "a table",
        };
        self.source.error(
            value.span().start,
            format!("`{key}` of {} must be {wanted}, not {found}", self.name),
        )
    }

    /// A string, where the key is there; empty ones are refused.
    pub fn string(&self, key: &str) -> Result<Option<At<String>>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let DeValue::String(text) = value.get_ref() else {
            return Err(self.wrong(key, value, "a string"));
        };
        if text.trim().is_empty() {
            return Err(self.source.error(
                value.span().start,
                format!(
                    "`{key}` of {} is empty; give it a value or leave the key out",
                    self.name
                ),
            ));
        }
        Ok(Some(At {
            value: text.to_string(),
            offset: value.span().start,
        }))
    }

    /// A string that must be there.
    pub fn required_string(&self, key: &str) -> Result<At<String>, InventoryError> {
        self.string(key)?
            .ok_or_else(|| self.error(format!("{} has no `{key}`", self.name)))
    }

    /// One of a list of words.
    pub fn word<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> Result<Option<T>, InventoryError> {
        let Some(text) = self.string(key)? else {
            return Ok(None);
        };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return Ok(Some(*value));
        }
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        Err(self.source.error(
            text.offset,
            format!(
                "`{key}` of {} is `{}`, which is none of {}",
                self.name,
                text.value,
                known.join(", ")
            ),
        ))
    }

    /// A whole number within a range, where the key is there.
    pub fn number(&self, key: &str, range: Range<u64>) -> Result<Option<At<u64>>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        self.whole(key, value, &range).map(Some)
    }

    fn whole(
        &self,
        key: &str,
        value: &Spanned<DeValue<'s>>,
        range: &Range<u64>,
    ) -> Result<At<u64>, InventoryError> {
        let DeValue::Integer(number) = value.get_ref() else {
            return Err(self.wrong(key, value, "a whole number"));
        };
        let parsed = u64::from_str_radix(number.as_str(), number.radix())
            .ok()
            .filter(|n| range.contains(n));
        parsed
            .map(|value_| At {
                value: value_,
                offset: value.span().start,
            })
            .ok_or_else(|| {
                self.source.error(
                    value.span().start,
                    format!(
                        "`{key}` of {} is {number}; it must be from {} to {}",
                        self.name,
                        range.start,
                        range.end - 1
                    ),
                )
            })
    }

    /// Seconds above 0, where the key is there.
    pub fn seconds(&self, key: &str) -> Result<Option<f64>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let seconds = match value.get_ref() {
            DeValue::Integer(n) => n.as_str().parse().ok(),
            DeValue::Float(n) => n.as_str().parse().ok(),
            _ => return Err(self.wrong(key, value, "a number of seconds")),
        };
        seconds
            .filter(|s: &f64| s.is_finite() && *s > 0.0 && *s <= 86_400.0)
            .map(Some)
            .ok_or_else(|| {
                self.source.error(
                    value.span().start,
                    format!(
                        "`{key}` of {} must be above 0 and at most 86400 seconds",
                        self.name
                    ),
                )
            })
    }

    /// A list of whole numbers within a range, where the key is there.
    pub fn numbers(&self, key: &str, range: Range<u64>) -> Result<Option<Vec<At<u64>>>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.wrong(key, value, "a list of whole numbers"));
        };
        items
            .iter()
            .map(|item| self.whole(key, item, &range))
            .collect::<Result<_, _>>()
            .map(Some)
    }

    /// A list of strings, where the key is there.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<String>>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.wrong(key, value, "a list of strings"));
        };
        let take = |item: &Spanned<DeValue<'s>>| match item.get_ref() {
            DeValue::String(text) => Ok(text.to_string()),
            _ => Err(self.wrong(key, item, "a list of strings")),
        };
        items.iter().map(take).collect::<Result<_, _>>().map(Some)
    }

    /// A table of variables: names that a shell takes, string values, no secret.
    pub fn variables(&self, key: &str) -> Result<BTreeMap<String, At<String>>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(BTreeMap::new());
        };
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong(key, value, "a table of variables"));
        };
        let mut out = BTreeMap::new();
        for (name, value) in table {
            self.check_variable_name(name)?;
            let DeValue::String(text) = value.get_ref() else {
                return Err(self.wrong(name.get_ref(), value, "a string in quotes"));
            };
            if let Err(wrong) = settings::check(name.get_ref(), text) {
                let known = settings::table()
                    .variables
                    .iter()
                    .any(|v| v.name == *name.get_ref());
                let at = if known {
                    value.span().start
                } else {
                    name.span().start
                };
                return Err(self.source.error(at, wrong));
            }
            out.insert(
                name.get_ref().to_string(),
                At {
                    value: text.to_string(),
                    offset: value.span().start,
                },
            );
        }
        Ok(out)
    }

    fn check_variable_name(&self, name: &Spanned<std::borrow::Cow<'s, str>>) -> Result<(), InventoryError> {
        let text = name.get_ref();
        let at = name.span().start;
        let shape =
            |(i, c): (usize, char)| c == '_' || c.is_ascii_alphabetic() || (i > 0 && c.is_ascii_digit());
        if text.is_empty() || !text.chars().enumerate().all(shape) {
            return Err(self
                .source
                .error(at, format!("`{text}` is no name of an environment variable")));
        }
        if text.as_ref() == "TF_TP_SECRET" || text.to_lowercase().contains("password") {
            return Err(self.source.error(
                at,
                format!("`{text}` is refused: an inventory never holds a secret; the session secret is made for each step"),
            ));
        }
        match GIVEN.iter().find(|(name, _)| *name == text.as_ref()) {
            Some((_, instead)) => Err(self.source.error(
                at,
                format!("`{text}` is refused: the plan gives it to each rank; {instead}"),
            )),
            None => Ok(()),
        }
    }

    /// A table below this one, where the key is there.
    pub fn section(&self, key: &str, known: &[&str]) -> Result<Option<Section<'s>>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let DeValue::Table(table) = value.get_ref() else {
            return Err(self.wrong(key, value, &format!("a table, written [{key}]")));
        };
        Section::new(self.source, format!("[{key}]"), table, value.span(), known).map(Some)
    }

    /// A list of tables below this one.
    pub fn sections(&self, key: &str, known: &[&str]) -> Result<Vec<Section<'s>>, InventoryError> {
        let Some(value) = self.get(key) else {
            return Ok(Vec::new());
        };
        let wanted = format!("a list of tables, written [[{key}]]");
        let DeValue::Array(items) = value.get_ref() else {
            return Err(self.wrong(key, value, &wanted));
        };
        let mut out = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let DeValue::Table(table) = item.get_ref() else {
                return Err(self.wrong(key, item, &wanted));
            };
            let name = format!("[[{key}]] {}", index + 1);
            out.push(Section::new(self.source, name, table, item.span(), known)?);
        }
        Ok(out)
    }
}

/// The known word nearest to `word`, where one is near enough to be meant.
pub fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let word = word.to_lowercase();
    known
        .iter()
        .map(|k| (strsim::damerau_levenshtein(&word, &k.to_lowercase()), *k))
        .filter(|(distance, k)| *distance <= (k.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, k)| k)
}
