//! What is refused before anything is sent.

use super::{Call, CollectiveError};
use crate::oracle;
use crate::types::{Rank, World};
use std::ops::Range;

/// A call whose arguments are being checked.
#[derive(Clone, Copy)]
pub(crate) struct Checked {
    pub(crate) call: Call,
    pub(crate) me: Rank,
    pub(crate) world: World,
}

impl Checked {
    fn invalid(&self, reason: String) -> CollectiveError {
        CollectiveError::Invalid {
            call: self.call,
            reason,
        }
    }

    /// Bytes of `count` elements, and of `world` times as many, if an address can hold them.
    pub(crate) fn bytes(&self, count: usize) -> Result<usize, CollectiveError> {
        let bytes = count.checked_mul(self.call.dtype.size());
        let fits = |b: &usize| {
            b.checked_mul(self.world.size())
                .is_some_and(|all| isize::try_from(all).is_ok())
        };
        bytes.filter(fits).ok_or_else(|| {
            self.invalid(format!(
                "{count} elements on {} ranks are more than an address can hold",
                self.world
            ))
        })
    }

    /// Messages number their parts with 32 bits.
    pub(crate) fn parts(&self, bytes: usize, part: usize) -> Result<(), CollectiveError> {
        if bytes / part < (u32::MAX / 2) as usize {
            return Ok(());
        }
        Err(self.invalid(format!("{bytes} bytes are too many parts of {part} bytes")))
    }

    pub(crate) fn defined(&self) -> Result<(), CollectiveError> {
        match self.call.op {
            Some(op) if !oracle::defined(self.call.dtype, op) => Err(CollectiveError::Unsupported {
                call: self.call,
                reason: format!("{} has no {op}; max and min are defined", self.call.dtype),
            }),
            _ => Ok(()),
        }
    }

    /// A peer is another rank of the world.
    pub(crate) fn peer(&self, peer: Rank) -> Result<(), CollectiveError> {
        if peer == self.me {
            return Err(self.invalid(format!("rank {peer} is this rank; name another one")));
        }
        self.rank("peer", peer)
    }

    pub(crate) fn rank(&self, what: &str, rank: Rank) -> Result<(), CollectiveError> {
        if rank.0 < self.world.0 {
            return Ok(());
        }
        Err(self.invalid(format!("{what} {rank} is no rank of a world of {}", self.world)))
    }

    /// Neither buffer is null, and they overlap only where `in_place` allows it: there both begin at the given place.
    pub(crate) fn buffers(
        &self,
        send: (*const u8, usize),
        recv: (*mut u8, usize),
        in_place: usize,
        shared: usize,
    ) -> Result<(), CollectiveError> {
        let range = |at: usize, len: usize| at..at.saturating_add(len);
        let (read, written) = (range(send.0.addr(), send.1), range(recv.0.addr(), recv.1));
        for (what, range) in [("send", &read), ("receive", &written)] {
            if range.start == 0 && !range.is_empty() {
                return Err(self.invalid(format!("the {what} buffer is null")));
            }
        }
        let overlap = |a: &Range<usize>, b: &Range<usize>| a.start < b.end && b.start < a.end;
        if !overlap(&read, &written) || in_place == shared {
            return Ok(());
        }
        Err(self.invalid("the buffers overlap other than in place".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::CallKind;
    use crate::types::{DType, ReduceOp};

    fn checked(op: Option<ReduceOp>, dtype: DType) -> Checked {
        let call = Call {
            op,
            ..Call::new(CallKind::AllReduce, dtype, 16)
        };
        Checked {
            call,
            me: Rank(1),
            world: World(3),
        }
    }

    #[test]
    fn counts_that_no_address_can_hold_are_refused() {
        assert_eq!(checked(None, DType::F32).bytes(8).unwrap(), 32);
        assert!(checked(None, DType::F32).bytes(usize::MAX / 4).is_err());
        assert!(checked(None, DType::F64).bytes(usize::MAX / 16).is_err());
    }

    #[test]
    fn peers_are_other_ranks_of_the_world() {
        let checked = checked(None, DType::U8);
        checked.peer(Rank(2)).unwrap();
        assert!(
            checked
                .peer(Rank(1))
                .unwrap_err()
                .to_string()
                .contains("this rank")
        );
        assert!(
            checked
                .peer(Rank(3))
                .unwrap_err()
                .to_string()
                .contains("world of 3")
        );
    }

    #[test]
    fn sums_of_bytes_are_refused_with_what_is_defined() {
        let error = checked(Some(ReduceOp::Sum), DType::U8).defined().unwrap_err();
        assert!(error.to_string().contains("max and min"), "{error}");
        checked(Some(ReduceOp::Max), DType::U8).defined().unwrap();
    }
}
