//! A measured latency on its way out: a line for people and an event, for every command that measures in one form.

use super::{Measured, sizes, stats};
use crate::sink::Sink;
use serde_json::{Map, Value, json};
use tp_fabric::collective::{Collectives, MemoryKind};
use tp_receipt::event::{Kind, Latency, Outcome};
use tp_receipt::floor::Memory;

/// One latency.
pub struct Row<'a> {
    /// What was measured: a backend's name, or the command's.
    pub backend: &'a str,
    /// What carried it, where the backend has a wire.
    pub wire: Option<&'a str>,
    /// The operation.
    pub op: &'a str,
    /// Bytes a rank.
    pub bytes: u64,
    /// Of one operation.
    pub measured: Measured,
}

impl Row<'_> {
    /// Says the latency of a collective; where nothing can have moved in so short a time, a failed check of `group` in
    /// its place. `moves` names the collective whose bandwidth is meant; `extra` is added to the event.
    pub fn report(
        &self,
        on: &dyn Collectives,
        group: &str,
        moves: &str,
        mut extra: Map<String, Value>,
        sink: &Sink,
    ) {
        let (times, world) = (self.measured.times, on.world().0);
        let memory = match on.memory() {
            MemoryKind::Host => Memory::Host,
            MemoryKind::Device => Memory::Device,
        };
        let floor = memory.floor_us(self.bytes);
        // In a world of one nothing has to move.
        if world > 1 && times.median < floor {
            let mode = self.measured.mode.name();
            let name = format!("{} {group} {} {} B {mode}", self.backend, self.op, self.bytes);
            let reason = format!(
                "a median of {:.3} us is below the floor of {floor:.3} us: nothing can have moved",
                times.median
            );
            sink.check(group, &name, Outcome::Failed, Some(reason));
            return;
        }
        let bus = stats::bus_bandwidth(moves, self.bytes, world, times.median);
        sink.human(&self.line(bus));
        extra.insert("world".to_owned(), json!(world));
        if let Some(bus) = bus {
            extra.insert("busbw_gb_s".to_owned(), json!(bus));
        }
        self.event(extra, sink);
    }

    fn line(&self, bus: Option<f64>) -> String {
        let Measured {
            mode,
            times,
            ops_per_graph,
        } = self.measured;
        let calls = match ops_per_graph {
            0 | 1 => format!("{} calls", times.samples),
            n => format!("{} graphs of {n}", times.samples),
        };
        format!(
            "LATENCY {} {} {} {} over {}: median {:.2} us, p10 {:.2}, p90 {:.2}, {calls}{}",
            self.backend,
            self.op,
            sizes::show(self.bytes),
            mode.name(),
            self.wire.unwrap_or("no wire"),
            times.median,
            times.p10,
            times.p90,
            bus.map_or(String::new(), |b| format!(", bus {b:.3} GB/s")),
        )
    }

    /// The event alone.
    pub fn event(&self, extra: Map<String, Value>, sink: &Sink) {
        let Measured {
            mode,
            times,
            ops_per_graph,
        } = self.measured;
        let latency = Latency {
            backend: self.backend.to_owned(),
            wire: self.wire.map(str::to_owned),
            op: self.op.to_owned(),
            bytes: self.bytes,
            mode: mode.name().to_owned(),
            median_us: times.median,
            p10_us: times.p10,
            p90_us: times.p90,
            samples: times.samples,
            ops_per_graph,
        };
        sink.event_with(Kind::Latency(latency), extra);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Mode, stats::Figures};

    #[test]
    fn a_line_says_how_it_was_measured() {
        let times = Figures {
            median: 2.0,
            p10: 1.5,
            p90: 3.25,
            samples: 200,
        };
        let row = |mode, ops_per_graph, wire| Row {
            backend: "host",
            wire,
            op: "all_gather",
            bytes: 4096,
            measured: Measured {
                mode,
                times,
                ops_per_graph,
            },
        };
        assert_eq!(
            row(Mode::Eager, 1, Some("shm")).line(None),
            "LATENCY host all_gather 4 KiB eager over shm: median 2.00 us, p10 1.50, p90 3.25, 200 calls"
        );
        assert_eq!(
            row(Mode::Graph, 20, None).line(Some(1.5)),
            "LATENCY host all_gather 4 KiB graph over no wire: median 2.00 us, p10 1.50, p90 3.25, 200 graphs of 20, bus \
             1.500 GB/s"
        );
    }
}
