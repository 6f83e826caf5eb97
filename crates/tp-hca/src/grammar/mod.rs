//! The two variables that name RDMA ports. They look alike and are not: `:3` is a GID index in `TF_TP_ROCE_HCA` and a
//! port number in `NCCL_IB_HCA`, and names are exact in the first and prefixes in the second.

pub mod nccl;
pub mod roce;

use std::fmt;

/// Most entries of either list: what NCCL keeps of `NCCL_IB_HCA`, and as many ports as it can use.
pub const MAX_ENTRIES: usize = 32;

/// A value that does not follow its grammar, or that would be read otherwise than it looks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrammarError {
    /// The variable.
    pub variable: &'static str,
    /// Its value.
    pub value: String,
    /// The character at fault, from 1.
    pub column: usize,
    /// What is wrong with it.
    pub what: String,
    /// What to do about it.
    pub fix: String,
}

impl GrammarError {
    /// What is said of the value where the variable and its text were named already: `is wrong at character 4: …`.
    pub fn of_value(&self) -> String {
        format!(
            "is wrong at character {}: {}; {}",
            self.column, self.what, self.fix
        )
    }
}

impl fmt::Display for GrammarError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            variable,
            value,
            column,
            what,
            fix,
        } = self;
        write!(
            f,
            "{variable}={}, character {column}: {what}; {fix}",
            crate::facts::shown(value)
        )
    }
}

impl std::error::Error for GrammarError {}

/// The pieces of a comma-separated list with the column of each, from 1, empty ones too.
fn pieces(text: &str, first_column: usize) -> impl Iterator<Item = (usize, &str)> {
    let mut column = first_column;
    text.split(',').map(move |piece| {
        let at = column;
        column += piece.chars().count() + 1;
        (at, piece)
    })
}
