//! Records as lines of JSON.

use super::{Passed, Record, StepEvent, StepKey};
use crate::event::{Check, Event, Kind, Outcome, ParseError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::borrow::Cow;

impl Record {
    /// The record as one line of JSON, without the line feed.
    pub fn to_line(&self) -> String {
        if let Self::Event(event) = self
            && let Some(line) = CheckLine::of(event).and_then(|check| serde_json::to_string(&check).ok())
        {
            return line;
        }
        if let Self::Passed(body) = self
            && let Ok(line) = serde_json::to_string(&Named { record: PASSED, body })
        {
            return line;
        }
        Value::Object(self.to_object()).to_string()
    }

    /// The record as a JSON object.
    pub fn to_object(&self) -> Map<String, Value> {
        match self {
            Self::Run(r) => named("run", r),
            Self::Step(r) => named("step", r),
            Self::CheckNames(r) => named("check_names", r),
            Self::Passed(r) => named(PASSED, r),
            Self::StepEnd(r) => named("step_end", r),
            Self::NotRun(r) => named("not_run", r),
            Self::SetAside(r) => named("set_aside", r),
            Self::Resumed(r) => named("resumed", r),
            Self::RunEnd(r) => named("run_end", r),
            Self::Unknown(map) => map.clone(),
            Self::Event(e) => {
                let mut out = Map::new();
                if let Some(key) = &e.key {
                    out.insert("arm".into(), key.arm.clone().into());
                    out.insert("step".into(), key.step.clone().into());
                    out.insert("attempt".into(), key.attempt.into());
                }
                for (name, value) in e.event.to_object() {
                    if !out.contains_key(&name) {
                        out.insert(name, value);
                    }
                }
                out
            }
        }
    }

    /// Reads one line. Errors say what is wrong with it.
    pub fn parse(line: &str) -> Result<Self, ParseError> {
        if line.contains("\"event\":\"check\"")
            && let Ok(check) = serde_json::from_str::<CheckLine<'_>>(line)
        {
            return Ok(Self::Event(check.into()));
        }
        if line.starts_with("{\"record\":\"passed\"")
            && let Ok(passed) = serde_json::from_str::<PassedLine<'_>>(line)
        {
            return Ok(Self::Passed(passed.into()));
        }
        match serde_json::from_str(line).map_err(|e| ParseError(format!("not JSON: {e}")))? {
            Value::Object(map) => Self::from_object(map),
            _ => Err(ParseError("not a JSON object".into())),
        }
    }

    /// Reads a record that is already a JSON object; see [`Record::parse`].
    pub fn from_object(mut map: Map<String, Value>) -> Result<Self, ParseError> {
        let name = map.get("record").and_then(Value::as_str).map(str::to_owned);
        match name.as_deref() {
            None if map.contains_key("event") => {
                let key = take_key(&mut map)?;
                Ok(Self::Event(StepEvent {
                    key,
                    event: Event::from_object(map)?,
                }))
            }
            None => Err(ParseError(
                "neither `record` nor `event` names what the line is".into(),
            )),
            Some("run") => typed("run", map).map(Self::Run),
            Some("step") => typed("step", map).map(Self::Step),
            Some("check_names") => typed("check_names", map).map(Self::CheckNames),
            Some(PASSED) => typed(PASSED, map).map(Self::Passed),
            Some("step_end") => typed("step_end", map).map(Self::StepEnd),
            Some("not_run") => typed("not_run", map).map(Self::NotRun),
            Some("set_aside") => typed("set_aside", map).map(Self::SetAside),
            Some("resumed") => typed("resumed", map).map(Self::Resumed),
            Some("run_end") => typed("run_end", map).map(Self::RunEnd),
            Some(_) => Ok(Self::Unknown(map)),
        }
    }
}

/// What a line of passed checks calls itself.
const PASSED: &str = "passed";

/// A record with its name in front, written without a map of its fields.
#[derive(Serialize)]
struct Named<'a, T> {
    record: &'static str,
    #[serde(flatten)]
    body: &'a T,
}

/// Passed checks, which have the most figures of all lines: read without a map of its fields. A line that has any other
/// field takes the ordinary way.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PassedLine<'a> {
    #[serde(rename = "record")]
    _record: &'a str,
    #[serde(borrow)]
    arm: Cow<'a, str>,
    #[serde(borrow)]
    step: Cow<'a, str>,
    attempt: u32,
    rank: u32,
    checks: Vec<(u32, u32)>,
    times: Vec<f64>,
}

impl From<PassedLine<'_>> for Passed {
    fn from(line: PassedLine<'_>) -> Self {
        Self {
            key: StepKey::new(line.arm, line.step, line.attempt),
            rank: line.rank,
            checks: line.checks,
            times: line.times,
            extra: Map::new(),
        }
    }
}

/// A check within a step, as it stands on nearly every line of a long record of version 1: read and written without a
/// map of its fields. A line that has any other field takes the ordinary way.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CheckLine<'a> {
    #[serde(borrow)]
    arm: Cow<'a, str>,
    #[serde(borrow)]
    step: Cow<'a, str>,
    attempt: u32,
    schema: u32,
    t: f64,
    rank: u32,
    #[serde(borrow)]
    event: Cow<'a, str>,
    #[serde(borrow)]
    name: Cow<'a, str>,
    outcome: Outcome,
    #[serde(borrow)]
    group: Cow<'a, str>,
    #[serde(borrow, default, skip_serializing_if = "Option::is_none")]
    reason: Option<Cow<'a, str>>,
}

impl<'a> CheckLine<'a> {
    fn of(event: &'a StepEvent) -> Option<Self> {
        let (Some(key), Kind::Check(check), Some(rank)) = (&event.key, &event.event.kind, event.event.rank)
        else {
            return None;
        };
        let plain = event.event.extra.is_empty() && event.event.t.is_finite();
        plain.then(|| Self {
            arm: Cow::Borrowed(&key.arm),
            step: Cow::Borrowed(&key.step),
            attempt: key.attempt,
            schema: event.event.schema,
            t: event.event.t,
            rank,
            event: Cow::Borrowed("check"),
            name: Cow::Borrowed(&check.name),
            outcome: check.outcome,
            group: Cow::Borrowed(&check.group),
            reason: check.reason.as_deref().map(Cow::Borrowed),
        })
    }
}

impl From<CheckLine<'_>> for StepEvent {
    fn from(line: CheckLine<'_>) -> Self {
        let check = Check {
            name: line.name.into_owned(),
            outcome: line.outcome,
            group: line.group.into_owned(),
            reason: line.reason.map(Cow::into_owned),
        };
        let key = StepKey {
            arm: line.arm.into_owned(),
            step: line.step.into_owned(),
            attempt: line.attempt,
        };
        let event = Event {
            schema: line.schema,
            t: line.t,
            rank: Some(line.rank),
            kind: Kind::Check(check),
            extra: Map::new(),
        };
        Self {
            key: Some(key),
            event,
        }
    }
}

fn named<T: Serialize>(name: &str, body: &T) -> Map<String, Value> {
    let mut out = Map::new();
    out.insert("record".into(), name.into());
    match serde_json::to_value(body) {
        Ok(Value::Object(map)) => out.extend(map),
        // A struct of plain fields always serialises to an object.
        other => unreachable!("record serialised to {other:?}"),
    }
    out
}

fn typed<T: for<'a> Deserialize<'a>>(name: &str, mut map: Map<String, Value>) -> Result<T, ParseError> {
    map.shift_remove("record");
    serde_json::from_value(Value::Object(map)).map_err(|e| ParseError(format!("record `{name}`: {e}")))
}

fn take_key(map: &mut Map<String, Value>) -> Result<Option<StepKey>, ParseError> {
    let attempt = map.shift_remove("attempt");
    match (map.shift_remove("arm"), map.shift_remove("step")) {
        (None, None) => Ok(None),
        (Some(Value::String(arm)), Some(Value::String(step))) => {
            let attempt = match attempt {
                None => 1,
                Some(v) => v
                    .as_u64()
                    .and_then(|n| u32::try_from(n).ok())
                    .ok_or_else(|| ParseError(format!("field `attempt` is {v}, not a whole number")))?,
            };
            Ok(Some(StepKey { arm, step, attempt }))
        }
        _ => Err(ParseError("fields `arm` and `step` must both be strings".into())),
    }
}
