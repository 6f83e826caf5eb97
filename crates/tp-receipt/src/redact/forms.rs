//! What is found by its form: addresses, hardware addresses, GUIDs, UUIDs, e-mail addresses, key fingerprints, serial
//! numbers, the host name in front of NCCL's log lines, private paths.

use super::keyring::Entry;
use super::{State, address};
use aho_corasick::{AhoCorasick, MatchKind};
use regex::{Captures, Regex};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::RangeBounds;
use std::sync::LazyLock;

/// One pass finds every form; which one matched is the name of the group.
static FORMS: LazyLock<Option<Regex>> = LazyLock::new(|| {
    let forms = [
        r"(?P<uuid>[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12})",
        r"(?P<nccl>^[A-Za-z0-9][A-Za-z0-9.-]*):\d+:\d+ \[",
        r"(?P<mail>[A-Za-z0-9._%+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,})",
        r"(?P<fingerprint>SHA256:[A-Za-z0-9+/]{43})",
        r#"(?P<serial>(?i:serial(?:[ _-]?(?:number|no))?|s/n|machine[ _-]?id)["']?\s*[:=]\s*["']?)(?P<number>[A-Za-z0-9-]{5,})"#,
        r"(?P<hwdash>[0-9A-Fa-f]{2}(?:-[0-9A-Fa-f]{2}){5})",
        r"(?P<hexguid>0x[0-9A-Fa-f]{16})",
        r"(?P<colons>[0-9A-Fa-f.:]*:[0-9A-Fa-f.]*:[0-9A-Fa-f.:]*)(?P<len6>/\d{1,3})?",
        r"(?P<v4>\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3})(?P<len4>/\d{1,2})?",
        r"(?P<path>/[A-Za-z0-9._+@%~-]+(?:/[A-Za-z0-9._+@%~=,-]*)*)",
    ];
    Regex::new(&forms.join("|")).ok()
});

/// Whether a text has a character that each form needs one of; most names and words have none.
pub fn may_stand_in(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().any(|b| b"-:@=./".contains(b)) || bytes.windows(2).any(|pair| pair == b"0x")
}

/// The text with every such form replaced.
pub fn replace(state: &mut State, text: &str) -> String {
    let Some(forms) = FORMS.as_ref() else {
        return text.to_owned();
    };
    let mut out = String::new();
    let mut done = 0;
    let mut at = 0;
    while let Some(found) = forms.captures_at(text, at) {
        let Some(whole) = found.get(0) else { break };
        at = if whole.is_empty() {
            whole.end() + 1
        } else {
            whole.end()
        };
        if let Some((end, new)) = replacement(state, text, &found) {
            out.push_str(&text[done..whole.start()]);
            out.push_str(&new);
            done = end;
            at = end;
        } else if let Some(skip) = found.name("path").or(found.name("mail")) {
            // What was no path of its own may hold an address: look again right behind its first character.
            at = skip.start() + 1;
        }
        if at > text.len() {
            break;
        }
    }
    out.push_str(&text[done..]);
    out
}

/// What stands instead of a match, and where in the text the match ends.
fn replacement(state: &mut State, text: &str, found: &Captures<'_>) -> Option<(usize, String)> {
    let whole = found.get(0)?;
    let before = text[..whole.start()].chars().next_back();
    let after = text[whole.end()..].chars().next();
    if found.name("nccl").is_some() {
        let name = found.name("nccl")?;
        let pseudonym = state.host(name.as_str());
        return Some((name.end(), pseudonym));
    }
    if let Some(colons) = found.name("colons") {
        let prefix = found.name("len6").map(|m| m.as_str());
        let new = hex_run(state, colons.as_str(), prefix, before)?;
        return Some((colons.end(), new));
    }
    if let Some(v4) = found.name("v4") {
        let touches = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit() || c == '.');
        // Five numbers and more are a version, not an address.
        let rest = &text[v4.end()..];
        let longer = rest
            .strip_prefix('.')
            .is_some_and(|r| r.starts_with(|c: char| c.is_ascii_digit()));
        if touches(before) || longer {
            return None;
        }
        let prefix = found.name("len4").map(|m| m.as_str());
        return Some((
            v4.end(),
            of_address(state, v4.as_str().parse().ok()?, prefix).to_string(),
        ));
    }
    if let Some(path) = found.name("path") {
        let own = without_address(path.as_str(), &text[path.end()..]);
        return Some((path.start() + own.len(), private_path(state, own, before)?));
    }
    if let Some(label) = found.name("serial") {
        let number = found.name("number")?.as_str();
        let new = format!("serial-{}", state.digest("serial", number, 4));
        if number.starts_with("serial-") || number.starts_with("uuid-") {
            return None;
        }
        state.remember(&new, "serial", number);
        return Some((whole.end(), format!("{}{new}", label.as_str())));
    }
    let inside = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    if found.name("mail").is_none() && (inside(before) && found.name("hexguid").is_none() || inside(after)) {
        return None;
    }
    let original = whole.as_str();
    let (kind, bytes) = match () {
        () if found.name("uuid").is_some() => ("uuid", 4),
        () if found.name("mail").is_some() => ("mail", 4),
        () if found.name("fingerprint").is_some() => ("fingerprint", 4),
        () => return Some((whole.end(), hardware(state, original))),
    };
    if kind == "mail" && (original.ends_with("@openssh.com") || original.ends_with("@libssh.org")) {
        return None;
    }
    let new = format!(
        "{kind}-{}",
        state.digest(kind, &original.to_ascii_lowercase(), bytes)
    );
    state.remember(&new, kind, original);
    Some((whole.end(), new))
}

fn of_address(state: &mut State, original: IpAddr, prefix: Option<&str>) -> IpAddr {
    let key = state.key;
    let pseudonym = *state
        .addresses
        .entry(original)
        .or_insert_with(|| address::pseudonym(&key, original));
    if pseudonym != original {
        state.remember(&pseudonym.to_string(), "address", &original.to_string());
    }
    let bits = prefix.and_then(|p| p.trim_start_matches('/').parse().ok());
    bits.map_or(pseudonym, |bits| address::network(original, pseudonym, bits))
}

/// A run of hex digits and colons: an IPv6 address, a hardware address, a GUID, or neither (a time, a PCI address).
fn hex_run(state: &mut State, run: &str, prefix: Option<&str>, before: Option<char>) -> Option<String> {
    let glued = before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    // `gid:fe80::1`: the run may begin with the end of a word, and a full stop may follow it.
    let starts = std::iter::once(0).filter(|_| !glued).chain(
        run.match_indices([':', '.'])
            .filter(|(i, _)| begins_anew(run, *i))
            .map(|(i, _)| i + 1),
    );
    for start in starts {
        for end in ends(run, start) {
            let part = &run[start..end];
            // Of `::1:2:3:4:5:6:7:8` the colons in front are no part of the address.
            let cut_short = part.starts_with("::") && continues(&run[end..]);
            if cut_short {
                continue;
            }
            if let Some(new) = hex_part(state, part, prefix.filter(|_| end == run.len())) {
                let rest =
                    hex_run(state, &run[end..], prefix, Some(':')).unwrap_or_else(|| run[end..].to_owned());
                return Some(format!("{}{new}{rest}", &run[..start]));
            }
        }
    }
    // `10.0.0.1:29500:` and the like: the IPv4 addresses within.
    let parts: Vec<String> = run
        .split(':')
        .map(|part| match part.trim_end_matches('.').parse() {
            Ok(IpAddr::V4(v4)) => of_address(state, v4.into(), None).to_string(),
            _ => part.to_owned(),
        })
        .collect();
    let joined = parts.join(":");
    (joined != run).then_some(joined)
}

/// Whether an address may begin behind the colon or full stop at `at`: not behind a full stop of an IPv4 address.
fn begins_anew(run: &str, at: usize) -> bool {
    let own = |from: &str| from.split(':').next_back().unwrap_or_default().len();
    let begin = at - own(&run[..at]);
    let end = at + run[at..].find(':').unwrap_or(run.len() - at);
    run.as_bytes()[at] == b':' || run[begin..end].parse::<Ipv4Addr>().is_err()
}

/// Whether a colon and a digit follow.
fn continues(rest: &str) -> bool {
    let mut bytes = rest.bytes();
    bytes.next() == Some(b':') && bytes.next().is_some_and(|b| b.is_ascii_hexdigit())
}

fn ends(run: &str, start: usize) -> impl Iterator<Item = usize> + '_ {
    let cuts = run
        .rmatch_indices([':', '.'])
        .map(|(i, _)| i)
        .filter(move |i| *i > start);
    std::iter::once(run.len())
        .filter(move |end| *end > start)
        .chain(cuts)
}

/// What a part of a run of hex digits and colons is.
enum HexForm {
    /// A hardware address or a GUID.
    Hardware,
    Address(Ipv6Addr),
}

impl HexForm {
    fn of(part: &str) -> Option<Self> {
        if of_groups(part, 2, 6..) || of_groups(part, 4, 4..=4) {
            return Some(Self::Hardware);
        }
        if part.split(':').count() < 3 {
            return None;
        }
        part.parse().ok().map(Self::Address)
    }
}

/// Whether it is groups of so many hex digits, and as many of them as `count` says.
fn of_groups(part: &str, digits: usize, count: impl RangeBounds<usize>) -> bool {
    count.contains(&part.split(':').count())
        && part
            .split(':')
            .all(|g| g.len() == digits && g.bytes().all(|b| b.is_ascii_hexdigit()))
}

fn hex_part(state: &mut State, part: &str, prefix: Option<&str>) -> Option<String> {
    let original = match HexForm::of(part)? {
        HexForm::Hardware => return Some(hardware(state, part)),
        HexForm::Address(original) => original,
    };
    let IpAddr::V6(v6) = of_address(state, original.into(), prefix) else {
        return None;
    };
    // A GID is written with all its zeros; its pseudonym is too.
    if of_groups(part, 4, 8..=8) {
        let full: Vec<String> = v6.segments().iter().map(|s| format!("{s:04x}")).collect();
        return Some(full.join(":"));
    }
    Some(v6.to_string())
}

/// A hardware address or GUID of any length and separator, in the same form; all zeros stay.
fn hardware(state: &mut State, original: &str) -> String {
    let digits: String = original
        .trim_start_matches("0x")
        .chars()
        .filter(char::is_ascii_hexdigit)
        .collect();
    let digits = digits.to_ascii_lowercase();
    if digits.bytes().all(|b| b == b'0') || digits.bytes().all(|b| b == b'f') || digits.starts_with("fade") {
        return original.to_owned();
    }
    let fresh = hex::encode(state.mac(&[b"hardware\0", digits.as_bytes()]));
    let mut fresh = "fade".chars().chain(fresh.chars());
    let body = original.strip_prefix("0x").unwrap_or(original);
    let new: String = body
        .chars()
        .map(|c| {
            if c.is_ascii_hexdigit() {
                fresh.next().unwrap_or('0')
            } else {
                c
            }
        })
        .collect();
    let new = if original.starts_with("0x") {
        format!("0x{new}")
    } else {
        new
    };
    state.remember(&new, "hardware", original);
    new
}

/// The path without the end that is the beginning of an address: of `/a` in `/a:b::c` the slash, of `/data/@fe80` in
/// `/data/@fe80::1` all to the `@`. `rest` is the text behind the path.
fn without_address<'a>(path: &'a str, rest: &str) -> &'a str {
    let digits = path.trim_end_matches(|c: char| c.is_ascii_hexdigit());
    if digits.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_') {
        return path;
    }
    let len = rest
        .find(|c: char| !c.is_ascii_hexdigit() && c != ':' && c != '.')
        .unwrap_or(rest.len());
    let run = format!("{}{}", &path[digits.len()..], &rest[..len]);
    if ends(&run, 0).any(|end| HexForm::of(&run[..end]).is_some()) {
        digits
    } else {
        path
    }
}

fn private_path(state: &mut State, path: &str, before: Option<char>) -> Option<String> {
    let starts = match before {
        None => true,
        Some(c) => c.is_whitespace() || "\"'`=:,;([{<>|~".contains(c),
    };
    // Signs at the end belong to the sentence, or to what follows.
    let bare = path.trim_end_matches(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    if !starts || !is_private(bare) {
        return None;
    }
    let tail = &path[bare.len()..];
    Some(format!("{}{tail}", state.path_pseudonym(bare)))
}

/// Directories of the system name nobody; every other absolute path may.
fn is_private(path: &str) -> bool {
    const SYSTEM: &[&str] = &[
        "usr", "lib", "lib32", "lib64", "bin", "sbin", "etc", "sys", "proc", "dev", "run", "nix", "boot",
        "var",
    ];
    let mut components = path.split('/').filter(|c| !c.is_empty());
    let Some(first) = components.next() else {
        return false;
    };
    let single = components.next().is_none();
    let no_path = single && (first.len() < 2 || first.bytes().all(|b| b.is_ascii_digit() || b == b'.'));
    !no_path && !SYSTEM.contains(&first) && !first.starts_with("path-")
}

/// `/path-1a2b3c4d`, with the name of a public library or program kept behind it, or what kind of file it is.
pub fn path_pseudonym(path: &str, digest: &str) -> String {
    let name = path.rsplit('/').next().unwrap_or_default();
    let public = name == "tf-tp-test"
        || name == "tp-orchestrate"
        || (name.starts_with("lib") && (name.ends_with(".so") || name.contains(".so.")));
    if public {
        return format!("/path-{digest}/{name}");
    }
    match name.rsplit_once('.') {
        Some((_, kind @ ("toml" | "json" | "jsonl" | "log" | "md" | "so" | "cu"))) => {
            format!("/path-{digest}.{kind}")
        }
        _ => format!("/path-{digest}"),
    }
}

/// The addresses, GUIDs and paths that were replaced somewhere, and a machine that finds them all in one pass.
#[derive(Clone, Debug)]
pub struct Originals {
    kinds: Vec<String>,
    machine: Option<AhoCorasick>,
}

impl Originals {
    /// Those of the map.
    pub fn of(map: &BTreeMap<String, Entry>) -> Self {
        let entries: Vec<&Entry> = map
            .values()
            .filter(|e| !matches!(e.kind.as_str(), "host" | "user") && e.original.len() > 5)
            .collect();
        let machine = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(entries.iter().map(|e| &e.original));
        Self {
            kinds: entries.into_iter().map(|e| e.kind.clone()).collect(),
            machine: machine.ok(),
        }
    }

    /// How many of them stand unreplaced in a text, by kind.
    pub fn remaining(&self, text: &[u8]) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::new();
        let found = self.machine.iter().flat_map(|machine| machine.find_iter(text));
        for found in found {
            let part =
                |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'.' || *b == b':');
            let before = found.start().checked_sub(1).and_then(|i| text.get(i));
            // `10.0.0.1` within `210.0.0.1` or `10.0.0.12` is another address.
            if !part(before) && !part(text.get(found.end())) {
                *out.entry(self.kinds[found.pattern().as_usize()].clone())
                    .or_default() += 1;
            }
        }
        out
    }
}
