//! The file that the ranks of a host share, and how the others come by it.
//!
//! Where the system can, the file has no name: the others open it through rank 0's descriptor, and it goes with the last
//! process that has it, whenever that ends. Ranks that do not see each other's processes get one with a random name
//! instead, removed again once all have opened it; only a rank 0 that is killed in between leaves that behind.

use crate::os;
use nix::fcntl::OFlag;
use nix::sys::mman::{shm_open, shm_unlink};
use nix::sys::stat::{FileStat, Mode, fstat};
use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// What names of shared-memory files begin with.
const PREFIX: &str = "/tf-tp-";

/// Rank 0's hold on the file. Its name, if it has one, is removed when this is dropped.
pub(super) struct SharedFile {
    place: Place,
    fd: OwnedFd,
}

impl SharedFile {
    /// A file without a name, of `len` zeros; one with a name where the system has no such files.
    pub fn nameless(len: usize) -> io::Result<Self> {
        let Ok(fd) = os::nameless_shared_file() else {
            return Self::named(len);
        };
        resize(&fd, len)?;
        let stat = fstat(&fd)?;
        let place = Place::Descriptor {
            pid: std::process::id(),
            fd: fd.as_raw_fd(),
            identity: Identity::of(&stat),
        };
        Ok(Self { place, fd })
    }

    /// A file under a random name that did not exist, for this user alone.
    pub fn named(len: usize) -> io::Result<Self> {
        let mut raw = [0u8; 12];
        getrandom::fill(&mut raw).map_err(|e| io::Error::other(e.to_string()))?;
        let name = format!("{PREFIX}{}", hex::encode(raw));
        let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_RDWR | OFlag::O_CLOEXEC;
        let fd = shm_open(name.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
        let file = Self {
            place: Place::Name(name),
            fd,
        };
        resize(&file.fd, len)?;
        Ok(file)
    }

    /// Where the others find it.
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// One more descriptor of it.
    pub fn fd(&self) -> io::Result<OwnedFd> {
        self.fd.try_clone()
    }
}

fn resize(fd: &OwnedFd, len: usize) -> io::Result<()> {
    let len = i64::try_from(len).map_err(io::Error::other)?;
    Ok(nix::unistd::ftruncate(fd, len)?)
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if let Place::Name(name) = &self.place
            && let Err(errno) = shm_unlink(name.as_str())
        {
            tracing::warn!(name, %errno, "failed to remove the shared memory's name");
        }
    }
}

/// What tells a file from every other of this system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    // The field types differ among systems.
    #[allow(clippy::unnecessary_cast, reason = "not unnecessary on every system")]
    fn of(stat: &FileStat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
        }
    }
}

/// Where a file is found by the other ranks. Its text is what rank 0 sends them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// A descriptor of rank 0's process, and what must be found there.
    Descriptor { pid: u32, fd: i32, identity: Identity },
    /// A name for `shm_open`.
    Name(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Descriptor { pid, fd, identity } => {
                write!(f, "{pid} {fd} {} {}", identity.device, identity.inode)
            }
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Place {
    /// Reads what rank 0 sent.
    pub fn parse(bytes: &[u8]) -> io::Result<Self> {
        let odd = || {
            let text = String::from_utf8_lossy(bytes);
            io::Error::other(format!("rank 0 names it `{}`", crate::text::line(&text, 80)))
        };
        let text = std::str::from_utf8(bytes).map_err(|_| odd())?;
        if let Some(rest) = text.strip_prefix(PREFIX) {
            let known = !rest.is_empty() && rest.len() <= 64 && rest.bytes().all(|b| b.is_ascii_hexdigit());
            return if known {
                Ok(Self::Name(text.to_owned()))
            } else {
                Err(odd())
            };
        }
        let place = || {
            let mut words = text.split(' ');
            let place = Self::Descriptor {
                pid: words.next()?.parse().ok()?,
                fd: words.next()?.parse().ok()?,
                identity: Identity {
                    device: words.next()?.parse().ok()?,
                    inode: words.next()?.parse().ok()?,
                },
            };
            words.next().is_none().then_some(place)
        };
        place().ok_or_else(odd)
    }

    /// Opens the file that rank 0 made, and checks that it is that.
    pub fn open(&self, len: usize) -> io::Result<OwnedFd> {
        let fd = match self {
            Self::Descriptor { pid, fd, .. } => os::open_descriptor_of(*pid, *fd)?,
            Self::Name(name) => shm_open(name.as_str(), OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?,
        };
        let stat = fstat(&fd)?;
        if let Self::Descriptor { identity, .. } = self
            && *identity != Identity::of(&stat)
        {
            return Err(io::Error::other(format!("there is another file at `{self}`")));
        }
        let user = nix::unistd::geteuid().as_raw();
        if stat.st_uid != user {
            return Err(io::Error::other(format!(
                "{self} belongs to user {}, not to user {user}",
                stat.st_uid
            )));
        }
        if u64::try_from(stat.st_size) != Ok(len as u64) {
            return Err(io::Error::other(format!(
                "{self} has {} bytes where {len} are needed",
                stat.st_size
            )));
        }
        Ok(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_reads_back_as_it_was_written_and_nothing_else_does() {
        let file = SharedFile::named(4096).unwrap();
        let other = SharedFile::nameless(4096).unwrap();
        for file in [&file, &other] {
            let read = Place::parse(file.place().to_string().as_bytes()).unwrap();
            assert_eq!(&read, file.place());
            let opened = read.open(4096).unwrap();
            assert_eq!(
                Identity::of(&fstat(&opened).unwrap()),
                Identity::of(&fstat(&file.fd).unwrap())
            );
            assert!(read.open(8192).unwrap_err().to_string().contains("8192"));
        }
        for odd in [
            "",
            "/",
            "/tf-tp-",
            "/tf-tp-../x",
            "/etc/passwd",
            "1 2 3",
            "1 2 3 4 5",
            "1 -2 x 4",
            "a b c d",
            "\u{fffd}",
        ] {
            assert!(Place::parse(odd.as_bytes()).is_err(), "{odd}");
        }
        assert!(Place::parse(&[0xff, 0xfe]).is_err());
    }

    #[test]
    #[cfg(all(target_os = "linux", not(portable_os)))]
    fn a_descriptor_of_another_file_is_refused() {
        let file = SharedFile::nameless(4096).unwrap();
        let Place::Descriptor { pid, fd, identity } = file.place().clone() else {
            panic!("{} is no descriptor", file.place());
        };
        let inode = identity.inode + 1;
        let place = Place::Descriptor {
            pid,
            fd,
            identity: Identity { inode, ..identity },
        };
        let error = place.open(4096).unwrap_err();
        assert!(error.to_string().contains("another file"), "{error}");
    }
}
