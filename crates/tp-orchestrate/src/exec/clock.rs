//! Bringing the hosts' clocks together: each supervisor is asked for its clock a few times, and the quickest answer counts.

use super::step::MonotonicNs;
use std::collections::BTreeMap;
use tp_receipt::event::Kind;
use tp_receipt::record::Clock;

/// Answers of each rank's supervisor; the first ones come while it starts and are slow.
const QUESTIONS: u32 = 6;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Clocks {
    best: BTreeMap<u32, Clock>,
    answers: BTreeMap<u32, u32>,
}

impl Clocks {
    /// An answer, where the event is one; then whether to ask that rank again.
    pub fn hear(&mut self, rank: u32, kind: &Kind, now: MonotonicNs) -> Option<bool> {
        let Kind::Unknown(map) = kind else { return None };
        let number = |key: &str| map.get(key).and_then(serde_json::Value::as_u64);
        let is_clock = map.get("event").and_then(serde_json::Value::as_str) == Some("clock");
        let (asked, there) = (number("token")?, number("monotonic_ns")?);
        if !is_clock || asked > now {
            return None;
        }
        // The answer was given somewhere between the question and now.
        let half = (now - asked) / 2;
        let clock = Clock {
            offset_ns: i64::try_from(i128::from(asked + half) - i128::from(there)).ok()?,
            error_ns: half,
        };
        let best = self.best.entry(rank).or_insert(clock);
        if clock.error_ns < best.error_ns {
            *best = clock;
        }
        let answers = self.answers.entry(rank).or_default();
        *answers += 1;
        Some(*answers < QUESTIONS)
    }

    /// What to add to each rank's times.
    pub fn take(self) -> BTreeMap<u32, Clock> {
        self.best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(token: u64, there: u64) -> Kind {
        let map = serde_json::json!({ "event": "clock", "token": token, "monotonic_ns": there });
        Kind::Unknown(map.as_object().unwrap().clone())
    }

    #[test]
    fn the_quickest_answer_counts() {
        let mut clocks = Clocks::default();
        assert_eq!(clocks.hear(1, &answer(1_000, 901_500), 2_000), Some(true));
        assert_eq!(clocks.hear(1, &answer(3_000, 903_010), 3_020), Some(true));
        assert_eq!(clocks.hear(1, &answer(5_000, 904_000), 9_000), Some(true));
        assert_eq!(
            clocks.hear(1, &Kind::Unknown(serde_json::Map::new()), 9_000),
            None
        );
        let best = clocks.take()[&1];
        assert_eq!((best.offset_ns, best.error_ns), (-900_000, 10));
    }
}
