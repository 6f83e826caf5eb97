//! `run --json`: every record as one line of JSON on standard output, and nothing else there.

use super::{Reporter, StepReport};
use crate::plan::Plan;
use std::io::{ErrorKind, Write};
use std::path::Path;
use tp_receipt::receipt::Receipt;
use tp_receipt::record::Record;

/// Writes records; the last line is `{"record":"receipt",…}` with the verdict and the directory.
pub struct JsonLines<W: Write> {
    out: W,
    failure: Option<String>,
}

impl JsonLines<std::io::Stdout> {
    /// To standard output.
    pub fn stdout() -> Self {
        Self {
            out: std::io::stdout(),
            failure: None,
        }
    }
}

impl<W: Write> JsonLines<W> {
    fn line(&mut self, line: &str) {
        // The run goes on for the receipt's sake. A reader that closed the pipe has seen enough; one whose disk is full
        // would take the part for the whole.
        match writeln!(self.out, "{line}").and_then(|()| self.out.flush()) {
            Err(e) if e.kind() != ErrorKind::BrokenPipe => {
                self.failure.get_or_insert_with(|| e.to_string());
            }
            _ => {}
        }
    }
}

impl<W: Write> Reporter for JsonLines<W> {
    fn begin(&mut self, _plan: &Plan, _out: &Path) {}

    fn record(&mut self, record: &Record) {
        self.line(&record.to_line());
    }

    fn step_ended(&mut self, _report: &StepReport) {}

    fn tick(&mut self) {}

    fn end(&mut self, receipt: &Receipt, out: &Path) {
        let line = serde_json::json!({
            "record": "receipt",
            "verdict": receipt.verdict.as_str(),
            "directory": out.display().to_string(),
        });
        self.line(&line.to_string());
    }

    fn failure(&self) -> Option<String> {
        self.failure.clone()
    }
}
