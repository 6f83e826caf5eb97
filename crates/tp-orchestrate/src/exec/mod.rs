//! Executing a plan: preflight, then arm by arm, step by step, all ranks of a step at once.

mod capabilities;
mod clock;
mod facts;
pub mod fleet;
mod heard;
mod interrupt;
mod judge;
mod ledger;
pub mod leftovers;
pub mod mark;
mod picks;
mod preflight;
mod rails;
mod runner;
mod step;
pub(crate) mod time;

pub use capabilities::{capabilities, merged};
pub use facts::{ModelFacts, document as facts_document, of_hosts};
pub use interrupt::Interrupt;
pub use ledger::{Begin, Ledger, is_redacted};
pub use preflight::check_machine;
pub use rails::check_rails;
pub use runner::{Runner, find_runner};

use crate::host::Host;
use crate::plan::{Plan, Step};
use crate::{Error, exit_code};
use picks::Picks;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use step::Trial;
use tp_receipt::receipt::{NotRun, Receipt, Verdict};
use tp_receipt::record::StepKey;

/// What `run` was asked for beside the plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunOptions {
    /// Stop after the first step that does not pass.
    pub fail_fast: bool,
    /// Attempts at every step, whatever they bring; at least 1.
    pub repeat: u32,
    /// Further attempts at a step that failed.
    pub retries: u32,
}

/// What the steps of a run share.
pub struct Context<'a> {
    /// A name that no other run has.
    pub run_id: &'a str,
    /// The hosts by name.
    pub hosts: &'a BTreeMap<String, Arc<dyn Host>>,
    /// Facts for `model` steps.
    pub facts: &'a ModelFacts,
    /// Ctrl-C and SIGTERM.
    pub interrupt: &'a Interrupt,
}

impl Context<'_> {
    fn host(&self, name: &str) -> Result<&dyn Host, String> {
        self.hosts
            .get(name)
            .map(Arc::as_ref)
            .ok_or_else(|| format!("host {name} is not part of this run"))
    }
}

/// Executes the plan, step after step, and closes the receipt. `earlier` is what a resumed run already has. Gives the
/// receipt and the exit code that agrees with its verdict: of a run that a signal cut short the signal's.
///
/// # Errors
/// Only what keeps the receipt from being written; failed steps are in the receipt.
pub fn execute(
    plan: &Plan,
    options: RunOptions,
    context: &Context<'_>,
    mut ledger: Ledger,
    earlier: Earlier,
) -> Result<(Receipt, u8), Error> {
    let mut run = Run {
        options,
        context,
        picks: Picks::default(),
        stopped: None,
        cut: false,
    };
    for arm in &plan.arms {
        for step in &arm.steps {
            if !earlier.done.contains(&(arm.name.clone(), step.name.clone())) {
                run.step(&arm.name, step, &mut ledger)?;
            }
        }
    }
    // A signal that came when every step had had its turn changes nothing.
    let interrupted = context.interrupt.first().filter(|_| run.cut);
    let receipt = ledger.finish(interrupted.map(|(name, _)| name.to_owned()))?;
    Ok(match interrupted {
        Some((_, code)) => (receipt, code),
        None if receipt.verdict.passed() => (receipt, exit_code::PASSED),
        None => (receipt, exit_code::FAILED),
    })
}

/// What a run that is taken up again already has; nothing for a new one.
#[derive(Clone, Debug, Default)]
pub struct Earlier {
    /// Steps that have ended, by arm and name.
    done: BTreeSet<(String, String)>,
}

impl Earlier {
    /// From the receipt of the interrupted run. The pick is made anew where later steps need its values: the fabric may
    /// have changed since.
    fn of(plan: &Plan, receipt: &Receipt) -> Self {
        let mut done = BTreeSet::new();
        for arm in &receipt.arms {
            let ended = arm
                .steps
                .iter()
                .filter(|step| step.verdict != Verdict::Incomplete);
            done.extend(ended.map(|step| (arm.name.clone(), step.name.clone())));
        }
        let open = |arm: &str, step: &Step| !done.contains(&(arm.to_owned(), step.name.clone()));
        let needs_pick = plan.arms.iter().any(|arm| {
            arm.steps
                .iter()
                .any(|step| open(&arm.name, step) && !step.symbols().is_empty())
        });
        if needs_pick {
            done.remove(&("none".to_owned(), "hca".to_owned()));
        }
        Self { done }
    }
}

struct Run<'a> {
    options: RunOptions,
    context: &'a Context<'a>,
    picks: Picks,
    /// The step after which `--fail-fast` stopped the run.
    stopped: Option<String>,
    /// A signal kept a step from its turn or from its end.
    cut: bool,
}

impl Run<'_> {
    fn step(&mut self, arm: &str, step: &Step, ledger: &mut Ledger) -> Result<(), Error> {
        if self.context.interrupt.count() > 0 {
            // What an interrupted run did not come to is derived from the plan.
            self.cut = true;
            return Ok(());
        }
        if let Some(reason) = self.obstacle(step) {
            let row = NotRun {
                arm: arm.to_owned(),
                step: step.name.clone(),
                reason,
                planned: true,
                ..NotRun::default()
            };
            return ledger.not_run(row);
        }
        let mut attempt = ledger.next_attempt(arm, &step.name) - 1;
        let last = attempt + self.options.repeat.max(1);
        let mut retries = self.options.retries;
        let mut end = last;
        while attempt < end {
            attempt += 1;
            let key = StepKey::new(arm, &step.name, attempt);
            if Picks::supplies(&key) {
                self.picks.clear();
            }
            let known = self.picks.values();
            let attempted = Trial::new(step, key, self.context).run(known, ledger, &mut self.picks)?;
            match attempted.verdict {
                Verdict::Passed => {}
                Verdict::Incomplete => {
                    self.cut = true;
                    return Ok(());
                }
                _ if attempt == end && retries > 0 => {
                    retries -= 1;
                    end += 1;
                }
                _ if self.options.fail_fast && attempt == end => {
                    self.stopped = Some(format!("{arm}/{}", step.name));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Why the step cannot run now.
    fn obstacle(&self, step: &Step) -> Option<String> {
        if let Some(stopped) = &self.stopped {
            return Some(format!("--fail-fast stopped the run after {stopped}"));
        }
        let known = self.picks.values();
        let missing = step
            .symbols()
            .into_iter()
            .find(|pick| known.resolve(&pick.to_string()).is_err())?;
        Some(format!(
            "{missing} has no value: none/hca gave no pick for rank {}",
            missing.rank
        ))
    }
}

/// 32 random bytes as hex, for one step.
pub(crate) fn secret() -> Result<String, Error> {
    random_hex(32)
}

/// A name for a run that no other run has.
pub fn new_run_id() -> Result<String, Error> {
    random_hex(8)
}

fn random_hex(bytes: usize) -> Result<String, Error> {
    let mut buffer = vec![0; bytes];
    getrandom::fill(&mut buffer)
        .map_err(|e| Error::Refused(format!("failed to get random bytes from the system: {e}")))?;
    Ok(hex::encode(buffer))
}
