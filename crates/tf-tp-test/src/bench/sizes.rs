//! Sizes as people write them: `4K`, `1M`, `65536`.

/// The sizes of a comma-separated list, bytes. The error names the entry and what is wanted.
pub fn parse_list(text: &str) -> Result<Vec<usize>, String> {
    text.split(',').map(parse).collect()
}

/// One size: a whole number with an optional K, M or G behind it, powers of 1,024; 1 byte to 64 GiB.
pub fn parse(text: &str) -> Result<usize, String> {
    let wrong =
        || format!("`{text}` is no size: want a whole number of bytes from 1 on, K, M or G behind it");
    let word = text.trim();
    let (digits, unit) = match word.char_indices().last() {
        Some((at, 'k' | 'K')) => (&word[..at], 1 << 10),
        Some((at, 'm' | 'M')) => (&word[..at], 1 << 20),
        Some((at, 'g' | 'G')) => (&word[..at], 1 << 30),
        _ => (word, 1),
    };
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(wrong());
    }
    let number: usize = digits.parse().map_err(|_| wrong())?;
    let bytes = number.checked_mul(unit).ok_or_else(wrong)?;
    if bytes == 0 {
        return Err(wrong());
    }
    if bytes > 64 << 30 {
        return Err(format!("`{text}` is more than 64G, the largest size measured"));
    }
    Ok(bytes)
}

/// A size for people: the largest unit that divides it.
pub fn show(bytes: u64) -> String {
    let units = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    let fits = units
        .iter()
        .find(|(unit, _)| bytes >= *unit && bytes.is_multiple_of(*unit));
    fits.map_or_else(
        || format!("{bytes} B"),
        |(unit, name)| format!("{} {name}", bytes / unit),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_with_and_without_units() {
        assert_eq!(parse_list("1,4K, 2m ,1G"), Ok(vec![1, 4096, 2 << 20, 1 << 30]));
        for bad in [
            "",
            "0",
            "4KK",
            "-1",
            "1.5M",
            "K",
            "4,,5",
            "99999999999999999999",
            "65G",
            "9999999999G",
        ] {
            assert!(parse_list(bad).is_err(), "{bad}");
        }
        assert_eq!(show(4096), "4 KiB");
        assert_eq!(show(1000), "1000 B");
    }
}
