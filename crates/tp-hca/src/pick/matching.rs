//! Pairing the ports of one subnet.

/// A largest matching that prefers equal positions: where everything is possible, the k-th pairs with the k-th. The
/// pairs come in the order of `mine`.
pub(crate) fn matching(
    mine: &[usize],
    theirs: &[usize],
    possible: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, usize)> {
    let mut search = Search {
        mine,
        theirs,
        possible,
        partner: vec![None; theirs.len()],
    };
    for position in 0..mine.len() {
        let mut seen = vec![false; theirs.len()];
        search.augment(position, &mut seen);
    }
    let mut pairs: Vec<(usize, usize)> = search
        .partner
        .iter()
        .enumerate()
        .filter_map(|(high, low)| Some(((*low)?, high)))
        .collect();
    pairs.sort_unstable();
    pairs
        .into_iter()
        .map(|(low, high)| (mine[low], theirs[high]))
        .collect()
}

struct Search<'s, P> {
    mine: &'s [usize],
    theirs: &'s [usize],
    possible: P,
    /// For each of theirs, the position of its partner in mine.
    partner: Vec<Option<usize>>,
}

impl<P: Fn(usize, usize) -> bool> Search<'_, P> {
    fn augment(&mut self, low: usize, seen: &mut [bool]) -> bool {
        let same_first = std::iter::once(low).chain((0..self.theirs.len()).filter(|&high| high != low));
        let open: Vec<usize> = same_first
            .filter(|&high| high < self.theirs.len() && (self.possible)(self.mine[low], self.theirs[high]))
            .collect();
        // A vacant partner first: only then must somebody move.
        if let Some(&high) = open.iter().find(|&&high| self.partner[high].is_none()) {
            self.partner[high] = Some(low);
            return true;
        }
        for high in open {
            if std::mem::replace(&mut seen[high], true) {
                continue;
            }
            if self.partner[high].is_none_or(|other| self.augment(other, seen)) {
                self.partner[high] = Some(low);
                return true;
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_positions_pair_where_everything_is_possible() {
        assert_eq!(matching(&[7, 8, 9], &[4, 5], |_, _| true), [(7, 4), (8, 5)]);
        assert_eq!(matching(&[], &[4], |_, _| true), []);
    }

    #[test]
    fn what_is_impossible_makes_others_move() {
        // 1 could have 10 or 11, 2 only 10: 1 moves to 11.
        let only = |low: usize, high: usize| low == 1 || high == 10;
        assert_eq!(matching(&[1, 2], &[10, 11], only), [(1, 11), (2, 10)]);
        assert_eq!(matching(&[1, 2], &[10, 11], |_, high| high == 11), [(1, 11)]);
    }
}
