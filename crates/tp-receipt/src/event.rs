//! The event stream: what a rank says, one JSON object a line.
//!
//! Readers tolerate what they do not know: an event of an unknown kind becomes [`Kind::Unknown`] and is kept whole, and
//! unknown fields of a known kind survive in [`Event::extra`]. So an older orchestrator loses nothing that a newer
//! runner says.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version of the event format that this crate writes.
pub const SCHEMA: u32 = 1;
/// A longer line is refused before it is parsed, bytes.
pub const LINE_MAX: usize = 1 << 20;

/// One line of the event stream.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// Version of the format, [`SCHEMA`] when we wrote it.
    pub schema: u32,
    /// Seconds since the step began on this rank, monotonic clock.
    pub t: f64,
    /// Which rank speaks; absent when the speaker is not a rank (the orchestrator itself).
    pub rank: Option<u32>,
    /// What is said.
    pub kind: Kind,
    /// Fields that this version does not know, kept so that they survive a read and a write.
    pub extra: Map<String, Value>,
}

/// What an event says. The `event` field of the JSON object names the variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Kind {
    /// A rank introduces itself, before anything else.
    Hello(Hello),
    /// A variable or option that matters and the value in force.
    Setting(Setting),
    /// A port that was considered, chosen or not, and why.
    Port(Port),
    /// A pair of ports that was picked.
    Rail(Rail),
    /// One check and how it ended.
    Check(Check),
    /// One measured latency.
    Latency(Latency),
    /// A failure is about to be injected on purpose.
    Inject(Inject),
    /// The fate channel saw a failure: this rank is leaving.
    Fate(Fate),
    /// A hardware or kernel counter.
    Counter(Counter),
    /// A line for people, kept with the run.
    Log(Log),
    /// How far a long check has come; for displays only, never counted.
    Progress(Progress),
    /// The rank's own totals, the last thing it says.
    Summary(Summary),
    /// How the process ended; from the supervisor, since a killed rank cannot say it.
    Exit(Exit),
    /// An event kind that this version does not know, kept whole.
    #[serde(skip)]
    Unknown(Map<String, Value>),
}

/// See [`Kind::Hello`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// Number of ranks.
    pub world: u32,
    /// Session that the orchestrator named, or the rank's own when started by hand.
    pub session: String,
    /// Process id, for lists of leftovers.
    pub pid: u32,
    /// SHA-256 of the runner's own executable, lower-case hex.
    pub binary_sha256: String,
    /// SHA-256 of the embedded kernel image, lower-case hex; absent in a binary without kernels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_sha256: Option<String>,
    /// Crate version, source revision and the versions of what was loaded (`runner`, `revision`, `nccl`, `driver`, …).
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub versions: std::collections::BTreeMap<String, String>,
}

/// See [`Kind::Setting`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    /// Variable or option name, as documented in `docs/settings.md`.
    pub name: String,
    /// The value in force, as text; secrets are never given.
    pub value: String,
    /// Where it came from: `default`, `environment`, `option`, `orchestrator`, `launcher`, `derived`.
    pub source: String,
}

/// See [`Kind::Port`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Port {
    /// RDMA device name.
    pub device: String,
    /// Port number, from 1.
    pub port: u32,
    /// Whether the pick took it.
    pub chosen: bool,
    /// Why, in words a person can act on.
    pub reason: String,
    /// True where the port came from a facts file and not from this machine.
    #[serde(default)]
    pub model: bool,
}

/// See [`Kind::Rail`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rail {
    /// The rank at the other end.
    pub peer: u32,
    /// Own RDMA device.
    pub device: String,
    /// Own port number.
    pub port: u32,
    /// Own GID index.
    pub gid_index: u32,
    /// Own address on the rail.
    pub address: String,
    /// The peer's RDMA device.
    pub peer_device: String,
    /// The peer's port number.
    pub peer_port: u32,
    /// `subnet`, `route` or `explicit`.
    pub by: String,
    /// Whether a real RDMA write crossed the rail each way before it counted.
    pub probed: bool,
    /// True where the rail came from a facts file and not from this machine.
    #[serde(default)]
    pub model: bool,
}

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// The right answer came.
    Passed,
    /// A wrong answer came, or none.
    Failed,
    /// It was not run; the reason says why.
    Skipped,
}

/// See [`Kind::Check`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Stable name, words separated by spaces, e.g. `host all_reduce sum bf16 4096 B in place`.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// `core` (the counted suite), `extended`, `graph`, `roce-host`, `failfast`, `transport` or `hca`.
    pub group: String,
    /// Why it failed or was skipped; absent when it passed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// See [`Kind::Latency`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Backend under test: `host`, `nccl`, `mailbox`, `roce`.
    pub backend: String,
    /// Wire that carried it: `verbs`, `shm`, `tcp`; absent for NCCL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<String>,
    /// Operation, e.g. `all_reduce`.
    pub op: String,
    /// Bytes per rank.
    pub bytes: u64,
    /// `eager` or `graph`.
    pub mode: String,
    /// Median time of one operation, microseconds.
    pub median_us: f64,
    /// 10th percentile, microseconds.
    pub p10_us: f64,
    /// 90th percentile, microseconds.
    pub p90_us: f64,
    /// Number of timed operations behind the figures.
    pub samples: u64,
    /// Operations in one graph; 1 for eager.
    pub ops_per_graph: u32,
}

/// See [`Kind::Inject`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inject {
    /// `fatal`, `kill`, `stall` or `transport`.
    pub what: String,
    /// The rank that fails on purpose.
    pub victim: u32,
    /// `CLOCK_MONOTONIC` of the victim's host at the injection, nanoseconds.
    pub monotonic_ns: u64,
}

/// See [`Kind::Fate`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fate {
    /// Why this rank leaves, one line.
    pub reason: String,
    /// The rank that failed, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub culprit: Option<u32>,
    /// In which phase: `boot`, `run`, `close`, or a name that the caller gave.
    pub phase: String,
}

/// See [`Kind::Counter`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counter {
    /// Where, e.g. `rxe0/1`.
    pub place: String,
    /// Counter name.
    pub name: String,
    /// Value.
    pub value: u64,
    /// `before` or `after` the step.
    pub when: String,
}

/// See [`Kind::Log`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Log {
    /// `error`, `warn`, `info` or `debug`.
    pub level: String,
    /// A code of a documented list where the line is a known warning, e.g. `unprobed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The line.
    pub text: String,
}

/// See [`Kind::Progress`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// What is under way.
    pub what: String,
    /// Units done.
    pub done: u64,
    /// Units in all; 0 when unknown.
    pub total: u64,
}

/// See [`Kind::Summary`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Summary {
    /// Checks passed.
    pub passed: u64,
    /// Checks failed.
    pub failed: u64,
    /// Checks skipped, each with an event that says why.
    pub skipped: u64,
}

/// See [`Kind::Exit`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Exit code, when the process returned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<i32>,
    /// Signal number, when a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// `CLOCK_MONOTONIC` of the host when the process was reaped, nanoseconds.
    pub monotonic_ns: u64,
    /// Why the supervisor ended it, when it did: `lease`, `stop`, `stalled`, `deadline`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by: Option<String>,
}

impl Event {
    /// A new event of this version with nothing extra.
    pub fn new(t: f64, rank: Option<u32>, kind: Kind) -> Self {
        Self {
            schema: SCHEMA,
            t,
            rank,
            kind,
            extra: Map::new(),
        }
    }

    /// The value of the `event` field.
    pub fn name(&self) -> &str {
        match &self.kind {
            Kind::Hello(_) => "hello",
            Kind::Setting(_) => "setting",
            Kind::Port(_) => "port",
            Kind::Rail(_) => "rail",
            Kind::Check(_) => "check",
            Kind::Latency(_) => "latency",
            Kind::Inject(_) => "inject",
            Kind::Fate(_) => "fate",
            Kind::Counter(_) => "counter",
            Kind::Log(_) => "log",
            Kind::Progress(_) => "progress",
            Kind::Summary(_) => "summary",
            Kind::Exit(_) => "exit",
            Kind::Unknown(m) => m.get("event").and_then(Value::as_str).unwrap_or("?"),
        }
    }

    /// The event as one line of JSON, without the line feed.
    pub fn to_line(&self) -> String {
        Value::Object(self.to_object()).to_string()
    }

    /// The event as a JSON object. A field of `extra` never replaces a known one.
    pub fn to_object(&self) -> Map<String, Value> {
        let mut out = Map::new();
        out.insert("schema".into(), self.schema.into());
        // JSON has no infinities; a time that is none says nothing and is written as 0.
        let t = if self.t.is_finite() { self.t } else { 0.0 };
        out.insert("t".into(), t.into());
        if let Some(rank) = self.rank {
            out.insert("rank".into(), rank.into());
        }
        let body = match &self.kind {
            Kind::Unknown(map) => map.clone(),
            known => match serde_json::to_value(known) {
                Ok(Value::Object(map)) => map,
                // A struct of plain fields always serialises to an object.
                other => unreachable!("event serialised to {other:?}"),
            },
        };
        out.extend(body);
        for (key, value) in &self.extra {
            if !out.contains_key(key) {
                out.insert(key.clone(), value.clone());
            }
        }
        out
    }

    /// Reads one line. Errors say what is wrong with the line: not JSON, not an object, or a known kind whose fields do
    /// not fit.
    pub fn parse(line: &str) -> Result<Self, ParseError> {
        if line.len() > LINE_MAX {
            return Err(ParseError(format!(
                "the line has {} bytes, more than {LINE_MAX}",
                line.len()
            )));
        }
        let value: Value = serde_json::from_str(line).map_err(|e| ParseError(format!("not JSON: {e}")))?;
        match value {
            Value::Object(map) => Self::from_object(map),
            _ => Err(ParseError("not a JSON object".into())),
        }
    }

    /// Reads an event that is already a JSON object; see [`Event::parse`].
    pub fn from_object(mut map: Map<String, Value>) -> Result<Self, ParseError> {
        let schema =
            take_u32(&mut map, "schema")?.ok_or_else(|| ParseError("field `schema` is missing".into()))?;
        let rank = take_u32(&mut map, "rank")?;
        let t = match map.remove("t") {
            Some(v) => v
                .as_f64()
                .ok_or_else(|| ParseError(format!("field `t` is {v}, not a number")))?,
            None => return Err(ParseError("field `t` is missing".into())),
        };
        let Some(name) = map.get("event").and_then(Value::as_str).map(str::to_owned) else {
            return Err(ParseError("field `event` is missing or not a string".into()));
        };
        if !KNOWN.contains(&name.as_str()) {
            return Ok(Self {
                schema,
                t,
                rank,
                kind: Kind::Unknown(map),
                extra: Map::new(),
            });
        }
        let kind: Kind = serde_json::from_value(Value::Object(map.clone()))
            .map_err(|e| ParseError(format!("event `{name}`: {e}")))?;
        // What the known struct did not take is kept as `extra`. Optional fields that were given as their default are
        // not written again, but they are known.
        if let Ok(Value::Object(taken)) = serde_json::to_value(&kind) {
            let optional = optional_fields(&name);
            map.retain(|key, _| !taken.contains_key(key) && !optional.contains(&key.as_str()));
        }
        Ok(Self {
            schema,
            t,
            rank,
            kind,
            extra: map,
        })
    }
}

fn take_u32(map: &mut Map<String, Value>, key: &str) -> Result<Option<u32>, ParseError> {
    match map.remove(key) {
        None | Some(Value::Null) => Ok(None),
        Some(v) => v
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .map(Some)
            .ok_or_else(|| ParseError(format!("field `{key}` is {v}, not a whole number below 2^32"))),
    }
}

/// Fields of a known kind that are left out when they are empty.
fn optional_fields(event: &str) -> &'static [&'static str] {
    match event {
        "hello" => &["image_sha256", "versions"],
        "check" => &["reason"],
        "latency" => &["wire"],
        "fate" => &["culprit"],
        "log" => &["code"],
        "exit" => &["code", "signal", "ended_by"],
        _ => &[],
    }
}

const KNOWN: &[&str] = &[
    "hello", "setting", "port", "rail", "check", "latency", "inject", "fate", "counter", "log", "progress",
    "summary", "exit",
];

/// A line that is not an event; the text says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseError(pub String);
