//! Latency plots: bytes against microseconds, both logarithmic, one line for each backend, wire, mode and arm.

use super::super::view::{self, Point, Series};
use super::{code, escape, section, table};
use crate::receipt::Receipt;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

const WIDTH: f64 = 440.0;
const HEIGHT: f64 = 290.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 26.0;
const TOP: f64 = 20.0;
const BOTTOM: f64 = 34.0;
/// Colours that the style has. With the [`Mark`]s, whose number has no factor in common with it, forty series differ.
const COLOURS: usize = 8;

type Lines = BTreeMap<Series, BTreeMap<u64, Point>>;

/// All plots and the figures behind them.
pub fn latencies(receipt: &Receipt, out: &mut String) {
    let all = view::latencies(receipt);
    if all.is_empty() {
        return;
    }
    section(out, "Latencies");
    out.push_str(
        "<p class=\"note\">Time of one operation on the slowest rank: median, with a bar from the 10th to the 90th \
         percentile. The dotted line is the floor: what the runner gave as the least that an exchange takes, else the \
         fastest one that was measured.</p>\n<div class=\"plots\">\n",
    );
    // One series has one colour and one mark in every plot.
    let names: BTreeSet<&Series> = all.values().flat_map(|lines| lines.keys()).collect();
    let colours: BTreeMap<&Series, usize> = names.into_iter().enumerate().map(|(i, s)| (s, i)).collect();
    for (op, lines) in &all {
        let floor = floor(receipt, op, lines);
        if let Some(scale) = Scale::of(lines, floor) {
            plot(op, lines, &scale, floor, &colours, out);
        }
    }
    out.push_str("</div>\n<details><summary>All figures, microseconds</summary>\n");
    let mut rows = Vec::new();
    for (op, lines) in &all {
        for (series, points) in lines {
            for (size, p) in points {
                let figure = view::microseconds;
                let odd = if p.implausible {
                    " (cannot be a latency)"
                } else {
                    ""
                };
                rows.push(vec![
                    code(op),
                    escape(&series.to_string()),
                    view::bytes(*size),
                    format!("{}{odd}", figure(p.median)),
                    figure(p.p10),
                    figure(p.p90),
                ]);
            }
        }
    }
    table(
        out,
        &["operation", "backend, mode, arm", "bytes", "median", "p10", "p90"],
        &rows,
    );
    out.push_str("</details>\n</section>\n");
}

/// The lowest time that an exchange can take: as the runner gave it, else the fastest that was measured.
fn floor(receipt: &Receipt, op: &str, lines: &Lines) -> Option<f64> {
    let given = receipt.latencies.iter().filter(|l| l.op == op);
    let given = given
        .filter_map(|l| l.extra.get("floor_us")?.as_f64())
        .reduce(f64::min);
    let measured = || {
        let points = lines
            .values()
            .flat_map(|points| points.values())
            .filter(|p| !p.implausible);
        points.map(|p| p.median).reduce(f64::min)
    };
    given.or_else(measured).filter(|us| us.is_finite() && *us > 0.0)
}

struct Scale {
    x: (f64, f64),
    y: (f64, f64),
}

impl Scale {
    fn of(lines: &Lines, floor: Option<f64>) -> Option<Self> {
        let points = || lines.values().flat_map(|points| points.iter());
        let good = |v: &f64| v.is_finite() && *v > 0.0;
        let figures = || points().flat_map(|(_, p)| [p.median, p.p10, p.p90]);
        let values = || figures().chain(floor).filter(good);
        let low = values().reduce(f64::min)?;
        let high = values().reduce(f64::max)?;
        let first = points().map(|(size, _)| *size).min()?.max(1) as f64;
        let last = points().map(|(size, _)| *size).max()?.max(1) as f64;
        // At least one decade and one doubling, so that a single point has a place too.
        let y = (
            low.log10().floor(),
            high.log10().ceil().max(low.log10().floor() + 1.0),
        );
        let x = (first.log2(), last.log2().max(first.log2() + 1.0));
        Some(Self { x, y })
    }

    fn x(&self, bytes: u64) -> f64 {
        let at = ((bytes.max(1) as f64).log2() - self.x.0) / (self.x.1 - self.x.0);
        LEFT + at * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, us: f64) -> f64 {
        let at = (us.max(1e-6).log10() - self.y.0) / (self.y.1 - self.y.0);
        HEIGHT - BOTTOM - at.clamp(0.0, 1.0) * (HEIGHT - TOP - BOTTOM)
    }
}

fn plot(
    op: &str,
    lines: &Lines,
    scale: &Scale,
    floor: Option<f64>,
    colours: &BTreeMap<&Series, usize>,
    out: &mut String,
) {
    let _ = write!(
        out,
        "<figure><figcaption>{}</figcaption>\n<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
         aria-label=\"latency of {} by message size\">\n",
        code(op),
        escape(op)
    );
    axes(scale, out);
    if let Some(us) = floor {
        let y = scale.y(us);
        let _ = writeln!(
            out,
            "<line class=\"floor\" x1=\"{LEFT}\" x2=\"{}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">floor {} us</text>",
            WIDTH - RIGHT,
            WIDTH - RIGHT,
            y + 12.0,
            view::microseconds(us)
        );
    }
    for (series, points) in lines {
        line(
            series,
            points,
            scale,
            colours.get(series).copied().unwrap_or(0),
            out,
        );
    }
    out.push_str("</svg>\n<ul class=\"legend\">\n");
    for series in lines.keys() {
        let number = colours.get(series).copied().unwrap_or(0);
        let class = stroke(series, number);
        let _ = writeln!(
            out,
            "<li><svg viewBox=\"0 0 30 12\"><line class=\"{class}\" x1=\"0\" x2=\"30\" y1=\"6\" y2=\"6\" \
             stroke-width=\"2\"/>{}/></svg>{}</li>",
            Mark::of(number).at(15.0, 6.0, number),
            escape(&series.to_string())
        );
    }
    out.push_str("</ul></figure>\n");
}

fn stroke(series: &Series, number: usize) -> String {
    let dash = if series.mode == "eager" { "" } else { " dash" };
    format!("c{}{dash}", number % COLOURS)
}

/// The shape that stands at each point of a series, so that two of one colour, and all on grey paper, can be told apart.
#[derive(Clone, Copy)]
enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
    Cross,
}

impl Mark {
    const ALL: [Self; 5] = [
        Self::Circle,
        Self::Square,
        Self::Triangle,
        Self::Diamond,
        Self::Cross,
    ];

    fn of(number: usize) -> Self {
        Self::ALL[number % Self::ALL.len()]
    }

    /// The element around a point, without its end.
    fn at(self, x: f64, y: f64, number: usize) -> String {
        let class = format!("mark c{}", number % COLOURS);
        let path = match self {
            Self::Circle => {
                return format!("<circle class=\"{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.8\"");
            }
            Self::Square => "m-2.6 -2.6h5.2v5.2h-5.2z",
            Self::Triangle => "m0 -3.4l3.3 5.8h-6.6z",
            Self::Diamond => "m0 -3.7l3.7 3.7l-3.7 3.7l-3.7 -3.7z",
            Self::Cross => "m-2.8 -2.8l5.6 5.6m0 -5.6l-5.6 5.6",
        };
        format!("<path class=\"{class}\" d=\"M{x:.1} {y:.1}{path}\"")
    }
}

fn axes(scale: &Scale, out: &mut String) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let mut decade = scale.y.0;
    while decade <= scale.y.1 {
        let us = 10f64.powf(decade);
        let y = scale.y(us);
        let label = if decade >= 0.0 {
            format!("{us:.0}")
        } else {
            format!("{us}")
        };
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            LEFT - 5.0,
            y + 4.0
        );
        decade += 1.0;
    }
    let span = scale.x.1 - scale.x.0;
    // Six labels fit side by side.
    let every = (span / 5.0).ceil().max(1.0);
    let mut power = scale.x.0.ceil();
    while power <= scale.x.1 {
        let bytes = 2f64.powf(power) as u64;
        let x = scale.x(bytes);
        let _ = writeln!(
            out,
            "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\
             <text x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
            bottom + 15.0,
            view::bytes(bytes)
        );
        power += every;
    }
    let _ = writeln!(
        out,
        "<text x=\"{right}\" y=\"{}\" text-anchor=\"end\">bytes a rank</text><text x=\"4\" y=\"10\">us</text>",
        HEIGHT - 4.0
    );
}

fn line(series: &Series, points: &BTreeMap<u64, Point>, scale: &Scale, number: usize, out: &mut String) {
    let class = stroke(series, number);
    let path: Vec<String> = points
        .iter()
        .filter(|(_, p)| p.median.is_finite())
        .map(|(size, p)| format!("{:.1},{:.1}", scale.x(*size), scale.y(p.median)))
        .collect();
    let _ = writeln!(out, "<polyline class=\"{class}\" points=\"{}\"/>", path.join(" "));
    for (size, p) in points {
        let x = scale.x(*size);
        let _ = writeln!(
            out,
            "<line class=\"range c{}\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\"/>",
            number % COLOURS,
            scale.y(p.p10),
            scale.y(p.p90)
        );
        let _ = writeln!(
            out,
            "<g>{}/><title>{}: {}, {} us</title></g>",
            Mark::of(number).at(x, scale.y(p.median), number),
            escape(&series.to_string()),
            view::bytes(*size),
            view::microseconds(p.median)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn forty_series_differ_in_colour_or_mark() {
        let looks: HashSet<String> = (0..40)
            .map(|number| Mark::of(number).at(1.0, 2.0, number))
            .collect();
        assert_eq!(looks.len(), 40);
    }
}
