//! The two words of the headline: what came out, and what that can prove.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a run, a step or an attempt came out. Only [`Verdict::Passed`] is good.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Verdict {
    /// Everything that was planned ran, and ended as it should.
    #[serde(rename = "PASSED")]
    Passed,
    /// Something ended otherwise than it should.
    #[serde(rename = "FAILED")]
    Failed,
    /// It did not come to its end.
    #[default]
    #[serde(rename = "INCOMPLETE")]
    Incomplete,
    /// The same step passed in one attempt and failed in another.
    #[serde(rename = "FLAKY")]
    Flaky,
    /// A word of a later version; never taken for a pass.
    #[serde(untagged)]
    Other(String),
}

impl Verdict {
    /// The word.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Passed => "PASSED",
            Self::Failed => "FAILED",
            Self::Incomplete => "INCOMPLETE",
            Self::Flaky => "FLAKY",
            Self::Other(word) => word,
        }
    }

    /// Whether it is [`Verdict::Passed`].
    pub fn passed(&self) -> bool {
        *self == Self::Passed
    }

    /// The exit code of a run with this verdict: 0 for PASSED, 1 for anything else.
    pub fn exit_code(&self) -> u8 {
        u8::from(!self.passed())
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a step can prove.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// A pick on written-down facts; no port was touched.
    Model,
    /// Real processes on host memory.
    Host,
    /// The kernel's Soft-RoCE driver instead of a network adapter.
    Softroce,
    /// Real GPUs.
    Gpu,
    /// Real network adapters.
    Nic,
    /// A word of a later version.
    #[serde(untagged)]
    Other(String),
}

impl Scope {
    /// The word.
    pub fn as_str(&self) -> &str {
        match self {
            Self::Model => "model",
            Self::Host => "host",
            Self::Softroce => "softroce",
            Self::Gpu => "gpu",
            Self::Nic => "nic",
            Self::Other(word) => word,
        }
    }
}

impl std::fmt::Display for Scope {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}
