//! Passed checks in few bytes: their names stand once in an attempt and are numbered, and one line says which of them a
//! rank passed, and when. What failed or was skipped has a line of its own, with its name and the reason.

use super::StepKey;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// See [`Record::CheckNames`](super::Record::CheckNames).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckNames {
    /// The attempt that the numbers are of.
    #[serde(flatten)]
    pub key: StepKey,
    /// The number of the first name. The names of an attempt are numbered from 0, in the order of the record.
    pub first: u32,
    /// The group of these checks.
    pub group: String,
    /// The names.
    pub names: Vec<String>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// See [`Record::Passed`](super::Record::Passed).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// The attempt.
    #[serde(flatten)]
    pub key: StepKey,
    /// The rank that passed them.
    pub rank: u32,
    /// Numbers of the checks in the order in which they came, as ranges: first and last.
    pub checks: Vec<(u32, u32)>,
    /// Seconds since the step began on this rank, monotonic clock, one for each check.
    pub times: Vec<f64>,
    /// Fields of a later version.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
}

/// The names that an attempt has given numbers, as far as counting needs them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Groups {
    /// The number behind the last of each run of names, and their group.
    runs: Vec<(u32, String)>,
}

impl Groups {
    /// Takes the next names. The error says why they cannot be the next ones.
    pub fn add(&mut self, names: &CheckNames) -> Result<(), String> {
        let next = self.runs.last().map_or(0, |(end, _)| *end);
        if names.first != next {
            return Err(format!(
                "its names of checks go on with number {}, after {next} of them",
                names.first
            ));
        }
        let count = u32::try_from(names.names.len()).ok();
        let end = count.and_then(|count| next.checked_add(count));
        let end = end.ok_or("it has more names of checks than there are numbers")?;
        self.runs.push((end, names.group.clone()));
        Ok(())
    }

    /// How many checks of which group a rank passed. The error says what is wrong with the line.
    pub fn count<'a>(&'a self, passed: &Passed) -> Result<Vec<(&'a str, u64)>, String> {
        let named = self.runs.last().map_or(0, |(end, _)| *end);
        let mut all = 0;
        for (first, last) in &passed.checks {
            if first > last || *last >= named {
                return Err(format!(
                    "rank {} passed the checks {first} to {last}, and {named} have a name",
                    passed.rank
                ));
            }
            all += u64::from(last - first) + 1;
        }
        if all != passed.times.len() as u64 {
            return Err(format!(
                "rank {} passed {all} checks at {} times",
                passed.rank,
                passed.times.len()
            ));
        }
        let mut counts: Vec<(&str, u64)> = Vec::new();
        for &(first, last) in &passed.checks {
            let at = self.runs.partition_point(|(end, _)| *end <= first);
            let mut from = first;
            for (end, group) in &self.runs[at..] {
                if from > last {
                    break;
                }
                let until = (*end).min(last + 1);
                counts.push((group, u64::from(until - from)));
                from = until;
            }
        }
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn names(first: u32, group: &str, count: usize) -> CheckNames {
        CheckNames {
            key: StepKey::new("none", "suite-host", 1),
            first,
            group: group.into(),
            names: vec!["n".into(); count],
            extra: Map::new(),
        }
    }

    fn passed(checks: &[(u32, u32)], times: usize) -> Passed {
        Passed {
            key: StepKey::new("none", "suite-host", 1),
            rank: 3,
            checks: checks.to_vec(),
            times: vec![0.5; times],
            extra: Map::new(),
        }
    }

    #[test]
    fn checks_are_counted_by_the_group_of_their_numbers() {
        let mut groups = Groups::default();
        groups.add(&names(0, "core", 3)).unwrap();
        groups.add(&names(3, "graph", 2)).unwrap();
        let counts = groups.count(&passed(&[(1, 4), (0, 0), (3, 3)], 6)).unwrap();
        assert_eq!(counts, [("core", 2), ("graph", 2), ("core", 1), ("graph", 1)]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let mut groups = Groups::default();
        assert!(groups.count(&passed(&[(0, 0)], 1)).is_err());
        groups.add(&names(0, "core", 3)).unwrap();
        let gap = groups.add(&names(4, "core", 1)).unwrap_err();
        assert!(gap.contains("number 4, after 3"), "{gap}");
        assert!(groups.add(&names(0, "core", 1)).is_err());
        for (checks, times, expected) in [
            (&[(0, 3)][..], 4, "0 to 3, and 3 have a name"),
            (&[(2, 1)], 0, "2 to 1"),
            (&[(0, u32::MAX)], 1, "0 to 4294967295"),
            (&[(0, 1)], 3, "passed 2 checks at 3 times"),
        ] {
            let why = groups.count(&passed(checks, times)).unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
