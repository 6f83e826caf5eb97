//! The report for people.

use super::ask::Answer;
use super::{Finding, HostReport, Level, RailEnds, Report};
use crate::display::counted;
use console::Style;
use std::fmt::Display;
use tp_receipt::doctor::State;

pub(super) fn text(report: &Report, all: bool) -> String {
    let mut lines = Vec::new();
    for answer in &report.hosts {
        lines.push(host_line(answer));
        if all {
            let items = answer
                .report
                .iter()
                .flat_map(|r| &r.items)
                .filter(|item| item.state == State::Ok);
            lines.extend(items.map(|item| format!("  ok    {}: {}", item.name, item.text)));
        }
        let own = |finding: &&Finding| finding.host.as_deref() == Some(answer.name.as_str());
        for finding in report.findings.iter().filter(own) {
            lines.extend(of_finding(finding, all));
        }
    }
    let common: Vec<_> = report.findings.iter().filter(|f| f.host.is_none()).collect();
    if !common.is_empty() {
        lines.push("together".to_owned());
        for finding in common {
            lines.extend(of_finding(finding, all));
        }
    }
    lines.push(String::new());
    lines.extend(report.rails.iter().map(rail));
    for reached in &report.reach {
        lines.push(format!(
            "reach  {} to {} ({}): {}",
            reached.from, reached.host, reached.to, reached.text
        ));
    }
    for collective in &report.collectives {
        lines.push(format!("collective  {}: {}", collective.backend, collective.text));
    }
    lines.extend(report.not_tested.iter().map(|what| format!("not tested  {what}")));
    lines.push(closing(&report.findings, all));
    lines
        .iter()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

fn host_line(answer: &Answer) -> String {
    let Some(report) = &answer.report else {
        return format!("{}: could not be looked at", answer.name);
    };
    let mut parts = vec![report.host.system.clone(), report.host.kernel.clone()];
    parts.extend(report.host.libc.clone());
    parts.extend(
        report
            .host
            .driver
            .as_ref()
            .map(|driver| format!("driver {driver}")),
    );
    parts.extend(gpus(report));
    let nccl = report.libraries.iter().find(|l| l.library == "libnccl");
    parts.extend(
        nccl.and_then(|l| l.version.as_ref())
            .map(|version| format!("NCCL {version}")),
    );
    parts.extend(
        answer
            .clock
            .map(|clock| format!("clock {:+.1} ms ± {:.1} ms", clock.offset_ms, clock.error_ms)),
    );
    format!("{}: {}", answer.name, parts.join(", "))
}

fn gpus(report: &HostReport) -> Option<String> {
    let first = report.gpus.first()?;
    Some(match report.gpus.len() {
        1 => format!("GPU {}", first.name),
        n => format!("{n} GPUs {}", first.name),
    })
}

fn of_finding(finding: &Finding, all: bool) -> Vec<String> {
    if finding.level == Level::Note && !all {
        return Vec::new();
    }
    let styled = |style: Style, word: &str| -> Box<dyn Display> { Box::new(style.apply_to(word.to_owned())) };
    let word = match finding.level {
        Level::Bad => styled(Style::new().red().bold(), "BAD "),
        Level::Warn => styled(Style::new().yellow(), "warn"),
        Level::Note => styled(Style::new().dim(), "note"),
    };
    let mut lines = vec![format!("  {word}  {}: {}", finding.name, finding.text)];
    lines.extend(finding.fix.as_ref().map(|fix| format!("        -> {fix}")));
    lines
}

fn rail(rail: &RailEnds) -> String {
    fn both<T: Display + PartialEq>(values: &[Option<T>; 2], unit: &str) -> String {
        let one = |value: &Option<T>| value.as_ref().map_or("?".to_owned(), T::to_string);
        if values[0] == values[1] {
            format!("{} {unit}", one(&values[0]))
        } else {
            format!("{} and {} {unit}", one(&values[0]), one(&values[1]))
        }
    }
    format!(
        "rail  {} {} {} to {} {} {}: MTU {}, RDMA packets {}, {}",
        rail.hosts[0],
        rail.ports[0],
        rail.addresses[0],
        rail.hosts[1],
        rail.ports[1],
        rail.addresses[1],
        both(&rail.mtu, "B"),
        both(&rail.active_mtu, "B"),
        both(&rail.speed_gbps, "Gbit/s")
    )
}

fn closing(findings: &[Finding], all: bool) -> String {
    let count = |level: Level| findings.iter().filter(|finding| finding.level == level).count();
    let (bad, warn, note) = (count(Level::Bad), count(Level::Warn), count(Level::Note));
    let mut text = match (bad, warn) {
        (0, 0) => "nothing amiss".to_owned(),
        (0, warn) => counted(warn, "warning"),
        (bad, 0) => format!("{} to mend", counted(bad, "fault")),
        (bad, warn) => format!("{} to mend, {}", counted(bad, "fault"), counted(warn, "warning")),
    };
    if note > 0 && !all {
        text.push_str(&format!("; {} with --all", counted(note, "note")));
    }
    text
}
