//! Ports and rails.

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
