//! Who is in: rank 0's list of seats, without a socket of its own.

use super::hello::{Hello, Role};
use crate::types::{Rank, World};

/// So many different refusals are kept for people; repeated and further ones are only counted.
const REFUSALS_KEPT: usize = 16;

/// The seats of all followers.
pub(super) struct Roster {
    world: World,
    session: String,
    seats: Vec<Seat>,
    taken: usize,
    over: Option<Over>,
    pub strangers: u64,
    pub refused: Vec<String>,
    /// Refusals that are not in `refused`: repeated ones, and those beyond its end.
    more_refused: u64,
}

/// A boot that has failed, and who still has to hear of it.
struct Over {
    why: String,
    untold: Vec<Rank>,
}

/// What a rank that has no seat is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Denied {
    /// It does not belong here.
    Refused(String),
    /// The boot has failed already.
    Over(String),
}

#[derive(Default)]
struct Seat {
    instance: String,
    host: String,
    pid: u32,
    control: bool,
    plan: bool,
}

impl Roster {
    pub fn new(world: World, session: &str) -> Self {
        let seats = world.ranks().map(|_| Seat::default()).collect();
        let session = session.to_owned();
        Self {
            world,
            session,
            seats,
            taken: 0,
            over: None,
            strangers: 0,
            refused: Vec::new(),
            more_refused: 0,
        }
    }

    /// The boot has failed: nobody gets a seat any more, and those who come late are told why.
    pub fn close(&mut self, why: &str) {
        self.over = Some(Over {
            why: why.to_owned(),
            untold: self.missing(),
        });
    }

    /// Whether everybody who was missing when the boot failed has been told.
    pub fn all_told(&self) -> bool {
        self.over.as_ref().is_some_and(|over| over.untold.is_empty())
    }

    /// Takes a seat for a connection whose secret is proved, or says why it cannot have one.
    pub fn admit(&mut self, hello: &Hello) -> Result<(), Denied> {
        if let Some(over) = &mut self.over {
            over.untold.retain(|rank| *rank != hello.rank);
            return Err(Denied::Over(over.why.clone()));
        }
        self.seat(hello).map_err(Denied::Refused)
    }

    // protocol 2.7
    fn seat(&mut self, hello: &Hello) -> Result<(), String> {
        let Hello {
            world,
            rank,
            role,
            instance,
            session,
            host,
            pid,
        } = hello;
        if *world != self.world {
            return Err(format!(
                "this group has a world of {}, rank {rank} came with {world}",
                self.world
            ));
        }
        if *rank == Rank(0) {
            return Err("rank 0 is the one that listens here; two ranks have the number 0".to_owned());
        }
        if !session.is_empty() && !self.session.is_empty() && *session != self.session {
            return Err(format!(
                "this is session `{}`, rank {rank} came for session `{session}`",
                self.session
            ));
        }
        let Some(seat) = self.seats.get_mut(rank.index()) else {
            return Err(format!("there is no rank {rank} in a world of {world}"));
        };
        let taken = match role {
            Role::Control => seat.control,
            Role::Plan => seat.plan || !seat.control || seat.instance != *instance,
        };
        if taken {
            return Err(format!(
                "rank {rank} is already here, from {} (process {})",
                seat.host, seat.pid
            ));
        }
        match role {
            Role::Control => {
                *seat = Seat {
                    instance: instance.clone(),
                    host: host.clone(),
                    pid: *pid,
                    control: true,
                    plan: false,
                };
            }
            Role::Plan => seat.plan = true,
        }
        self.taken += 1;
        Ok(())
    }

    /// Notes a connection that was turned away, and says so at once where it speaks our protocol: somebody waits for that
    /// rank. After the first few only the count goes on, so that nobody fills a log from outside.
    pub fn turn_away(&mut self, from: &str, why: &str, known: bool) {
        if !known {
            tracing::debug!("turned away {from}: {why}");
            self.strangers += 1;
            return;
        }
        // One who comes again and again must not hide another.
        let refusal = format!("{from}: {why}");
        if self.refused.len() < REFUSALS_KEPT && !self.refused.contains(&refusal) {
            tracing::warn!("turned away a rank from {refusal}");
            self.refused.push(refusal);
        } else {
            self.more_refused += 1;
        }
    }

    pub fn is_full(&self) -> bool {
        self.taken == 2 * (self.world.size() - 1)
    }

    pub fn missing(&self) -> Vec<Rank> {
        let here = |rank: &Rank| self.seats.get(rank.index()).is_some_and(|seat| seat.plan);
        self.world.peers(Rank(0)).filter(|rank| !here(rank)).collect()
    }

    pub fn host(&self, rank: Rank) -> String {
        match self.seats.get(rank.index()) {
            Some(seat) if !seat.host.is_empty() => seat.host.clone(),
            _ => "?".to_owned(),
        }
    }

    /// What a message about missing ranks adds: who else came.
    pub fn seen(&self) -> String {
        let mut out = String::new();
        if !self.refused.is_empty() {
            out = format!("; refused meanwhile: {}", self.refused.join("; "));
        }
        if self.more_refused > 0 {
            out += &format!("; and {} more refusals", self.more_refused);
        }
        if self.strangers > 0 {
            out += &format!("; {} other connections proved nothing", self.strangers);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hello(rank: u32, role: Role, instance: &str) -> Hello {
        Hello {
            world: World(3),
            rank: Rank(rank),
            role,
            instance: instance.into(),
            session: "s".into(),
            host: format!("host-{rank}"),
            pid: 7,
        }
    }

    #[test]
    fn one_who_is_refused_again_and_again_hides_nobody() {
        let mut roster = Roster::new(World(2), "s");
        for _ in 0..100 {
            roster.turn_away("192.0.2.9", "it does not know the secret", true);
        }
        roster.turn_away("192.0.2.1", "it counts 3 ranks", true);
        let seen = roster.seen();
        assert!(
            seen.contains("counts 3 ranks") && seen.contains("99 more"),
            "{seen}"
        );
        for number in 0..100 {
            roster.turn_away(&format!("192.0.2.{number}"), "something", true);
        }
        assert_eq!(roster.refused.len(), REFUSALS_KEPT);
    }

    #[test]
    fn two_processes_cannot_share_a_seat() {
        let mut roster = Roster::new(World(3), "s");
        assert!(roster.seat(&hello(1, Role::Control, "a")).is_ok());
        let twice = roster.seat(&hello(1, Role::Control, "b")).unwrap_err();
        assert_eq!(twice, "rank 1 is already here, from host-1 (process 7)");
        assert!(roster.seat(&hello(1, Role::Plan, "b")).is_err());
        assert!(
            roster.seat(&hello(2, Role::Plan, "c")).is_err(),
            "a plan connection comes second"
        );
        assert!(roster.seat(&hello(1, Role::Plan, "a")).is_ok());
        assert_eq!(roster.missing(), [Rank(2)]);
        assert!(roster.seat(&hello(2, Role::Control, "c")).is_ok());
        assert!(roster.seat(&hello(2, Role::Plan, "c")).is_ok());
        assert!(roster.is_full());
    }

    #[test]
    fn the_refused_are_told_why() {
        let mut roster = Roster::new(World(3), "s");
        let mut wrong_world = hello(1, Role::Control, "a");
        wrong_world.world = World(4);
        let why = roster.seat(&wrong_world).unwrap_err();
        assert_eq!(why, "this group has a world of 3, rank 1 came with 4");
        let mut wrong_session = hello(1, Role::Control, "a");
        wrong_session.session = "t".into();
        assert!(roster.seat(&wrong_session).unwrap_err().contains("session `t`"));
        assert!(
            roster
                .seat(&hello(0, Role::Control, "a"))
                .unwrap_err()
                .contains("number 0")
        );
        assert!(
            roster
                .seat(&hello(3, Role::Control, "a"))
                .unwrap_err()
                .contains("no rank 3")
        );
        assert!(!roster.is_full());
    }

    #[test]
    fn after_a_failure_late_ranks_are_told_and_counted() {
        let mut roster = Roster::new(World(3), "s");
        assert!(roster.seat(&hello(1, Role::Control, "a")).is_ok());
        assert!(!roster.all_told());
        roster.close("lost rank 1");
        for rank in [1, 2] {
            assert!(!roster.all_told());
            let denied = roster.admit(&hello(rank, Role::Control, "b")).unwrap_err();
            assert_eq!(denied, Denied::Over("lost rank 1".into()));
        }
        assert!(roster.all_told());
    }
}
