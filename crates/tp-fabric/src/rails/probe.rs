//! The probe: one RDMA write each way over every proposed rail.
//!
//! All ranks run it together and learn the same. A rail passes when both ends sent, had it acknowledged, and saw what the
//! other sent. One that fails is tried once more with new queue pairs, since a neighbour's address may not have been
//! resolved yet; that is recorded.

use super::gid_of;
use crate::meeting::{Meeting, MeetingError};
use crate::types::Rank;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use tp_hca::pick::{End, Probe, ProbeKey, Proposal};
use tp_verbs::post::{Flag, Poster, Put, Window};
use tp_verbs::{
    Capacity, CompletionQueue, Context, Far, MemoryRegion, Mtu, Near, Pages, Path, PortNum, ProtectionDomain,
    QueuePair, Verbs,
};

/// Bytes of a probe's word.
const WORD: usize = 64;
/// Longest wait for the writes of one round.
const PATIENCE: Duration = Duration::from_secs(4);
/// 268 ms for an acknowledgement, four times: a path is slow once, not always.
const TIMEOUT: (u8, u8) = (16, 3);
/// Connections that are made at once: one to an absent neighbour takes seconds.
const AT_ONCE: usize = 16;
/// Bytes of an end on the wire, after its state.
const RECORD: usize = 4 + 4 + 4 + 1 + 8;
/// Longest reason that is told, bytes.
const REASON: usize = 600;

/// What the probes found; the same on every rank.
#[derive(Clone, Debug, Default)]
pub struct Probed {
    /// For each proposed rail.
    pub probes: BTreeMap<ProbeKey, Probe>,
    /// Rails that passed only at the second attempt.
    pub retried: Vec<Retried>,
}

/// A rail that passed at its second attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retried {
    /// Which.
    pub rail: ProbeKey,
    /// Why the first attempt failed.
    pub first: String,
}

impl fmt::Display for Retried {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ProbeKey { low, high } = &self.rail;
        write!(
            f,
            "rail {} port {} of rank {} to {} port {} of rank {} passed at its second probe; at the first: {}",
            low.device, low.port, low.rank, high.device, high.port, high.rank, self.first
        )
    }
}

/// Probes these rails. Collective over `meeting`, with the same list on every rank; a rank that is an end of any needs the
/// library.
pub fn run(
    meeting: &mut dyn Meeting,
    proposals: &[Proposal],
    verbs: Option<&Arc<Verbs>>,
) -> Result<Probed, MeetingError> {
    let mut bench = Bench {
        me: meeting.rank(),
        verbs: verbs.cloned(),
        devices: BTreeMap::new(),
    };
    let mut wanted: Vec<usize> = (0..proposals.len()).collect();
    let mut first: BTreeMap<usize, String> = BTreeMap::new();
    let mut out = Probed::default();
    for attempt in 0..2 {
        let failed = bench.round(meeting, proposals, &wanted)?;
        for number in wanted {
            let key = proposals[number].key.clone();
            match (failed.get(&number), first.get(&number)) {
                (None, Some(first)) => out.retried.push(Retried {
                    rail: key.clone(),
                    first: first.clone(),
                }),
                (Some(reason), _) if attempt == 0 => drop(first.insert(number, reason.clone())),
                _ => {}
            }
            let probe = failed
                .get(&number)
                .map_or(Probe::Passed, |why| Probe::Failed(why.clone()));
            out.probes.insert(key, probe);
        }
        wanted = failed.into_keys().collect();
        if wanted.is_empty() {
            break;
        }
    }
    Ok(out)
}

/// Devices of this rank that were opened for probing.
struct Bench {
    me: Rank,
    verbs: Option<Arc<Verbs>>,
    devices: BTreeMap<String, Result<Arc<Bed>, String>>,
}

/// An open device.
struct Bed {
    context: Arc<Context>,
    region: MemoryRegion,
    pages: Arc<Pages>,
}

/// One end of one proposed rail.
struct Tried {
    bed: Arc<Bed>,
    completions: Arc<CompletionQueue>,
    pair: QueuePair,
    near: Near,
    mtu: Mtu,
    /// Offset of the word that the peer writes.
    word: usize,
}

/// What the peer said of its end.
struct Told {
    queue_pair: u32,
    first_packet: u32,
    key: u32,
    mtu: Mtu,
    word: u64,
}

impl Bench {
    /// One attempt at these; the reasons of those that failed. The lower end's reason counts before the higher one's.
    fn round(
        &mut self,
        meeting: &mut dyn Meeting,
        proposals: &[Proposal],
        wanted: &[usize],
    ) -> Result<BTreeMap<usize, String>, MeetingError> {
        let me = self.me.0;
        let ours = |proposal: &Proposal| match (proposal.key.low.rank == me, proposal.key.high.rank == me) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        let mine: Vec<(usize, bool)> = wanted
            .iter()
            .filter_map(|number| Some((*number, ours(&proposals[*number])?)))
            .collect();
        let tried: BTreeMap<usize, Result<Tried, String>> = mine
            .iter()
            .enumerate()
            .map(|(place, (number, low))| {
                (
                    *number,
                    self.open(&proposals[*number], *low, place, proposals.len()),
                )
            })
            .collect();
        let ends = gather(meeting, "trade the probes' ends", wanted, |number| {
            tried
                .get(&number)
                .map(|end| end.as_ref().map(Tried::record).map_err(String::clone))
        })?;

        let far = |number: usize, low: bool| {
            let proposal = &proposals[number];
            let (peer, address) = if low {
                (proposal.key.high.rank, proposal.high_address)
            } else {
                (proposal.key.low.rank, proposal.low_address)
            };
            let answer = ends.get(peer as usize).and_then(|ends| ends.get(&number));
            match answer {
                Some(Ok(record)) => Told::read(record).map(|told| (told, gid_of(address))),
                Some(Err(reason)) => Err(reason.clone()),
                None => Err(format!("rank {peer} said nothing of its end")),
            }
        };
        let jobs: Vec<Job<'_>> = mine
            .iter()
            .filter_map(|(number, low)| {
                let end = tried.get(number)?.as_ref().ok()?;
                Some((*number, end, far(*number, *low)))
            })
            .collect();
        let connected = connect_all(&jobs);
        // Nobody writes before both ends take what is written.
        gather(meeting, "connect the probes", wanted, |number| {
            connected
                .get(&number)
                .map(|done| done.clone().map(|()| Vec::new()))
        })?;
        let mut outcomes: BTreeMap<usize, Result<Vec<u8>, String>> = BTreeMap::new();
        for (number, end) in &tried {
            if let Err(reason) = end {
                outcomes.insert(*number, Err(reason.clone()));
            }
        }
        let ready: Vec<_> = jobs
            .iter()
            .filter_map(|(number, end, far)| match connected.get(number) {
                Some(Ok(())) => Some((*number, *end, &far.as_ref().ok()?.0)),
                Some(Err(reason)) => {
                    outcomes.insert(*number, Err(reason.clone()));
                    None
                }
                None => None,
            })
            .collect();
        outcomes.extend(write_all(&ready));
        // The queue pairs live until everybody has seen what was written.
        let all = gather(meeting, "tell what the probes found", wanted, |number| {
            outcomes.get(&number).cloned()
        })?;

        let mut failed = BTreeMap::new();
        for number in wanted {
            let key = &proposals[*number].key;
            let verdict = [&key.low, &key.high]
                .into_iter()
                .find_map(|end| judge(end, all.get(end.rank as usize)?.get(number)));
            if let Some(reason) = verdict {
                failed.insert(*number, reason);
            }
        }
        Ok(failed)
    }

    fn open(&mut self, proposal: &Proposal, low: bool, place: usize, places: usize) -> Result<Tried, String> {
        let (end, gid_index, address) = if low {
            (&proposal.key.low, proposal.low_gid, proposal.low_address)
        } else {
            (&proposal.key.high, proposal.high_gid, proposal.high_address)
        };
        let bed = self.bed(&end.device, places)?;
        let port = PortNum(u8::try_from(end.port.0).map_err(|_| "RDMA ports have numbers up to 255")?);
        let index = u8::try_from(gid_index.0).map_err(|_| "a queue pair takes GID indexes up to 255")?;
        let (gid, expected) = (
            bed.context
                .gid(port, u32::from(index))
                .map_err(|e| e.to_string())?,
            gid_of(address),
        );
        if gid != expected {
            return Err(format!(
                "GID {index} is {gid}, it was {expected} when the facts were read: addresses changed"
            ));
        }
        let attributes = bed.context.port(port).map_err(|e| e.to_string())?;
        let mtu = attributes.active_mtu.ok_or("the driver gives no known MTU")?;
        let completions = CompletionQueue::new(&bed.context, 4).map_err(|e| e.to_string())?;
        let capacity = Capacity { sends: 4, inline: 16 };
        let pair = QueuePair::new(bed.region.domain(), &completions, capacity).map_err(|e| e.to_string())?;
        let mut random = [0; 4];
        getrandom::fill(&mut random).map_err(|e| e.to_string())?;
        let near = Near {
            port,
            gid_index: index,
            gid,
            first_packet: u32::from_ne_bytes(random) & 0xff_ffff,
        };
        let tried = Tried {
            bed,
            completions,
            pair,
            near,
            mtu,
            word: place * WORD,
        };
        tried.seen().store(0, Ordering::Relaxed);
        Ok(tried)
    }

    fn bed(&mut self, device: &str, places: usize) -> Result<Arc<Bed>, String> {
        if let Some(bed) = self.devices.get(device) {
            return bed.clone();
        }
        let open = || {
            let verbs = self.verbs.as_ref().ok_or("there is no libibverbs on this rank")?;
            let context = Context::open(verbs, device).map_err(|e| e.to_string())?;
            let domain = ProtectionDomain::new(&context).map_err(|e| e.to_string())?;
            let pages =
                Arc::new(Pages::new(places * WORD).map_err(|e| format!("map memory for the probe: {e}"))?);
            let region = MemoryRegion::register(&domain, &pages).map_err(|e| e.to_string())?;
            Ok::<_, String>(Arc::new(Bed {
                context,
                region,
                pages,
            }))
        };
        let bed = open();
        self.devices.insert(device.to_owned(), bed.clone());
        bed
    }
}

/// What an end's word means for the rail; none where it passed.
fn judge(end: &End, outcome: Option<&Result<Vec<u8>, String>>) -> Option<String> {
    let place = format!("rank {} {} port {}", end.rank, end.device, end.port);
    match outcome {
        Some(Ok(_)) => None,
        Some(Err(reason)) => Some(format!("{place}: {reason}")),
        None => Some(format!("{place}: it said nothing")),
    }
}

impl Tried {
    fn record(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(RECORD);
        for word in [
            self.pair.number(),
            self.near.first_packet,
            self.bed.region.remote().key,
        ] {
            out.extend(word.to_le_bytes());
        }
        out.push(self.mtu.code() as u8);
        out.extend((self.bed.region.remote().start + self.word as u64).to_le_bytes());
        out
    }

    fn connect(&self, told: &Told, gid: tp_verbs::Gid) -> Result<(), String> {
        let far = Far {
            queue_pair: told.queue_pair,
            gid,
            lid: 0,
            first_packet: told.first_packet,
        };
        let path = Path {
            timeout: TIMEOUT.0,
            retries: TIMEOUT.1,
            ..Path::new(self.mtu.min(told.mtu))
        };
        self.pair
            .connect(&self.near, &far, &path)
            .map_err(|e| e.to_string())
    }

    fn post(&self, told: &Told) -> Result<(), String> {
        let poster = Poster {
            local: self.bed.region.local(),
            remote: Window {
                start: told.word,
                length: 4,
                key: told.key,
            },
            max_inline: self.pair.capacity().inline,
        };
        let put = Put {
            id: 1,
            local_key: poster.local.key,
            remote_key: poster.remote.key,
            writes: &[],
            flags: &[Flag {
                remote: told.word,
                value: told.queue_pair.max(1),
            }],
            flags_inside: None,
        };
        let chain = poster.chain(&put).map_err(|refused| refused.to_string())?;
        // SAFETY: the region is registered here and the peer's word there until both have told what they found; the value is
        // carried inside the request.
        unsafe { self.pair.post(&chain) }.map_err(|e| e.to_string())
    }

    /// The word that the peer writes: the number of this end's queue pair.
    fn seen(&self) -> &AtomicU32 {
        // SAFETY: within the pages, aligned; written whole by the device, and only ever accessed as an atomic.
        unsafe { AtomicU32::from_ptr(self.bed.pages.as_ptr().add(self.word).cast()) }
    }

    fn has_seen(&self) -> bool {
        self.seen().load(Ordering::Acquire) == self.pair.number().max(1)
    }
}

impl Told {
    fn read(record: &[u8]) -> Result<Self, String> {
        let record: &[u8; RECORD] = record.try_into().map_err(|_| "the peer's end cannot be read")?;
        let word =
            |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        Ok(Self {
            queue_pair: word(0),
            first_packet: word(4),
            key: word(8),
            mtu: Mtu::from_code(record[12].into()).ok_or("the peer's MTU is not known")?,
            word: u64::from(word(13)) | u64::from(word(17)) << 32,
        })
    }
}

type Job<'a> = (usize, &'a Tried, Result<(Told, tp_verbs::Gid), String>);

/// Connects all, several at once.
fn connect_all(jobs: &[Job<'_>]) -> BTreeMap<usize, Result<(), String>> {
    let one = |(number, end, far): &Job<'_>| {
        let done = match far {
            Ok((told, gid)) => end.connect(told, *gid),
            Err(reason) => Err(format!("the other end: {reason}")),
        };
        (*number, done)
    };
    if jobs.len() < 2 {
        return jobs.iter().map(one).collect();
    }
    let each = jobs.len().div_ceil(AT_ONCE);
    thread::scope(|scope| {
        let workers: Vec<_> = jobs
            .chunks(each)
            .map(|chunk| scope.spawn(move || chunk.iter().map(one).collect::<Vec<_>>()))
            .collect();
        // A panic in a worker was reported by its own hook; its rails then count as failed.
        workers
            .into_iter()
            .filter_map(|worker| worker.join().ok())
            .flatten()
            .collect()
    })
}

/// Writes over all at once, and waits until each was acknowledged and has seen the other's, or the time is over.
fn write_all(ready: &[(usize, &Tried, &Told)]) -> BTreeMap<usize, Result<Vec<u8>, String>> {
    let mut acknowledged: BTreeMap<usize, Result<bool, String>> = ready
        .iter()
        .map(|(number, end, told)| (*number, end.post(told).map(|()| false)))
        .collect();
    let until = Instant::now() + PATIENCE;
    loop {
        let mut waiting = false;
        for (number, end, _) in ready {
            let Some(state) = acknowledged.get_mut(number) else {
                continue;
            };
            if *state == Ok(false) {
                let mut result = Ok(false);
                let polled = end
                    .completions
                    .poll(|completion| result = completion.result.map(|()| true).map_err(|f| f.to_string()));
                *state = polled.map_err(|e| e.to_string()).and(result);
            }
            waiting |= state.as_ref().is_ok_and(|done| !*done || !end.has_seen());
        }
        if !waiting || Instant::now() > until {
            break;
        }
        thread::sleep(Duration::from_micros(200));
    }
    let verdict = |(number, end, _): &(usize, &Tried, &Told)| {
        let outcome = match acknowledged.get(number) {
            Some(Ok(true)) if end.has_seen() => Ok(Vec::new()),
            Some(Ok(true)) => Err("nothing came from the other end".to_owned()),
            Some(Ok(false)) => Err(format!(
                "its write was not acknowledged within {} s",
                PATIENCE.as_secs()
            )),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err("it was not tried".to_owned()),
        };
        (*number, outcome)
    };
    ready.iter().map(verdict).collect()
}

type Answers = BTreeMap<usize, Result<Vec<u8>, String>>;

/// Every rank says something of the rails it is an end of: bytes, or why not. By rank, then by rail.
fn gather(
    meeting: &mut dyn Meeting,
    op: &str,
    wanted: &[usize],
    mine: impl Fn(usize) -> Option<Result<Vec<u8>, String>>,
) -> Result<Vec<Answers>, MeetingError> {
    let mut out = Vec::new();
    for number in wanted {
        let (state, body) = match mine(*number) {
            None => continue,
            Some(Ok(bytes)) => (1u8, bytes),
            Some(Err(reason)) => (
                2,
                reason.as_bytes()[..reason.floor_char_boundary(REASON)].to_vec(),
            ),
        };
        out.extend((*number as u32).to_le_bytes());
        out.push(state);
        out.extend((body.len() as u16).to_le_bytes());
        out.extend(body);
    }
    let all = meeting.all_gather(op, &out)?;
    Ok(all.iter().map(|bytes| answers(bytes)).collect())
}

/// Reads what a rank said; what cannot be read ends it.
fn answers(mut bytes: &[u8]) -> Answers {
    let mut out = BTreeMap::new();
    while let Some((head, rest)) = bytes.split_at_checked(7) {
        let number = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let length = usize::from(u16::from_le_bytes([head[5], head[6]]));
        let Some((body, rest)) = rest.split_at_checked(length) else {
            break;
        };
        let answer = match head[4] {
            1 => Ok(body.to_vec()),
            _ => Err(String::from_utf8_lossy(body).into_owned()),
        };
        out.insert(number, answer);
        bytes = rest;
    }
    out
}

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz {
    //! A part of the fuzz target `texts`.

    /// What a rank says of its probes.
    pub fn probes(bytes: &[u8]) {
        for answer in super::answers(bytes).into_values().flatten() {
            let _ = super::Told::read(&answer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

        #[test]
        fn whatever_a_rank_says_is_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            for answer in answers(&bytes).into_values().flatten() {
                let _ = Told::read(&answer);
            }
        }
    }
}
