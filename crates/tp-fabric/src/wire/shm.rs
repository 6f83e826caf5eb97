//! The shared-memory wire: the regions of all ranks of a host in one file, which every rank maps.

mod file;

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz {
    //! A part of the fuzz target `texts`.

    /// Where rank 0 says that the shared memory is. What was read reads the same again; nothing is opened.
    pub fn place(bytes: &[u8]) {
        if let Ok(place) = super::Place::parse(bytes) {
            let again = super::Place::parse(place.to_string().as_bytes());
            assert_eq!(again.ok(), Some(place));
        }
    }
}

use super::{Opened, Parcel, Wire, WireError};
use crate::host::OpenError;
use crate::meeting::Meeting;
use crate::os;
use crate::region::{Bay, Layout, Mapping, Region, Word, Words, layout};
use crate::types::{Rank, WireKind, World};
use file::{Place, SharedFile};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Opens the wire. Collective over `meeting`; the ranks must be on one host and have agreed on `layout`.
pub fn open(meeting: &mut dyn Meeting, layout: Layout) -> Result<Opened, OpenError> {
    let me = meeting.rank();
    let stride = layout.total().next_multiple_of(layout::PAGE);
    let all: Vec<Rank> = layout.world().ranks().collect();
    // A receive slot is backed when its first message comes, since most pairs of a large world never fill theirs.
    let (mapping, fd) = share(meeting, &all, stride, receive_slots_at(&layout))?
        .ok_or_else(|| failed("map the shared memory", "nobody to share it with"))?;

    let region = |rank: Rank| {
        let region = Region::new(&mapping, rank.index() * stride, layout);
        region.ok_or_else(|| failed("lay out the shared memory", "a region lies outside"))
    };
    let regions = layout
        .world()
        .ranks()
        .map(region)
        .collect::<Result<Vec<_>, _>>()?;
    let own = regions[me.index()].clone();
    Ok(Opened {
        region: own,
        wire: Box::new(Shm {
            me,
            backing: Some(Backing::new(fd, stride, layout.world())),
            regions,
        }),
    })
}

/// Offset of the first receive slot in a region.
fn receive_slots_at(layout: &Layout) -> usize {
    layout.receive(Bay {
        source: Rank(0),
        slot: 0,
    })
}

/// Which of this rank's receive slots at its peers are backed with memory.
struct Backing {
    fd: OwnedFd,
    stride: usize,
    /// By peer and slot.
    backed: Vec<[AtomicBool; layout::SLOTS as usize]>,
}

impl Backing {
    fn new(fd: OwnedFd, stride: usize, world: World) -> Self {
        Self {
            fd,
            stride,
            backed: world.ranks().map(|_| Default::default()).collect(),
        }
    }

    /// Backs a receive slot before its first message.
    fn ensure(&self, peer: Rank, bay: Bay, layout: &Layout) -> io::Result<()> {
        let backed = &self.backed[peer.index()][bay.slot];
        if !backed.load(Ordering::Relaxed) {
            let at = peer.index() * self.stride + layout.receive(bay);
            os::reserve(&self.fd, at as u64, layout.slot() as u64)?;
            backed.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// Memory that the ranks of `group` share, and its file: `stride` bytes for each in the group's order, the first `backed` of
/// them backed with memory when this returns, and room for the rest where the file system says what it has; none where this
/// rank is alone in its group. Collective over `meeting`: every rank names the group that it is in, ascending.
pub(crate) fn share(
    meeting: &mut dyn Meeting,
    group: &[Rank],
    stride: usize,
    backed: usize,
) -> Result<Option<(Arc<Mapping>, OwnedFd)>, OpenError> {
    let me = meeting.rank();
    let len = stride.checked_mul(group.len());
    let len = len.ok_or_else(|| failed("size the shared memory", "more bytes than an address can hold"))?;

    let (mut mine, mut fd) = offer(meeting, group, len, SharedFile::nameless)?;
    let reached = meeting.all_gather("open the shared memory", &[u8::from(fd.is_ok())])?;
    if reached.iter().any(|answer| answer != &[1]) {
        (mine, fd) = offer(meeting, group, len, SharedFile::named)?;
    }

    let place = group.iter().position(|rank| *rank == me).unwrap_or(0);
    let mapped = fd.and_then(|fd| fd.map(|fd| Ok((Mapping::shared(&fd, len)?, fd))).transpose());
    let mapped = mapped.and_then(|mapped| {
        let Some((mapping, fd)) = mapped else {
            return Ok(None);
        };
        // Backed before it is touched, so that a full /dev/shm is an error here and not a signal later.
        os::reserve(&fd, (place * stride) as u64, backed as u64)?;
        Ok(Some((mapping, fd)))
    });
    let outcome = mapped.as_ref().map(drop).map_err(told);
    let outcome = meeting.verdict("map the shared memory", outcome);
    drop(mine);
    outcome?;
    let mapped = mapped.map_err(|e| failed("map the shared memory", &told(&e)))?;
    let room = match &mapped {
        Some((_, fd)) if place == 0 => has_room(fd, (stride - backed) * group.len()),
        _ => Ok(()),
    };
    meeting.verdict("find room for the shared memory", room.map_err(|e| told(&e)))?;
    Ok(mapped.map(|(mapping, fd)| (Arc::new(mapping), fd)))
}

/// Whether the file system has room for so many bytes more, where it says.
fn has_room(fd: &OwnedFd, needed: usize) -> io::Result<()> {
    match os::free_bytes(fd)? {
        Some(free) if free < needed as u64 => Err(io::ErrorKind::StorageFull.into()),
        _ => Ok(()),
    }
}

/// The first rank of each group makes the file and says where it is; the others open it. The file itself is that rank's
/// alone.
fn offer(
    meeting: &mut dyn Meeting,
    group: &[Rank],
    len: usize,
    make: fn(usize) -> io::Result<SharedFile>,
) -> Result<(Option<SharedFile>, io::Result<Option<OwnedFd>>), OpenError> {
    let leader = group.first().copied().filter(|_| group.len() > 1);
    let made = (leader == Some(meeting.rank())).then(|| make(len)).transpose();
    let outcome = made.as_ref().map(drop).map_err(told);
    meeting.verdict("make the shared memory", outcome)?;
    let mine = made.map_err(|e| failed("make the shared memory", &told(&e)))?;
    let place = mine
        .as_ref()
        .map_or_else(String::new, |file| file.place().to_string());
    let places = meeting.all_gather("name the shared memory", place.as_bytes())?;
    let fd = match (&mine, leader) {
        (Some(file), _) => file.fd().map(Some),
        (None, Some(leader)) => {
            Place::parse(&places[leader.index()]).and_then(|place| place.open(len).map(Some))
        }
        (None, None) => Ok(None),
    };
    Ok((mine, fd))
}

/// An error of the shared file, and what to do where the host's /dev/shm is the cause.
fn told(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::StorageFull => format!(
            "/dev/shm: {error}: make it larger (mount -o remount,size=1G /dev/shm, for containers --shm-size=1g), or \
             set TF_TP_ROCE_WIRE=tcp"
        ),
        io::ErrorKind::ReadOnlyFilesystem => format!(
            "/dev/shm: {error}: make it writable (mount -o remount,rw /dev/shm), or set TF_TP_ROCE_WIRE=tcp"
        ),
        _ => error.to_string(),
    }
}

fn failed(what: &str, reason: &str) -> OpenError {
    OpenError::Local {
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}

/// Every rank's region, mapped.
struct Shm {
    me: Rank,
    /// None where there is nobody to send to.
    backing: Option<Backing>,
    regions: Vec<Region>,
}

impl Wire for Shm {
    fn kind(&self) -> WireKind {
        WireKind::Shm
    }

    fn put(&self, parcel: &Parcel<'_>, _: &dyn Fn() -> bool) -> Result<(), WireError> {
        let bay = Bay::of(self.me, parcel.seq);
        let region = &self.regions[parcel.peer.index()];
        if let Some(backing) = self
            .backing
            .as_ref()
            .filter(|_| parcel.payload.len() > layout::INLINE)
        {
            let backed = backing.ensure(parcel.peer, bay, region.layout());
            backed.map_err(|e| WireError::Peer {
                peer: parcel.peer,
                reason: format!("failed to back its receive slot: {}", told(&e)),
            })?;
        }
        // SAFETY: this rank is the one writer of its bays at the peer; the caller sends message `seq` only when the
        // protocol says that its slot is free, and payloads are at most a slot.
        unsafe { region.deliver(bay, parcel.seq, &parcel.header, parcel.payload) };
        Ok(())
    }

    fn answer(&self, peer: Rank, consumed: u64, _: &dyn Fn() -> bool) -> Result<(), WireError> {
        self.regions[peer.index()].store(Word::Acked { peer: self.me }, consumed);
        Ok(())
    }

    fn halt(&self, culprit: Rank, reason: &str) {
        for (rank, region) in self.regions.iter().enumerate() {
            if rank != self.me.index() {
                region.leave_notice(self.me, culprit, reason);
            }
        }
    }

    fn close(&self, _: Duration) {}
}

/// The wire of a world of one: nobody to put anything to.
pub(crate) fn single(region: Region) -> Box<dyn Wire> {
    Box::new(Shm {
        me: Rank(0),
        backing: None,
        regions: vec![region],
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn a_shared_memory_that_takes_nothing_is_named_with_what_to_do() {
        for (errno, words) in [
            (Errno::ENOSPC, ["No space left", "size=", "--shm-size"]),
            (Errno::EROFS, ["Read-only", "remount,rw", "/dev/shm"]),
        ] {
            let text = told(&errno.into());
            assert!(text.starts_with("/dev/shm: "), "{text}");
            assert!(text.ends_with("TF_TP_ROCE_WIRE=tcp"), "{text}");
            assert!(words.iter().all(|word| text.contains(word)), "{text}");
        }
        assert!(!told(&Errno::EACCES.into()).contains("TF_TP_ROCE_WIRE"));
    }
}
