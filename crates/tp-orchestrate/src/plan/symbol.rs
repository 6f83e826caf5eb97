//! Symbols: what a plan says in place of values that only the run knows.
//!
//! | symbol | becomes |
//! |---|---|
//! | `$runner` | the runner's path on the rank's host |
//! | `$session` | the step's session name |
//! | `$port` | a TCP port that was free on rank 0's host when the step began |
//! | `$control` | the address at which this machine reaches rank 0's host |
//! | `$facts` | the merged facts file that the step's model pick reads |
//! | `$pick.rN.nccl_ib_hca` | rank N's ports as the `none` arm picked them, in NCCL's grammar |
//! | `$pick.rN.tf_tp_roce_hca` | the same in ours |
//! | `$pick.rN.address` | rank N's address on its first rail |

use std::collections::BTreeMap;

/// The runner's path on the rank's host.
pub const RUNNER: &str = "$runner";
/// The step's session name.
pub const SESSION: &str = "$session";
/// Rank 0's port.
pub const PORT: &str = "$port";
/// The address at which this machine reaches rank 0's host: where the ranks meet before a pick says something better.
pub const CONTROL: &str = "$control";
/// The merged facts file.
pub const FACTS: &str = "$facts";

/// A value of a rank's pick.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pick {
    /// The rank.
    pub rank: u32,
    /// `nccl_ib_hca`, `tf_tp_roce_hca` or `address`.
    pub field: String,
}

impl std::fmt::Display for Pick {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "$pick.r{}.{}", self.rank, self.field)
    }
}

/// The symbol in text form.
pub fn pick(rank: u32, field: &str) -> String {
    Pick {
        rank,
        field: field.to_owned(),
    }
    .to_string()
}

/// The pick that `text` is, where it is one. Symbols stand alone, never inside other text.
pub fn picks(text: &str) -> Option<Pick> {
    let (rank, field) = text.strip_prefix("$pick.r")?.split_once('.')?;
    Some(Pick {
        rank: rank.parse().ok()?,
        field: field.to_owned(),
    })
}

/// The values of one step's symbols.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Values(pub BTreeMap<String, String>);

impl Values {
    /// Gives a symbol its value.
    pub fn set(&mut self, symbol: &str, value: impl Into<String>) {
        self.0.insert(symbol.to_owned(), value.into());
    }

    /// `text`, or its value where it is a symbol. An unresolved symbol is an error: it must never reach a host.
    pub fn resolve(&self, text: &str) -> Result<String, Unresolved> {
        match self.0.get(text) {
            Some(value) => Ok(value.clone()),
            None if is_symbol(text) => Err(Unresolved(text.to_owned())),
            None => Ok(text.to_owned()),
        }
    }

    /// A whole command line.
    pub fn resolve_all(&self, texts: &[String]) -> Result<Vec<String>, Unresolved> {
        texts.iter().map(|text| self.resolve(text)).collect()
    }
}

fn is_symbol(text: &str) -> bool {
    [RUNNER, SESSION, PORT, CONTROL, FACTS].contains(&text) || picks(text).is_some()
}

/// A symbol without a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` has no value: {hint}", hint = hint(.0))]
pub struct Unresolved(pub String);

fn hint(symbol: &str) -> &'static str {
    if symbol == CONTROL {
        "rank 0's host is behind another one; give it a `fabric` address"
    } else {
        "the step that supplies it gave none"
    }
}
