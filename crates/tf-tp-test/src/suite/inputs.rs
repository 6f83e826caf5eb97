//! What the ranks give to the checks. Filling large buffers takes longer than the calls under test, so that buffers are
//! kept; each check deals them out to the ranks in another order, so that what an earlier one left behind cannot pass.

use super::table::Fill;
use std::rc::Rc;
use tp_fabric::fill::{self, Pattern};
use tp_fabric::types::{DType, Rank, World};

/// Most bytes that are kept.
const KEPT: usize = 128 << 20;
/// Base of the seeds: "suite" in ASCII.
const SEED: u64 = 0x73_7569_7465;

/// Everything that two buffers must share to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    bytes: usize,
    dtype: DType,
    fill: Fill,
}

/// The buffers of all ranks.
pub struct Inputs {
    world: World,
    kept: Vec<(Key, Rc<Vec<Vec<u8>>>)>,
}

impl Inputs {
    /// None filled yet.
    pub fn new(world: World) -> Self {
        Self {
            world,
            kept: Vec::new(),
        }
    }

    /// What the ranks give in check number `check`.
    pub fn deal(&mut self, check: usize, bytes: usize, dtype: DType, fill: Fill) -> Dealt {
        let key = Key { bytes, dtype, fill };
        let found = self.kept.iter().position(|(k, _)| *k == key);
        let entry = match found {
            Some(at) => self.kept.remove(at),
            None => (key, Rc::new(self.fill(key))),
        };
        let buffers = entry.1.clone();
        self.kept.push(entry);
        // The oldest go first; the one just taken stays.
        let size = |(k, b): &(Key, Rc<Vec<Vec<u8>>>)| k.bytes * b.len();
        while self.kept.len() > 1 && self.kept.iter().map(size).sum::<usize>() > KEPT {
            self.kept.remove(0);
        }
        Dealt {
            buffers,
            shift: check % self.world.size(),
        }
    }

    fn fill(&self, key: Key) -> Vec<Vec<u8>> {
        let pattern = match key.fill {
            Fill::Random => Pattern::Uniform,
            Fill::Special => Pattern::Special,
        };
        let seed = SEED ^ (key.bytes as u64) << 16;
        self.world
            .ranks()
            .map(|rank| fill::bytes(key.bytes, key.dtype, seed, rank, pattern))
            .collect()
    }
}

/// What the ranks give in one check.
pub struct Dealt {
    buffers: Rc<Vec<Vec<u8>>>,
    shift: usize,
}

impl Dealt {
    /// What this rank gives.
    pub fn of(&self, rank: Rank) -> &[u8] {
        &self.buffers[(rank.index() + self.shift) % self.buffers.len()]
    }

    /// What all ranks give, in rank order.
    pub fn all(&self) -> Vec<&[u8]> {
        (0..self.buffers.len())
            .map(|rank| self.of(Rank(rank as u32)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_checks_give_each_rank_another_buffer_of_the_same_set() {
        let mut inputs = Inputs::new(World(3));
        let first = inputs.deal(0, 4096, DType::F32, Fill::Random);
        let second = inputs.deal(1, 4096, DType::F32, Fill::Random);
        for rank in World(3).ranks() {
            assert_ne!(first.of(rank), second.of(rank));
        }
        assert_eq!(first.of(Rank(1)), second.of(Rank(0)));
        assert_eq!(second.all().len(), 3);
        assert_ne!(first.all(), inputs.deal(0, 4096, DType::F32, Fill::Special).all());
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let mut inputs = Inputs::new(World(2));
        for check in 0..9 {
            inputs.deal(0, (16 << 20) + check, DType::U8, Fill::Random);
        }
        assert!(inputs.kept.len() <= 4, "{}", inputs.kept.len());
    }
}
