//! `explain`: which variables matter here and what each is set to, from the one settings table.

use crate::cli::ExplainArgs;
use crate::exit_code::{self, Refusal};
use crate::sink::Sink;
use crate::stdout;
use serde_json::{Value, json};
use tp_fabric::settings::{self, Kind as Takes, RETIRED, Row, Settings, Sources, Spec, Survey};
use tp_receipt::event::{Kind, Setting};

/// Prints the table to standard output: variable, value, who set it, and what it means. A value that cannot be used is
/// shown with what is wrong about it: whoever asks is about to mend it.
pub fn run(args: &ExplainArgs, sources: &Sources, sink: &Sink) -> Result<u8, Refusal> {
    if args.markdown {
        stdout::print(&settings::page())?;
        return Ok(exit_code::PASSED);
    }
    let survey = Settings::survey(sources);
    let wanted = |row: &&Row| {
        let filter = args.filter.as_deref().unwrap_or_default().to_ascii_uppercase();
        row.name.to_ascii_uppercase().contains(&filter)
    };
    let rows: Vec<&Row> = survey.rows.iter().filter(wanted).collect();
    if rows.is_empty() {
        let filter = args.filter.as_deref().unwrap_or_default();
        return Err(Refusal::usage(format!(
            "no variable has `{filter}` in its name; tf-tp-test explain lists all"
        )));
    }
    if args.json {
        stdout::print(&format!("{}\n", document(&rows, &survey)))?;
        return Ok(exit_code::PASSED);
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
    for problem in &survey.problems {
        sink.log(
            "warn",
            Some("broken-setting"),
            &format!("no rank starts so: {problem}"),
        );
    }
    for warning in &survey.warnings {
        sink.log("warn", Some(warning.code), &warning.text);
    }
    Ok(exit_code::PASSED)
}

/// Lines about a variable.
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
    let broken = match &row.problem {
        Some(problem) => format!("    BROKEN: {problem}\n"),
        None => String::new(),
    };
    format!(
        "{}{option} = {unset}{unit}   ({})\n{broken}    takes {}; read by the {}{agree}\n    {}\n",
        row.name,
        row.source.name(),
        spec.kind,
        spec.reader.name(),
        spec.meaning,
    )
}

/// The table for programs: what each variable takes, its value, and everything that is wrong.
fn document(rows: &[&Row], survey: &Survey) -> Value {
    let variable = |row: &&Row| {
        let spec = settings::find(row.name)?;
        let mut variable = json!({
            "name": row.name,
            "value": row.value,
            "source": row.source.name(),
            "takes": takes(spec.kind),
            "default": spec.default,
            "unset": spec.unset,
            "unit": spec.unit,
            "reader": spec.reader.name(),
            "agree": spec.agree,
            "meaning": spec.meaning,
        });
        if !spec.option.is_empty() {
            variable["option"] = spec.option.into();
        }
        if let Some(problem) = &row.problem {
            variable["problem"] = problem.as_str().into();
        }
        Some(variable)
    };
    let retired = RETIRED
        .iter()
        .map(|(name, instead)| json!({ "name": name, "instead": instead }));
    let warnings = survey
        .warnings
        .iter()
        .map(|warning| json!({ "code": warning.code, "text": warning.text }));
    json!({
        "schema": 1,
        "ok": survey.problems.is_empty(),
        "variables": rows.iter().filter_map(variable).collect::<Vec<_>>(),
        "retired": retired.collect::<Vec<_>>(),
        "problems": survey.problems,
        "warnings": warnings.collect::<Vec<_>>(),
    })
}

fn takes(kind: Takes) -> Value {
    let mut takes = match kind {
        Takes::Integer { min, max } => json!({ "kind": "integer", "min": min, "max": max }),
        Takes::PowerOfTwo { min, max } => json!({ "kind": "power-of-two", "min": min, "max": max }),
        Takes::Seconds { min, max } => json!({ "kind": "seconds", "min": min, "max": max }),
        Takes::Words(words) => json!({ "kind": "words", "words": words }),
        Takes::Switch => json!({ "kind": "switch" }),
        Takes::Pin { max } => json!({ "kind": "pin", "min": 0, "max": max }),
        Takes::Host => json!({ "kind": "host" }),
        Takes::RoceDevices => json!({ "kind": "roce-devices" }),
        Takes::NcclDevices => json!({ "kind": "nccl-devices" }),
        Takes::Text => json!({ "kind": "text" }),
        Takes::Secret => json!({ "kind": "secret" }),
    };
    takes["text"] = kind.to_string().into();
    takes
}
