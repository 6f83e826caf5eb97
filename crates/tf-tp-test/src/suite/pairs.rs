//! Who meets whom: rounds of pairs in which every rank meets every other once.

use tp_fabric::types::{Rank, World};

/// Rounds in which every rank meets every other once.
pub fn rounds(world: World) -> u32 {
    if world.0.is_multiple_of(2) {
        world.0.saturating_sub(1)
    } else {
        world.0
    }
}

/// Whom `rank` meets in a round: the circle method, where in round `r` those meet whose numbers add up to `r`, and with an
/// even number of ranks the last one meets whoever would be alone.
pub fn partner(world: World, round: u32, rank: Rank) -> Option<Rank> {
    let circle = if world.0.is_multiple_of(2) {
        world.0 - 1
    } else {
        world.0
    };
    // The one whose partner would be itself: twice its number is the round.
    let alone = (0..circle).find(|i| (2 * i) % circle == round % circle);
    if rank.0 == circle {
        return alone.map(Rank);
    }
    let other = (round % circle + circle - rank.0) % circle;
    if other != rank.0 {
        return Some(Rank(other));
    }
    (circle < world.0).then_some(Rank(circle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_rank_meets_every_other_once_and_partners_agree() {
        for world in (1..=9).chain([64]).map(World) {
            let mut met = HashSet::new();
            for round in 0..rounds(world) {
                for rank in world.ranks() {
                    let Some(peer) = partner(world, round, rank) else {
                        continue;
                    };
                    assert_ne!(peer, rank);
                    assert_eq!(
                        partner(world, round, peer),
                        Some(rank),
                        "world {world} round {round}"
                    );
                    assert!(
                        met.insert((rank, peer)),
                        "world {world}: {rank} meets {peer} twice"
                    );
                }
            }
            assert_eq!(met.len(), world.size() * (world.size() - 1), "world {world}");
        }
    }
}
