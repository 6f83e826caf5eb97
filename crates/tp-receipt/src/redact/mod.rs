//! Redaction: stable pseudonyms for hosts, users, addresses, serial numbers, GUIDs and paths.
//!
//! Text is redacted where it enters a receipt, once, line by line. A pseudonym is an HMAC of the name under a key that
//! stays on the workstation, so the same host has the same pseudonym in every receipt of that workstation and nobody
//! else can try names against it. The map back is written to a private file there. Known names are replaced wherever
//! they stand as words; addresses, hardware addresses, GUIDs, UUIDs, e-mail addresses and private paths are found by
//! their form. Secrets are masked always, also with redaction off.

mod address;
mod forms;
mod keyring;
mod words;

pub use keyring::{Entry, Keyring, RedactError};

use crate::event::{Check, Event, Kind, Log};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::Value;
use sha2::Sha256;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Entries of the map beyond this are not remembered (a log full of random addresses must not fill the memory).
const MAP_MAX: usize = 200_000;

/// What stands in the place of a secret.
pub const MASK: &str = "[secret]";

/// Replaces what must not be in a receipt. Clones share one state.
#[derive(Clone)]
pub struct Redactor {
    state: Arc<Mutex<State>>,
}

struct State {
    on: bool,
    key: [u8; 32],
    keyring: Option<Keyring>,
    words: words::Words,
    addresses: HashMap<IpAddr, IpAddr>,
    map: BTreeMap<String, Entry>,
    /// Entries that the map file has.
    saved: usize,
}

impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Neither the key nor the names.
        f.debug_struct("Redactor")
            .field("on", &self.lock().on)
            .finish_non_exhaustive()
    }
}

impl Redactor {
    /// With the workstation's key, which is made when there is none, and this machine's own names known: host name,
    /// user, home directory.
    ///
    /// # Errors
    /// The key file cannot be read, made, or is readable by others.
    pub fn open(keyring: Keyring) -> Result<Self, RedactError> {
        let key = keyring.key()?;
        let redactor = Self::build(true, key, Some(keyring));
        redactor.learn_this_machine();
        Ok(redactor)
    }

    /// With a given key and no files: for tests and for embedding.
    pub fn with_key(key: [u8; 32]) -> Self {
        Self::build(true, key, None)
    }

    /// Replaces nothing but secrets (`--no-redact`).
    pub fn off() -> Self {
        Self::build(false, [0; 32], None)
    }

    fn build(on: bool, key: [u8; 32], keyring: Option<Keyring>) -> Self {
        let state = State {
            on,
            key,
            keyring,
            words: words::Words::default(),
            addresses: HashMap::new(),
            map: BTreeMap::new(),
            saved: 0,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic of another thread leaves at worst a name unlearned; the final scan finds it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether names are replaced.
    pub fn is_on(&self) -> bool {
        self.lock().on
    }

    /// Makes a host's name known and gives its pseudonym. Its short form (up to the first dot) is known with it.
    pub fn host(&self, name: &str) -> String {
        self.lock().given_host(name)
    }

    /// Makes a user's name known and gives its pseudonym.
    pub fn user(&self, name: &str) -> String {
        self.lock().name(name, "user")
    }

    /// Makes a serial number, machine id or the like known and gives its pseudonym.
    pub fn serial(&self, value: &str) -> String {
        self.lock().name(value, "serial")
    }

    /// Makes a path known, so that it is replaced also where it contains spaces, and gives its pseudonym.
    pub fn path(&self, path: &str) -> String {
        let mut state = self.lock();
        if !state.on {
            return path.to_owned();
        }
        let pseudonym = state.path_pseudonym(path);
        if path.len() > 4 {
            state.words.add(path, pseudonym.clone(), words::Kind::Exact);
        }
        pseudonym
    }

    /// Makes a secret known. It is masked everywhere, with redaction off too.
    pub fn secret(&self, secret: &str) {
        // A secret shorter than this could not be told from ordinary text.
        if secret.len() >= 6 {
            self.lock().words.add(secret, MASK.into(), words::Kind::Secret);
        }
    }

    /// A line of text with everything replaced.
    pub fn line(&self, text: &str) -> String {
        self.lock().text(text)
    }

    /// Replaces within every string of a JSON value, keys of maps included.
    pub fn value(&self, value: &mut Value) {
        self.lock().value(value);
    }

    /// An event with everything replaced. The value of a setting whose name says that it is secret is masked.
    pub fn event(&self, event: &Event) -> Event {
        let mut state = self.lock();
        if let Kind::Check(check) = &event.kind
            && event.extra.is_empty()
        {
            let check = Check {
                name: state.text(&check.name),
                outcome: check.outcome,
                group: check.group.clone(),
                reason: check.reason.as_ref().map(|r| state.text(r)),
            };
            return Event {
                schema: event.schema,
                ..Event::new(event.t, event.rank, Kind::Check(check))
            };
        }
        let mut object = event.to_object();
        if let Kind::Setting(setting) = &event.kind
            && names_a_secret(&setting.name)
        {
            object.insert("value".into(), MASK.into());
        }
        let mut value = Value::Object(object);
        state.value(&mut value);
        match value {
            // Our own field names are never replaced, so what comes out is an event again; if it were none, nothing of
            // it may pass.
            Value::Object(map) => {
                Event::from_object(map).unwrap_or_else(|e| unreadable(event, &e.to_string()))
            }
            _ => unreadable(event, "it is no object"),
        }
    }

    /// What looks for the names that are known now.
    pub fn scanner(&self) -> Scanner {
        let state = self.lock();
        Scanner {
            on: state.on,
            words: state.words.clone(),
            originals: state.on.then(|| forms::Originals::of(&state.map)),
        }
    }

    /// The private directory of the key and the map, when there is one.
    pub(crate) fn private_dir(&self) -> Option<std::path::PathBuf> {
        self.lock().keyring.as_ref().map(|k| k.dir().to_owned())
    }

    /// Adds what was replaced so far to the private map file.
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn save(&self) -> Result<(), RedactError> {
        let mut state = self.lock();
        let new = state.map.len();
        if let Some(keyring) = &state.keyring
            && state.on
            && new > state.saved
        {
            keyring.merge(&state.map)?;
            state.saved = new;
        }
        Ok(())
    }

    /// Makes the hosts behind these pseudonyms known again, as the map file has them.
    pub(crate) fn recall<'a>(&self, pseudonyms: impl Iterator<Item = &'a str>) -> Result<(), RedactError> {
        let mut state = self.lock();
        let Some(keyring) = &state.keyring else {
            return Ok(());
        };
        let map = keyring.map()?;
        for entry in pseudonyms.filter_map(|name| map.get(name)) {
            state.given_host(&entry.original);
        }
        Ok(())
    }

    fn learn_this_machine(&self) {
        if let Ok(name) = nix::unistd::gethostname()
            && let Some(name) = name.to_str()
        {
            self.host(name);
        }
        for variable in ["USER", "LOGNAME", "SUDO_USER"] {
            if let Ok(user) = std::env::var(variable) {
                self.user(&user);
            }
        }
        if let Ok(home) = std::env::var("HOME")
            && home.len() > 5
        {
            self.lock().words.add(&home, "~".into(), words::Kind::Exact);
        }
    }
}

/// Looks for names in texts that were written before the names were known.
#[derive(Clone, Debug)]
pub struct Scanner {
    on: bool,
    words: words::Words,
    originals: Option<forms::Originals>,
}

impl Scanner {
    /// What of the known names still stands in a text: the kinds, each with how often, without the names themselves.
    pub fn remaining(&self, text: &[u8]) -> BTreeMap<String, usize> {
        let mut found = self.words.remaining(text, self.on);
        if let Some(originals) = &self.originals {
            // A name among the addresses and paths that were replaced somewhere and stands unreplaced here.
            for (kind, count) in originals.remaining(text) {
                *found.entry(kind).or_default() += count;
            }
        }
        found
    }
}

fn unreadable(event: &Event, why: &str) -> Event {
    let text = format!(
        "an event of kind `{}` could not be redacted and was left out: {why}",
        event.name()
    );
    let log = Log {
        level: "error".into(),
        code: Some("unredactable".into()),
        text,
    };
    Event::new(event.t, event.rank, Kind::Log(log))
}

/// Whether a variable's value is never to be shown.
pub fn names_a_secret(name: &str) -> bool {
    let upper = name.to_ascii_uppercase();
    [
        "SECRET",
        "TOKEN",
        "PASSWORD",
        "PASSWD",
        "CREDENTIAL",
        "PRIVATE_KEY",
        "API_KEY",
    ]
    .iter()
    .any(|word| upper.contains(word))
}

impl State {
    fn host(&mut self, name: &str) -> String {
        let whole = self.name(name, "host");
        if let Some((short, _)) = name.split_once('.')
            && name.parse::<IpAddr>().is_err()
        {
            self.name(short, "host");
        }
        whole
    }

    /// A host that somebody named as one: two letters are enough to look for it in text, which a name that only looks
    /// like one in a log is not.
    fn given_host(&mut self, name: &str) -> String {
        let whole = self.host(name);
        let short = name.split_once('.').map_or(name, |(short, _)| short);
        if self.on && words::is_short_host(short) {
            let pseudonym = self.host(short);
            if self.words.add(short, pseudonym.clone(), words::Kind::Word) {
                self.remember(&pseudonym, "host", short);
            }
        }
        whole
    }

    /// A name's pseudonym. Names that cannot be told from our own words are replaced only here, where it is known that
    /// they are names, and not in running text.
    fn name(&mut self, name: &str, kind: &str) -> String {
        if !self.on || name.is_empty() || words::is_nobody(name) {
            return name.to_owned();
        }
        if name.parse::<IpAddr>().is_ok() || words::is_pseudonym(name) {
            return self.text(name);
        }
        let pseudonym = format!("{kind}-{}", self.digest(kind, &name.to_ascii_lowercase(), 3));
        if !words::is_vocabulary(name) && self.words.add(name, pseudonym.clone(), words::Kind::Word) {
            self.remember(&pseudonym, kind, name);
        }
        pseudonym
    }

    fn path_pseudonym(&mut self, path: &str) -> String {
        let pseudonym = forms::path_pseudonym(path, &self.digest("path", path, 4));
        self.remember(&pseudonym, "path", path);
        pseudonym
    }

    fn remember(&mut self, pseudonym: &str, kind: &str, original: &str) {
        if self.map.len() < MAP_MAX && !self.map.contains_key(pseudonym) {
            let entry = Entry {
                kind: kind.to_owned(),
                original: original.to_owned(),
            };
            self.map.insert(pseudonym.to_owned(), entry);
        }
    }

    /// The first `bytes` bytes of the HMAC, hex.
    fn digest(&self, kind: &str, name: &str, bytes: usize) -> String {
        hex::encode(&self.mac(&[kind.as_bytes(), b"\0", name.as_bytes()])[..bytes])
    }

    fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        keyed(&self.key, parts)
    }

    fn text(&mut self, text: &str) -> String {
        let text = self.words.replace(text, self.on);
        if self.on && forms::may_stand_in(&text) {
            forms::replace(self, &text)
        } else {
            text.into_owned()
        }
    }

    fn value(&mut self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(map) => {
                let old = std::mem::take(map);
                for (key, mut item) in old {
                    match &mut item {
                        Value::String(_) if names_a_secret(&key) => item = MASK.into(),
                        other => self.value(other),
                    }
                    map.insert(self.text(&key), item);
                }
            }
            _ => {}
        }
    }
}

fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> [u8; 32] {
    // HMAC takes a key of any length; the fallback is never reached.
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return [0; 32];
    };
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}
