//! The argument of the exchange kernels, as `kernels/exchange.cuh` declares it.

use super::route::Route;
use crate::types::{DType, ReduceOp};
use std::time::Duration;

/// Most members of one exchange.
pub const MAX_MEMBERS: usize = 8;
/// `root` where every member sends.
pub const ALL_SEND: u32 = MAX_MEMBERS as u32;

/// What becomes of the bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mode {
    /// Each rank's bytes land in its own block of the result.
    Gather = 0,
    /// All ranks' bytes are combined in rank order.
    Reduce = 1,
    /// The other member's bytes are the result.
    Exchange = 2,
}

/// One launch; the meaning of every field stands in `kernels/exchange.cuh`. Addresses are the device's.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel header describes the fields, once")]
pub struct ExchangeArgs {
    pub send: u64,
    pub own: u64,
    pub recv: u64,
    pub bytes: u64,
    pub send_stride: u64,
    pub recv_stride: u64,
    pub out: [u64; MAX_MEMBERS],
    pub input: [u64; MAX_MEMBERS],
    pub sequence: u64,
    pub poison: u64,
    pub control: u64,
    pub wait_ns: u64,
    pub half_bytes: u64,
    pub members: u32,
    pub me: u32,
    pub outs: u32,
    pub mode: u32,
    pub element: u32,
    pub op: u32,
    pub root: u32,
    pub rounds: u32,
    pub share: u64,
    pub region_bytes: u64,
}

const _: () = assert!(
    size_of::<ExchangeArgs>() == 264,
    "kernels/exchange.cuh asserts the same size"
);

/// One launch of a short kernel of lines, as `kernels/exchange_lines_fast.cuh` declares it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel describes the fields, once")]
pub struct LineArgs {
    pub own: u64,
    pub recv: u64,
    pub sequence: u64,
    pub poison: u64,
    pub out: u64,
    pub input: u64,
    pub packs: u32,
    pub half_bytes: u32,
    pub rounds: u16,
    pub block_tiles: u16,
    pub me: u32,
    pub more_out: [u64; MAX_MEMBERS - 2],
    pub more_input: [u64; MAX_MEMBERS - 2],
    pub recv_stride: u64,
    pub control: u64,
    pub wait_ns: u64,
    pub members: u32,
    pub pause: u32,
    pub stagger: u32,
    pub unused: u32,
}

const _: () = assert!(
    size_of::<LineArgs>() == 200,
    "kernels/exchange_lines_fast.cuh asserts the same size"
);

impl LineArgs {
    /// The short form of a launch of whole packs that are the same for every reader.
    pub fn of(args: &ExchangeArgs, route: &Route) -> Self {
        let (members, me) = (args.members as usize, args.me as usize);
        let others = || (0..members).filter(move |r| *r != me);
        let mut out = [0; MAX_MEMBERS - 1];
        for (place, lane) in out.iter_mut().zip(args.out.iter().filter(|lane| **lane != 0)) {
            *place = *lane;
        }
        // Places without a member repeat the first, so that the kernel need not ask.
        let mut input = [others().next().map_or(0, |r| args.input[r]); MAX_MEMBERS - 1];
        for (place, r) in input.iter_mut().zip(others()) {
            *place = args.input[r];
        }
        let ([out, more_out @ ..], [input, more_input @ ..]) = (out, input);
        Self {
            own: args.own,
            recv: args.recv,
            sequence: args.sequence,
            poison: args.poison,
            out,
            input,
            packs: (args.bytes / 16) as u32,
            half_bytes: args.half_bytes as u32,
            rounds: args.rounds as u16,
            block_tiles: route.block_tiles,
            me: args.me,
            more_out,
            more_input,
            recv_stride: args.recv_stride / 16,
            control: args.control,
            wait_ns: args.wait_ns,
            members: args.members,
            pause: route.pause,
            stagger: route.stagger,
            unused: 0,
        }
    }
}

/// One all-reduce in two shots, as `kernels/exchange_two_shot.cu` declares it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel describes the fields, once")]
pub struct TwoShotArgs {
    pub send: u64,
    pub recv: u64,
    pub bytes: u64,
    pub scatter_in: [u64; MAX_MEMBERS],
    pub flags_out: [u64; MAX_MEMBERS],
    pub flags_in: u64,
    pub scatter_out: [u64; MAX_MEMBERS - 1],
    pub gather_in: [u64; MAX_MEMBERS - 1],
    pub gather_out: [u64; MAX_MEMBERS - 1],
    pub first: [u32; MAX_MEMBERS - 1],
    pub packs: [u32; MAX_MEMBERS - 1],
    pub own_first: u32,
    pub own_packs: u32,
    pub sequence: u64,
    pub poison: u64,
    pub control: u64,
    pub wait_ns: u64,
    pub members: u32,
    pub me: u32,
    pub element: u32,
    pub op: u32,
    pub shard: u32,
    pub share: u32,
    pub chunk: u32,
    pub region: u32,
    pub senders: u32,
    pub pace: u32,
    pub stagger: u32,
    pub chunks: u32,
    pub send_turn: u32,
    pub work_turn: u32,
    pub poll: u32,
    pub unused: u32,
}

const _: () = assert!(
    size_of::<TwoShotArgs>() == 488,
    "kernels/exchange_two_shot.cu asserts the same size"
);

/// One launch of the exchange by post, as `kernels/exchange_posted.cu` declares it.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
#[expect(missing_docs, reason = "the kernel describes the fields, once")]
pub struct PostedArgs {
    pub send: u64,
    pub own: u64,
    pub recv: u64,
    pub bytes: u64,
    pub send_stride: u64,
    pub recv_stride: u64,
    pub region: u64,
    pub state: u64,
    pub wait_ns: u64,
    pub call: [u64; 2],
    pub lines: u32,
    pub posts: u32,
    pub staging: u32,
    pub inbox: u32,
    pub slot: u32,
    pub doorbell: u32,
    pub completed: u32,
    pub control: u32,
    pub post_mask: u32,
    pub consumed: u32,
    pub world: u32,
    pub me: u32,
    pub peers: u32,
    pub senders: u32,
    pub mode: u32,
    pub element: u32,
    pub op: u32,
    pub part: u32,
}

const _: () = assert!(
    size_of::<PostedArgs>() == 160,
    "kernels/exchange_posted.cu asserts the same size"
);

/// Bytes of the device memory of one transport by post: `PostedState` of the kernel.
pub(crate) const POSTED_STATE: usize = 32 + 2 * 64 * 8;

/// A bound of waits, as the kernels count.
pub(crate) fn nanoseconds(wait: Duration) -> u64 {
    u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)
}

/// The kernels' number of an element type.
pub fn element(dtype: DType) -> u32 {
    dtype as u32
}

/// The kernels' number of an operation.
pub fn operation(op: ReduceOp) -> u32 {
    op as u32
}

#[cfg(test)]
mod tests {
    use super::super::route::Protocol;
    use super::*;

    /// Three members in a kernel for four: the third place among the others repeats the first.
    #[test]
    fn the_short_form_names_the_others_in_rank_order() {
        let mut args = ExchangeArgs {
            members: 3,
            me: 1,
            bytes: 4096,
            recv_stride: 4096,
            ..EMPTY
        };
        (args.input[0], args.input[2], args.out[0], args.out[2]) = (10, 12, 20, 22);
        let short = LineArgs::of(&args, &ROUTE);
        assert_eq!((short.input, &short.more_input[..2]), (10, [12, 10].as_slice()));
        assert_eq!((short.out, &short.more_out[..2]), (20, [22, 0].as_slice()));
        assert_eq!(
            (short.packs, short.recv_stride, short.me, short.members),
            (256, 256, 1, 3)
        );
    }

    #[test]
    fn one_copy_for_all_readers_is_written_once() {
        let mut args = ExchangeArgs {
            members: 4,
            me: 3,
            ..EMPTY
        };
        (args.input, args.out[0]) = ([1, 2, 3, 0, 0, 0, 0, 0], 99);
        let short = LineArgs::of(&args, &ROUTE);
        assert_eq!((short.out, short.more_out), (99, [0; 6]));
        assert_eq!((short.input, short.more_input), (1, [2, 3, 1, 1, 1, 1]));
    }

    const ROUTE: Route = Route {
        protocol: Protocol::Lines,
        grid: 1,
        threads: 96,
        rounds: 1,
        block_tiles: 8,
        pause: 0,
        stagger: 0,
        bytes: 4096,
    };

    const EMPTY: ExchangeArgs = ExchangeArgs {
        send: 0,
        own: 0,
        recv: 0,
        bytes: 0,
        send_stride: 0,
        recv_stride: 0,
        out: [0; MAX_MEMBERS],
        input: [0; MAX_MEMBERS],
        sequence: 0,
        poison: 0,
        control: 0,
        wait_ns: 0,
        half_bytes: 0,
        members: 0,
        me: 0,
        outs: 0,
        mode: 0,
        element: 0,
        op: 0,
        root: ALL_SEND,
        rounds: 1,
        share: 0,
        region_bytes: 0,
    };

    #[test]
    fn numbers_are_those_of_the_kernels() {
        let elements: Vec<u32> = DType::ALL.iter().map(|d| element(*d)).collect();
        assert_eq!(
            elements,
            [0, 1, 2, 3, 4, 5, 6],
            "u8 i32 i64 f16 bf16 f32 f64, as kernels/exchange_reduce.cuh"
        );
        let operations: Vec<u32> = ReduceOp::ALL.iter().map(|o| operation(*o)).collect();
        assert_eq!(operations, [0, 1, 2], "sum max min");
    }
}
