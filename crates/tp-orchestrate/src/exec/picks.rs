//! The values of `$pick` symbols: what the `none` arm's `hca` step found.

use crate::plan::symbol::{self, Values};
use std::collections::BTreeMap;
use tp_hca::document::{PortPick, RankPick};
use tp_receipt::event::{Kind, Rail};
use tp_receipt::record::StepKey;

/// Rails by rank, in the order in which the ranks named them.
#[derive(Clone, Debug, Default)]
pub(super) struct Picks(BTreeMap<u32, Vec<Rail>>);

impl Picks {
    /// Whether a step's rails supply the other arms.
    pub fn supplies(key: &StepKey) -> bool {
        key.arm == "none" && key.step == "hca"
    }

    /// Takes a rail of the supplying step.
    pub fn event(&mut self, rank: Option<u32>, kind: &Kind) {
        if let (Some(rank), Kind::Rail(rail)) = (rank, kind) {
            self.0.entry(rank).or_default().push(rail.clone());
        }
    }

    /// Forgets an earlier attempt.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// How another arm's rails of a rank differ from these; `None` where they are the same.
    pub fn difference(&self, other: &Self, rank: u32) -> Option<String> {
        let rails = |picks: &Self| -> Vec<String> {
            let rail = |r: &Rail| {
                format!(
                    "{}:{} to rank {} {}:{}",
                    r.device, r.port, r.peer, r.peer_device, r.peer_port
                )
            };
            picks
                .0
                .get(&rank)
                .map(|rails| rails.iter().map(rail).collect())
                .unwrap_or_default()
        };
        let (ours, theirs) = (rails(self), rails(other));
        (ours != theirs).then(|| {
            let shown = |rails: Vec<String>| {
                if rails.is_empty() {
                    "none".to_owned()
                } else {
                    rails.join(", ")
                }
            };
            format!(
                "rank {rank} has other rails than in the none arm: {} instead of {}",
                shown(theirs),
                shown(ours)
            )
        })
    }

    /// Where a rank's line is NCCL's own word on which ports it took, and they are others than the probed or captured pick: one
    /// line that says which. Picks of a facts file say nothing about this machine's NCCL.
    pub fn nccl_difference(&self, rank: u32, line: &str) -> Option<String> {
        tp_hca::nccl_log::using(line)?;
        let rails = self
            .0
            .get(&rank)
            .filter(|rails| rails.iter().all(|rail| !rail.model))?;
        let ports = rails.iter().map(|rail| PortPick {
            device: rail.device.clone(),
            port: tp_hca::PortNum(rail.port),
            chosen: true,
            reason: String::new(),
        });
        let pick = RankPick {
            rank,
            mode: tp_hca::Mode::Auto,
            rails: Vec::new(),
            nccl_env: BTreeMap::new(),
            ports: ports.collect(),
            warnings: Vec::new(),
        };
        tp_hca::nccl_log::difference(line, &pick)
    }

    /// Every symbol that is known, with its value.
    pub fn values(&self) -> Values {
        let mut values = Values::default();
        for (rank, rails) in &self.0 {
            let ports = distinct(rails.iter().map(|rail| format!("{}:{}", rail.device, rail.port)));
            values.set(
                &symbol::pick(*rank, "nccl_ib_hca"),
                format!("={}", ports.join(",")),
            );
            // Without GID indexes, as `env` hands it out: they are resolved at every start.
            let devices = distinct(rails.iter().map(|rail| rail.device.clone()));
            values.set(&symbol::pick(*rank, "tf_tp_roce_hca"), devices.join(","));
            if let Some(first) = rails.first() {
                values.set(&symbol::pick(*rank, "address"), first.address.clone());
            }
        }
        values
    }
}

/// Each once, in order: a port may carry rails to several peers.
fn distinct(items: impl Iterator<Item = String>) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for item in items {
        if !out.contains(&item) {
            out.push(item);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rail(peer: u32, device: &str, gid_index: u32) -> Kind {
        Kind::Rail(Rail {
            peer,
            device: device.into(),
            port: 1,
            gid_index,
            address: "192.0.2.1".into(),
            peer_device: "x".into(),
            peer_port: 1,
            by: "subnet".into(),
            probed: false,
            model: true,
        })
    }

    fn picks(rails: &[(u32, &str, u32)]) -> Picks {
        let mut picks = Picks::default();
        for (peer, device, gid_index) in rails {
            picks.event(Some(0), &rail(*peer, device, *gid_index));
        }
        picks
    }

    #[test]
    fn other_rails_than_in_the_none_arm_are_named() {
        let none = picks(&[(1, "a", 3), (1, "b", 3)]);
        assert_eq!(none.difference(&picks(&[(1, "a", 3), (1, "b", 3)]), 0), None);
        let text = none.difference(&picks(&[(1, "b", 3)]), 0).unwrap();
        assert_eq!(
            text,
            "rank 0 has other rails than in the none arm: b:1 to rank 1 x:1 instead of a:1 to rank 1 x:1, b:1 to rank 1 x:1"
        );
        assert!(
            none.difference(&Picks::default(), 0)
                .unwrap()
                .contains("none instead of a:1")
        );
    }

    #[test]
    fn ports_stand_once_in_rail_order() {
        let mut picks = Picks::default();
        for (peer, device, gid) in [(1, "b", 3), (1, "a", 5), (2, "b", 3)] {
            picks.event(Some(0), &rail(peer, device, gid));
        }
        let values = picks.values();
        assert_eq!(values.resolve("$pick.r0.nccl_ib_hca").unwrap(), "=b:1,a:1");
        assert_eq!(values.resolve("$pick.r0.tf_tp_roce_hca").unwrap(), "b,a");
        assert_eq!(values.resolve("$pick.r0.address").unwrap(), "192.0.2.1");
        let error = values.resolve("$pick.r1.nccl_ib_hca").unwrap_err();
        assert!(error.to_string().contains("$pick.r1.nccl_ib_hca"), "{error}");
    }

    #[test]
    fn what_nccl_says_it_took_is_held_against_the_live_pick_case_139() {
        let line = "h:1:2 [0] NCCL INFO NET/IB : Using [0]a:1/RoCE [1]b:1/RoCE [RO]; OOB eth0:192.0.2.1<0>";
        let with = |model: bool| {
            let mut picks = Picks::default();
            for kind in [rail(1, "a", 3), rail(1, "c", 3)] {
                if let Kind::Rail(rail) = kind {
                    picks.event(Some(0), &Kind::Rail(Rail { model, ..rail }));
                }
            }
            picks
        };
        let text = with(false).nccl_difference(0, line).unwrap();
        assert!(
            text.contains("only NCCL has b:1, only the pick has c:1"),
            "{text}"
        );
        assert_eq!(
            with(false).nccl_difference(0, "NCCL INFO Using network Socket"),
            None
        );
        assert_eq!(
            with(true).nccl_difference(0, line),
            None,
            "a facts file is another machine"
        );
        assert_eq!(
            with(false).nccl_difference(1, line),
            None,
            "nothing is known of rank 1"
        );
    }
}
