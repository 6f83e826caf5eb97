//! Whole groups of watches under a seeded scheduler: frames travel in queues, and chance decides what happens next.

use super::*;
use crate::fate::FateConfig;
use std::collections::VecDeque;

const BEAT: Duration = Duration::from_millis(250);
const LIMIT: Duration = Duration::from_secs(3);

/// What travels on a connection.
enum Item {
    Bytes(Vec<u8>),
    End,
}

struct Node {
    watch: Watch,
    /// By index of the link: what has been sent to this node and not been read.
    inbox: Vec<VecDeque<Item>>,
    report: Option<FateReport>,
    alive: bool,
    /// Alive and not running.
    stalled: bool,
    said_bye: bool,
}

/// A star of nodes around rank 0, and a clock that only this moves.
struct Group {
    nodes: Vec<Node>,
    now: Instant,
    seed: u64,
}

impl Group {
    fn new(world: usize, seed: u64) -> Self {
        let now = Instant::now();
        let node = |rank: usize| {
            let config = FateConfig {
                rank: Rank(u32::try_from(rank).unwrap()),
                hosts: (0..world).map(|rank| format!("host-{rank}")).collect(),
                heartbeat: BEAT,
                limit: LIMIT,
                grace: Duration::from_secs(1),
                memory_every: BEAT,
            };
            let links = if rank == 0 { world - 1 } else { 1 };
            Node {
                watch: Watch::new(&config, now),
                inbox: (0..links).map(|_| VecDeque::new()).collect(),
                report: None,
                alive: true,
                stalled: false,
                said_bye: false,
            }
        };
        Self {
            nodes: (0..world).map(node).collect(),
            now,
            seed,
        }
    }

    fn chance(&mut self, below: usize) -> usize {
        // xorshift: any cheap generator with a seed will do.
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        usize::try_from(self.seed >> 11).unwrap() % below
    }

    /// Puts something on every connection of a node.
    fn send(&mut self, from: usize, item: impl Fn() -> Item) {
        if from == 0 {
            for node in self.nodes.iter_mut().skip(1) {
                node.inbox[0].push_back(item());
            }
        } else {
            self.nodes[0].inbox[from - 1].push_back(item());
        }
    }

    fn frame(&mut self, from: usize, frame: &Frame) {
        self.send(from, || Item::Bytes(frame.encode()));
    }

    /// A node does what the fate channel's thread does on a failure.
    fn fail(&mut self, rank: usize, report: FateReport) {
        self.frame(rank, &Frame::from(&report));
        self.send(rank, || Item::End);
        self.nodes[rank].report = Some(report);
        self.nodes[rank].alive = false;
    }

    /// A node dies without a word.
    fn kill(&mut self, rank: usize) {
        self.send(rank, || Item::End);
        self.nodes[rank].alive = false;
    }

    /// One node reads a part of what one of its connections has, cut anywhere.
    fn read(&mut self, rank: usize) {
        let link = self.chance(self.nodes[rank].inbox.len());
        let cut = self.chance(20) + 1;
        let node = &mut self.nodes[rank];
        let report = match node.inbox[link].pop_front() {
            None => None,
            Some(Item::End) => node.watch.end(link, "end of stream"),
            Some(Item::Bytes(bytes)) => {
                let (first, rest) = bytes.split_at(cut.min(bytes.len()));
                if !rest.is_empty() {
                    node.inbox[link].push_front(Item::Bytes(rest.to_vec()));
                }
                node.watch.bytes(link, first, self.now)
            }
        };
        if let Some(report) = report {
            self.fail(rank, report);
        }
    }

    fn runs(&self, rank: usize) -> bool {
        self.nodes[rank].alive && !self.nodes[rank].stalled
    }

    /// Some reads in an order that chance decides, then a beat's time: everybody who runs beats and looks at the clock.
    fn round(&mut self) {
        let world = self.nodes.len();
        for _ in 0..world * 40 {
            let rank = self.chance(world);
            if self.runs(rank) {
                self.read(rank);
            }
        }
        self.now += BEAT;
        for rank in 0..world {
            for link in 0..self.nodes[rank].inbox.len() {
                let now = self.now;
                self.nodes[rank].watch.taken(link, now);
            }
            if self.runs(rank) && !self.nodes[rank].said_bye {
                self.frame(rank, &Frame::Beat { phase: "run".into() });
            }
        }
        for rank in 0..world {
            if self.runs(rank)
                && let Some(report) = self.nodes[rank].watch.tick(self.now)
            {
                self.fail(rank, report);
            }
        }
    }

    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            self.round();
        }
    }
}

#[test]
fn without_a_fault_nobody_fails() {
    for seed in 1..40 {
        let mut group = Group::new(2 + (seed as usize) % 5, seed);
        group.rounds(60);
        assert!(
            group.nodes.iter().all(|node| node.report.is_none()),
            "seed {seed}"
        );
    }
}

#[test]
fn one_death_ends_all_and_all_name_it() {
    for seed in 1..80 {
        let world = 2 + (seed as usize) % 5;
        let mut group = Group::new(world, seed);
        group.rounds(3);
        let victim = group.chance(world);
        group.kill(victim);
        group.rounds(6);
        for (rank, node) in group.nodes.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            let report = node
                .report
                .as_ref()
                .unwrap_or_else(|| panic!("seed {seed}: rank {rank} lives on"));
            assert_eq!(
                report.culprit.index(),
                victim,
                "seed {seed}: rank {rank} says {report}"
            );
            assert_eq!(report.host, format!("host-{victim}"));
        }
    }
}

#[test]
fn one_stall_ends_all_others_within_the_limit_and_all_name_it() {
    for seed in 1..60 {
        let world = 2 + (seed as usize) % 5;
        let mut group = Group::new(world, seed);
        group.rounds(3);
        let victim = group.chance(world);
        group.nodes[victim].stalled = true;
        // The limit, one beat of doubt, and time for the word to spread.
        group.rounds(12 + 1 + 6);
        for (rank, node) in group.nodes.iter().enumerate().filter(|(rank, _)| *rank != victim) {
            let report = node
                .report
                .as_ref()
                .unwrap_or_else(|| panic!("seed {seed}: rank {rank} lives on"));
            assert_eq!(
                report.culprit.index(),
                victim,
                "seed {seed}: rank {rank} says {report}"
            );
        }
    }
}

#[test]
fn a_clean_stop_in_any_order_is_no_failure_and_a_death_in_it_is() {
    for seed in 1..80 {
        let world = 3 + (seed as usize) % 4;
        let mut group = Group::new(world, seed);
        group.rounds(2);
        for node in &mut group.nodes {
            node.watch.expect_stop();
        }
        group.frame(0, &Frame::Stop);
        let victim = (seed % 2 == 0).then(|| 1 + group.chance(world - 1));
        let mut left: Vec<usize> = (1..world).filter(|rank| Some(*rank) != victim).collect();
        if let Some(victim) = victim {
            group.kill(victim);
        }
        while !left.is_empty() {
            let next = group.chance(left.len());
            let rank = left.swap_remove(next);
            if group.nodes[rank].alive {
                group.nodes[rank].said_bye = true;
                group.frame(rank, &Frame::Bye);
                group.send(rank, || Item::End);
                group.nodes[rank].alive = false;
            }
            group.round();
        }
        group.rounds(4);
        match (victim, &group.nodes[0].report) {
            (None, None) => assert!(group.nodes[0].watch.all_left(), "seed {seed}"),
            (Some(victim), Some(report)) => assert_eq!(report.culprit.index(), victim, "seed {seed}"),
            (victim, report) => panic!("seed {seed}: victim {victim:?}, rank 0 says {report:?}"),
        }
    }
}

#[test]
fn a_peer_that_hears_nothing_is_lost_though_it_speaks() {
    let mut group = Group::new(2, 7);
    for _ in 0..14 {
        group.now += BEAT;
        group.frame(1, &Frame::Beat { phase: "run".into() });
        while !group.nodes[0].inbox[0].is_empty() {
            group.read(0);
        }
        if let Some(report) = group.nodes[0].watch.tick(group.now) {
            assert!(report.reason.contains("cut off in one direction"), "{report}");
            return;
        }
    }
    panic!("not noticed");
}

#[test]
fn several_reports_at_once_become_one_that_mentions_all() {
    let report = |culprit: u32, reason: &str| FateReport {
        culprit: Rank(culprit),
        host: "h".into(),
        phase: "run".into(),
        reason: reason.into(),
        own: false,
    };
    let reports = vec![
        report(1, "went away"),
        report(3, "said so"),
        report(2, "went away"),
    ];
    let merged = merge(reports, |report| report.culprit == Rank(3)).unwrap();
    assert_eq!(
        (merged.culprit, merged.reason.as_str()),
        (Rank(3), "said so (also lost: rank 1, 2)")
    );
    assert_eq!(merge(Vec::new(), |_| true), None);
}
