//! Known host keys: what the files say of a host, and the verdict on the key that it showed.
//!
//! libssh2 compares names (also hashed ones) and keys, one line at a time: given a whole file it gives up at the first line
//! that it does not understand, knows no patterns and no `@revoked`.

use super::pattern;
use ssh2::{CheckResult, KnownHostFileKind, KnownHostKeyFormat, Session};
use std::io::Write;
use std::path::{Path, PathBuf};

/// The key types that are asked for, the first first, where nothing is known of the host.
const KEY_TYPES: [&str; 6] = [
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
];

/// The name under which a host's key is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName {
    /// Host name, address or `HostKeyAlias`.
    pub host: String,
    /// TCP port; 22 with an alias.
    pub port: u16,
}

impl KeyName {
    /// As it stands in a file: `host`, or `[host]:port` for another port than 22.
    pub fn text(&self) -> String {
        if self.port == 22 {
            self.host.clone()
        } else {
            format!("[{}]:{}", self.host, self.port)
        }
    }
}

/// A line that speaks of the host.
#[derive(Clone, Debug)]
struct Line {
    file: PathBuf,
    number: usize,
    revoked: bool,
    key_type: String,
    /// The line with the host's own name in front, as libssh2 reads it.
    plain: String,
}

/// What the files say of one host.
#[derive(Clone, Debug)]
pub struct Known {
    name: KeyName,
    lines: Vec<Line>,
}

/// The verdict on a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the one that is known.
    Right,
    /// Nothing is known of the host.
    Unknown,
    /// Another key is known, at this place.
    Changed(String),
    /// It is marked as revoked, at this place.
    Revoked(String),
}

impl Known {
    /// Reads the files; those that are not there, and lines that cannot be understood, say nothing.
    pub fn read(session: &Session, name: &KeyName, files: &[PathBuf]) -> Self {
        let mut lines = Vec::new();
        for file in files {
            let Ok(text) = std::fs::read_to_string(file) else {
                continue;
            };
            for (index, line) in text.lines().enumerate() {
                if let Some((revoked, key_type, plain)) = about(session, name, line) {
                    lines.push(Line {
                        file: file.clone(),
                        number: index + 1,
                        revoked,
                        key_type,
                        plain,
                    });
                }
            }
        }
        Self {
            name: name.clone(),
            lines,
        }
    }

    /// The key types to ask the host for: the known ones first, so that a host with keys of several types shows the one
    /// that can be compared.
    pub fn key_types(&self) -> String {
        let known = |algorithm: &&str| {
            self.lines.iter().filter(|line| !line.revoked).any(|line| {
                line.key_type == **algorithm || (line.key_type == "ssh-rsa" && algorithm.starts_with("rsa-"))
            })
        };
        let (mut first, rest): (Vec<&str>, Vec<&str>) =
            KEY_TYPES.iter().partition(|algorithm| known(algorithm));
        first.extend(rest);
        first.join(",")
    }

    /// Judges the key that the host showed.
    pub fn judge(&self, session: &Session, key: &[u8]) -> Verdict {
        let mut other = None;
        let mut right = false;
        for line in &self.lines {
            let place = format!("{}:{}", line.file.display(), line.number);
            match check(session, &self.name, &line.plain, key) {
                CheckResult::Match if line.revoked => return Verdict::Revoked(place),
                CheckResult::Match => right = true,
                CheckResult::Mismatch if !line.revoked => drop(other.get_or_insert(place)),
                _ => {}
            }
        }
        match (right, other) {
            (true, _) => Verdict::Right,
            (false, Some(place)) => Verdict::Changed(place),
            (false, None) => Verdict::Unknown,
        }
    }
}

/// Adds the session's host key to the end of a file, making it where it is missing.
pub fn add(session: &Session, name: &KeyName, file: &Path) -> Result<(), String> {
    let failed = |e: &dyn std::fmt::Display| format!("add the host key to {}: {e}", file.display());
    let (key, kind) = session.host_key().ok_or_else(|| failed(&"there is none"))?;
    let format = KnownHostKeyFormat::from(kind);
    let mut known = session.known_hosts().map_err(|e| failed(&e))?;
    let text = name.text();
    known.add(&text, key, "", format).map_err(|e| failed(&e))?;
    let hosts = known.hosts().map_err(|e| failed(&e))?;
    let host = hosts.first().ok_or_else(|| failed(&"it cannot be written"))?;
    let line = known
        .write_string(host, KnownHostFileKind::OpenSSH)
        .map_err(|e| failed(&e))?;
    if let Some(dir) = file.parent() {
        std::fs::create_dir_all(dir).map_err(|e| failed(&e))?;
    }
    let mut out = std::fs::OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .map_err(|e| failed(&e))?;
    out.write_all(format!("{}\n", line.trim_end()).as_bytes())
        .map_err(|e| failed(&e))
}

/// Whether a line is revoked, its key's type and the line for libssh2, where it speaks of the host.
fn about(session: &Session, name: &KeyName, line: &str) -> Option<(bool, String, String)> {
    let mut rest = line.trim();
    let mut revoked = false;
    if rest.starts_with('@') {
        let (marker, after) = rest.split_once(char::is_whitespace)?;
        // A certificate authority signs keys; certificates are not judged here.
        revoked = marker == "@revoked";
        if !revoked {
            return None;
        }
        rest = after.trim_start();
    }
    let (hosts, key) = rest.split_once(char::is_whitespace)?;
    let mut fields = key.split_whitespace();
    let (key_type, blob) = (fields.next()?, fields.next()?);
    let plain = if hosts.starts_with('|') {
        format!("{hosts} {key_type} {blob}")
    } else if takes(hosts, name) {
        format!("{} {key_type} {blob}", name.text())
    } else {
        return None;
    };
    // No key is this one: whatever is not `NotFound` says that the names agree.
    match check(session, name, &plain, b"-") {
        CheckResult::Mismatch | CheckResult::Match => Some((revoked, key_type.to_owned(), plain)),
        CheckResult::NotFound | CheckResult::Failure => None,
    }
}

fn takes(hosts: &str, name: &KeyName) -> bool {
    let text = name.text();
    let fits = |wanted: &str| {
        let wanted = wanted
            .strip_suffix(":22")
            .map_or(wanted, |w| w.trim_matches(['[', ']']));
        pattern::matches(wanted, &text) || pattern::matches(wanted, &name.host)
    };
    let mut taken = false;
    for host in hosts.split(',') {
        match host.strip_prefix('!') {
            Some(host) if fits(host) => return false,
            Some(_) => {}
            None => taken |= fits(host),
        }
    }
    taken
}

fn check(session: &Session, name: &KeyName, line: &str, key: &[u8]) -> CheckResult {
    let Ok(mut known) = session.known_hosts() else {
        return CheckResult::Failure;
    };
    if name.host.contains('\0') || known.read_str(line, KnownHostFileKind::OpenSSH).is_err() {
        return CheckResult::NotFound;
    }
    known.check_port(&name.host, name.port, key)
}

/// SHA-256 of a key as OpenSSH shows it.
pub fn fingerprint(session: &Session) -> String {
    let kind = session.host_key().map_or("unknown", |(_, kind)| match kind {
        ssh2::HostKeyType::Ed25519 => "ED25519",
        ssh2::HostKeyType::Rsa => "RSA",
        ssh2::HostKeyType::Ecdsa256 | ssh2::HostKeyType::Ecdsa384 | ssh2::HostKeyType::Ecdsa521 => "ECDSA",
        _ => "unknown",
    });
    let hash = session.host_key_hash(ssh2::HashType::Sha256).unwrap_or_default();
    format!("{kind} SHA256:{}", base64(hash))
}

/// Base64 without padding, as fingerprints are written.
pub fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in bytes.chunks(3) {
        let word = chunk
            .iter()
            .fold(0u32, |word, byte| (word << 8) | u32::from(*byte))
            << (8 * (3 - chunk.len()));
        for digit in 0..=chunk.len() {
            out.push(char::from(DIGITS[(word >> (18 - 6 * digit)) as usize & 63]));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "AAAAC3NzaC1lZDI1NTE5AAAAIBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB";

    fn known(text: &str, host: &str, port: u16) -> (Session, Known) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_hosts");
        std::fs::write(&file, text).unwrap();
        let session = Session::new().unwrap();
        let name = KeyName {
            host: host.into(),
            port,
        };
        let known = Known::read(&session, &name, &[file, dir.path().join("missing")]);
        (session, known)
    }

    /// What the text of `A` stands for.
    fn key() -> Vec<u8> {
        let digit = |c: u8| {
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
                .iter()
                .position(|d| *d == c)
        };
        let digits: Vec<u32> = A.bytes().filter_map(digit).map(|d| d as u32).collect();
        let bytes = digits.chunks(4).flat_map(|d| {
            let word = d.iter().fold(0, |word, digit| (word << 6) | digit);
            [(word >> 16) as u8, (word >> 8) as u8, word as u8]
        });
        bytes.collect()
    }

    #[test]
    fn base64_is_that_of_fingerprints() {
        assert_eq!(base64(b"Ma"), "TWE");
        assert_eq!(base64(&key()), A);
        assert_eq!(base64(b"Man"), "TWFu");
        assert_eq!(base64(&[0xff]), "/w");
    }

    #[test]
    fn a_bad_line_hides_no_other_and_patterns_count() {
        let text = format!(
            "garbage\n\n# x\n*.example,!bad.example ssh-ed25519 {A} comment\n[h]:2222 ssh-ed25519 {A}\n"
        );
        for (host, port, lines) in [
            ("a.example", 22, 1),
            ("bad.example", 22, 0),
            ("h", 2222, 1),
            ("h", 22, 0),
            ("other", 22, 0),
        ] {
            assert_eq!(known(&text, host, port).1.lines.len(), lines, "{host}:{port}");
        }
    }

    #[test]
    fn another_key_is_changed_and_a_revoked_one_never_right() {
        let key = key();
        let (session, found) = known(&format!("h ssh-ed25519 {A}\n"), "h", 22);
        assert_eq!(found.judge(&session, &key), Verdict::Right);
        assert!(matches!(found.judge(&session, b"other"), Verdict::Changed(place) if place.ends_with(":1")));
        assert!(found.key_types().starts_with("ssh-ed25519,"));
        let (session, found) = known(
            &format!("h ssh-ed25519 {A}\n@revoked * ssh-ed25519 {A}\n"),
            "h",
            22,
        );
        assert!(matches!(found.judge(&session, &key), Verdict::Revoked(place) if place.ends_with(":2")));
        let (session, found) = known("", "h", 22);
        assert_eq!(found.judge(&session, &key), Verdict::Unknown);
    }

    #[test]
    fn the_known_type_is_asked_for_first() {
        let text = "h ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQA=\n";
        let (_, found) = known(text, "h", 22);
        assert!(
            found
                .key_types()
                .starts_with("rsa-sha2-512,rsa-sha2-256,ssh-ed25519"),
            "{}",
            found.key_types()
        );
    }
}
