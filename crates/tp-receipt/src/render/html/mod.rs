//! `report.html`: one page with everything in it, no network, no script; light and dark, screen and phone.

mod failures;
mod plot;
mod rails;
mod style;
mod tables;

use super::visible::is_hidden;
use super::{sheet, view};
use crate::receipt::{Receipt, Verdict};
use std::fmt::Write;

/// The receipt as a page.
pub fn html(receipt: &Receipt) -> String {
    let mut out = String::with_capacity(64 << 10);
    let title = escape(&receipt.headline());
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>{title}</title>\n<style>\n{}</style>\n</head>\n<body>\n",
        style::CSS
    );
    header(receipt, &mut out);
    out.push_str("<main>\n");
    tables::matrix(receipt, &mut out);
    failures::failures(receipt, &mut out);
    tables::left_out(receipt, &mut out);
    plot::latencies(receipt, &mut out);
    tables::failfast(receipt, &mut out);
    rails::rails(receipt, &mut out);
    tables::sheet(&sheet::warnings(receipt), &mut out);
    tables::sheet(&sheet::hosts(receipt), &mut out);
    tables::settings(receipt, &mut out);
    tables::sheet(&sheet::counters(receipt), &mut out);
    tables::sheet(&sheet::provenance(receipt), &mut out);
    out.push_str("</main>\n</body>\n</html>\n");
    out
}

/// Text for an element or a quoted attribute.
fn escape(raw: &str) -> String {
    let mut out = String::with_capacity(raw.len());
    for c in raw.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Neither the page nor an SVG in it can hold these, or they would turn the direction of what follows.
            c if is_hidden(c) && !matches!(c, '\n' | '\t') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The class that colours a verdict.
fn class(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "ok",
        Verdict::Failed => "bad",
        Verdict::Flaky => "odd",
        Verdict::Incomplete | Verdict::Other(_) => "part",
    }
}

/// The anchor of a step's failure.
fn anchor(arm: &str, step: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || c == '-' {
            c
        } else {
            '_'
        }
    };
    format!(
        "f-{}-{}",
        arm.chars().map(safe).collect::<String>(),
        step.chars().map(safe).collect::<String>()
    )
}

/// The class of the frame of a table: one with so many columns is wider than a phone, and says there that it scrolls.
fn wide(columns: usize) -> &'static str {
    if columns > 3 { "wide many" } else { "wide" }
}

/// A table that scrolls sideways on its own where it is wider than the page.
fn table(out: &mut String, head: &[&str], rows: &[Vec<String>]) {
    let _ = write!(out, "<div class=\"{}\"><table>\n<thead><tr>", wide(head.len()));
    for cell in head {
        let _ = write!(out, "<th scope=\"col\">{cell}</th>");
    }
    out.push_str("</tr></thead>\n<tbody>\n");
    for row in rows {
        out.push_str("<tr>");
        for cell in row {
            let _ = write!(out, "<td>{cell}</td>");
        }
        out.push_str("</tr>\n");
    }
    out.push_str("</tbody></table></div>\n");
}

fn section(out: &mut String, title: &str) {
    let _ = writeln!(out, "<section>\n<h2>{title}</h2>");
}

fn code(raw: &str) -> String {
    format!("<code>{}</code>", escape(raw))
}

fn header(receipt: &Receipt, out: &mut String) {
    let _ = write!(
        out,
        "<header class=\"{}\">\n<h1>{}</h1>\n<p class=\"chips\">",
        class(&receipt.verdict),
        escape(receipt.verdict.as_str())
    );
    for scope in &receipt.scope {
        let _ = write!(out, "<span class=\"chip\">{}</span> ", escape(scope.as_str()));
    }
    let cluster = receipt.cluster.as_deref().unwrap_or("unnamed cluster");
    let _ = write!(
        out,
        "</p>\n<p>{}, {} on {}, started {}</p>\n",
        escape(cluster),
        view::plural(receipt.world.into(), "rank"),
        view::plural(receipt.hosts.len() as u64, "host"),
        escape(&view::time(&receipt.started))
    );
    let (steps, checks) = sheet::totals(receipt);
    let _ = writeln!(out, "<p>Steps: {steps}. Checks: {checks}.</p>");
    if !receipt.reasons.is_empty() {
        out.push_str("<ul>\n");
        for reason in &receipt.reasons {
            let _ = writeln!(out, "<li>{}</li>", escape(reason));
        }
        out.push_str("</ul>\n");
    }
    out.push_str("</header>\n");
}
