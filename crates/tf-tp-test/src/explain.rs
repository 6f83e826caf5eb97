//! `explain`: which variables matter here and what each is set to, from the one settings table.

use crate::cli::ExplainArgs;
use crate::exit_code::{self, Refusal};
use crate::sink::Sink;
use crate::stdout;
use tp_fabric::settings::{self, Row, Settings, Sources, Spec};
use tp_receipt::event::{Kind, Setting};

/// Prints the table to standard output: variable, value, who set it, and what it means.
pub fn run(args: &ExplainArgs, sources: &Sources, sink: &Sink) -> Result<u8, Refusal> {
    if args.markdown {
        stdout::print(&settings::page())?;
        return Ok(exit_code::PASSED);
    }
    let settings = Settings::load(sources).map_err(|e| Refusal::usage(e.to_string()))?;
    let wanted = |row: &&Row| {
        let filter = args.filter.as_deref().unwrap_or_default().to_ascii_uppercase();
        row.name.to_ascii_uppercase().contains(&filter)
    };
    let rows: Vec<&Row> = settings.rows().iter().filter(wanted).collect();
    if rows.is_empty() {
        let filter = args.filter.as_deref().unwrap_or_default();
        return Err(Refusal::usage(format!(
            "no variable has `{filter}` in its name; tf-tp-test explain lists all"
        )));
    }
    for row in rows {
        sink.event(Kind::Setting(Setting {
            name: row.name.to_owned(),
            value: row.value.clone(),
            source: row.source.name().to_owned(),
        }));
        if let (false, Some(spec)) = (sink.events(), settings::find(row.name)) {
            stdout::print(&text(row, spec))?;
        }
    }
    for warning in settings.warnings() {
        sink.log("warn", Some(warning.code), &warning.text);
    }
    Ok(exit_code::PASSED)
}

/// Three lines about a variable.
fn text(row: &Row, spec: &Spec) -> String {
    let unset = if row.value == "unset" && !spec.unset.is_empty() {
        format!("unset: {}", spec.unset)
    } else {
        row.value.clone()
    };
    let unit = if spec.unit.is_empty() || row.value == "unset" {
        String::new()
    } else {
        format!(" {}", spec.unit)
    };
    let option = if spec.option.is_empty() {
        String::new()
    } else {
        format!(", --{}", spec.option)
    };
    let agree = if spec.agree { ", equal on all ranks" } else { "" };
    format!(
        "{}{option} = {unset}{unit}   ({})\n    takes {}; read by the {}{agree}\n    {}\n",
        row.name,
        row.source.name(),
        spec.kind,
        spec.reader.name(),
        spec.meaning,
    )
}
