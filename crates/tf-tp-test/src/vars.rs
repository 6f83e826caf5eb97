//! The variables in force for this rank and where each came from: this process's environment, what the orchestrator
//! sent, what the command line says. Later ones win.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use tp_receipt::control::Start;

/// The variable that carries the session secret; its value is never shown.
pub const SECRET: &str = "TF_TP_SECRET";

/// Where a value came from, in the words of [`tp_receipt::event::Setting::source`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// This process's environment.
    Environment,
    /// The orchestrator's start line.
    Orchestrator,
    /// An option of the command line.
    Option,
}

impl Source {
    /// The word in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Environment => "environment",
            Self::Orchestrator => "orchestrator",
            Self::Option => "option",
        }
    }
}

/// Variables by name.
#[derive(Clone, Default)]
pub struct Vars {
    map: BTreeMap<String, (OsString, Source)>,
    unset: Vec<String>,
}

impl Vars {
    /// Variables as given, all from the environment. Names that are not UTF-8 cannot be ours and are left out.
    pub fn of_environment(vars: impl IntoIterator<Item = (OsString, OsString)>) -> Self {
        let named = vars
            .into_iter()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v)));
        Self {
            map: named.map(|(k, v)| (k, (v, Source::Environment))).collect(),
            unset: Vec::new(),
        }
    }

    /// Takes the orchestrator's start line: first what must not be set, then its settings, then the secret.
    pub fn apply_start(&mut self, start: &Start) {
        for name in &start.unset {
            self.map.remove(name);
            self.unset.push(name.clone());
        }
        for (name, value) in &start.settings {
            self.map
                .insert(name.clone(), (value.into(), Source::Orchestrator));
        }
        if let Some(secret) = &start.secret {
            self.map
                .insert(SECRET.to_owned(), (secret.into(), Source::Orchestrator));
        }
    }

    /// Takes an option of the command line, which wins over everything.
    pub fn set_option(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.map
            .insert(name.to_owned(), (value.as_ref().to_owned(), Source::Option));
    }

    /// The value, as a settings table asks for it.
    pub fn get(&self, name: &str) -> Option<OsString> {
        self.map.get(name).map(|(value, _)| value.clone())
    }

    /// Where the value came from; `None` where it is not set.
    pub fn source(&self, name: &str) -> Option<Source> {
        self.map.get(name).map(|(_, source)| *source)
    }

    /// Puts what the orchestrator set and unset into this process's environment, for libraries that read it themselves
    /// (NCCL), except the secret, which children and `/proc` must not show.
    ///
    /// # Safety
    /// No other thread may exist: the C library's environment has no lock.
    pub unsafe fn export(&self) {
        for name in self.unset.iter().filter(|n| is_a_name(n)) {
            // SAFETY: the caller vouches that this is the only thread; the name has neither `=` nor NUL.
            unsafe { std::env::remove_var(name) };
        }
        let ours = self.map.iter().filter(|(name, (_, source))| {
            *source == Source::Orchestrator && name.as_str() != SECRET && is_a_name(name)
        });
        for (name, (value, _)) in ours {
            if !value.as_encoded_bytes().contains(&0) {
                // SAFETY: as above, and the value has no NUL.
                unsafe { std::env::set_var(name, value) };
            }
        }
    }
}

/// Whether `name` can be the name of an environment variable.
pub fn is_a_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|b| b != 0 && b != b'=')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_wins_over_the_orchestrator_and_that_over_the_environment() {
        let env = [("TF_TP_RANK", "0"), ("NCCL_IB_HCA", "x"), ("TF_TP_WORLD", "2")];
        let mut vars = Vars::of_environment(env.map(|(k, v)| (k.into(), v.into())));
        let start = Start {
            settings: [
                ("TF_TP_RANK".to_owned(), "1".to_owned()),
                ("TF_TP_PORT".to_owned(), "4".to_owned()),
            ]
            .into(),
            unset: vec!["NCCL_IB_HCA".to_owned()],
            secret: Some("aa".to_owned()),
            ..Start::default()
        };
        vars.apply_start(&start);
        vars.set_option("TF_TP_PORT", "5");
        assert_eq!(vars.get("TF_TP_RANK"), Some("1".into()));
        assert_eq!(vars.get("TF_TP_PORT"), Some("5".into()));
        assert_eq!(vars.get("NCCL_IB_HCA"), None);
        assert_eq!(vars.get(SECRET), Some("aa".into()));
        assert_eq!(vars.source("TF_TP_PORT"), Some(Source::Option));
        assert_eq!(vars.source("TF_TP_WORLD"), Some(Source::Environment));
        assert_eq!(vars.source("TF_TP_RANK"), Some(Source::Orchestrator));
    }
}
