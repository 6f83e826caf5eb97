//! Ports and rails, hosts, settings, counters, and what was left out.

use super::super::view;
use super::{code, port, table, text};
use crate::receipt::Receipt;

pub(super) fn picks(receipt: &Receipt, out: &mut String) {
    let mut rows = Vec::new();
    for pick in &receipt.picks {
        let scope = if pick.model { "model" } else { "this machine" };
        let start = || vec![text(&pick.arm), pick.rank.to_string(), scope.to_owned()];
        for rail in &pick.rails {
            let mut row = start();
            let probed = if rail.probed { "probed" } else { "not probed" };
            row.push(format!(
                "{} to rank {} {}",
                code(&port(&rail.device, rail.port)),
                rail.peer,
                code(&port(&rail.peer_device, rail.peer_port))
            ));
            row.push(format!(
                "{}, GID {}, by {}, {probed}",
                code(&rail.address),
                rail.gid_index,
                text(&rail.by)
            ));
            rows.push(row);
        }
        for port_row in pick.ports.iter().filter(|p| !p.chosen) {
            let mut row = start();
            row.push(format!(
                "{} not taken",
                code(&port(&port_row.device, port_row.port))
            ));
            row.push(text(&port_row.reason));
            rows.push(row);
        }
    }
    table(
        out,
        "Ports and rails",
        &["arm", "rank", "facts from", "rail", "why"],
        rows,
    );
}

pub(super) fn hosts(receipt: &Receipt, out: &mut String) {
    let rows = receipt.hosts.iter().map(|h| {
        let versions: Vec<String> = h
            .versions
            .iter()
            .map(|(k, v)| format!("{} {}", text(k), code(v)))
            .collect();
        let image = if h.image_sha256.is_empty() {
            "none".into()
        } else {
            code(&h.image_sha256.join(", "))
        };
        vec![code(&h.name), view::ranges(&h.ranks), versions.join(", "), image]
    });
    table(
        out,
        "Hosts",
        &["host", "ranks", "versions", "kernel image"],
        rows.collect(),
    );
}

pub(super) fn settings(receipt: &Receipt, out: &mut String) {
    let rows = view::settings(receipt)
        .filter(|s| s.source != "default")
        .map(|s| {
            vec![
                code(&s.name),
                code(&s.value),
                text(&s.source),
                text(&s.arms.join(", ")),
                view::ranges(&s.ranks),
            ]
        });
    table(
        out,
        "Settings that are not defaults",
        &["name", "value", "from", "arms", "ranks"],
        rows.collect(),
    );
}

pub(super) fn counters(receipt: &Receipt, out: &mut String) {
    let changed = receipt.counters.iter().filter(|c| c.before != c.after);
    let show = |n: Option<u64>| n.map_or_else(|| "?".into(), |n| n.to_string());
    let rows = changed.map(|c| {
        let place = format!("{} {}", code(&c.place), text(&c.name));
        vec![
            format!("{} / {}", text(&c.arm), text(&c.step)),
            place,
            show(c.before),
            show(c.after),
        ]
    });
    table(
        out,
        "Counters that moved",
        &["step", "counter", "before", "after"],
        rows.collect(),
    );
}

pub(super) fn left_out(receipt: &Receipt, out: &mut String) {
    let mut rows: Vec<Vec<String>> = receipt
        .not_run
        .iter()
        .map(|n| {
            let arm = if n.arm.is_empty() {
                "every arm".into()
            } else {
                text(&n.arm)
            };
            vec![arm, code(&n.step), text(&n.reason)]
        })
        .collect();
    for skip in &receipt.skipped {
        let what = format!(
            "{}: {} of {}",
            code(&skip.step),
            view::plural(skip.count, "check"),
            text(&skip.group)
        );
        rows.push(vec![text(&skip.arm), what, text(&skip.reason)]);
    }
    for file in &receipt.set_aside {
        rows.push(vec![
            "".into(),
            format!("file {}", code(&file.file)),
            text(&file.why),
        ]);
    }
    table(
        out,
        "What was not run, or is not here",
        &["arm", "what", "why"],
        rows,
    );
}
