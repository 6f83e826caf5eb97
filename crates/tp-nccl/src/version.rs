//! NCCL's version number.

use std::fmt;

/// A version as `ncclGetVersion` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl Version {
    /// What the bindings were generated from; older libraries know fewer fields of the configuration.
    pub const BINDINGS: Self = Self {
        major: crate::sys::NCCL_MAJOR,
        minor: crate::sys::NCCL_MINOR,
        patch: crate::sys::NCCL_PATCH,
    };

    /// From the library's code: `10000 major + 100 minor + patch`, and `1000 major + 100 minor + patch` before 2.9.
    pub fn from_code(code: u32) -> Self {
        let unit = if code >= 10_000 { 10_000 } else { 1_000 };
        Self {
            major: code / unit,
            minor: code % unit / 100,
            patch: code % 100,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_encodings_of_the_version_are_read() {
        for (code, text) in [
            (22809, "2.28.9"),
            (23203, "2.32.3"),
            (2804, "2.8.4"),
            (20905, "2.9.5"),
        ] {
            assert_eq!(Version::from_code(code).to_string(), text);
        }
        assert_eq!(
            Version::BINDINGS,
            Version::from_code(crate::sys::NCCL_VERSION_CODE)
        );
        assert!(Version::from_code(22703) < Version::BINDINGS);
    }
}
