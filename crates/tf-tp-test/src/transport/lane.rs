//! An open verbs wire and the streams of messages on it, without a backend around them.

use std::sync::Arc;
use std::time::{Duration, Instant};
use tp_fabric::collective::Call;
use tp_fabric::meeting::Meeting;
use tp_fabric::rails::{self, Agreed};
use tp_fabric::region::protocol::{Inbound, Outbound};
use tp_fabric::region::{Bay, Header, Layout, Region};
use tp_fabric::settings::Settings;
use tp_fabric::types::{Rank, World};
use tp_fabric::wire::verbs::{self, RailEnd, VerbsConfig, VerbsWire};
use tp_fabric::wire::{Parcel, Wire, WireError};

/// One transport of this rank.
pub struct Lane {
    /// The wire.
    pub wire: VerbsWire,
    region: Region,
    outbound: Vec<Outbound>,
    inbound: Vec<Inbound>,
    me: Rank,
    /// Longest wait for a peer.
    wait: Duration,
}

/// Which of a pair's rails are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// All of them.
    All,
    /// This one alone.
    Only(usize),
}

impl Lane {
    /// Opens a transport over the picked rails. Collective over `meeting`.
    pub fn open(
        meeting: &mut dyn Meeting,
        agreed: &Agreed,
        settings: &Settings,
        which: Use,
        wait: Duration,
    ) -> Result<Self, String> {
        let (me, world) = (meeting.rank(), meeting.world());
        let library = agreed.verbs.clone()?;
        let mut ends = rails::ends(&agreed.document, me, world.size())?;
        if let Use::Only(rail) = which {
            for ends in &mut ends {
                ends.retain(|end| end.rail == rail);
                ends.iter_mut().for_each(|end| end.rail = 0);
            }
        }
        if let Some(peer) = world.peers(me).find(|peer| ends[peer.index()].is_empty()) {
            return Err(format!(
                "there is no rail to rank {peer}: every rank must be on a host of its own"
            ));
        }
        let most_rails = match which {
            Use::All => rails::most_rails(&agreed.document),
            Use::Only(_) => 1,
        };
        let config = VerbsConfig {
            verbs: Arc::clone(&library),
            rails: ends,
            most_rails,
            neighbours: vec![me],
            traffic_class: settings.roce.traffic_class,
            liveness: settings.heartbeat_limit,
            bounce: true,
        };
        let layout = Layout::new(world, settings.slot_bytes).ok_or("this world or slot has no region")?;
        let (region, wire) = verbs::open(meeting, layout, &config).map_err(|e| e.to_string())?;
        Ok(Self {
            wire,
            region,
            outbound: vec![Outbound::default(); world.size()],
            inbound: vec![Inbound::default(); world.size()],
            me,
            wait,
        })
    }

    /// This rank's ends of the rails to the first other rank.
    pub fn ends(agreed: &Agreed, me: Rank, world: World) -> Result<Vec<RailEnd>, String> {
        let mut all = rails::ends(&agreed.document, me, world.size())?;
        let peer = world.peers(me).next().ok_or("there is no other rank")?;
        Ok(all.swap_remove(peer.index()))
    }

    /// Waits until `ready`, moving what can be moved.
    fn until(
        &mut self,
        peer: Rank,
        mut ready: impl FnMut(&mut Self) -> Result<bool, String>,
    ) -> Result<(), String> {
        let began = Instant::now();
        let mut turns = 0u32;
        loop {
            if ready(self)? {
                return Ok(());
            }
            self.wire.progress();
            turns = turns.wrapping_add(1);
            if !turns.is_multiple_of(256) {
                continue;
            }
            if let Some(reason) = self.wire.lost(peer) {
                return Err(reason);
            }
            if let Some((culprit, reason)) = self.notice() {
                return Err(format!("rank {culprit} failed: {reason}"));
            }
            if began.elapsed() > self.wait {
                return Err(format!(
                    "nothing from rank {peer} within {:.1} s",
                    self.wait.as_secs_f64()
                ));
            }
            std::thread::yield_now();
        }
    }

    /// What a peer said about a failure, if any did.
    fn notice(&self) -> Option<(Rank, String)> {
        let world = self.region.layout().world();
        world.peers(self.me).find_map(|peer| self.region.notice(peer))
    }

    /// Puts a message to a peer when its slot is free.
    pub fn send(&mut self, peer: Rank, payload: &[u8]) -> Result<(), String> {
        let mut seq = 0;
        self.until(peer, |lane| {
            let next = lane.outbound[peer.index()]
                .next(&lane.region, peer)
                .map_err(|e| e.to_string())?;
            seq = next.unwrap_or(0);
            Ok(next.is_some())
        })?;
        let header = Header {
            call: [0; Call::ENCODED],
            part: 0,
            len: u32::try_from(payload.len()).map_err(|e| e.to_string())?,
            answer: self.inbound[peer.index()].consumed(),
        };
        let parcel = Parcel {
            peer,
            seq,
            header,
            payload,
        };
        let until = Instant::now() + self.wait;
        let sent = self.wire.put(&parcel, &|| Instant::now() > until);
        sent.map_err(|error| match error {
            WireError::Peer { reason, .. } => reason,
            given_up @ WireError::GivenUp { .. } => given_up.to_string(),
        })?;
        self.outbound[peer.index()].sent();
        Ok(())
    }

    /// Takes the next message of a peer, gives it to `look` and answers it where `answer` says so.
    pub fn take<T>(&mut self, peer: Rank, answer: bool, look: impl FnOnce(&[u8]) -> T) -> Result<T, String> {
        self.until(peer, |lane| {
            lane.inbound[peer.index()]
                .arrived(&lane.region, peer)
                .map_err(|e| e.to_string())
        })?;
        let bay: Bay = self.inbound[peer.index()].bay(peer);
        // SAFETY: the message has arrived and is not consumed.
        let header = unsafe { self.region.header(bay) };
        let learnt = self.outbound[peer.index()].answer(header.answer);
        learnt.map_err(|breach| breach.to_string())?;
        let len = header.len as usize;
        // SAFETY: as above; nobody writes the bay until it is consumed.
        let seen = look(unsafe { std::slice::from_raw_parts(self.region.payload(bay, len), len) });
        let consumed = self.inbound[peer.index()].consume();
        if answer {
            self.wire
                .answer(peer, consumed, &|| false)
                .map_err(|error| error.to_string())?;
        }
        Ok(seen)
    }

    /// One message to and from every peer, compared: `round` decides length and content.
    pub fn exchange(&mut self, round: u64) -> Result<(), String> {
        let peers: Vec<Rank> = self.region.layout().world().peers(self.me).collect();
        let len = [8, 256, 4096, 65_536][round as usize % 4].min(self.region.layout().slot());
        let content = |from: Rank| -> Vec<u8> {
            let seed = round.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(from.0);
            (0..len as u64)
                .map(|at| (seed.wrapping_add(at * 0x0100_01b3) >> 16) as u8)
                .collect()
        };
        let mine = content(self.me);
        for peer in &peers {
            self.send(*peer, &mine)?;
        }
        for peer in &peers {
            let expected = content(*peer);
            if !self.take(*peer, false, |got| got == expected)? {
                return Err(format!("rank {peer}'s message {round} brought other bytes"));
            }
        }
        Ok(())
    }
}
