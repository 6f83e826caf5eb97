//! Text that crosses the wire: bounded, one line, readable.

/// The longest prefix within `max` bytes that ends between characters.
pub(crate) fn cut(text: &str, max: usize) -> &str {
    let end = (0..=max.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

/// One line of at most `max` bytes: control characters become spaces.
pub(crate) fn line(text: &str, max: usize) -> String {
    cut(text, max)
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

/// The value of the first `name=value` line with this name.
pub(crate) fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .filter_map(|line| line.split_once('='))
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

/// Ranks as people list them: `1, 3, 7`; long lists end with how many more there are.
pub(crate) fn ranks(list: &[crate::types::Rank]) -> String {
    const SHOWN: usize = 16;
    let mut out: Vec<String> = list.iter().take(SHOWN).map(ToString::to_string).collect();
    if list.len() > SHOWN {
        out.push(format!("and {} more", list.len() - SHOWN));
    }
    out.join(", ")
}
