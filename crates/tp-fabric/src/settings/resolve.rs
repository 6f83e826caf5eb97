//! From sources to one value per row: who wins, what is refused, what is warned about.

use super::launcher::{self, Launch, Said};
use super::source::{Source, Sources};
use super::spec::{Kind, Spec, Value};
use super::table::{self, RETIRED, TABLE};
use std::collections::BTreeMap;

/// A variable and the value in force, as people read it.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The table's row.
    pub name: &'static str,
    /// The value as text; `unset` where there is none, `set` for a secret.
    pub value: String,
    /// Who set it.
    pub source: Source,
    /// Why the text cannot be used, where it cannot; `value` is then the text as given.
    pub problem: Option<String>,
}

/// Something that is probably not meant, but does not stop the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Warning {
    /// Stable word for tables and tests: `empty-variable`, `unknown-variable`, `retired-variable`, `no-secret`.
    pub code: &'static str,
    /// The line for people.
    pub text: String,
}

/// Settings that cannot be used; one entry per problem, each naming the variable, its text and what is wanted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", problems.join("; "))]
pub struct SettingsError {
    /// The problems, in the order of the table.
    pub problems: Vec<String>,
}

/// The values of all rows.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    values: BTreeMap<&'static str, (Value, Source)>,
    pub rows: Vec<Row>,
    pub warnings: Vec<Warning>,
    pub problems: Vec<String>,
    /// What gave a value that is not called by its row's own name: the launcher's variable.
    said_by: BTreeMap<&'static str, &'static str>,
}

impl Resolved {
    pub fn of(sources: &Sources) -> Self {
        let mut out = Self::default();
        // A rank that an orchestrator started has its place from there: whatever launcher the orchestrator itself may
        // run under counts ranks of its own.
        let launch = if sources.orchestrator.is_some() {
            None
        } else {
            launcher::innermost(sources)
        };
        for spec in TABLE {
            out.resolve(spec, sources, launch.as_ref());
        }
        if let Some(launch) = &launch {
            out.check_master(launch);
        }
        out.look_for_unknown(sources);
        out
    }

    fn resolve(&mut self, spec: &'static Spec, sources: &Sources, launch: Option<&Launch>) {
        let mut given = None;
        let problems_before = self.problems.len();
        if let Some((text, source)) = sources.text(spec.name) {
            match text.to_str() {
                None => self.problem(spec, &text.to_string_lossy(), "is not UTF-8"),
                Some(text) if text.trim_matches(' ').is_empty() => self.warnings.push(Warning {
                    code: "empty-variable",
                    text: format!("{} is set but empty: taken as unset", spec.name),
                }),
                Some(text) => given = Some((text.to_owned(), source)),
            }
        }
        let said = launch.and_then(|launch| launched(spec, launch).map(|said| (launch.launcher, said)));
        if let Some((launcher, said)) = said {
            match &given {
                None => {
                    self.said_by.insert(spec.name, said.variable);
                    given = Some((said.text.clone(), Source::Launcher));
                }
                Some((_, Source::Option)) => {}
                Some((text, _)) if self.same(spec, text, &said.text) => {}
                Some((text, _)) => {
                    let problem = format!(
                        "{} is `{text}`, but {launcher} started this rank with {} `{}`: unset {}",
                        spec.name, said.variable, said.text, spec.name
                    );
                    self.problems.push(problem);
                }
            }
        }
        let (text, source) = given.unwrap_or_else(|| (spec.default.to_owned(), Source::Default));
        let mut shown = "unset".to_owned();
        if !text.is_empty() {
            let parsed = spec.kind.parse(&text);
            shown = match &parsed {
                _ if spec.kind == Kind::Secret => "set".to_owned(),
                Ok(value) => show(value, &text),
                Err(_) => text.clone(),
            };
            match parsed {
                Ok(value) => drop(self.values.insert(spec.name, (value, source))),
                Err(wrong) => self.problem(spec, &text, &wrong),
            }
        }
        self.rows.push(Row {
            name: spec.name,
            value: shown,
            source,
            problem: self.problems.get(problems_before).cloned(),
        });
    }

    fn same(&self, spec: &Spec, a: &str, b: &str) -> bool {
        match (spec.kind.parse(a), spec.kind.parse(b)) {
            (Ok(a), Ok(b)) => a == b,
            _ => false,
        }
    }

    fn problem(&mut self, spec: &Spec, text: &str, wrong: &str) {
        let name = self.called(spec);
        let text = if spec.kind == Kind::Secret {
            "(not shown)"
        } else {
            text
        };
        self.problems
            .push(format!("{name} `{text}` {wrong}: want {}", spec.kind));
    }

    /// What a person has to look for who wants to mend a value: the launcher's variable that gave it, else the row's own
    /// name and its option.
    pub fn called(&self, spec: &Spec) -> String {
        match self.said_by.get(spec.name) {
            Some(variable) => (*variable).to_owned(),
            None if spec.option.is_empty() => spec.name.to_owned(),
            None => format!("{} (or --{})", spec.name, spec.option),
        }
    }

    /// A launcher that spreads ranks over hosts without saying where rank 0 is leaves the default, which is wrong then.
    fn check_master(&mut self, launch: &Launch) {
        let by_default = self.source(&table::MASTER) == Source::Default;
        if by_default && !launch.one_host && self.integer(&table::WORLD).is_some_and(|world| world > 1) {
            let launcher = launch.launcher;
            self.problems.push(format!(
                "TF_TP_MASTER is unset, and {launcher} does not say where rank 0 is: set it to the address of rank 0's host"
            ));
        }
    }

    fn look_for_unknown(&mut self, sources: &Sources) {
        for name in sources.names() {
            if !(name.starts_with("TF_TP_") || name.starts_with("TF_COMM_")) || table::find(name).is_some() {
                continue;
            }
            if let Some((_, instead)) = RETIRED.iter().find(|(old, _)| *old == name) {
                let text = format!("{name} does nothing: {instead}");
                self.warnings.push(Warning {
                    code: "retired-variable",
                    text,
                });
                continue;
            }
            let nearest = TABLE
                .iter()
                .map(|spec| (strsim::damerau_levenshtein(name, spec.name), spec.name))
                .min()
                .filter(|(distance, _)| *distance <= 4);
            let hint = nearest.map_or(String::new(), |(_, known)| format!("; did you mean {known}?"));
            let text = format!("{name} is no variable of this program and does nothing{hint}");
            self.warnings.push(Warning {
                code: "unknown-variable",
                text,
            });
        }
    }

    pub fn source(&self, spec: &Spec) -> Source {
        self.values
            .get(spec.name)
            .map_or(Source::Default, |(_, source)| *source)
    }

    pub fn value(&self, spec: &Spec) -> Option<&Value> {
        self.values.get(spec.name).map(|(value, _)| value)
    }

    pub fn integer(&self, spec: &Spec) -> Option<u64> {
        match self.value(spec)? {
            Value::Integer(n) => Some(*n),
            _ => None,
        }
    }
}

/// What the launcher says of this row.
fn launched<'a>(spec: &Spec, launch: &'a Launch) -> Option<&'a Said> {
    match spec.name {
        "TF_TP_RANK" => Some(&launch.rank),
        "TF_TP_WORLD" => Some(&launch.world),
        "TF_TP_MASTER" => launch.master.as_ref(),
        _ => None,
    }
}

fn show(value: &Value, text: &str) -> String {
    match value {
        Value::Integer(n) => n.to_string(),
        Value::Switch(on) => u8::from(*on).to_string(),
        Value::Text(text) => text.clone(),
        Value::Seconds(_) | Value::Pin(_) => text.trim_matches(' ').to_owned(),
    }
}
