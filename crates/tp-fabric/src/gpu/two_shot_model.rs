//! The all-reduce in two shots as a model, on the host: ranks whose blocks send, combine and collect chunks in whatever order
//! a random schedule picks, through one buffer a lane. It holds the rules of `kernels/exchange_two_shot.cu` against what must
//! never happen: a chunk of another operation taken for one of this.

use super::dice::Dice;

const RANKS: usize = 3;
const BLOCKS: usize = 2;
const MAX_CHUNKS: usize = 4;

/// The rules under test.
#[derive(Clone, Copy)]
struct Rules {
    /// A launch ends only when every combined chunk has been collected.
    collects: bool,
}

/// Chunks of operation `number`, the same on all ranks.
fn chunks(plan: u64, number: usize) -> usize {
    let mut dice = Dice(plan ^ (number as u64) << 24);
    dice.roll(2);
    1 + dice.roll(MAX_CHUNKS)
}

/// What a block has still to do in its operation.
#[derive(Clone, Default)]
struct Block {
    /// Peer and chunk.
    sends: Vec<(usize, usize)>,
    combines: Vec<usize>,
    /// Peer and chunk.
    collects: Vec<(usize, usize)>,
}

/// What one rank tells the others of one block: the sequence above, chunks below.
#[derive(Clone, Copy, Default)]
struct Flags {
    scattered: u64,
    combined: u64,
}

#[derive(Clone)]
struct Rank {
    /// Operations that have ended.
    number: usize,
    blocks: Vec<Block>,
    flags: Vec<Flags>,
    /// The operation of each chunk in its lanes, by reader, block and chunk.
    lanes: Vec<usize>,
    /// The same of its combined chunks, by block and chunk.
    combined: Vec<usize>,
}

const NOTHING: usize = usize::MAX;

fn lane(reader: usize, block: usize, chunk: usize) -> usize {
    (reader * BLOCKS + block) * MAX_CHUNKS + chunk
}

/// Chunks of a shot that are published: as many as come before the first that is still to be done.
fn published(number: usize, chunks: usize, still: impl Iterator<Item = usize>) -> u64 {
    (number as u64 + 1) << 8 | still.min().unwrap_or(chunks) as u64
}

impl Rank {
    fn new() -> Self {
        Self {
            number: 0,
            blocks: vec![Block::default(); BLOCKS],
            flags: vec![Flags::default(); BLOCKS],
            lanes: vec![NOTHING; RANKS * BLOCKS * MAX_CHUNKS],
            combined: vec![NOTHING; BLOCKS * MAX_CHUNKS],
        }
    }

    fn start(&mut self, me: usize, plan: u64, rules: Rules) {
        let chunks = chunks(plan, self.number);
        let pairs = || {
            (0..RANKS)
                .filter(move |r| *r != me)
                .flat_map(move |r| (0..chunks).map(move |c| (r, c)))
        };
        for block in &mut self.blocks {
            block.sends = pairs().collect();
            block.combines = (0..chunks).collect();
            block.collects = if rules.collects {
                pairs().collect()
            } else {
                Vec::new()
            };
        }
    }
}

/// Whether a flag says that `chunk` of operation `number` is there.
fn is_there(flag: u64, number: usize, chunk: usize) -> bool {
    flag > ((number as u64 + 1) << 8 | chunk as u64)
}

/// One step of one block, if it can take the one that the dice choose.
fn step(ranks: &mut [Rank], me: usize, index: usize, plan: u64, dice: &mut Dice) {
    let number = ranks[me].number;
    let all = chunks(plan, number);
    let others = || (0..RANKS).filter(move |r| *r != me);
    match dice.roll(3) {
        0 if !ranks[me].blocks[index].sends.is_empty() => {
            let block = &mut ranks[me].blocks[index];
            let (peer, chunk) = block.sends.swap_remove(dice.roll(block.sends.len()));
            let still = published(number, all, block.sends.iter().map(|(_, chunk)| *chunk));
            ranks[me].lanes[lane(peer, index, chunk)] = number;
            ranks[me].flags[index].scattered = still;
        }
        1 if !ranks[me].blocks[index].combines.is_empty() => {
            let at = dice.roll(ranks[me].blocks[index].combines.len());
            let chunk = ranks[me].blocks[index].combines[at];
            if !others().all(|r| is_there(ranks[r].flags[index].scattered, number, chunk)) {
                return;
            }
            for r in others() {
                let found = ranks[r].lanes[lane(me, index, chunk)];
                assert_eq!(found, number, "rank {me} combined a chunk of another operation");
            }
            let block = &mut ranks[me].blocks[index];
            block.combines.swap_remove(at);
            let still = published(number, all, block.combines.iter().copied());
            ranks[me].combined[index * MAX_CHUNKS + chunk] = number;
            ranks[me].flags[index].combined = still;
        }
        2 if !ranks[me].blocks[index].collects.is_empty() => {
            let at = dice.roll(ranks[me].blocks[index].collects.len());
            let (peer, chunk) = ranks[me].blocks[index].collects[at];
            if is_there(ranks[peer].flags[index].combined, number, chunk) {
                let found = ranks[peer].combined[index * MAX_CHUNKS + chunk];
                assert_eq!(found, number, "rank {me} collected a chunk of another operation");
                ranks[me].blocks[index].collects.swap_remove(at);
            }
        }
        _ => {}
    }
}

/// Runs all ranks to the end of `operations`.
fn run(plan: u64, operations: usize, rules: Rules) {
    let mut dice = Dice(plan);
    let mut ranks = vec![Rank::new(); RANKS];
    for (me, rank) in ranks.iter_mut().enumerate() {
        rank.start(me, plan, rules);
    }
    while ranks.iter().any(|rank| rank.number < operations) {
        let me = dice.roll(RANKS);
        if ranks[me].number == operations {
            continue;
        }
        step(&mut ranks, me, dice.roll(BLOCKS), plan, &mut dice);
        let idle =
            |block: &Block| block.sends.is_empty() && block.combines.is_empty() && block.collects.is_empty();
        if ranks[me].blocks.iter().all(idle) {
            ranks[me].number += 1;
            ranks[me].start(me, plan, rules);
        }
    }
}

#[test]
fn no_schedule_takes_a_chunk_of_another_operation() {
    for plan in 0..60 {
        run(plan * 7919, 300, Rules { collects: true });
    }
}

/// The model can see the fault that one buffer a lane would be: launches that end before the others' chunks have come.
#[test]
#[should_panic(expected = "a chunk of another operation")]
fn a_launch_that_does_not_wait_for_the_combined_chunks_overwrites_what_is_still_read() {
    for plan in 0..60 {
        run(plan * 7919, 300, Rules { collects: false });
    }
}
