//! What figures tell only side by side.

use super::super::rows::{LatencyRow, Warning};
use std::collections::BTreeMap;

/// Below this a transfer is mostly latency and says nothing of bandwidth, bytes a rank.
const LARGE: u64 = 1 << 20;
/// One way is no faster than another that takes at most this many times as long.
const ALIKE: f64 = 1.1;

/// The slowest rank's median over one rail, over several, and over TCP, microseconds.
#[derive(Default)]
struct Ways {
    one: Option<f64>,
    several: Option<f64>,
    tcp: Option<f64>,
}

/// RDMA over several rails that is no faster than over one, and no faster than TCP: not the cable, the MTU or TCP is slow
/// then, but what all three go through.
pub(super) fn throttled(rows: &[LatencyRow]) -> Option<Warning> {
    let mut by_size: BTreeMap<(&str, &str, u64), Ways> = BTreeMap::new();
    for row in rows
        .iter()
        .filter(|r| r.bytes >= LARGE && r.implausible.is_none())
    {
        let ways = by_size.entry((&row.arm, &row.op, row.bytes)).or_default();
        let rails = row.extra.get("rails").and_then(|n| n.as_u64());
        let slot = match (row.wire.as_deref(), rails) {
            (Some("verbs"), Some(1)) => &mut ways.one,
            (Some("verbs"), Some(_)) => &mut ways.several,
            (Some("tcp"), _) => &mut ways.tcp,
            _ => continue,
        };
        *slot = Some(slot.map_or(row.median_us, |known| known.max(row.median_us)));
    }
    by_size.into_iter().find_map(|((_, op, bytes), ways)| {
        let (one, several, tcp) = (ways.one?, ways.several?, ways.tcp?);
        if one > several * ALIKE || tcp > several * ALIKE {
            return None;
        }
        let text = format!(
            "{op} of {bytes} B takes {several:.0} us over several rails, {one:.0} us over one and {tcp:.0} us over TCP: what \
             all three go through is slow, as with an adapter that its firmware or driver throttles (slot power, heat, a \
             PCIe link that came up narrow); look at the link's speed and width and at the adapter's temperature, update \
             its firmware and power the machine off and on. A kernel line about slot power alone proves nothing: it stays \
             after the mend"
        );
        Some(Warning {
            code: "throttled".into(),
            text,
            ..Warning::default()
        })
    })
}
