//! The pick as tables for people.

use crate::document::{By, PickDocument, RankPick};
use std::fmt::Write;

/// Renders the pick for a terminal or a log: for each rank its rails, its ports with the reason for each, what NCCL is
/// told, and the warnings; the error last.
pub fn table(document: &PickDocument) -> String {
    let mut out = String::new();
    for rank in &document.ranks {
        rank_table(&mut out, rank);
    }
    match &document.error {
        Some(error) => push(&mut out, &format!("no pick: {error}")),
        None => push(&mut out, &format!("picked: {}", summary(document))),
    }
    out
}

fn summary(document: &PickDocument) -> String {
    let ends: usize = document.ranks.iter().map(|rank| rank.rails.len()).sum();
    format!(
        "{} between {}",
        count(ends / 2, "rail"),
        count(document.ranks.len(), "rank")
    )
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}

fn rank_table(out: &mut String, rank: &RankPick) {
    let mode = serde_json::to_value(rank.mode).ok();
    let mode = mode.as_ref().and_then(|mode| mode.as_str()).unwrap_or_default();
    push(out, &format!("rank {} ({mode})", rank.rank));
    let rails: Vec<Vec<String>> = rank
        .rails
        .iter()
        .map(|rail| {
            let by = match rail.by {
                By::Subnet => "subnet",
                By::Route => "route",
                By::Explicit => "explicit",
            };
            vec![
                format!("rank {}", rail.peer),
                format!("{}:{}", rail.device, rail.port),
                format!("GID {}", rail.gid_index),
                rail.address.clone(),
                format!("-> {}:{}", rail.peer_device, rail.peer_port),
                format!("by {by}"),
                if rail.probed { "probed" } else { "unprobed" }.to_owned(),
            ]
        })
        .collect();
    columns(out, &rails);
    let ports: Vec<Vec<String>> = rank
        .ports
        .iter()
        .map(|port| {
            let mark = if port.chosen { "*" } else { "-" };
            vec![
                format!("{mark} {}:{}", port.device, port.port),
                port.reason.clone(),
            ]
        })
        .collect();
    columns(out, &ports);
    for (name, value) in &rank.nccl_env {
        push(out, &format!("  {name}={value}"));
    }
    for warning in &rank.warnings {
        push(out, &format!("  warning {}: {}", warning.code, warning.text));
    }
}

/// Rows with aligned columns, the last one free.
fn columns(out: &mut String, rows: &[Vec<String>]) {
    let width = |column: usize| {
        rows.iter()
            .filter_map(|row| row.get(column))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..rows.first().map_or(0, Vec::len)).map(width).collect();
    for row in rows {
        let mut line = String::from(" ");
        for (cell, width) in row.iter().zip(&widths) {
            // Writing to a String cannot fail.
            let _ = write!(line, " {cell:<width$}");
        }
        push(out, line.trim_end());
    }
}

fn push(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}
