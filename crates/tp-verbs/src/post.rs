//! The posting layer: turns what a transport wants sent into requests, and refuses what would leave either region.
//!
//! Nothing here touches a device, so every rule is tested without one. A [`Chain`] exists only if every request of it
//! passed.

use std::ops::Range;

/// Bytes that one RDMA write may carry at most.
pub const MAX_WRITE: u32 = 1 << 20;

/// Requests of one chain at most.
pub const MAX_CHAIN: usize = 8;

/// A range that a key gives access to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Address of the first byte.
    pub start: u64,
    /// Bytes.
    pub length: u64,
    /// `lkey` of a local, `rkey` of a remote window.
    pub key: u32,
}

impl Window {
    /// Whether `length` bytes from `address` on lie inside.
    #[inline]
    fn holds(&self, address: u64, length: u64) -> bool {
        let offset = address.checked_sub(self.start);
        offset.is_some_and(|offset| length <= self.length && offset <= self.length - length)
    }
}

/// Payload to be written: addresses in the two windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Address of the first byte here.
    pub local: u64,
    /// Address of the first byte there.
    pub remote: u64,
    /// Bytes, 1 to [`MAX_WRITE`].
    pub length: u32,
}

/// A flag that is written after the payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Address of the 4-byte word there.
    pub remote: u64,
    /// The sequence number to be seen there; never 0, which means "nothing yet".
    pub value: u32,
}

/// What one operation puts over one queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Put<'a> {
    /// Returned with the completion.
    pub id: u64,
    /// Key that the caller thinks covers the local addresses.
    pub local_key: u32,
    /// Key that the caller thinks covers the remote addresses.
    pub remote_key: u32,
    /// The payload, in this order.
    pub writes: &'a [Write],
    /// The flags, written after all of the payload.
    pub flags: &'a [Flag],
    /// The last write carries flags of this value inside itself; there are no separate ones.
    pub flags_inside: Option<u32>,
}

/// Where a request's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// The local window.
    Memory {
        /// Address of the first byte.
        address: u64,
        /// Local key.
        key: u32,
        /// Copied into the request when it is posted, so that the memory is free again at once.
        inline: bool,
    },
    /// These four bytes, in the machine's order, carried in the request itself.
    Value(u32),
}

/// One RDMA write that passed every check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Where the bytes come from.
    pub source: Source,
    /// Address of the first byte there.
    pub remote: u64,
    /// Remote key.
    pub remote_key: u32,
    /// Bytes.
    pub length: u32,
    /// Whether it leaves a completion.
    pub signaled: bool,
}

/// Requests to be posted together, in order; only the last leaves a completion.
#[derive(Clone, Copy, Debug)]
pub struct Chain {
    id: u64,
    requests: [Request; MAX_CHAIN],
    length: usize,
}

impl Chain {
    /// The number that the completion returns.
    #[inline]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The requests, in order; at least one.
    #[inline]
    pub fn requests(&self) -> &[Request] {
        &self.requests[..self.length]
    }
}

/// Why a put was not posted. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// It would write nothing.
    #[error("refused to post: there is nothing to write")]
    Nothing,
    /// The peer would never learn of the payload.
    #[error("refused to post: no flag follows the payload, so the peer would never see it")]
    NoFlag,
    /// Flag value 0 means "nothing yet".
    #[error("refused to post: flag {number} has the value 0, which the peer takes for nothing")]
    ZeroFlag {
        /// Position of the flag, from 0.
        number: usize,
    },
    /// A flag that is not a whole word.
    #[error("refused to post: flag {number} at {address:#x} is not on a 4-byte boundary")]
    FlagUnaligned {
        /// Position of the flag, from 0.
        number: usize,
        /// Its address there.
        address: u64,
    },
    /// Where the last write carries the flags, there is one, and no flags come after it.
    #[error("refused to post: where the last write carries the flags, there are no others")]
    FlagsInside,
    /// A write without bytes.
    #[error("refused to post: write {number} has no bytes")]
    Empty {
        /// Position of the write, from 0.
        number: usize,
    },
    /// A write above the cap.
    #[error("refused to post: write {number} of {length} bytes is over the limit of {MAX_WRITE}")]
    TooLong {
        /// Position of the write, from 0.
        number: usize,
        /// Its bytes.
        length: u32,
    },
    /// The bytes are not all in this end's region.
    #[error(
        "refused to post: {length} bytes from {address:#x} are not inside this end's region {}",
        region(window)
    )]
    LocalRange {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u32,
        /// The region.
        window: Window,
    },
    /// The bytes are not all in the peer's region.
    #[error(
        "refused to post: {length} bytes from {address:#x} are not inside the peer's region {}",
        region(window)
    )]
    RemoteRange {
        /// First byte.
        address: u64,
        /// Bytes.
        length: u32,
        /// The region.
        window: Window,
    },
    /// The local key is another region's.
    #[error("refused to post: local key {given:#x} is not that of the region, {expected:#x}")]
    LocalKey {
        /// The caller's.
        given: u32,
        /// The region's.
        expected: u32,
    },
    /// The remote key is another region's.
    #[error("refused to post: remote key {given:#x} is not what the peer registered, {expected:#x}")]
    RemoteKey {
        /// The caller's.
        given: u32,
        /// The peer's.
        expected: u32,
    },
    /// More requests than one chain takes.
    #[error("refused to post: {requests} requests at once, {MAX_CHAIN} are the most")]
    TooMany {
        /// Writes and flags together.
        requests: usize,
    },
}

fn region(window: &Window) -> String {
    format!("{:#x}+{:#x}", window.start, window.length)
}

/// What may be posted over one queue pair: from one region of this end into one region of the peer.
#[derive(Clone, Copy, Debug)]
pub struct Poster {
    /// This end's region.
    pub local: Window,
    /// The peer's region.
    pub remote: Window,
    /// Bytes that the queue pair takes inside a request.
    pub max_inline: u32,
}

impl Poster {
    /// The requests of one put.
    ///
    /// # Errors
    /// [`Refused`], with the first rule that it breaks.
    #[inline]
    pub fn chain(&self, put: &Put<'_>) -> Result<Chain, Refused> {
        self.check_shape(put)?;
        if put.local_key != self.local.key && !put.writes.is_empty() {
            return Err(Refused::LocalKey {
                given: put.local_key,
                expected: self.local.key,
            });
        }
        if put.remote_key != self.remote.key {
            return Err(Refused::RemoteKey {
                given: put.remote_key,
                expected: self.remote.key,
            });
        }
        let nothing = Request {
            source: Source::Value(0),
            remote: 0,
            remote_key: 0,
            length: 0,
            signaled: false,
        };
        let mut chain = Chain {
            id: put.id,
            requests: [nothing; MAX_CHAIN],
            length: 0,
        };
        for (number, write) in put.writes.iter().enumerate() {
            let last = number + 1 == put.writes.len();
            chain.push(self.write(number, write, last && put.flags_inside.is_some())?);
        }
        for (number, flag) in put.flags.iter().enumerate() {
            chain.push(self.flag(number, flag)?);
        }
        if let Some(last) = chain.length.checked_sub(1) {
            chain.requests[last].signaled = true;
        }
        Ok(chain)
    }

    #[inline]
    fn check_shape(&self, put: &Put<'_>) -> Result<(), Refused> {
        let requests = put.writes.len() + put.flags.len();
        if requests == 0 {
            return Err(Refused::Nothing);
        }
        match put.flags_inside {
            Some(_) if put.writes.is_empty() || !put.flags.is_empty() => return Err(Refused::FlagsInside),
            Some(0) => return Err(Refused::ZeroFlag { number: 0 }),
            None if put.flags.is_empty() => return Err(Refused::NoFlag),
            _ => {}
        }
        if requests > MAX_CHAIN {
            Err(Refused::TooMany { requests })
        } else {
            Ok(())
        }
    }

    #[inline]
    fn write(&self, number: usize, write: &Write, flags_inside: bool) -> Result<Request, Refused> {
        let Write {
            local,
            remote,
            length,
        } = *write;
        if length == 0 {
            return Err(Refused::Empty { number });
        }
        if length > MAX_WRITE {
            return Err(Refused::TooLong { number, length });
        }
        if !self.local.holds(local, u64::from(length)) {
            return Err(Refused::LocalRange {
                address: local,
                length,
                window: self.local,
            });
        }
        self.check_remote(remote, length)?;
        if flags_inside && !remote.is_multiple_of(4) {
            return Err(Refused::FlagUnaligned {
                number: 0,
                address: remote,
            });
        }
        let inline = flags_inside && length <= self.max_inline;
        let source = Source::Memory {
            address: local,
            key: self.local.key,
            inline,
        };
        Ok(Request {
            source,
            remote,
            remote_key: self.remote.key,
            length,
            signaled: false,
        })
    }

    #[inline]
    fn flag(&self, number: usize, flag: &Flag) -> Result<Request, Refused> {
        if flag.value == 0 {
            return Err(Refused::ZeroFlag { number });
        }
        if !flag.remote.is_multiple_of(4) {
            return Err(Refused::FlagUnaligned {
                number,
                address: flag.remote,
            });
        }
        self.check_remote(flag.remote, 4)?;
        let source = Source::Value(flag.value);
        Ok(Request {
            source,
            remote: flag.remote,
            remote_key: self.remote.key,
            length: 4,
            signaled: false,
        })
    }

    #[inline]
    fn check_remote(&self, address: u64, length: u32) -> Result<(), Refused> {
        if self.remote.holds(address, u64::from(length)) {
            Ok(())
        } else {
            Err(Refused::RemoteRange {
                address,
                length,
                window: self.remote,
            })
        }
    }
}

impl Chain {
    /// Adds one; the caller has checked that there is room.
    #[inline]
    fn push(&mut self, request: Request) {
        if let Some(place) = self.requests.get_mut(self.length) {
            *place = request;
            self.length += 1;
        }
    }
}

/// The part of `bytes` that rail `rail` of `rails` carries: whole 16-byte packs, contiguous in rail order, the first rails
/// one pack more where they do not divide. `bytes` is a multiple of 16. Empty for a rail that has nothing to carry.
pub fn stripe(bytes: u64, rail: u64, rails: u64) -> Range<u64> {
    let (packs, rails) = (bytes / 16, rails.max(1));
    let (each, more) = (packs / rails, packs % rails);
    let start = each * rail.min(rails) + rail.min(more);
    let length = if rail >= rails {
        0
    } else {
        each + u64::from(rail < more)
    };
    start * 16..(start + length) * 16
}
