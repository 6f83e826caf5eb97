//! Which port reaches which: ranks as boxes with their ports, rails as lines between them.

use super::super::markdown::port;
use super::super::view;
use super::{code, escape, section, table};
use crate::receipt::{Pick, Receipt};
use std::collections::BTreeMap;
use std::fmt::Write;

const WIDTH: f64 = 440.0;
const BOX: f64 = 150.0;
const ROW: f64 = 20.0;
const HEAD: f64 = 26.0;
const GAP: f64 = 22.0;
/// More ranks than this are a table, not a picture.
const DRAWN: usize = 16;

/// The diagrams, and the table with every reason.
pub fn rails(receipt: &Receipt, out: &mut String) {
    if receipt.picks.is_empty() {
        return;
    }
    section(out, "Ports and rails");
    let groups = groups(receipt);
    for (arms, picks) in &groups {
        let model = picks.iter().any(|p| p.model);
        let from = if model {
            "model: from facts files, no port was touched"
        } else {
            "ports of these machines"
        };
        let _ = write!(
            out,
            "<h3>{}</h3>\n<p class=\"note\">{from}</p>\n",
            escape(&arms.join(", "))
        );
        if picks.len() <= DRAWN {
            diagram(picks, out);
        }
    }
    out.push_str("<details><summary>Every port and why</summary>\n");
    let mut rows = Vec::new();
    for (arms, picks) in &groups {
        for pick in picks {
            let start = [escape(&arms.join(", ")), pick.rank.to_string(), code(&pick.host)];
            for p in &pick.ports {
                let taken = if p.chosen { "taken" } else { "not taken" };
                let mut row = start.to_vec();
                row.extend([code(&port(&p.device, p.port)), taken.into(), escape(&p.reason)]);
                rows.push(row);
            }
        }
    }
    table(out, &["arms", "rank", "host", "port", "", "why"], &rows);
    let mut rows = Vec::new();
    for (arms, picks) in &groups {
        for pick in picks {
            for r in &pick.rails {
                rows.push(vec![
                    escape(&arms.join(", ")),
                    format!("{} to {}", pick.rank, r.peer),
                    format!(
                        "{} to {}",
                        code(&port(&r.device, r.port)),
                        code(&port(&r.peer_device, r.peer_port))
                    ),
                    code(&r.address),
                    r.gid_index.to_string(),
                    escape(&r.by),
                    if r.probed { "yes".into() } else { "no".into() },
                ]);
            }
        }
    }
    table(
        out,
        &["arms", "ranks", "rail", "own address", "GID", "by", "probed"],
        &rows,
    );
    out.push_str("</details>\n</section>\n");
}

/// Arms that picked the same are shown once.
fn groups(receipt: &Receipt) -> Vec<(Vec<String>, Vec<&Pick>)> {
    let mut by_arm: Vec<(String, Vec<&Pick>)> = Vec::new();
    for pick in &receipt.picks {
        let name = if pick.model {
            format!("{} (model)", pick.arm)
        } else {
            pick.arm.clone()
        };
        match by_arm.iter_mut().find(|(arm, _)| *arm == name) {
            Some((_, picks)) => picks.push(pick),
            None => by_arm.push((name, vec![pick])),
        }
    }
    let mut out: Vec<(Vec<String>, Vec<&Pick>)> = Vec::new();
    let alike = |a: &[&Pick], b: &[&Pick]| {
        a.len() == b.len()
            && a.iter()
                .zip(b)
                .all(|(a, b)| a.rank == b.rank && a.rails == b.rails && a.ports == b.ports)
    };
    for (arm, picks) in by_arm {
        match out.iter_mut().find(|(_, known)| alike(known, &picks)) {
            Some((arms, _)) => arms.push(arm),
            None => out.push((vec![arm], picks)),
        }
    }
    out
}

/// Where a port is drawn: x of its left and right edge, y of its middle.
type Places = BTreeMap<(u32, String), (f64, f64, f64)>;

fn diagram(picks: &[&Pick], out: &mut String) {
    let mut places = Places::new();
    let mut body = String::new();
    let mut heights = [GAP / 2.0, GAP / 2.0];
    for (i, pick) in picks.iter().enumerate() {
        let column = i % 2;
        let x = if column == 0 { 4.0 } else { WIDTH - BOX - 4.0 };
        let top = heights[column];
        heights[column] += rank_box(pick, picks, x, top, &mut places, &mut body) + GAP;
    }
    let height = heights[0].max(heights[1]);
    let ranks: Vec<u32> = picks.iter().map(|p| p.rank).collect();
    let _ = write!(
        out,
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"rails between ranks {}\">\n{body}",
        view::ranges(&ranks)
    );
    for pick in picks {
        for r in &pick.rails {
            // Both ends name the same rail; it is drawn once where both are there.
            if r.peer < pick.rank && picks.iter().any(|p| p.rank == r.peer && !p.rails.is_empty()) {
                continue;
            }
            let ends = (
                places.get(&(pick.rank, port(&r.device, r.port))),
                places.get(&(r.peer, port(&r.peer_device, r.peer_port))),
            );
            if let (Some(a), Some(b)) = ends {
                rail(*a, *b, out);
            }
        }
    }
    out.push_str("</svg>\n");
}

/// Draws a rank and gives its height. Ports that a peer names and the rank itself did not list are there too.
fn rank_box(pick: &Pick, all: &[&Pick], x: f64, top: f64, places: &mut Places, out: &mut String) -> f64 {
    let mut ports: Vec<(String, bool)> = pick
        .ports
        .iter()
        .map(|p| (port(&p.device, p.port), p.chosen))
        .collect();
    let own = pick.rails.iter().map(|r| port(&r.device, r.port));
    let named = all.iter().flat_map(|p| &p.rails).filter(|r| r.peer == pick.rank);
    let named = named.map(|r| port(&r.peer_device, r.peer_port));
    for name in own.chain(named) {
        if !ports.iter().any(|(known, _)| *known == name) {
            ports.push((name, true));
        }
    }
    let height = HEAD + ROW * ports.len() as f64 + 6.0;
    let _ = writeln!(
        out,
        "<rect class=\"box\" x=\"{x}\" y=\"{top}\" width=\"{BOX}\" height=\"{height}\" rx=\"6\"/>\
         <text class=\"strong\" x=\"{}\" y=\"{}\">rank {}, {}</text>",
        x + 8.0,
        top + 17.0,
        pick.rank,
        escape(&pick.host)
    );
    for (i, (name, on)) in ports.into_iter().enumerate() {
        let y = top + HEAD + ROW * i as f64;
        let class = if on { "port on" } else { "port" };
        let _ = writeln!(
            out,
            "<rect class=\"{class}\" x=\"{}\" y=\"{y}\" width=\"{}\" height=\"{}\" rx=\"3\"/>\
             <text x=\"{}\" y=\"{}\">{}</text>",
            x + 6.0,
            BOX - 12.0,
            ROW - 4.0,
            x + 12.0,
            y + 12.0,
            escape(&name)
        );
        places.insert((pick.rank, name), (x + 6.0, x + BOX - 6.0, y + (ROW - 4.0) / 2.0));
    }
    height
}

fn rail(a: (f64, f64, f64), b: (f64, f64, f64), out: &mut String) {
    let (left, right) = if a.0 <= b.0 { (a, b) } else { (b, a) };
    let (x1, y1, y2) = (left.1, left.2, right.2);
    let path = if left.0 < right.0 {
        let (x2, middle) = (right.0, (x1 + right.0) / 2.0);
        format!("M{x1:.1} {y1:.1} C{middle:.1} {y1:.1} {middle:.1} {y2:.1} {x2:.1} {y2:.1}")
    } else if x1 < WIDTH / 2.0 {
        // Two ranks in the left column: around their right side.
        format!(
            "M{x1:.1} {y1:.1} C{0:.1} {y1:.1} {0:.1} {y2:.1} {x1:.1} {y2:.1}",
            x1 + 55.0
        )
    } else {
        let x = left.0;
        format!(
            "M{x:.1} {y1:.1} C{0:.1} {y1:.1} {0:.1} {y2:.1} {x:.1} {y2:.1}",
            x - 55.0
        )
    };
    let _ = writeln!(out, "<path class=\"rail\" d=\"{path}\"/>");
}
