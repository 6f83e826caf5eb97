//! `--steps GLOB,…`: which step names are meant.

use crate::Error;

/// The patterns of `--steps`; none means every step.
#[derive(Clone, Debug, Default)]
pub(super) struct StepGlobs(Vec<glob::Pattern>);

impl StepGlobs {
    /// Compiles the patterns.
    pub fn new(patterns: &[String]) -> Result<Self, Error> {
        let compile = |text: &String| {
            glob::Pattern::new(text).map_err(|e| {
                Error::Usage(format!(
                    "--steps: `{text}` is no pattern: {} at position {}",
                    e.msg, e.pos
                ))
            })
        };
        patterns.iter().map(compile).collect::<Result<_, _>>().map(Self)
    }

    /// Whether the step is meant.
    pub fn takes(&self, name: &str) -> bool {
        self.0.is_empty() || self.0.iter().any(|pattern| pattern.matches(name))
    }

    /// Refuses a pattern that no step matches: it is a typing error that would pass for a small run.
    pub fn check_used(&self, names: &[String]) -> Result<(), Error> {
        let Some(pattern) = self.0.iter().find(|p| !names.iter().any(|name| p.matches(name))) else {
            return Ok(());
        };
        Err(Error::Usage(format!(
            "--steps: `{pattern}` matches no step; steps here: {}",
            names.join(", ")
        )))
    }
}
