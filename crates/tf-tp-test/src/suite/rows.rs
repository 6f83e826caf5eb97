//! Equal rows, equal bits (field case 134): the sum of a matrix, and that of its first rows alone, cut and routed as
//! another size is.

use super::memory::{Buffer, Room};
use tp_fabric::collective::{Collectives, Stream};
use tp_fabric::fill::{self, Pattern};
use tp_fabric::oracle;
use tp_fabric::types::{BackendKind, DType, ReduceOp, World};

/// Rows of the matrix, those of its first part, and f32 values of a row.
const ROWS: usize = 2048;
const FEWER: usize = 1664;
const COLUMNS: usize = 5120;
const ROW_BYTES: usize = COLUMNS * 4;
/// The world that the check belongs to.
const WORLD: World = World(4);
/// Seed of the matrices: "rows" in ASCII.
const SEED: u64 = 0x726f_7773;

/// The check's name in a world that has it.
pub fn name(backend: BackendKind, world: World) -> Option<String> {
    (world == WORLD).then(|| format!("{backend} all_reduce sum f32 {FEWER} of {ROWS} rows of {COLUMNS}"))
}

/// How it went wrong.
pub enum Wrong {
    /// With wrong bits.
    Answer(String),
    /// The transport or the memory failed.
    Transport(String),
}

/// Sums both and compares them with each other and with the oracle.
pub fn run(on: &dyn Collectives, room: &Room, stream: Stream) -> Result<(), Wrong> {
    let bytes = ROWS * ROW_BYTES;
    let matrices: Vec<Vec<u8>> = on
        .world()
        .ranks()
        .map(|rank| fill::bytes(bytes, DType::F32, SEED, rank, Pattern::Uniform))
        .collect();
    let mine = &matrices[on.rank().index()];
    let all = sum(on, room, stream, mine)?;
    let some = sum(on, room, stream, &mine[..FEWER * ROW_BYTES])?;
    if let Some(at) = some.iter().zip(&all).position(|(a, b)| a != b) {
        return Err(Wrong::Answer(format!(
            "row {} has other bits among {FEWER} rows than among {ROWS}",
            at / ROW_BYTES
        )));
    }
    let views: Vec<&[u8]> = matrices.iter().map(Vec::as_slice).collect();
    let wanted =
        oracle::reduce(&views, DType::F32, ReduceOp::Sum).map_err(|e| Wrong::Answer(e.to_string()))?;
    match all.iter().zip(&wanted).position(|(a, b)| a != b) {
        Some(at) => Err(Wrong::Answer(format!(
            "row {} has other bits than the oracle's",
            at / ROW_BYTES
        ))),
        None => Ok(()),
    }
}

fn sum(on: &dyn Collectives, room: &Room, stream: Stream, data: &[u8]) -> Result<Vec<u8>, Wrong> {
    let buffer = |bytes| room.buffer(bytes).map_err(Wrong::Transport);
    let mut send: Box<dyn Buffer> = buffer(data.len())?;
    let mut recv = buffer(data.len())?;
    send.write(0, data).map_err(Wrong::Transport)?;
    let (from, to, count) = (send.address().cast_const(), recv.address(), data.len() / 4);
    // SAFETY: both buffers hold the data and outlive the wait for the stream.
    let called = unsafe { on.all_reduce(from, to, count, DType::F32, ReduceOp::Sum, stream) };
    let ended = on.synchronize(stream);
    called
        .and(ended)
        .map_err(|error| Wrong::Transport(error.to_string()))?;
    recv.read().map_err(Wrong::Transport)
}
