//! The slot, flag and doorbell protocol under a model checker, which tries every order in which the threads' steps can
//! become visible. What runs is the crate's own code; memory and wire are modelled.
//!
//!     RUSTFLAGS="--cfg loom" CARGO_TARGET_DIR=target/loom cargo test -p tp-fabric --release --test loom_protocol
//!
//! Payloads lie in cells that the checker watches: a write while another thread may read is an error. Each rule that the
//! protocol needs is also taken away once, and the checker must then find a fault.
#![cfg_attr(
    loom,
    expect(clippy::unwrap_used, reason = "what fails in a helper fails the test")
)]
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::model::Builder;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};
use loom::thread;
use tp_fabric::region::layout::{Bay, Word};
use tp_fabric::region::protocol::{Inbound, Listener, Outbound, Ringer, SLOTS, Words};
use tp_fabric::types::Rank;

/// Which rule is broken, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// Flags are stored without release order.
    Release,
    /// Flags are loaded without acquire order.
    Acquire,
    /// Both slots are one.
    OneSlot,
    /// The sender does not wait for answers.
    NoAnswers,
    /// The sender does not look for the answer in the message that waits for it.
    NoPeek,
    /// The proxy calls an entry completed before it has read it.
    EarlyCompletion,
    /// The kernel does not wait for completions.
    NoCompletion,
}

/// A message as it lies in a bay: its payload, and its sender's answer.
#[derive(Clone, Copy, Default)]
struct Message {
    payload: u64,
    answer: u64,
}

/// One rank's region, with one peer.
struct Region {
    broken: Broken,
    arrivals: [AtomicU64; 2],
    bays: [UnsafeCell<Message>; 2],
    acked: AtomicU64,
    doorbell: AtomicU64,
    completed: AtomicU64,
    /// What the kernel stages for its proxy: the message and its number.
    staged: [UnsafeCell<(Message, u64)>; 2],
}

impl Region {
    fn new(broken: Broken) -> Self {
        Self {
            broken,
            arrivals: [AtomicU64::new(0), AtomicU64::new(0)],
            bays: [
                UnsafeCell::new(Message::default()),
                UnsafeCell::new(Message::default()),
            ],
            acked: AtomicU64::new(0),
            doorbell: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            staged: [
                UnsafeCell::new(Default::default()),
                UnsafeCell::new(Default::default()),
            ],
        }
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        match word {
            Word::Arrival(bay) => &self.arrivals[bay.slot],
            Word::Acked { .. } => &self.acked,
            Word::Doorbell => &self.doorbell,
            Word::Completed => &self.completed,
            other => panic!("the model has no {other:?}"),
        }
    }

    fn bay(&self, bay: Bay) -> &UnsafeCell<Message> {
        &self.bays[if self.broken == Broken::OneSlot {
            0
        } else {
            bay.slot
        }]
    }

    fn read(&self, bay: Bay) -> Message {
        // SAFETY: the checker watches.
        self.bay(bay).with(|at| unsafe { *at })
    }

    /// What a wire does at the receiver's end.
    fn deliver(&self, bay: Bay, seq: u64, message: Message) {
        // SAFETY: the checker watches.
        self.bay(bay).with_mut(|at| unsafe { *at = message });
        self.store(Word::Arrival(bay), seq);
    }
}

impl Words for Region {
    fn load(&self, word: Word) -> u64 {
        let order = if self.broken == Broken::Acquire {
            Ordering::Relaxed
        } else {
            Ordering::Acquire
        };
        self.word(word).load(order)
    }

    fn store(&self, word: Word, value: u64) {
        let order = if self.broken == Broken::Release {
            Ordering::Relaxed
        } else {
            Ordering::Release
        };
        self.word(word).store(value, order);
    }
}

/// One end of a pair of ranks.
struct End {
    me: Rank,
    own: Arc<Region>,
    peers: Arc<Region>,
    out: Outbound,
    inn: Inbound,
}

impl End {
    fn pair(broken: Broken) -> (Self, Self) {
        let regions = [Arc::new(Region::new(broken)), Arc::new(Region::new(broken))];
        let end = |me: usize| Self {
            me: Rank(me as u32),
            own: Arc::clone(&regions[me]),
            peers: Arc::clone(&regions[1 - me]),
            out: Outbound::default(),
            inn: Inbound::default(),
        };
        (end(0), end(1))
    }

    fn peer(&self) -> Rank {
        Rank(1 - self.me.0)
    }

    /// Number of the next message, when there is room for it.
    fn room(&mut self) -> u64 {
        let mut ignored = 0;
        loop {
            if let Some(seq) = self.out.next(&*self.own, self.peer()).unwrap() {
                return seq;
            }
            if self.own.broken == Broken::NoAnswers {
                // As if everything sent had been consumed.
                while self.out.answer(ignored + 1).is_ok() {
                    ignored += 1;
                }
                continue;
            }
            if self.own.broken != Broken::NoPeek && self.inn.arrived(&*self.own, self.peer()).unwrap() {
                let answer = self.own.read(self.inn.bay(self.peer())).answer;
                self.out.answer(answer).unwrap();
                if let Some(seq) = self.out.next(&*self.own, self.peer()).unwrap() {
                    return seq;
                }
            }
            thread::yield_now();
        }
    }

    fn message(&self, seq: u64) -> Message {
        Message {
            payload: 100 * u64::from(self.me.0) + seq,
            answer: self.inn.consumed(),
        }
    }

    fn send(&mut self) {
        let seq = self.room();
        self.peers.deliver(Bay::of(self.me, seq), seq, self.message(seq));
        self.out.sent();
    }

    fn take(&mut self) {
        while !self.inn.arrived(&*self.own, self.peer()).unwrap() {
            thread::yield_now();
        }
        let message = self.own.read(self.inn.bay(self.peer()));
        assert_eq!(
            message.payload,
            100 * u64::from(self.peer().0) + self.inn.consumed() + 1
        );
        self.out.answer(message.answer).unwrap();
        self.inn.consume();
    }

    /// The explicit answer.
    fn answer(&self) {
        self.peers
            .store(Word::Acked { peer: self.me }, self.inn.consumed());
    }
}

fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    explore(preemptions, None, model);
}

/// As [`check`], but only the first `orders`: the search is cut off, and what it has not reached stays unproved.
fn explore(preemptions: usize, orders: Option<usize>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.max_permutations = orders;
    builder.check(model);
}

/// `send` and `recv`: messages one way, answered one by one.
fn one_way(broken: Broken) {
    check(3, move || {
        let (mut sender, mut receiver) = End::pair(broken);
        let sending = thread::spawn(move || (0..4).for_each(|_| sender.send()));
        for _ in 0..4 {
            receiver.take();
            receiver.answer();
        }
        sending.join().unwrap();
    });
}

/// Calls of one message each way: the answers travel in the headers alone.
fn both_ways(broken: Broken) {
    check(4, move || {
        let (mut a, mut b) = End::pair(broken);
        let act = |end: &mut End| {
            for _ in 0..3 {
                end.send();
                end.take();
            }
        };
        let other = thread::spawn(move || act(&mut a));
        act(&mut b);
        other.join().unwrap();
    });
}

/// After such a call, one whose parts are pipelined: the second part is sent before the first is taken.
fn pipelined(broken: Broken) {
    check(2, move || {
        let (mut a, mut b) = End::pair(broken);
        let act = |end: &mut End| {
            end.send();
            end.take();
            end.send();
            for part in 0..2 {
                if part < 1 {
                    end.send();
                }
                end.take();
                end.answer();
            }
        };
        let other = thread::spawn(move || act(&mut a));
        act(&mut b);
        other.join().unwrap();
    });
}

/// The kernel's end of the doorbell: one entry.
fn ring(own: &Region, ringer: &mut Ringer, number: u64, staged: (Message, u64)) {
    let entry = loop {
        if let Some(entry) = ringer.next(own) {
            break entry;
        }
        if own.broken == Broken::NoCompletion {
            break (number % SLOTS) as usize;
        }
        thread::yield_now();
    };
    // SAFETY: the checker watches.
    own.staged[entry].with_mut(|at| unsafe { *at = staged });
    ringer.ring(own);
}

/// The proxy's end: takes `entries` entries and hands each to `post`.
fn proxy(own: &Region, entries: u64, mut post: impl FnMut(Message, u64)) {
    let mut listener = Listener::default();
    for _ in 0..entries {
        let entry = loop {
            if let Some(entry) = listener.next(own).unwrap() {
                break entry;
            }
            thread::yield_now();
        };
        listener.posted();
        assert_eq!(listener.oldest(), Some(entry));
        if own.broken == Broken::EarlyCompletion {
            listener.complete(own);
        }
        // SAFETY: the checker watches.
        let (message, seq) = own.staged[entry].with(|at| unsafe { *at });
        post(message, seq);
        if own.broken != Broken::EarlyCompletion {
            listener.complete(own);
        }
    }
}

/// Kernel and proxy alone: where entries go to several peers, no peer's answers keep the kernel from running ahead.
fn doorbell(broken: Broken) {
    check(3, move || {
        let own = Arc::new(Region::new(broken));
        let proxys = Arc::clone(&own);
        let posting = thread::spawn(move || {
            let mut next = 1;
            proxy(&proxys, 4, |message, seq| {
                assert_eq!((message.payload, seq), (next * 7, next));
                next += 1;
            });
        });
        let mut ringer = Ringer::default();
        for number in 1..=4 {
            ring(
                &own,
                &mut ringer,
                number,
                (
                    Message {
                        payload: number * 7,
                        answer: 0,
                    },
                    number,
                ),
            );
        }
        posting.join().unwrap();
        assert!(ringer.idle(&*own));
    });
}

/// Kernel, proxy and receiver: what the kernel staged is what the receiver reads, though neither has the other's words.
/// That slots and entries may be used again is what [`one_way`] and [`doorbell`] try.
fn through_the_doorbell(messages: u64) {
    // Three threads that wait for each other have more orders than an hour can try.
    explore(1, Some(20_000), move || {
        let (mut sender, mut receiver) = End::pair(Broken::Nothing);
        let (me, own, peers) = (sender.me, Arc::clone(&sender.own), Arc::clone(&sender.peers));
        let posting = thread::spawn(move || {
            proxy(&own, messages, |message, seq| {
                peers.deliver(Bay::of(me, seq), seq, message)
            });
        });
        let staging = thread::spawn(move || {
            let mut ringer = Ringer::default();
            for _ in 0..messages {
                let seq = sender.room();
                ring(&sender.own, &mut ringer, seq, (sender.message(seq), seq));
                sender.out.sent();
            }
        });
        for _ in 0..messages {
            receiver.take();
            receiver.answer();
        }
        staging.join().unwrap();
        posting.join().unwrap();
    });
}

#[test]
fn messages_one_way() {
    one_way(Broken::Nothing);
}

#[test]
fn messages_both_ways_with_answers_in_headers() {
    both_ways(Broken::Nothing);
}

#[test]
fn pipelined_parts() {
    pipelined(Broken::Nothing);
}

#[test]
fn entries_of_the_doorbell() {
    doorbell(Broken::Nothing);
}

#[test]
fn messages_through_the_doorbell() {
    through_the_doorbell(1);
}

#[test]
#[should_panic(expected = "ausality violation")]
fn a_flag_without_release_is_caught() {
    one_way(Broken::Release);
}

#[test]
#[should_panic(expected = "ausality violation")]
fn a_flag_without_acquire_is_caught() {
    one_way(Broken::Acquire);
}

#[test]
#[should_panic]
fn one_slot_instead_of_two_is_caught() {
    one_way(Broken::OneSlot);
}

#[test]
#[should_panic]
fn sending_without_answers_is_caught() {
    one_way(Broken::NoAnswers);
}

#[test]
#[should_panic]
fn sending_without_answers_is_caught_where_they_travel_in_headers() {
    pipelined(Broken::NoAnswers);
}

#[test]
#[should_panic(expected = "branches")]
fn a_pipeline_that_does_not_look_for_answers_in_waiting_messages_hangs() {
    pipelined(Broken::NoPeek);
}

#[test]
#[should_panic(expected = "ausality violation")]
fn a_doorbell_without_release_is_caught() {
    doorbell(Broken::Release);
}

#[test]
#[should_panic]
fn completion_before_the_entry_was_read_is_caught() {
    doorbell(Broken::EarlyCompletion);
}

#[test]
#[should_panic]
fn staging_without_completion_is_caught() {
    doorbell(Broken::NoCompletion);
}
