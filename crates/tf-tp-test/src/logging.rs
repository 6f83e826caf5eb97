//! What the libraries say through `tracing`, brought to the sink: lines for people, and `log` events.

use crate::sink::Sink;
use std::fmt::Write;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, filter::LevelFilter};

/// The variable that says how much is logged, in `tracing`'s own grammar; `info` unless set.
pub const VARIABLE: &str = "TF_TP_LOG";

/// Sends everything at the level of [`VARIABLE`] and above to `sink`. A second call changes nothing.
pub fn init(sink: &Sink) {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .with_env_var(VARIABLE)
        .from_env_lossy();
    let _ = tracing_subscriber::registry()
        .with(filter)
        .with(ToSink(sink.clone()))
        .try_init();
}

struct ToSink(Sink);

impl<S: Subscriber> Layer<S> for ToSink {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let level = match *event.metadata().level() {
            Level::ERROR => "error",
            Level::WARN => "warn",
            Level::INFO => "info",
            _ => "debug",
        };
        self.0.log(
            level,
            line.code.as_deref(),
            &format!("{}{}", line.message, line.fields),
        );
    }
}

/// The message, and behind it the fields as `name=value`; the field `code` names a known warning and stands apart.
#[derive(Default)]
struct Line {
    message: String,
    fields: String,
    code: Option<String>,
}

impl Visit for Line {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = value.to_owned(),
            "code" => self.code = Some(value.to_owned()),
            name => {
                let _ = write!(self.fields, " {name}={value}");
            }
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            "code" => self.code = Some(format!("{value:?}")),
            name => {
                let _ = write!(self.fields, " {name}={value:?}");
            }
        }
    }
}
