//! The exchange by lines as a model, on the host: two ranks whose blocks write and read lines in whatever order a random
//! schedule picks, with flags so short that they come round many times. It holds the rules of `kernels/exchange_lines.cuh`
//! against what must never happen: a line of an earlier operation taken for one of this.

use super::dice::Dice;

const BLOCKS: usize = 3;
/// Tiles of a block in each half of a lane; a tile has one line here.
const BLOCK_TILES: usize = 4;

/// The rules under test.
#[derive(Clone, Copy)]
struct Rules {
    flag_bits: u32,
    /// A block writes all its lines once in so many operations.
    refresh: Option<u64>,
}

/// Tiles of operation `number`, and how many of them a block carries: mostly few, so that the last lines lie untouched.
fn launch(plan: u64, number: usize) -> (usize, usize) {
    let mut dice = Dice(plan ^ (number as u64) << 24);
    dice.roll(2);
    let tiles = if dice.roll(12) == 0 {
        1 + dice.roll(BLOCKS * BLOCK_TILES)
    } else {
        1
    };
    let a_block = tiles.div_ceil(BLOCKS).max(1 + dice.roll(BLOCK_TILES));
    (tiles, a_block)
}

#[derive(Clone, Copy)]
struct Line {
    flag: u64,
    /// The operation whose payload it carries; `None`: it carries nothing.
    operation: Option<usize>,
}

#[derive(Clone, Default)]
struct Block {
    sequence: u64,
    /// Tiles whose lines are still to be written, with the payload's operation.
    writes: Vec<(usize, Option<usize>)>,
    /// Tiles whose lines are still awaited.
    reads: Vec<usize>,
}

struct Rank {
    number: usize,
    blocks: Vec<Block>,
    /// What it has written: by half, block and tile.
    lane: Vec<Line>,
}

fn place(sequence: u64, block: usize, tile: usize) -> usize {
    ((sequence & 1) as usize * BLOCKS + block) * BLOCK_TILES + tile
}

impl Rank {
    fn new() -> Self {
        let untouched = Line {
            flag: 0,
            operation: None,
        };
        Self {
            number: 0,
            blocks: vec![Block::default(); BLOCKS],
            lane: vec![untouched; 2 * BLOCKS * BLOCK_TILES],
        }
    }

    /// Launches operation `number`.
    fn start(&mut self, plan: u64, rules: Rules) {
        let (tiles, a_block) = launch(plan, self.number);
        for (index, block) in self.blocks.iter_mut().enumerate().take(tiles.div_ceil(a_block)) {
            block.sequence += 1;
            let carried = (tiles - index * a_block).min(a_block);
            block.reads = (0..carried).collect();
            block.writes = (0..carried).map(|tile| (tile, Some(self.number))).collect();
            // The kernels' `refreshes`.
            if rules
                .refresh
                .is_some_and(|every| block.sequence & (every - 1) < 2)
            {
                block
                    .writes
                    .extend((carried..BLOCK_TILES).map(|tile| (tile, None)));
            }
        }
    }
}

/// Runs both ranks to the end of `operations`.
fn run(plan: u64, operations: usize, rules: Rules) {
    let mask = (1 << rules.flag_bits) - 1;
    let mut dice = Dice(plan);
    let mut ranks = [Rank::new(), Rank::new()];
    ranks.iter_mut().for_each(|rank| rank.start(plan, rules));
    while ranks.iter().any(|rank| rank.number < operations) {
        let me = dice.roll(2);
        if ranks[me].number == operations {
            continue;
        }
        let index = dice.roll(BLOCKS);
        let block = &mut ranks[me].blocks[index];
        let sequence = block.sequence;
        // Warps are on their own, so one may read before another has written.
        if !block.writes.is_empty() && dice.roll(3) > 0 {
            let (tile, operation) = block.writes.swap_remove(dice.roll(block.writes.len()));
            let flag = sequence & mask;
            ranks[me].lane[place(sequence, index, tile)] = Line { flag, operation };
        } else if !block.reads.is_empty() {
            let at = dice.roll(block.reads.len());
            let tile = block.reads[at];
            let line = ranks[1 - me].lane[place(sequence, index, tile)];
            if line.flag == sequence & mask {
                let number = ranks[me].number;
                assert_eq!(
                    line.operation,
                    Some(number),
                    "rank {me} took a line of another operation"
                );
                ranks[me].blocks[index].reads.swap_remove(at);
            }
        }
        let idle = |block: &Block| block.writes.is_empty() && block.reads.is_empty();
        if ranks[me].blocks.iter().all(idle) {
            ranks[me].number += 1;
            ranks[me].start(plan, rules);
        }
    }
}

#[test]
fn no_schedule_takes_an_old_line_for_a_new_one() {
    for plan in 0..60 {
        let rules = Rules {
            flag_bits: 5,
            refresh: Some(4),
        };
        run(plan * 7919, 600, rules);
    }
}

/// The model can see the fault that refreshing is there for.
#[test]
#[should_panic(expected = "took a line of another operation")]
fn without_refreshing_some_schedule_takes_an_old_line() {
    for plan in 0..60 {
        let rules = Rules {
            flag_bits: 5,
            refresh: None,
        };
        run(plan * 7919, 600, rules);
    }
}
