//! The exchange by post as a model, on the host: ranks, proxies and wires as steps that a random schedule picks. It
//! holds the rules of `kernels/exchange_posted.cu` against what must never happen: a staging slot written while its message is
//! under way, a receive slot written before it was read, a message taken for another.

use super::dice::Dice;
use std::collections::VecDeque;

/// Which ranks take part in operation `number`: all, or pairs that all ranks know of.
fn members(plan: u64, number: usize, world: usize, me: usize) -> u64 {
    let mut dice = Dice(plan ^ (number as u64) << 20);
    dice.roll(2);
    if dice.roll(3) > 0 {
        return (1 << world) - 1;
    }
    // Neighbours from an offset on; whoever is alone sits out.
    let offset = dice.roll(2);
    let place = (me + world - offset) % world;
    let partner = (place ^ 1) + offset;
    if place ^ 1 >= world {
        1 << me
    } else {
        1 << me | 1 << (partner % world)
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Stage {
    /// Waits until the staging slot is free, stages and rings.
    Post,
    /// Waits for the peers' messages.
    Take,
}

struct RankModel {
    number: usize,
    stage: Stage,
    rung: u64,
    masks: [u64; 2],
    sequence: Vec<u64>,
    consumed: Vec<u64>,
    /// The numbers in the post lines of each entry parity.
    posts: [Vec<u64>; 2],
    /// What the proxy has posted and completed of the entries.
    posted: u64,
    completed: u64,
    /// For each staging slot: which operation's bytes lie there.
    staging: [usize; 2],
    /// For each source and slot: the message's number and the operation that it belongs to.
    bays: Vec<[Option<(u64, usize)>; 2]>,
}

/// A message that a proxy has taken up: it reads the staging slot only when the wire moves it.
struct Flight {
    from: usize,
    to: usize,
    entry: u64,
    sequence: u64,
    operation: usize,
}

struct World {
    plan: u64,
    size: usize,
    operations: usize,
    ranks: Vec<RankModel>,
    /// One queue for each ordered pair: a wire keeps the order of a pair's messages.
    wires: Vec<Vec<VecDeque<Flight>>>,
    /// Messages of each rank's entries that have not been delivered yet, by entry parity.
    open: Vec<[usize; 2]>,
}

impl World {
    fn new(plan: u64, size: usize, operations: usize) -> Self {
        let rank = || RankModel {
            number: 0,
            stage: Stage::Post,
            rung: 0,
            masks: [0; 2],
            sequence: vec![0; size],
            consumed: vec![0; size],
            posts: [vec![0; size], vec![0; size]],
            posted: 0,
            completed: 0,
            staging: [usize::MAX; 2],
            bays: vec![[None; 2]; size],
        };
        Self {
            plan,
            size,
            operations,
            ranks: (0..size).map(|_| rank()).collect(),
            wires: (0..size)
                .map(|_| (0..size).map(|_| VecDeque::new()).collect())
                .collect(),
            open: vec![[0; 2]; size],
        }
    }

    fn peers(&self, me: usize) -> Vec<usize> {
        let mask = members(self.plan, self.ranks[me].number, self.size, me);
        (0..self.size)
            .filter(|r| *r != me && mask >> r & 1 == 1)
            .collect()
    }

    /// The kernel's next step on a rank, if it can take one.
    fn kernel(&mut self, me: usize, wait_for_completion: bool) -> bool {
        if self.ranks[me].number == self.operations {
            return false;
        }
        let peers = self.peers(me);
        if peers.is_empty() {
            self.ranks[me].number += 1;
            return true;
        }
        match self.ranks[me].stage {
            Stage::Post => self.post(me, &peers, wait_for_completion),
            Stage::Take => self.take(me, &peers),
        }
    }

    fn post(&mut self, me: usize, peers: &[usize], wait_for_completion: bool) -> bool {
        let mask = peers.iter().fold(0, |mask, peer| mask | 1 << peer);
        let rank = &mut self.ranks[me];
        let entry = rank.rung + 1;
        let (before, last) = (
            rank.masks[(entry % 2) as usize],
            rank.masks[((entry + 1) % 2) as usize],
        );
        // The kernel's `staging_is_free`.
        let sure = entry <= 2 || before & !last == 0;
        if wait_for_completion && !sure && rank.completed + 2 < entry {
            return false;
        }
        rank.staging[(entry % 2) as usize] = rank.number;
        for peer in peers {
            rank.sequence[*peer] += 1;
            rank.consumed[*peer] = rank.sequence[*peer] - 1;
            rank.posts[(entry % 2) as usize][*peer] = rank.sequence[*peer];
        }
        rank.masks[(entry % 2) as usize] = mask;
        rank.rung = entry;
        rank.stage = Stage::Take;
        assert!(
            entry - rank.posted <= 2,
            "the proxy takes more than two entries for a breach"
        );
        true
    }

    fn take(&mut self, me: usize, peers: &[usize]) -> bool {
        let rank = &mut self.ranks[me];
        let here = |peer: &usize| {
            let sequence = rank.sequence[*peer];
            matches!(rank.bays[*peer][(sequence % 2) as usize], Some((found, _)) if found == sequence)
        };
        if !peers.iter().all(here) {
            return false;
        }
        for peer in peers {
            let found = rank.bays[*peer][(rank.sequence[*peer] % 2) as usize];
            assert_eq!(
                found.map(|(_, operation)| operation),
                Some(rank.number),
                "rank {me} took another's bytes"
            );
        }
        rank.number += 1;
        rank.stage = Stage::Post;
        true
    }

    /// The proxy takes up one entry.
    fn proxy(&mut self, me: usize) -> bool {
        if self.ranks[me].posted == self.ranks[me].rung {
            return false;
        }
        let entry = self.ranks[me].posted + 1;
        let parity = (entry % 2) as usize;
        let mask = self.ranks[me].masks[parity];
        for to in (0..self.size).filter(|r| mask >> r & 1 == 1) {
            let sequence = self.ranks[me].posts[parity][to];
            let operation = self.ranks[me].staging[parity];
            self.wires[me][to].push_back(Flight {
                from: me,
                to,
                entry,
                sequence,
                operation,
            });
            self.open[me][parity] += 1;
        }
        self.ranks[me].posted = entry;
        true
    }

    /// A wire delivers one message.
    fn wire(&mut self, from: usize, to: usize) -> bool {
        let Some(flight) = self.wires[from][to].pop_front() else {
            return false;
        };
        let parity = (flight.entry % 2) as usize;
        assert_eq!(
            self.ranks[from].staging[parity], flight.operation,
            "rank {} staged over a message to rank {} that had not left",
            flight.from, flight.to
        );
        let receiver = &mut self.ranks[to];
        let slot = (flight.sequence % 2) as usize;
        assert!(
            flight.sequence <= receiver.consumed[from] + 2,
            "message {} to rank {to} came with {} consumed",
            flight.sequence,
            receiver.consumed[from]
        );
        if let Some((old, operation)) = receiver.bays[from][slot] {
            assert!(
                operation < receiver.number,
                "message {old} was overwritten before it was read"
            );
        }
        receiver.bays[from][slot] = Some((flight.sequence, flight.operation));
        self.open[from][parity] -= 1;
        while self.ranks[from].completed < self.ranks[from].posted
            && self.open[from][((self.ranks[from].completed + 1) % 2) as usize] == 0
        {
            self.ranks[from].completed += 1;
        }
        true
    }

    /// Runs a random schedule to its end.
    fn run(&mut self, dice: &mut Dice, wait_for_completion: bool) {
        let mut idle = 0;
        while self.ranks.iter().any(|rank| rank.number < self.operations) {
            let (a, b) = (dice.roll(self.size), dice.roll(self.size));
            // Wires are made slow, so that messages stay under way for long.
            let moved = match dice.roll(8) {
                0..4 => self.kernel(a, wait_for_completion),
                4..7 => self.proxy(a),
                _ => a != b && self.wire(a, b),
            };
            idle = if moved { 0 } else { idle + 1 };
            assert!(idle < 100_000, "nobody can go on");
        }
    }
}

#[test]
fn no_schedule_overwrites_a_message() {
    for seed in 0..300 {
        let world = 2 + seed as usize % 4;
        let mut dice = Dice(seed);
        World::new(seed * 7919, world, 60).run(&mut dice, true);
    }
}

/// The model can see the fault that the kernel's wait is there for.
#[test]
#[should_panic(expected = "staged over a message")]
fn without_the_wait_for_completion_some_schedule_overwrites_a_message() {
    for seed in 0..300 {
        let world = 2 + seed as usize % 4;
        let mut dice = Dice(seed);
        World::new(seed * 7919, world, 60).run(&mut dice, false);
    }
}
