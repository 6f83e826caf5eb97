//! Faults that are put into an open transport on purpose, to see that it ends as it must.

use super::VerbsWire;
use super::link::lock;
use crate::types::Rank;

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Every queue pair of this rank is moved to the error state: its peers are not answered any more.
    QueuePairs,
    /// From now on this rank writes to a peer with a key that the peer did not register.
    Key(Rank),
}

impl VerbsWire {
    /// Breaks this transport. The error says why it could not be broken.
    pub fn inject(&self, fault: Fault) -> Result<(), String> {
        let mut inner = lock(&self.inner);
        match fault {
            Fault::QueuePairs => {
                let mut rails = inner.links().flat_map(|(_, link)| &link.rails);
                rails.try_for_each(|rail| rail.pair.fail().map_err(|error| error.to_string()))
            }
            Fault::Key(peer) => {
                let link = inner.links[peer.index()]
                    .as_mut()
                    .ok_or("there is no rail to this rank")?;
                for rail in &mut link.rails {
                    // The posting layer checks against what it is told the peer registered, so that is what is changed.
                    rail.poster.remote.key ^= 0x5555_0000;
                }
                Ok(())
            }
        }
    }

    /// Reads the kernel's account of the registered memory: still mapped, out of forked children and free of huge pages.
    pub fn check_memory(&self) -> Result<(), String> {
        // SAFETY: this wire's own part of a mapping that it keeps, in whole pages.
        unsafe { tp_verbs::protect(self.memory.base(), self.memory.extent().total()) }
            .map_err(|e| e.to_string())
    }
}
