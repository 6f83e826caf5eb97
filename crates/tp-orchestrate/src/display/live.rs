//! The live table of a terminal: finished steps scroll up, what is running stays below.

use super::plain::{closing, ended, opening};
use super::progress::Running;
use super::{Reporter, StepReport};
use crate::plan::Plan;
use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::path::Path;
use tp_receipt::receipt::Receipt;
use tp_receipt::record::Record;

/// Ranks that have a line of their own; more would push the finished steps off the screen.
const RANK_LINES: usize = 16;

/// See the module.
pub struct Live {
    bars: MultiProgress,
    head: ProgressBar,
    ranks: Vec<ProgressBar>,
    running: Running,
}

impl Live {
    /// On standard error.
    pub fn new() -> Self {
        let bars = MultiProgress::with_draw_target(ProgressDrawTarget::stderr_with_hz(12));
        let head = bars.add(line("{spinner} {msg}"));
        Self {
            bars,
            head,
            ranks: Vec::new(),
            running: Running::default(),
        }
    }

    fn print(&self, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            // A terminal that is gone shows nothing; the receipt has it all.
            let _ = self.bars.println(line);
        }
    }

    fn refresh(&mut self) {
        let lines = match &self.running.key {
            None => Vec::new(),
            Some(key) => {
                let running = &self.running;
                self.head.set_message(format!(
                    "{}/{}  {key} [{}]  {:.1} s",
                    running.begun,
                    running.steps,
                    running.scope,
                    running.elapsed().as_secs_f64()
                ));
                running.lines(RANK_LINES)
            }
        };
        while self.ranks.len() < lines.len() {
            self.ranks.push(self.bars.add(line("    {wide_msg}")));
        }
        for bar in self.ranks.drain(lines.len()..) {
            bar.finish_and_clear();
        }
        for (bar, line) in self.ranks.iter().zip(lines) {
            bar.set_message(line);
        }
        self.head.tick();
    }
}

impl Default for Live {
    fn default() -> Self {
        Self::new()
    }
}

fn line(template: &str) -> ProgressBar {
    // The templates are constants of this file.
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style)
}

impl Reporter for Live {
    fn begin(&mut self, plan: &Plan, out: &Path) {
        self.running.begin(plan);
        self.print([opening(plan, out)]);
        self.print(
            plan.not_run
                .iter()
                .map(|left_out| format!("not run: {}: {}", left_out.what, left_out.reason)),
        );
    }

    fn record(&mut self, record: &Record) {
        self.running.record(record);
        match record {
            Record::Step(_) => self.refresh(),
            Record::NotRun(row) if row.planned => {
                self.print([format!("not run: {}/{}: {}", row.arm, row.step, row.reason)]);
            }
            _ => {}
        }
    }

    fn step_ended(&mut self, report: &StepReport) {
        self.refresh();
        self.print(ended(report));
    }

    fn tick(&mut self) {
        self.refresh();
    }

    fn end(&mut self, receipt: &Receipt, out: &Path) {
        for bar in self.ranks.drain(..) {
            bar.finish_and_clear();
        }
        self.head.finish_and_clear();
        let _ = self.bars.clear();
        for line in closing(receipt, out) {
            eprintln!("{line}");
        }
    }
}
