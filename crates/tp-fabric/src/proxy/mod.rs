//! The proxy: a thread that watches the doorbell and hands what the kernel has staged to the wire.
//!
//! It knows no verbs and no sockets, only [`Wire`](crate::wire::Wire). On a failure it records the cause, which ends the kernel's waits.

mod backoff;

pub use backoff::Backoff;

use crate::collective::Failure;
use crate::host::Shared;
use crate::region::protocol::{Listener, SLOTS};
use crate::region::{Post, Word, Words};
use crate::types::Rank;
use crate::wire::{Parcel, WireError};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};

/// The proxy thread; stopped and joined when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts the thread for a host thread that rings the doorbell, and looks for its peers' failures itself.
    pub(crate) fn start(shared: Arc<Shared>) -> io::Result<Self> {
        Self::start_for(shared, false)
    }

    /// Starts the thread for a GPU, which sees flags and its own abort word alone: the peers' notices are this thread's.
    pub(crate) fn start_for_gpu(shared: Arc<Shared>) -> io::Result<Self> {
        Self::start_for(shared, true)
    }

    fn start_for(shared: Arc<Shared>, gpu: bool) -> io::Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let worker = Worker {
            listener: Listener::default(),
            messages: vec![0; shared.region().layout().world().size()],
            targets: [const { Vec::new() }; SLOTS as usize],
            stop: Arc::clone(&stop),
            gpu,
            shared,
        };
        let name = format!("tp-proxy-{}", worker.shared.rank());
        let thread = thread::Builder::new().name(name).spawn(move || worker.run())?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported by its own hook.
            let _ = thread.join();
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    gpu: bool,
    listener: Listener,
    /// How many messages were put to each peer.
    messages: Vec<u64>,
    /// For each entry in flight: how many messages to each peer must be settled until it is completed.
    targets: [Vec<(Rank, u64)>; SLOTS as usize],
}

impl Worker {
    fn run(mut self) {
        // The doorbell is memory, whatever the wire is: no nap of this thread ends when it rings.
        let mut backoff = Backoff::new(self.shared.crowded(), false);
        while !self.stop.load(Ordering::Acquire) && !self.shared.has_failed() {
            match self.turn() {
                Ok(true) => backoff.reset(),
                Ok(false) if backoff.spin() => {}
                Ok(false) => {
                    self.hear();
                    backoff.pause(thread::sleep);
                }
                Err(failure) => {
                    self.shared.region().store(Word::ProxyFailed, 1);
                    self.shared.fail(failure);
                }
            }
        }
    }

    /// For a GPU: ends its waits when a peer says that it has failed.
    fn hear(&self) {
        if self.gpu
            && let Some(failure) = self.shared.noticed()
        {
            self.shared.fail(failure);
        }
    }

    /// One look at everything; whether anything moved.
    fn turn(&mut self) -> Result<bool, Failure> {
        let mut moved = self.shared.wire().progress();
        let next = self.listener.next(self.shared.region());
        if let Some(entry) = next.map_err(|breach| Failure::Proxy {
            reason: breach.to_string(),
        })? {
            self.post(entry)?;
            self.listener.posted();
            moved = true;
        }
        while let Some(entry) = self.listener.oldest() {
            let wire = self.shared.wire();
            if !self.targets[entry]
                .iter()
                .all(|(peer, target)| wire.settled(*peer) >= *target)
            {
                break;
            }
            self.listener.complete(self.shared.region());
            moved = true;
        }
        Ok(moved)
    }

    /// Hands one entry to the wire.
    fn post(&mut self, entry: usize) -> Result<(), Failure> {
        let shared = Arc::clone(&self.shared);
        let (region, wire) = (shared.region(), shared.wire());
        let mask = region.load(Word::Mask { entry });
        let stop = Arc::clone(&self.stop);
        let give_up = || stop.load(Ordering::Acquire) || shared.has_failed();
        self.targets[entry].clear();
        for peer in region
            .layout()
            .world()
            .ranks()
            .filter(|peer| mask >> peer.0 & 1 == 1)
        {
            // SAFETY: the entry was rung, its mask names the peer, and this is the proxy of the same process.
            let sent = match unsafe { region.read_post(entry, peer) } {
                Post::Answer { consumed } => wire.answer(peer, consumed, &give_up),
                Post::Message { seq, header, offset } => {
                    let (offset, len) = (offset as usize, header.len as usize);
                    if peer == shared.rank() || offset.saturating_add(len) > region.layout().slot() {
                        let reason =
                            format!("entry for rank {peer}: {len} bytes at {offset} exceed the slot");
                        return Err(Failure::Proxy { reason });
                    }
                    self.messages[peer.index()] += 1;
                    self.targets[entry].push((peer, self.messages[peer.index()]));
                    // SAFETY: within the staging slot (just checked, and by `staging`), which the kernel leaves alone
                    // until the entry is completed.
                    let payload =
                        unsafe { std::slice::from_raw_parts(region.staging(entry, offset, len), len) };
                    wire.put(
                        &Parcel {
                            peer,
                            seq,
                            header,
                            payload,
                        },
                        &give_up,
                    )
                }
            };
            match sent {
                Ok(()) => {}
                Err(WireError::GivenUp { .. }) => return Ok(()),
                Err(WireError::Peer { peer, reason }) => return Err(shared.peer_failed(peer, reason)),
            }
        }
        Ok(())
    }
}
