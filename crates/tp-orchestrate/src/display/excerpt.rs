//! What of a failure is shown: where many ranks fail, those that say most. The receipt has all of it.

/// Lines of problems that are shown.
const PROBLEMS: usize = 8;
/// Ranks whose last lines are shown.
const RANKS: usize = 3;

/// The problems to show; those of ranks that left because of another (exit 70) stand last and go first.
pub(super) fn problems(all: &[String]) -> Vec<String> {
    let mut shown: Vec<String> = ordered(all).into_iter().take(PROBLEMS).cloned().collect();
    if all.len() > PROBLEMS {
        shown.push(format!(
            "… and {} more; the receipt has them",
            all.len() - PROBLEMS
        ));
    }
    shown
}

fn ordered(all: &[String]) -> Vec<&String> {
    let (followed, own): (Vec<_>, Vec<_>) = all.iter().partition(|problem| followed(problem));
    own.into_iter().chain(followed).collect()
}

/// Whether a problem is a rank's leaving because another had failed.
fn followed(problem: &str) -> bool {
    problem.contains("ended with exit 70") || problem.contains("(ended by:")
}

/// The ranks whose last lines are shown, and how many are not.
pub(super) fn ranks(all_problems: &[String], ranks: &[u32]) -> (Vec<u32>, usize) {
    let named = |rank: u32| {
        let place = ordered(all_problems)
            .iter()
            .position(|problem| speaks_of(problem, rank));
        place.unwrap_or(usize::MAX)
    };
    let mut order: Vec<u32> = ranks.to_vec();
    order.sort_by_key(|rank| (named(*rank), *rank));
    let shown: Vec<u32> = order.into_iter().take(RANKS).collect();
    let left = ranks.len() - shown.len();
    (shown, left)
}

fn speaks_of(problem: &str, rank: u32) -> bool {
    let rest = problem.strip_prefix(&format!("rank {rank}"));
    rest.is_some_and(|rest| rest.starts_with([' ', ':']))
}

/// The line about the ranks whose last lines are not shown.
pub(super) fn others(left: usize, folder: &str) -> Option<String> {
    let noun = if left == 1 { "rank" } else { "ranks" };
    (left > 0).then(|| format!("--- {left} more {noun}: {folder}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_a_large_world_the_culprit_is_shown_and_the_others_are_counted() {
        let mut all: Vec<String> = (0..64)
            .filter(|rank| *rank != 17)
            .map(|rank| {
                format!("rank {rank} ended with exit 70, expected exit 0; it said: rank 17 on b failed")
            })
            .collect();
        all.insert(17, "rank 17 ended by signal 11, expected exit 0".to_owned());
        let shown = problems(&all);
        assert_eq!(shown.len(), PROBLEMS + 1);
        assert!(shown[0].starts_with("rank 17 ended by signal 11"), "{shown:?}");
        assert_eq!(shown[PROBLEMS], "… and 56 more; the receipt has them");
        let everybody: Vec<u32> = (0..64).collect();
        assert_eq!(ranks(&all, &everybody), (vec![17, 0, 1], 61));
        assert_eq!(
            others(61, "logs/none/hca").unwrap(),
            "--- 61 more ranks: logs/none/hca"
        );
    }

    #[test]
    fn a_small_world_is_shown_whole() {
        let all = ["rank 1 ended with exit 1, expected exit 0".to_owned()];
        assert_eq!(problems(&all), all);
        assert_eq!(ranks(&all, &[0, 1]), (vec![1, 0], 0));
        assert_eq!(others(0, ""), None);
    }
}
