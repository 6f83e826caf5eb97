//! `SHA256SUMS`: the hash of every other file, in the form that `sha256sum -c` reads, with what else has to be known in
//! comment lines.
//!
//! ```text
//! # tp-receipt sums 1 sealed
//! # was 57e1…  receipt.json
//! 9f86…  plan.json
//! …
//! # self 03ac…
//! ```
//!
//! `sealed` or `open` says whether the run has ended. In an open one `# grows HASH BYTES  FILE` stands for the first
//! BYTES bytes of a file that is still written to. `# was` is the hash of the `receipt.json` before this one: the two
//! files cannot be replaced in one moment, so between the two renames the older one is right too. `# self` is the hash
//! of all lines before it.

use super::files::sha256;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The file's name.
pub const NAME: &str = "SHA256SUMS";
/// The signature's name, the one file that is never listed.
pub const SIGNATURE: &str = "SHA256SUMS.sig";
/// The document that `# was` is about.
pub const DOCUMENT: &str = "receipt.json";

/// The contents of `SHA256SUMS`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Whether the run has ended.
    pub sealed: bool,
    /// Hash of the `receipt.json` before this one.
    pub was: Option<String>,
    /// Files that are still written to: bytes so far and their hash.
    pub grows: BTreeMap<String, (u64, String)>,
    /// Every other file and its hash.
    pub files: BTreeMap<String, String>,
}

impl Sums {
    /// The file's text.
    pub fn render(&self) -> String {
        let mut out = format!(
            "# tp-receipt sums 1 {}\n",
            if self.sealed { "sealed" } else { "open" }
        );
        if let Some(was) = &self.was {
            let _ = writeln!(out, "# was {was}  {DOCUMENT}");
        }
        for (name, (bytes, hash)) in &self.grows {
            let _ = writeln!(out, "# grows {hash} {bytes}  {name}");
        }
        for (name, hash) in &self.files {
            let _ = writeln!(out, "{hash}  {name}");
        }
        let own = sha256(out.as_bytes());
        let _ = writeln!(out, "# self {own}");
        out
    }

    /// Reads the file. It has one right form only, so that no changed byte goes unseen.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut out = Self::default();
        let mut lines = text.lines();
        match lines.next() {
            Some("# tp-receipt sums 1 sealed") => out.sealed = true,
            Some("# tp-receipt sums 1 open") => {}
            _ => return Err("the first line is not `# tp-receipt sums 1 sealed` or `… open`".into()),
        }
        for (number, line) in lines.enumerate() {
            out.line(line)
                .map_err(|why| format!("line {}: {why}", number + 2))?;
        }
        let body = text
            .rfind("# self ")
            .map(|at| &text[..at])
            .ok_or("its `# self` line is missing")?;
        let own = sha256(body.as_bytes());
        if !text.ends_with(&format!("# self {own}\n")) {
            return Err("its own hash is another one than its `# self` line says".into());
        }
        if out.render() != text {
            return Err("it is not in the one form that we write".into());
        }
        Ok(out)
    }

    fn line(&mut self, line: &str) -> Result<(), String> {
        if line.starts_with("# self ") {
            return Ok(());
        }
        let (head, name) = line.split_once("  ").ok_or("no file name")?;
        if name.is_empty() || name.starts_with('/') || name.split('/').any(|c| matches!(c, "" | "." | "..")) {
            return Err(format!("`{name}` is not a file within the receipt"));
        }
        let words: Vec<&str> = head.split(' ').collect();
        match words[..] {
            [hash] => {
                self.files.insert(name.to_owned(), hex64(hash)?);
            }
            ["#", "was", hash] => self.was = Some(hex64(hash)?),
            ["#", "grows", hash, bytes] => {
                let bytes = bytes.parse().map_err(|_| format!("`{bytes}` is not a number"))?;
                self.grows.insert(name.to_owned(), (bytes, hex64(hash)?));
            }
            _ => return Err("neither a hash and a file nor a comment of ours".into()),
        }
        Ok(())
    }
}

fn hex64(text: &str) -> Result<String, String> {
    let good = text.len() == 64 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    if good {
        Ok(text.to_owned())
    } else {
        Err(format!("`{text}` is not a SHA-256 in lower-case hex"))
    }
}
