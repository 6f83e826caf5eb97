//! [`LocalMeeting`]: the ranks are threads of one process. For tests, and for engines that embed all ranks.

use crate::meeting::{Meeting, MeetingError};
use crate::types::{Rank, World};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One rank's end of a meeting among threads of one process.
///
/// Dropping an end tells the others that its rank is gone: they get [`MeetingError::Lost`] instead of waiting.
pub struct LocalMeeting {
    rank: Rank,
    world: World,
    wait: Duration,
    calls: u64,
    room: Arc<Room>,
}

struct Room {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// Calls that not every rank has left yet, by number.
    rounds: BTreeMap<u64, Round>,
    /// Ranks whose end was dropped.
    gone: Vec<bool>,
}

struct Round {
    /// What each rank gave: its operation and bytes.
    given: Vec<Option<(String, Vec<u8>)>>,
    /// How many ranks have taken the whole.
    left: usize,
}

impl LocalMeeting {
    /// The ends of a new meeting, in rank order. No call waits longer than `wait` for the others.
    pub fn group(world: World, wait: Duration) -> Vec<Self> {
        let state = State {
            rounds: BTreeMap::new(),
            gone: vec![false; world.size()],
        };
        let room = Arc::new(Room {
            state: Mutex::new(state),
            changed: Condvar::new(),
        });
        let end = |rank| Self {
            rank,
            world,
            wait,
            calls: 0,
            room: Arc::clone(&room),
        };
        world.ranks().map(end).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Every change under the lock is whole in itself, so a thread that panicked there left nothing half-done.
        self.room.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until every rank has given its part of call `number`; then all the parts, in rank order.
    fn await_all(&self, op: &str, number: u64) -> Result<Vec<(String, Vec<u8>)>, MeetingError> {
        let deadline = Instant::now() + self.wait;
        let mut state = self.lock();
        loop {
            let State { rounds, gone } = &mut *state;
            let Some(round) = rounds.get_mut(&number) else {
                return Err(self.lost(op, self.rank, "the call is unknown to the meeting"));
            };
            let absent = |r: &Rank| round.given[r.index()].is_none();
            let Some(first) = self.world.ranks().find(absent) else {
                let all = round.given.iter().flatten().cloned().collect();
                round.left += 1;
                if round.left == self.world.size() {
                    rounds.remove(&number);
                }
                return Ok(all);
            };
            if let Some(rank) = self.world.ranks().filter(absent).find(|r| gone[r.index()]) {
                return Err(self.lost(op, rank, "it has left the meeting"));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(self.lost(
                    op,
                    first,
                    &format!("nothing came within {} ms", self.wait.as_millis()),
                ));
            }
            state = self
                .room
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn lost(&self, op: &str, rank: Rank, reason: &str) -> MeetingError {
        MeetingError::Lost {
            op: op.to_owned(),
            rank,
            reason: reason.to_owned(),
        }
    }
}

impl Meeting for LocalMeeting {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> World {
        self.world
    }

    fn all_gather(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError> {
        let number = self.calls;
        self.calls += 1;
        let empty = || Round {
            given: vec![None; self.world.size()],
            left: 0,
        };
        self.lock().rounds.entry(number).or_insert_with(empty).given[self.rank.index()] =
            Some((op.to_owned(), mine.to_vec()));
        self.room.changed.notify_all();
        let all = self.await_all(op, number)?;
        let other = self.world.ranks().zip(&all).find(|(_, (theirs, _))| theirs != op);
        if let Some((rank, (theirs, _))) = other {
            return Err(MeetingError::OutOfStep {
                mine: op.to_owned(),
                mine_number: number,
                rank,
                theirs: theirs.clone(),
                theirs_number: number,
            });
        }
        Ok(all.into_iter().map(|(_, bytes)| bytes).collect())
    }
}

impl Drop for LocalMeeting {
    fn drop(&mut self) {
        self.lock().gone[self.rank.index()] = true;
        self.room.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    const WAIT: Duration = Duration::from_secs(20);

    #[test]
    fn all_ranks_get_all_bytes_in_rank_order() {
        let ends = LocalMeeting::group(World(3), WAIT);
        thread::scope(|s| {
            for mut end in ends {
                s.spawn(move || {
                    for round in 0..200u8 {
                        let mine = vec![round; end.rank().index()];
                        let all = end.all_gather("trade", &mine).unwrap();
                        assert_eq!(all, [vec![], vec![round], vec![round; 2]]);
                    }
                    end.barrier("done").unwrap();
                });
            }
        });
    }

    #[test]
    fn a_rank_that_leaves_is_named_at_once() {
        let mut ends = LocalMeeting::group(World(3), WAIT);
        drop(ends.remove(1));
        let begun = Instant::now();
        let error = ends[0].barrier("start").unwrap_err();
        assert_eq!(
            error,
            MeetingError::Lost {
                op: "start".to_owned(),
                rank: Rank(1),
                reason: "it has left the meeting".to_owned()
            }
        );
        assert!(begun.elapsed() < WAIT / 2);
    }

    #[test]
    fn ranks_out_of_step_are_told_both_calls() {
        let mut ends = LocalMeeting::group(World(2), WAIT);
        let mut second = ends.remove(1);
        thread::scope(|s| {
            s.spawn(move || assert!(matches!(second.barrier("b"), Err(MeetingError::OutOfStep { .. }))));
            let error = ends[0].barrier("a").unwrap_err().to_string();
            assert!(error.contains("`a`") && error.contains("`b`"), "{error}");
        });
    }
}
