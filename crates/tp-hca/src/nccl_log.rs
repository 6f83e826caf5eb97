//! What NCCL says that it took, held against the pick.
//!
//! With `NCCL_DEBUG=INFO` NCCL writes one line such as
//! `NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.0.2.1<0>`.

use crate::document::RankPick;
use crate::ids::PortNum;
use std::collections::BTreeSet;

/// Ends the name of a data-direct device, a second face of the device without it.
const DATA_DIRECT: &str = "_dma";

/// The ports of a `NET/IB : Using` line, in NCCL's order; none where the line is another one.
pub fn using(line: &str) -> Option<Vec<(String, PortNum)>> {
    let (_, list) = line.split_once("NET/IB : Using")?;
    let list = list.split(';').next()?;
    let mut ports = Vec::new();
    for word in list.split_whitespace() {
        // `[0]device:port[:rail[:plane]]/link`; `[RO]` stands for relaxed ordering.
        let Some((_, entry)) = word.strip_prefix('[').and_then(|rest| rest.split_once(']')) else {
            continue;
        };
        let mut fields = entry.split('/').next()?.split(':');
        let (Some(device), Some(port)) = (fields.next(), fields.next().and_then(|port| port.parse().ok()))
        else {
            continue;
        };
        ports.push((
            device.strip_suffix(DATA_DIRECT).unwrap_or(device).to_owned(),
            PortNum(port),
        ));
    }
    Some(ports)
}

/// What NCCL says of the network it found or took, without the host, process and level in front: a `NET/IB`, `NET/Socket` or
/// plugin line, or `Using network …`. With `NCCL_DEBUG=INFO` one of each comes from every process.
pub fn network(line: &str) -> Option<&str> {
    let (_, said) = line.split_once("NCCL INFO ")?;
    let said = said.trim_end();
    let taken = said.strip_prefix("NET/").and_then(|rest| {
        let (_, what) = rest.split_once(" : ")?;
        (what.starts_with("Using ") || what.starts_with("No device found")).then_some(said)
    });
    // Some versions name the network plugin in front of it.
    taken.or_else(|| said.find("Using network ").and_then(|at| said.get(at..)))
}

/// Compares a log line of a rank with its pick: nothing where the line is another one or says the same, else one line
/// that names what only NCCL has and what only the pick has.
pub fn difference(line: &str, pick: &RankPick) -> Option<String> {
    let taken: BTreeSet<(String, PortNum)> = using(line)?.into_iter().collect();
    let picked: BTreeSet<(String, PortNum)> = pick
        .ports
        .iter()
        .filter(|port| port.chosen)
        .map(|port| (port.device.clone(), port.port))
        .collect();
    let only = |a: &BTreeSet<(String, PortNum)>, b: &BTreeSet<(String, PortNum)>| {
        let names: Vec<String> = a
            .difference(b)
            .map(|(device, port)| format!("{device}:{port}"))
            .collect();
        if names.is_empty() {
            "nothing".to_owned()
        } else {
            names.join(", ")
        }
    };
    (taken != picked).then(|| {
        format!(
            "NCCL on rank {} took other ports than the pick: only NCCL has {}, only the pick has {}; look for NCCL_IB_HCA in \
             /etc/nccl.conf and ~/.nccl.conf",
            pick.rank,
            only(&taken, &picked),
            only(&picked, &taken)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Mode, PortPick};

    const LINE: &str = "h:1:2 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1_dma:1:3:0/RoCE [RO]; OOB eth0:192.0.2.1<0>";

    fn pick(chosen: &[&str]) -> RankPick {
        let port = |device: &&str| PortPick {
            device: (*device).to_owned(),
            port: PortNum(1),
            chosen: true,
            reason: String::new(),
        };
        RankPick {
            rank: 0,
            mode: Mode::Auto,
            rails: Vec::new(),
            nccl_env: Default::default(),
            ports: chosen.iter().map(port).collect(),
            warnings: Vec::new(),
        }
    }

    #[test]
    fn the_line_is_read() {
        let ports = using(LINE).unwrap();
        assert_eq!(
            ports,
            [
                ("mlx5_0".to_owned(), PortNum(1)),
                ("mlx5_1".to_owned(), PortNum(1))
            ]
        );
        assert_eq!(using("NCCL INFO NET/IB : No device found."), None);
        // What NCCL 2.28.9 goes on to say on a host without a device.
        let none = "h:1:2 [0] NCCL INFO NET/IB : Using [RO]; OOB lo:127.0.0.1<0>";
        assert_eq!(using(none), Some(Vec::new()));
    }

    #[test]
    fn what_nccl_says_of_its_network_is_kept_word_for_word() {
        let said = |line: &str| network(line).map(str::to_owned);
        assert_eq!(
            said(LINE).as_deref(),
            Some("NET/IB : Using [0]mlx5_0:1/RoCE [1]mlx5_1_dma:1:3:0/RoCE [RO]; OOB eth0:192.0.2.1<0>")
        );
        for (line, wanted) in [
            (
                "h:7:9 [0] NCCL INFO NET/IB : No device found.",
                Some("NET/IB : No device found."),
            ),
            (
                "h:7:9 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0>\n",
                Some("NET/Socket : Using [0]lo:127.0.0.1<0>"),
            ),
            (
                "h:7:9 [0] NCCL INFO Using network Socket",
                Some("Using network Socket"),
            ),
            (
                "h:7:9 [0] NCCL INFO Initialized NET plugin Socket. Using network Socket",
                Some("Using network Socket"),
            ),
            (
                "h:7:9 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so.",
                None,
            ),
            (
                "h:7:9 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0",
                None,
            ),
            ("NET/IB : Using [0]a:1/RoCE", None),
        ] {
            assert_eq!(said(line).as_deref(), wanted, "{line}");
        }
    }

    #[test]
    fn a_difference_is_named_case_139() {
        assert_eq!(difference(LINE, &pick(&["mlx5_0", "mlx5_1"])), None);
        let text = difference(LINE, &pick(&["mlx5_0", "mlx5_2"])).unwrap();
        assert!(
            text.contains("only NCCL has mlx5_1:1, only the pick has mlx5_2:1"),
            "{text}"
        );
    }
}
