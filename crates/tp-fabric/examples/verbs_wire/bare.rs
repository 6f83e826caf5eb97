//! The same two requests without a wire around them: the payload, and chained behind it a 48-byte line whose last word is the
//! flag. What the wire adds is measured against it.

use crate::{Outcome, PATIENCE, PLACE, apart, device, report};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;
use tp_fabric::meeting::Meeting;
use tp_fabric::types::Rank;
use tp_verbs::post::{Poster, Put, Window, Write};
use tp_verbs::{
    Capacity, CompletionQueue, Context, Far, Gid, MemoryRegion, Near, Pages, Path, ProtectionDomain,
    QueuePair, Verbs,
};

const WARM_UP: usize = 100;
/// Bytes of the line behind the payload.
const LINE: usize = 48;
/// Where the outgoing line, the incoming line and the payload lie.
const OUT: usize = 0;
const IN: usize = 64;
const PAYLOAD: usize = 4096;

struct End {
    completions: Arc<CompletionQueue>,
    pair: QueuePair,
    region: MemoryRegion,
    pages: Arc<Pages>,
    poster: Poster,
}

/// Half of each round trip of `bytes` bytes and a line, over one rail.
pub fn ping(bytes: usize, count: usize) -> Outcome {
    let halves = apart(|meeting, library| {
        let end = connect(meeting, library, bytes)?;
        let mut halves = Vec::with_capacity(count);
        for round in 0..WARM_UP + count {
            let value = round as u32 + 1;
            let began = Instant::now();
            if meeting.rank() == Rank(0) {
                end.send(bytes, value)?;
            }
            end.wait(value)?;
            if meeting.rank() == Rank(1) {
                end.send(bytes, value)?;
            } else if round >= WARM_UP {
                halves.push(began.elapsed().as_secs_f64() * 5e5);
            }
            end.completed()?;
        }
        meeting.barrier("done")?;
        Ok(halves)
    })?;
    if let Some(halves) = halves {
        report("bare", bytes, halves);
    }
    Ok(())
}

fn connect(meeting: &mut dyn Meeting, library: &Arc<Verbs>, bytes: usize) -> Outcome<End> {
    let name = device(if meeting.rank() == Rank(0) { 'A' } else { 'B' }, 0)?;
    let context = Context::open(library, &name)?;
    let domain = ProtectionDomain::new(&context)?;
    let pages = Arc::new(Pages::new(PAYLOAD + bytes)?);
    let region = MemoryRegion::register(&domain, &pages)?;
    let completions = CompletionQueue::new(&context, 64)?;
    let capacity = Capacity {
        sends: 48,
        inline: 128,
    };
    let pair = QueuePair::new(&domain, &completions, capacity)?;
    let gid = context.gid(PLACE.0, u32::from(PLACE.1))?;
    let mine: Vec<u8> = [
        u64::from(pair.number()),
        region.remote().start,
        u64::from(region.remote().key),
    ]
    .iter()
    .flat_map(|word| word.to_le_bytes())
    .chain(gid.0)
    .collect();
    let all = meeting.all_gather("ends", &mine)?;
    let theirs = &all[1 - meeting.rank().index()];
    let word = |at: usize| {
        theirs[at..at + 8]
            .iter()
            .rev()
            .fold(0u64, |word, byte| word << 8 | u64::from(*byte))
    };
    let mut far_gid = [0; 16];
    far_gid.copy_from_slice(&theirs[24..40]);
    let near = Near {
        port: PLACE.0,
        gid_index: PLACE.1,
        gid,
        first_packet: 1,
    };
    let far = Far {
        queue_pair: word(0) as u32,
        gid: Gid(far_gid),
        lid: 0,
        first_packet: 1,
    };
    let mtu = context.port(PLACE.0)?.active_mtu.ok_or("no MTU")?;
    let path = Path {
        timeout: 18,
        retries: 6,
        ..Path::new(mtu)
    };
    pair.connect(&near, &far, &path)?;
    meeting.barrier("connected")?;
    let poster = Poster {
        local: region.local(),
        remote: Window {
            start: word(8),
            length: region.remote().length,
            key: word(16) as u32,
        },
        max_inline: pair.capacity().inline,
    };
    Ok(End {
        completions,
        pair,
        region,
        pages,
        poster,
    })
}

impl End {
    fn send(&self, bytes: usize, value: u32) -> Outcome {
        // SAFETY: inside the pages, aligned; the request before it has completed.
        unsafe { self.pages.as_ptr().add(OUT + LINE - 4).cast::<u32>().write(value) };
        let write = |local: usize, remote: usize, length: usize| Write {
            local: self.poster.local.start + local as u64,
            remote: self.poster.remote.start + remote as u64,
            length: length as u32,
        };
        let put = Put {
            id: 0,
            local_key: self.region.local().key,
            remote_key: self.poster.remote.key,
            writes: &[write(PAYLOAD, PAYLOAD, bytes), write(OUT, IN, LINE)],
            flags: &[],
            flags_inside: Some(value),
        };
        // SAFETY: both ends hold their pages until the last barrier.
        unsafe { self.pair.post(&self.poster.chain(&put)?) }?;
        Ok(())
    }

    fn wait(&self, value: u32) -> Outcome {
        // SAFETY: inside the pages, aligned; the device writes it whole.
        let flag = unsafe { AtomicU32::from_ptr(self.pages.as_ptr().add(IN + LINE - 4).cast()) };
        let began = Instant::now();
        let mut turns = 0u32;
        while flag.load(Ordering::Acquire) != value {
            turns = turns.wrapping_add(1);
            if turns.is_multiple_of(1 << 20) && began.elapsed() > PATIENCE {
                return Err("the other end's line did not come".into());
            }
            std::hint::spin_loop();
        }
        Ok(())
    }

    /// Waits for the completion of what was sent.
    fn completed(&self) -> Outcome {
        let mut result = None;
        while result.is_none() {
            self.completions
                .poll(|completion| result = Some(completion.result))?;
        }
        Ok(result.transpose().map(drop)?)
    }
}
