//! Names that are known beforehand, found wherever they stand as words.

use aho_corasick::{AhoCorasick, MatchKind};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};

/// How a known text is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name: letters and digits next to it make it another word. Letter case does not matter.
    Word,
    /// Anywhere it stands, as it is.
    Exact,
    /// A secret: anywhere, also when redaction is off.
    Secret,
}

#[derive(Clone, Debug)]
struct Known {
    text: String,
    pseudonym: String,
    kind: Kind,
}

/// The known names and a machine that finds them all in one pass.
#[derive(Clone, Debug, Default)]
pub struct Words {
    known: Vec<Known>,
    by_text: HashMap<String, usize>,
    machine: Option<AhoCorasick>,
}

impl Words {
    /// Adds a name; false when it was known.
    pub fn add(&mut self, text: &str, pseudonym: String, kind: Kind) -> bool {
        if text.is_empty() || self.by_text.contains_key(text) {
            return false;
        }
        self.by_text.insert(text.to_owned(), self.known.len());
        self.known.push(Known {
            text: text.to_owned(),
            pseudonym,
            kind,
        });
        let built = AhoCorasick::builder()
            .ascii_case_insensitive(true)
            .match_kind(MatchKind::LeftmostLongest)
            .build(self.known.iter().map(|k| &k.text));
        self.machine = built.ok();
        true
    }

    /// Where the known texts stand: start, end, which.
    fn finds<'a>(&'a self, text: &'a [u8], on: bool) -> impl Iterator<Item = (usize, usize, &'a Known)> + 'a {
        let mut at = 0;
        std::iter::from_fn(move || {
            let machine = self.machine.as_ref()?;
            while at <= text.len() {
                let input = aho_corasick::Input::new(text).span(at..text.len());
                let found = machine.find(input)?;
                let known = &self.known[found.pattern().as_usize()];
                let (start, end) = (found.start(), found.end());
                if known.stands_at(text, start, end) && (on || known.kind == Kind::Secret) {
                    at = end;
                    return Some((start, end, known));
                }
                // It is part of another word; a shorter name may still begin right after its first letter.
                at = start + 1;
            }
            None
        })
    }

    /// The text with all names replaced.
    pub fn replace<'a>(&self, text: &'a str, on: bool) -> Cow<'a, str> {
        let mut out = String::new();
        let mut done = 0;
        for (start, end, known) in self.finds(text.as_bytes(), on) {
            // A name begins and ends at whole characters, since it is valid UTF-8 itself.
            let (Some(before), true) = (text.get(done..start), text.is_char_boundary(end)) else {
                continue;
            };
            out.push_str(before);
            out.push_str(&known.pseudonym);
            done = end;
        }
        if done == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(text.get(done..).unwrap_or_default());
        Cow::Owned(out)
    }

    /// How many known texts stand in a file, by what they are.
    pub fn remaining(&self, text: &[u8], on: bool) -> BTreeMap<String, usize> {
        let mut out = BTreeMap::new();
        for (_, _, known) in self.finds(text, on) {
            let kind = match known.kind {
                Kind::Secret => "secret",
                Kind::Exact => "path",
                Kind::Word => known.pseudonym.split_once('-').map_or("name", |(kind, _)| kind),
            };
            *out.entry(kind.to_owned()).or_default() += 1;
        }
        out
    }
}

impl Known {
    fn stands_at(&self, text: &[u8], start: usize, end: usize) -> bool {
        match self.kind {
            Kind::Word => {
                let inside = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
                let before = start.checked_sub(1).and_then(|i| text.get(i));
                !inside(before) && !inside(text.get(end))
            }
            // The machine ignores letter case; a secret or path does not.
            Kind::Exact | Kind::Secret => &text[start..end] == self.text.as_bytes(),
        }
    }
}

/// Names that name no particular machine or person.
pub fn is_nobody(name: &str) -> bool {
    matches!(
        name,
        "localhost" | "localhost.localdomain" | "ip6-localhost" | "root"
    )
}

/// Whether a name could not be told from the words of our own reports, or is too short to be looked for in text.
pub fn is_vocabulary(name: &str) -> bool {
    const WORDS: &[&str] = &[
        "all",
        "arm",
        "bench",
        "bytes",
        "check",
        "device",
        "error",
        "event",
        "exit",
        "failed",
        "failfast",
        "fatal",
        "fate",
        "gpu",
        "graph",
        "hca",
        "host",
        "info",
        "kill",
        "local",
        "log",
        "mailbox",
        "master",
        "model",
        "nccl",
        "nic",
        "node",
        "none",
        "passed",
        "port",
        "rail",
        "rank",
        "roce",
        "roce-host",
        "run",
        "server",
        "session",
        "shm",
        "skipped",
        "softroce",
        "spark",
        "ssh",
        "stall",
        "step",
        "suite",
        "tcp",
        "test",
        "transport",
        "true",
        "false",
        "user",
        "verbs",
        "warn",
        "world",
        "nvidia",
        "ubuntu",
        "admin",
    ];
    let lower = name.to_ascii_lowercase();
    name.len() < 3 || WORDS.contains(&lower.as_str()) || lower.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a host's name of two letters can be looked for in text: it is no common word, unit or field name.
pub fn is_short_host(name: &str) -> bool {
    const WORDS: &[&str] = &[
        "am", "an", "as", "at", "be", "by", "cx", "do", "eq", "gb", "gi", "go", "ib", "id", "if", "in", "io",
        "ip", "is", "it", "kb", "ki", "lo", "mb", "me", "mi", "ms", "my", "no", "ns", "of", "ok", "on", "op",
        "or", "os", "pm", "qp", "rc", "rx", "so", "tb", "tf", "to", "tp", "tx", "ud", "uc", "up", "us", "vs",
        "we", "cu", "gz", "md", "py", "rs", "sh",
    ];
    let lower = name.to_ascii_lowercase();
    lower.len() == 2 && lower.bytes().all(|b| b.is_ascii_lowercase()) && !WORDS.contains(&lower.as_str())
}

/// Whether it is a pseudonym of ours already.
pub fn is_pseudonym(name: &str) -> bool {
    let Some((kind, rest)) = name.split_once('-') else {
        return false;
    };
    matches!(kind, "host" | "user" | "serial" | "path")
        && matches!(rest.len(), 6 | 8)
        && rest.bytes().all(|b| b.is_ascii_hexdigit())
}
