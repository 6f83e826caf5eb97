//! The slot and flag protocol between two ranks, and the doorbell between a rank's kernel and its proxy. Pure rules over
//! [`Words`]; they know neither memory nor wires, so that a model checker can run them.
//!
//! **Messages.** Every ordered pair of ranks has its own stream of messages, numbered from 1. Message `n` goes into slot
//! `n mod 2` of the receiver's bays for that source; its flag is the number `n`, stored after everything else of it. The
//! receiver waits for exactly the next number, reads, and counts the message as consumed.
//!
//! **No slot is overwritten before it was read.** The sender sends message `n` only when it knows that message `n − 2`
//! was consumed. It learns so from two places: the header of each message carries how many messages of the opposite
//! stream its sender had consumed (the *piggybacked* answer), and the receiver may store that count into the sender's
//! answer line (the *explicit* answer). Explicit answers are sent for every message of a call in which a rank sends or
//! receives more than one message to or from a peer before the opposite direction catches up: `send`/`recv`,
//! `broadcast`, and calls whose parts are pipelined. Where both ranks of a pair send one message and then wait for the
//! other's, the piggybacked answer suffices: to have finished the call of message `n − 1` is to have received the
//! peer's message of that call, which the peer sent after it had consumed `n − 2`.
//!
//! **Doorbell.** The kernel writes entry `e` (what goes to whom, payload in staging slot `e mod 2`), then stores `e` into
//! the doorbell. The proxy posts every entry in order and stores `e` as completed when the wire no longer needs the
//! staging slot. The kernel writes entry `e` only after entry `e − 2` is completed.

pub use super::layout::SLOTS;
use super::layout::{Bay, Word};
use crate::types::Rank;

/// The words of a rank's own region.
pub trait Words {
    /// Loads a word with acquire order.
    fn load(&self, word: Word) -> u64;
    /// Stores a word with release order.
    fn store(&self, word: Word, value: u64);
}

/// A value that the protocol forbids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    /// A flag holds neither the awaited number nor an earlier one of its slot.
    #[error("the flag of slot {slot} holds {found} where {wanted} is next")]
    Flag {
        /// Which slot.
        slot: usize,
        /// The number in it.
        found: u64,
        /// The number awaited.
        wanted: u64,
    },
    /// The peer says it consumed more than was sent.
    #[error("the peer says it consumed {answered} messages of {sent}")]
    Answer {
        /// What it says.
        answered: u64,
        /// What was sent.
        sent: u64,
    },
    /// The doorbell went back or ahead of what two entries allow.
    #[error("the doorbell reads {rung} with {posted} posted and at most {SLOTS} entries outstanding")]
    Doorbell {
        /// What it reads.
        rung: u64,
        /// What was posted.
        posted: u64,
    },
}

/// This rank's stream of messages to one peer.
#[derive(Clone, Debug, Default)]
pub struct Outbound {
    sent: u64,
    answered: u64,
}

impl Outbound {
    /// Number of the next message, if its slot at the peer is free.
    pub fn next(&mut self, words: &impl Words, peer: Rank) -> Result<Option<u64>, Breach> {
        if self.sent - self.answered >= SLOTS {
            self.answer(words.load(Word::Acked { peer }))?;
        }
        Ok((self.sent - self.answered < SLOTS).then_some(self.sent + 1))
    }

    /// Counts the message as sent.
    pub fn sent(&mut self) {
        self.sent += 1;
    }

    /// Takes the peer's word for how many messages it has consumed.
    pub fn answer(&mut self, answered: u64) -> Result<(), Breach> {
        if answered > self.sent {
            return Err(Breach::Answer {
                answered,
                sent: self.sent,
            });
        }
        self.answered = self.answered.max(answered);
        Ok(())
    }
}

/// The stream of messages from one peer.
#[derive(Clone, Debug, Default)]
pub struct Inbound {
    consumed: u64,
}

impl Inbound {
    /// The bay of the next message.
    pub fn bay(&self, source: Rank) -> Bay {
        Bay::of(source, self.consumed + 1)
    }

    /// Whether the next message has arrived; from then on its bay may be read until [`consume`](Self::consume).
    pub fn arrived(&self, words: &impl Words, source: Rank) -> Result<bool, Breach> {
        let wanted = self.consumed + 1;
        let bay = self.bay(source);
        match words.load(Word::Arrival(bay)) {
            found if found == wanted => Ok(true),
            found if found < wanted => Ok(false),
            found => Err(Breach::Flag {
                slot: bay.slot,
                found,
                wanted,
            }),
        }
    }

    /// Counts the message as consumed: its bay is not read any more. Returns the count, which is the answer to send.
    pub fn consume(&mut self) -> u64 {
        self.consumed += 1;
        self.consumed
    }

    /// How many messages were consumed: what headers carry.
    pub fn consumed(&self) -> u64 {
        self.consumed
    }
}

/// The kernel's end of the doorbell.
#[derive(Clone, Debug, Default)]
pub struct Ringer {
    rung: u64,
}

impl Ringer {
    /// Parity of the next entry, if its post lines and staging slot are free.
    pub fn next(&self, words: &impl Words) -> Option<usize> {
        let outstanding = self.rung - words.load(Word::Completed).min(self.rung);
        (outstanding < SLOTS).then_some(((self.rung + 1) % SLOTS) as usize)
    }

    /// Publishes the entry.
    pub fn ring(&mut self, words: &impl Words) {
        self.rung += 1;
        words.store(Word::Doorbell, self.rung);
    }

    /// Whether every entry is completed.
    pub fn idle(&self, words: &impl Words) -> bool {
        words.load(Word::Completed) == self.rung
    }
}

/// The proxy's end of the doorbell.
#[derive(Clone, Debug, Default)]
pub struct Listener {
    posted: u64,
    completed: u64,
}

impl Listener {
    /// Parity of the next entry to post, if one was rung.
    pub fn next(&self, words: &impl Words) -> Result<Option<usize>, Breach> {
        let rung = words.load(Word::Doorbell);
        if rung < self.posted || rung - self.posted > SLOTS {
            return Err(Breach::Doorbell {
                rung,
                posted: self.posted,
            });
        }
        Ok((rung > self.posted).then_some(((self.posted + 1) % SLOTS) as usize))
    }

    /// Counts the entry as posted.
    pub fn posted(&mut self) {
        self.posted += 1;
    }

    /// Parity of the oldest posted entry that is not completed.
    pub fn oldest(&self) -> Option<usize> {
        (self.completed < self.posted).then_some(((self.completed + 1) % SLOTS) as usize)
    }

    /// Publishes that the oldest entry is completed.
    pub fn complete(&mut self, words: &impl Words) {
        self.completed += 1;
        words.store(Word::Completed, self.completed);
    }
}
