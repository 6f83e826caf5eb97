//! Where settings come from, as plain maps, so that they can be tried without a process's environment.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;

/// Everything that can set a variable of this process.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Command-line options, by the name of the variable that each wins over (`--rank 1` is `TF_TP_RANK` = `1`).
    pub options: BTreeMap<String, OsString>,
    /// The settings of the orchestrator's start line; `None` where no orchestrator started this process.
    pub orchestrator: Option<BTreeMap<String, String>>,
    /// Variables that the orchestrator wants unset, whatever the environment says.
    pub unset: BTreeSet<String>,
    /// The environment.
    pub environment: BTreeMap<String, OsString>,
}

impl Sources {
    /// The environment of this process; options and orchestrator are for the caller to fill in.
    pub fn process() -> Self {
        let named = std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value)));
        Self {
            environment: named.collect(),
            ..Self::default()
        }
    }

    /// Only these variables, for tests and embedding.
    pub fn of<'a>(environment: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let environment = environment
            .into_iter()
            .map(|(name, value)| (name.to_owned(), OsString::from(value)))
            .collect();
        Self {
            environment,
            ..Self::default()
        }
    }

    /// The text that sets a variable and who set it: an option, else the orchestrator, else the environment.
    pub fn text(&self, name: &str) -> Option<(OsString, Source)> {
        if let Some(text) = self.options.get(name) {
            return Some((text.clone(), Source::Option));
        }
        if let Some(text) = self.orchestrator.as_ref().and_then(|settings| settings.get(name)) {
            return Some((text.into(), Source::Orchestrator));
        }
        if self.unset.contains(name) {
            return None;
        }
        self.environment
            .get(name)
            .map(|text| (text.clone(), Source::Environment))
    }

    /// Every name that is set anywhere, for the search for misspelt ones.
    pub(super) fn names(&self) -> BTreeSet<&str> {
        let orchestrator = self.orchestrator.iter().flatten().map(|(name, _)| name.as_str());
        let environment = self
            .environment
            .keys()
            .map(String::as_str)
            .filter(|name| !self.unset.contains(*name));
        environment
            .chain(orchestrator)
            .chain(self.options.keys().map(String::as_str))
            .collect()
    }
}

/// Who set a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody: the table's default.
    Default,
    /// The process's environment.
    Environment,
    /// A command-line option.
    Option,
    /// The orchestrator's start line.
    Orchestrator,
    /// The launcher that started this rank: torchrun, Open MPI, PMI, Slurm.
    Launcher,
    /// Worked out from other values.
    Derived,
}

impl Source {
    /// The word that `explain` and the `setting` event use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Environment => "environment",
            Self::Option => "option",
            Self::Orchestrator => "orchestrator",
            Self::Launcher => "launcher",
            Self::Derived => "derived",
        }
    }
}
