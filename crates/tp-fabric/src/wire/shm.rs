//! The shared-memory wire: the regions of all ranks of a host in one file, which every rank maps.
//!
//! Rank 0 makes the file under a random name, for its user alone; it must not exist yet. As soon as every rank has
//! mapped it, or one could not, the name is removed, so that nothing is left behind however the ranks end.

use super::{Opened, Parcel, Wire, WireError};
use crate::host::OpenError;
use crate::meeting::Meeting;
use crate::os;
use crate::region::{Bay, Layout, Mapping, Region, Word, Words, layout};
use crate::types::{Rank, WireKind};
use nix::fcntl::OFlag;
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::stat::{Mode, fstat};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

/// Opens the wire. Collective over `meeting`; the ranks must be on one host and have agreed on `layout`.
pub fn open(meeting: &mut dyn Meeting, layout: Layout) -> Result<Opened, OpenError> {
    let me = meeting.rank();
    let stride = layout.total().next_multiple_of(layout::PAGE);
    let len = stride.checked_mul(layout.world().size());
    let len = len.ok_or_else(|| failed("size the shared memory", "more bytes than an address can hold"))?;

    let made = if me == Rank(0) {
        Some(SharedFile::create(len))
    } else {
        None
    };
    let outcome = match &made {
        Some(Err(error)) => Err(error.to_string()),
        Some(Ok(_)) | None => Ok(()),
    };
    meeting.verdict("make the shared memory", outcome)?;
    let mine = made
        .transpose()
        .map_err(|e| failed("make the shared memory", &e.to_string()))?;
    let name = mine.as_ref().map_or("", |file| file.name.as_str());
    let name = meeting.broadcast("name the shared memory", name.as_bytes())?;

    let mapped = match &mine {
        Some(file) => map(&file.fd, len),
        None => open_named(&name, len).and_then(|fd| map(&fd, len)),
    };
    let mapped = mapped.and_then(|(mapping, fd)| {
        // Each rank has its own part backed now, so that a full /dev/shm is an error here and not a signal later.
        os::reserve(&fd, (me.index() * stride) as u64, stride as u64)?;
        Ok(mapping)
    });
    let outcome = mapped.as_ref().map(drop).map_err(io::Error::to_string);
    let outcome = meeting.verdict("map the shared memory", outcome);
    drop(mine);
    outcome?;
    let mapping = Arc::new(mapped.map_err(|e| failed("map the shared memory", &e.to_string()))?);

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
        wire: Box::new(Shm { me, regions }),
    })
}

fn failed(what: &str, reason: &str) -> OpenError {
    OpenError::Local {
        what: what.to_owned(),
        reason: reason.to_owned(),
    }
}

/// The file while it has a name.
struct SharedFile {
    name: String,
    fd: OwnedFd,
}

impl SharedFile {
    const MODE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

    fn create(len: usize) -> io::Result<Self> {
        let mut raw = [0u8; 12];
        getrandom::fill(&mut raw).map_err(|e| io::Error::other(e.to_string()))?;
        let name = format!("/tf-tp-{}", hex::encode(raw));
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let fd = shm_open(name.as_str(), flags, Self::MODE)?;
        let file = Self { name, fd };
        let len = i64::try_from(len).map_err(io::Error::other)?;
        nix::unistd::ftruncate(&file.fd, len)?;
        Ok(file)
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Err(errno) = shm_unlink(self.name.as_str()) {
            tracing::warn!(name = self.name, %errno, "failed to remove the shared memory's name");
        }
    }
}

/// Opens the file that rank 0 made, and checks that it is that.
fn open_named(name: &[u8], len: usize) -> io::Result<OwnedFd> {
    let name = std::str::from_utf8(name).map_err(io::Error::other)?;
    if !name
        .strip_prefix("/tf-tp-")
        .is_some_and(|rest| rest.bytes().all(|b| b.is_ascii_hexdigit()))
    {
        return Err(io::Error::other(format!(
            "rank 0 names it `{}`",
            name.escape_default()
        )));
    }
    let fd = shm_open(name, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
    let stat = fstat(&fd)?;
    if stat.st_uid != nix::unistd::geteuid().as_raw() {
        return Err(io::Error::other(format!(
            "{name} belongs to user {}, not to this one",
            stat.st_uid
        )));
    }
    if u64::try_from(stat.st_size) != Ok(len as u64) {
        return Err(io::Error::other(format!(
            "{name} has {} bytes where {len} are needed",
            stat.st_size
        )));
    }
    Ok(fd)
}

fn map(fd: &OwnedFd, len: usize) -> io::Result<(Mapping, OwnedFd)> {
    Ok((Mapping::shared(fd, len)?, fd.try_clone()?))
}

/// Every rank's region, mapped.
struct Shm {
    me: Rank,
    regions: Vec<Region>,
}

impl Wire for Shm {
    fn kind(&self) -> WireKind {
        WireKind::Shm
    }

    fn put(&self, parcel: &Parcel<'_>, _: &dyn Fn() -> bool) -> Result<(), WireError> {
        let bay = Bay::of(self.me, parcel.seq);
        // SAFETY: this rank is the one writer of its bays at the peer; the caller sends message `seq` only when the
        // protocol says that its slot is free, and payloads are at most a slot.
        unsafe { self.regions[parcel.peer.index()].deliver(bay, parcel.seq, &parcel.header, parcel.payload) };
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
        regions: vec![region],
    })
}
