//! What the hosts say: all at once, each with a limit of its own.

use super::{HostReport, Hosts, Reached};
use crate::host::Host;
use crate::inventory::{self, Inventory};
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tp_receipt::doctor::Reached as Told;

/// How long a host may take to look at itself: loading libraries and starting a container takes a while.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a host may take to tell the time.
const CLOCK_LIMIT: Duration = Duration::from_secs(10);
/// How often it is asked: the quickest answer has the smallest error.
const CLOCK_TRIES: usize = 3;

/// What one host said.
#[derive(Clone, Debug, Serialize)]
pub struct Answer {
    /// The inventory's name of the host.
    pub name: String,
    /// Its report; none where it could not be looked at.
    pub report: Option<HostReport>,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Its clock against this machine's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock: Option<Clock>,
}

/// A host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Clock {
    /// Its time less this machine's, milliseconds.
    pub offset_ms: f64,
    /// The offset may be off by this much either way, milliseconds.
    pub error_ms: f64,
}

impl Answer {
    /// The facts are the longest part and are shown by `hca`.
    pub(super) fn forget_facts(&mut self) {
        if let Some(report) = &mut self.report {
            report.facts.clear();
        }
    }
}

/// Asks every host at once; the answers are in the order of the inventory.
pub(super) fn all(inventory: &Inventory, hosts: &Hosts) -> Vec<Answer> {
    thread::scope(|scope| {
        let threads: Vec<_> = inventory
            .hosts
            .iter()
            .map(|host| (host, scope.spawn(|| one(host, hosts))))
            .collect();
        let join = |(host, thread): (&inventory::Host, thread::ScopedJoinHandle<'_, Answer>)| {
            thread
                .join()
                .unwrap_or_else(|_| failed(&host.name, "the question broke off".to_owned()))
        };
        threads.into_iter().map(join).collect()
    })
}

fn failed(name: &str, error: String) -> Answer {
    Answer {
        name: name.to_owned(),
        report: None,
        error: Some(error),
        clock: None,
    }
}

fn one(host: &inventory::Host, hosts: &Hosts) -> Answer {
    let connected = match hosts.get(&host.name) {
        Some(Ok(connected)) => connected.as_ref(),
        Some(Err(error)) => return failed(&host.name, error.to_string()),
        None => return failed(&host.name, "it is not part of this run".to_owned()),
    };
    match report(host, connected) {
        Ok(report) => Answer {
            name: host.name.clone(),
            report: Some(report),
            error: None,
            clock: clock(connected),
        },
        Err(error) => failed(&host.name, error),
    }
}

/// The runner's command line on a host, inside `run_prefix` and with the inventory's variables, as a rank has it.
pub(crate) fn argv(host: &inventory::Host, runner: &str, words: &[&str]) -> Vec<String> {
    let mut argv = host.run_prefix.clone();
    if !host.env.is_empty() {
        argv.push("env".to_owned());
        argv.extend(host.env.iter().map(|(name, value)| format!("{name}={value}")));
    }
    argv.push(runner.to_owned());
    argv.extend(words.iter().map(|word| (*word).to_owned()));
    argv
}

fn report(host: &inventory::Host, connected: &dyn Host) -> Result<HostReport, String> {
    let runner = connected.runner().display().to_string();
    let argv = argv(host, &runner, &["doctor", "--json"]);
    let output = connected.output(&argv, LIMIT).map_err(|e| e.to_string())?;
    let said = || {
        output
            .stderr
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("nothing")
    };
    // What a login shell's profile prints stands before the document.
    let start = output.stdout.find('{').unwrap_or(0);
    let document = output.stdout.get(start..).unwrap_or_default();
    serde_json::from_str(document.trim()).map_err(|e| match output.code {
        Some(126 | 127) => format!("{runner} does not start there and said: {}", said()),
        _ => format!(
            "{} gave no document that can be read ({e}) and said: {}",
            argv.join(" "),
            said()
        ),
    })
}

/// Asks for the time a few times and keeps the answer that came quickest.
fn clock(connected: &dyn Host) -> Option<Clock> {
    let argv = ["date".to_owned(), "+%s.%N".to_owned()];
    let ask = |_| {
        let since = Instant::now();
        let before = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_secs_f64();
        let output = connected.output(&argv, CLOCK_LIMIT).ok()?;
        let took = since.elapsed().as_secs_f64();
        let theirs: f64 = output.stdout.lines().last()?.trim().parse().ok()?;
        Some(Clock {
            offset_ms: (theirs - (before + took / 2.0)) * 1e3,
            error_ms: took / 2.0 * 1e3,
        })
    };
    (0..CLOCK_TRIES)
        .filter_map(ask)
        .min_by(|a, b| a.error_ms.total_cmp(&b.error_ms))
}

/// Whether the other hosts reach rank 0's host, at a port on which nothing listens: a host that answers refuses.
pub(super) fn reach(inventory: &Inventory, hosts: &Hosts, answers: &[Answer], master: &str) -> Vec<Reached> {
    let Some(head) = inventory.host_of(0) else {
        return Vec::new();
    };
    let Some(Ok(connected)) = hosts.get(&head.name) else {
        return Vec::new();
    };
    let Ok(port) = connected.free_port() else {
        return Vec::new();
    };
    let bare = master.trim_start_matches('[').trim_end_matches(']');
    let to = if bare.contains(':') {
        format!("[{bare}]:{port}")
    } else {
        format!("{bare}:{port}")
    };
    let others: Vec<_> = inventory
        .hosts
        .iter()
        .filter(|host| {
            host.name != head.name && answers.iter().any(|a| a.name == host.name && a.report.is_some())
        })
        .collect();
    thread::scope(|scope| {
        let threads: Vec<_> = others
            .iter()
            .map(|host| scope.spawn(|| reach_from(host, hosts, &head.name, &to)))
            .collect();
        threads
            .into_iter()
            .filter_map(|thread| thread.join().ok().flatten())
            .collect()
    })
}

fn reach_from(host: &inventory::Host, hosts: &Hosts, head: &str, to: &str) -> Option<Reached> {
    let Some(Ok(connected)) = hosts.get(&host.name) else {
        return None;
    };
    let runner = connected.runner().display().to_string();
    let argv = argv(host, &runner, &["doctor", "--json", "--reach", to]);
    let output = connected.output(&argv, LIMIT).ok()?;
    let start = output.stdout.find('{').unwrap_or(0);
    let tried: Told = serde_json::from_str(output.stdout.get(start..)?.trim()).ok()?;
    let tried = tried.reach.into_iter().next()?;
    Some(Reached {
        from: host.name.clone(),
        host: head.to_owned(),
        to: tried.to,
        outcome: tried.outcome,
        text: tried.text,
    })
}
