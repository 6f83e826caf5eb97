//! The plan as text: every command, on every host, in order.

use super::{Command, Expect, Plan, Step};
use crate::display::counted;
use std::fmt::Write;

pub(super) fn text(plan: &Plan) -> String {
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = write_plan(&mut out, plan);
    out
}

fn write_plan(out: &mut String, plan: &Plan) -> std::fmt::Result {
    writeln!(
        out,
        "plan of {}: launcher {}, world {}, {}, {}",
        plan.cluster,
        plan.launcher,
        plan.world,
        counted(plan.arms.len(), "arm"),
        counted(plan.step_count(), "step")
    )?;
    writeln!(out, "sha256 {}", plan.sha256())?;
    writeln!(out)?;
    for place in &plan.places {
        write!(out, "rank {} on {} by {}", place.rank, place.host, place.via)?;
        if let Some(gpu) = place.gpu {
            write!(out, ", GPU {gpu}")?;
        }
        if let Some(facts) = &place.facts {
            write!(out, ", ports of the model {facts}")?;
        }
        writeln!(out)?;
    }
    for arm in &plan.arms {
        writeln!(out, "\narm {}", arm.name)?;
        for (index, step) in arm.steps.iter().enumerate() {
            write_step(out, index + 1, step)?;
        }
    }
    if !plan.not_run.is_empty() {
        writeln!(out, "\nnot run")?;
        for left_out in &plan.not_run {
            writeln!(out, "  {}: {}", left_out.what, left_out.reason)?;
        }
    }
    Ok(())
}

fn write_step(out: &mut String, number: usize, step: &Step) -> std::fmt::Result {
    let expect = match &step.expect {
        Expect::AllPass => "every rank exits 0".to_owned(),
        Expect::FailFast {
            inject,
            victim,
            within_ms,
        } => {
            let end = match inject.as_str() {
                "fatal" => "exits 70",
                "kill" => "dies by signal 9",
                _ => "stops and is ended",
            };
            format!("rank {victim} {end}, every other exits 70 within {within_ms} ms")
        }
    };
    writeln!(
        out,
        "  {number}. {} [{}], at most {} s: {expect}",
        step.name,
        step.scope,
        step.limit_ms as f64 / 1e3
    )?;
    if let Some(reason) = &step.added_because {
        writeln!(out, "     added: {reason}")?;
    }
    for command in &step.commands {
        write_command(out, command)?;
    }
    Ok(())
}

fn write_command(out: &mut String, command: &Command) -> std::fmt::Result {
    write!(out, "     r{} {}:", command.rank, command.host)?;
    for name in &command.unset {
        write!(out, " -{name}")?;
    }
    for (name, value) in &command.settings {
        write!(out, " {name}={}", quoted(value))?;
    }
    for word in &command.argv {
        write!(out, " {}", quoted(word))?;
    }
    for (name, value) in command.facts_env.iter().flatten() {
        write!(out, " (in $facts: {name}={})", quoted(value))?;
    }
    writeln!(out)
}

/// A word as a shell would need it; symbols stay as they are.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,$+@%[]".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}
