//! What a call is, as it travels beside the data and stands in errors.

use crate::types::{DType, Rank, ReduceOp};
use std::fmt;

/// Which collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CallKind {
    /// `all_reduce`.
    AllReduce = 1,
    /// `reduce_scatter`.
    ReduceScatter = 2,
    /// `all_gather`.
    AllGather = 3,
    /// `all_gather_v`.
    AllGatherV = 4,
    /// `broadcast`.
    Broadcast = 5,
    /// `exchange`.
    Exchange = 6,
    /// `send`, seen as `recv` by the other end.
    SendRecv = 7,
    /// `barrier`.
    Barrier = 8,
}

impl CallKind {
    const ALL: [Self; 8] = [
        Self::AllReduce,
        Self::ReduceScatter,
        Self::AllGather,
        Self::AllGatherV,
        Self::Broadcast,
        Self::Exchange,
        Self::SendRecv,
        Self::Barrier,
    ];

    /// The call's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllGather => "all_gather",
            Self::AllGatherV => "all_gather_v",
            Self::Broadcast => "broadcast",
            Self::Exchange => "exchange",
            Self::SendRecv => "send/recv",
            Self::Barrier => "barrier",
        }
    }
}

/// A call with its arguments, as far as ranks must agree on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Call {
    /// Which collective.
    pub kind: CallKind,
    /// Element type; `u8` for a barrier.
    pub dtype: DType,
    /// The combination, of reductions.
    pub op: Option<ReduceOp>,
    /// The root of a broadcast.
    pub root: Option<Rank>,
    /// Bytes of the call's count: of the whole buffer for `all_reduce` and `broadcast`, of one rank's block for
    /// `reduce_scatter`, `all_gather`, `exchange` and `send`/`recv`; for `all_gather_v` the stride.
    pub bytes: u64,
}

impl Call {
    /// Length of the encoded form.
    pub const ENCODED: usize = 16;
    const NONE: u8 = 0xff;

    /// A call without operation and root.
    pub fn new(kind: CallKind, dtype: DType, bytes: usize) -> Self {
        Self {
            kind,
            dtype,
            op: None,
            root: None,
            bytes: bytes as u64,
        }
    }

    /// A barrier.
    pub fn barrier() -> Self {
        Self::new(CallKind::Barrier, DType::U8, 0)
    }

    /// The bytes that travel: kind, element type, operation, 0, root (u32), bytes (u64), little endian.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        out[0] = self.kind as u8;
        out[1] = self.dtype as u8;
        out[2] = self.op.map_or(Self::NONE, |op| op as u8);
        out[4..8].copy_from_slice(&self.root.map_or(u32::MAX, |r| r.0).to_le_bytes());
        out[8..].copy_from_slice(&self.bytes.to_le_bytes());
        out
    }

    /// Reads what [`encode`](Self::encode) wrote; `None` where a byte has no meaning.
    pub fn decode(raw: &[u8; Self::ENCODED]) -> Option<Self> {
        let op = match raw[2] {
            Self::NONE => None,
            other => Some(*ReduceOp::ALL.get(usize::from(other))?),
        };
        let [_, _, _, _, r0, r1, r2, r3, bytes @ ..] = raw;
        let root = match u32::from_le_bytes([*r0, *r1, *r2, *r3]) {
            u32::MAX => None,
            other => Some(Rank(other)),
        };
        Some(Self {
            kind: *CallKind::ALL.iter().find(|k| **k as u8 == raw[0])?,
            dtype: *DType::ALL.get(usize::from(raw[1]))?,
            op,
            root,
            bytes: u64::from_le_bytes(*bytes),
        })
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.name())?;
        if self.kind == CallKind::Barrier {
            return Ok(());
        }
        if let Some(op) = self.op {
            write!(f, " {op}")?;
        }
        write!(f, " {} {} B", self.dtype, self.bytes)?;
        if let Some(root) = self.root {
            write!(f, " from rank {root}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_survives_the_way_over_the_wire() {
        for kind in CallKind::ALL {
            for dtype in DType::ALL {
                for op in [
                    None,
                    Some(ReduceOp::Sum),
                    Some(ReduceOp::Max),
                    Some(ReduceOp::Min),
                ] {
                    for root in [None, Some(Rank(0)), Some(Rank(63))] {
                        let call = Call {
                            kind,
                            dtype: *dtype,
                            op,
                            root,
                            bytes: 0x0123_4567_89ab,
                        };
                        assert_eq!(Call::decode(&call.encode()), Some(call));
                    }
                }
            }
        }
    }

    #[test]
    fn bytes_without_a_meaning_are_no_call() {
        let good = Call::new(CallKind::AllGather, DType::F32, 4).encode();
        for (at, value) in [(0, 0), (0, 9), (1, 7), (2, 3)] {
            let mut bad = good;
            bad[at] = value;
            assert_eq!(Call::decode(&bad), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn a_call_is_named_with_what_ranks_must_agree_on() {
        let call = Call {
            op: Some(ReduceOp::Sum),
            ..Call::new(CallKind::AllReduce, DType::Bf16, 4096)
        };
        assert_eq!(call.to_string(), "all_reduce sum bf16 4096 B");
        let call = Call {
            root: Some(Rank(2)),
            ..Call::new(CallKind::Broadcast, DType::U8, 1)
        };
        assert_eq!(call.to_string(), "broadcast u8 1 B from rank 2");
        assert_eq!(Call::new(CallKind::Barrier, DType::U8, 0).to_string(), "barrier");
    }
}
