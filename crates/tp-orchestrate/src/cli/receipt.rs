//! `report` and `receipt`: looking at what runs left behind.

use super::args::{Form, ReceiptArgs, ReceiptCommand, ReportArgs};
use super::out;
use crate::display::{failures, matrix, not_run};
use crate::{Error, exit_code};
use std::path::Path;
use tp_receipt::receipt::Receipt;
use tp_receipt::{render, verify};

pub(super) fn report(args: &ReportArgs) -> Result<u8, Error> {
    let (receipt, _) = load(&args.receipt)?;
    let text = match args.format {
        Form::Markdown => render::markdown(&receipt),
        Form::Html => render::html(&receipt),
        Form::Junit => render::junit(&receipt),
    };
    out::text(&text)?;
    Ok(exit_code::PASSED)
}

pub(super) fn run(args: &ReceiptArgs) -> Result<u8, Error> {
    match &args.command {
        ReceiptCommand::Show { receipt, json } => show(receipt, *json),
        ReceiptCommand::Verify {
            receipt,
            binary,
            allowed_signers,
            signer,
            json,
        } => {
            let options = verify::Options {
                binary: binary.clone(),
                allowed_signers: allowed_signers.clone(),
                signer: signer.clone(),
            };
            check(receipt, &options, *json)
        }
        ReceiptCommand::Diff {
            before,
            after,
            fail_on_regression,
        } => compare(before, after, *fail_on_regression),
    }
}

fn load(dir: &Path) -> Result<(Receipt, String), Error> {
    let path = dir.join("receipt.json");
    let text = tp_receipt::store::read_text(dir, "receipt.json").map_err(|e| {
        Error::Usage(format!(
            "{} is no receipt: failed to read receipt.json: {e}",
            dir.display()
        ))
    })?;
    let receipt = Receipt::from_json(&text).map_err(|e| {
        Error::Usage(format!(
            "{} is no receipt that this program reads: {e}",
            path.display()
        ))
    })?;
    Ok((receipt, text))
}

fn show(dir: &Path, json: bool) -> Result<u8, Error> {
    let (receipt, text) = load(dir)?;
    if json {
        out::text(&text)?;
        return Ok(exit_code::PASSED);
    }
    let receipt = &*render::visible_receipt(&receipt);
    let mut lines = vec![receipt.headline()];
    lines.extend(receipt.reasons.iter().map(|reason| format!("  {reason}")));
    lines.push(String::new());
    lines.extend(failures(receipt));
    lines.extend(matrix(receipt));
    for left_out in &receipt.not_run {
        lines.push(not_run(left_out));
    }
    out::line(lines.join("\n"))?;
    Ok(exit_code::PASSED)
}

fn compare(before: &Path, after: &Path, fail_on_regression: Option<f64>) -> Result<u8, Error> {
    let diff = tp_receipt::diff::diff(&load(before)?.0, &load(after)?.0);
    out::text(&diff.text())?;
    Ok(diff.exit_code(fail_on_regression))
}

fn check(dir: &Path, options: &verify::Options, json: bool) -> Result<u8, Error> {
    let report = verify::verify(dir, options);
    if let Some(usage) = &report.usage {
        return Err(Error::Usage(usage.clone()));
    }
    if json {
        let broken: Vec<_> = report
            .broken
            .iter()
            .map(|b| serde_json::json!({ "file": b.file, "what": b.what }))
            .collect();
        let document = serde_json::json!({
            "schema": 1,
            "ok": broken.is_empty(),
            "verdict": report.verdict.as_str(),
            "broken": broken,
            "notes": report.notes,
        });
        out::line(document)?;
        return Ok(report.exit_code());
    }
    out::text(&report.text())?;
    Ok(report.exit_code())
}
