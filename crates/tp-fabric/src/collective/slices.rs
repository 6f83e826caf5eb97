//! The safe form of the collectives, for backends that work on host memory.

use super::{Call, CallKind, CollectiveError, Collectives, MemoryKind, Stream};
use crate::types::{DType, Rank, ReduceOp};

mod sealed {
    pub trait Sealed {}
}

/// A Rust type that is one of the element types.
pub trait Element: Copy + sealed::Sealed + 'static {
    /// Its element type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($ty:ty => $dtype:ident,)*) => {
        $(impl sealed::Sealed for $ty {}
          impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}

elements! {
    u8 => U8,
    i32 => I32,
    i64 => I64,
    half::f16 => F16,
    half::bf16 => Bf16,
    f32 => F32,
    f64 => F64,
}

/// The collectives on slices of host memory. Lengths are checked; a backend on device memory refuses.
///
/// The `_bytes` calls take the element type as a value and byte slices of any alignment; the others take typed slices.
pub trait HostSlices: Collectives {
    /// [`Collectives::all_reduce`] of typed slices of one length.
    fn all_reduce_slice<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.all_reduce_bytes(as_bytes(send), as_bytes_mut(recv), T::DTYPE, op)
    }

    /// [`Collectives::all_reduce`] in place.
    fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), CollectiveError> {
        self.all_reduce_bytes_in_place(as_bytes_mut(data), T::DTYPE, op)
    }

    /// [`Collectives::all_reduce`] of byte slices of one length, a multiple of the element's size.
    fn all_reduce_bytes(
        &self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let call = Call {
            op: Some(op),
            ..Call::new(CallKind::AllReduce, dtype, send.len())
        };
        let count = host_count(self, call, send.len())?;
        same(call, "receive buffer", recv.len(), send.len())?;
        // SAFETY: both slices have `count` elements and the borrows last until the call returns.
        unsafe { self.all_reduce(send.as_ptr(), recv.as_mut_ptr(), count, dtype, op, Stream::HOST) }
    }

    /// [`Collectives::all_reduce`] of bytes in place.
    fn all_reduce_bytes_in_place(
        &self,
        data: &mut [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let call = Call {
            op: Some(op),
            ..Call::new(CallKind::AllReduce, dtype, data.len())
        };
        let count = host_count(self, call, data.len())?;
        let at = data.as_mut_ptr();
        // SAFETY: the slice has `count` elements, the borrow lasts until the call returns, and in place is allowed.
        unsafe { self.all_reduce(at, at, count, dtype, op, Stream::HOST) }
    }

    /// [`Collectives::reduce_scatter`]; `send` is `world` times as long as `recv`.
    fn reduce_scatter_slice<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        self.reduce_scatter_bytes(as_bytes(send), as_bytes_mut(recv), T::DTYPE, op)
    }

    /// [`Collectives::reduce_scatter`] of bytes.
    fn reduce_scatter_bytes(
        &self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<(), CollectiveError> {
        let call = Call {
            op: Some(op),
            ..Call::new(CallKind::ReduceScatter, dtype, recv.len())
        };
        let count = host_count(self, call, recv.len())?;
        same(
            call,
            "send buffer",
            send.len(),
            whole(call, recv.len(), self.world().size())?,
        )?;
        // SAFETY: `send` has `world * count` elements, `recv` has `count`; the borrows last until the call returns.
        unsafe { self.reduce_scatter(send.as_ptr(), recv.as_mut_ptr(), count, dtype, op, Stream::HOST) }
    }

    /// [`Collectives::all_gather`]; `recv` is `world` times as long as `send`.
    fn all_gather_slice<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<(), CollectiveError> {
        self.all_gather_bytes(as_bytes(send), as_bytes_mut(recv), T::DTYPE)
    }

    /// [`Collectives::all_gather`] of bytes.
    fn all_gather_bytes(&self, send: &[u8], recv: &mut [u8], dtype: DType) -> Result<(), CollectiveError> {
        let call = Call::new(CallKind::AllGather, dtype, send.len());
        let count = host_count(self, call, send.len())?;
        same(
            call,
            "receive buffer",
            recv.len(),
            whole(call, send.len(), self.world().size())?,
        )?;
        // SAFETY: `send` has `count` elements, `recv` has `world * count`; the borrows last until the call returns.
        unsafe { self.all_gather(send.as_ptr(), recv.as_mut_ptr(), count, dtype, Stream::HOST) }
    }

    /// [`Collectives::all_gather`] in place: this rank's block of `data` is what it gives.
    fn all_gather_bytes_in_place(&self, data: &mut [u8], dtype: DType) -> Result<(), CollectiveError> {
        let block = data.len() / self.world().size();
        let call = Call::new(CallKind::AllGather, dtype, block);
        let count = host_count(self, call, block)?;
        same(
            call,
            "buffer",
            data.len(),
            whole(call, block, self.world().size())?,
        )?;
        let at = data.as_mut_ptr();
        // SAFETY: `data` has `world * count` elements, this rank's block lies within; the borrow lasts until the call
        // returns, and in place is allowed at exactly that place.
        unsafe {
            self.all_gather(
                at.add(self.rank().index() * block),
                at,
                count,
                dtype,
                Stream::HOST,
            )
        }
    }

    /// [`Collectives::all_gather_v`]: `send` has at least `lens[rank]` bytes, `recv` has `world * stride`.
    fn all_gather_v_bytes(
        &self,
        send: &[u8],
        recv: &mut [u8],
        stride: usize,
        lens: &[i32],
        dtype: DType,
    ) -> Result<(), CollectiveError> {
        let call = Call::new(CallKind::AllGatherV, dtype, stride);
        host_count(self, call, 0)?;
        same(call, "list of lengths", lens.len(), self.world().size())?;
        same(
            call,
            "receive buffer",
            recv.len(),
            whole(call, stride, self.world().size())?,
        )?;
        let mine = usize::try_from(lens[self.rank().index()])
            .unwrap_or(0)
            .min(stride);
        if send.len() < mine {
            let reason = format!(
                "the send buffer has {} bytes, this rank's length is {mine}",
                send.len()
            );
            return Err(CollectiveError::Invalid { call, reason });
        }
        // SAFETY: `lens` has `world` values, `send` at least the own one's bytes, `recv` `world * stride`; the borrows
        // last until the call returns.
        unsafe {
            self.all_gather_v(
                send.as_ptr(),
                recv.as_mut_ptr(),
                stride,
                lens.as_ptr(),
                dtype,
                Stream::HOST,
            )
        }
    }

    /// [`Collectives::broadcast`] in place: `root`'s `data`, on every rank.
    fn broadcast_slice<T: Element>(&self, data: &mut [T], root: Rank) -> Result<(), CollectiveError> {
        self.broadcast_bytes(as_bytes_mut(data), T::DTYPE, root)
    }

    /// [`Collectives::broadcast`] of bytes in place.
    fn broadcast_bytes(&self, data: &mut [u8], dtype: DType, root: Rank) -> Result<(), CollectiveError> {
        let call = Call {
            root: Some(root),
            ..Call::new(CallKind::Broadcast, dtype, data.len())
        };
        let count = host_count(self, call, data.len())?;
        let at = data.as_mut_ptr();
        // SAFETY: the slice has `count` elements, the borrow lasts until the call returns, and in place is allowed.
        unsafe { self.broadcast(at, at, count, dtype, root, Stream::HOST) }
    }

    /// [`Collectives::exchange`] of typed slices of one length.
    fn exchange_slice<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        peer: Rank,
    ) -> Result<(), CollectiveError> {
        self.exchange_bytes(as_bytes(send), as_bytes_mut(recv), T::DTYPE, peer)
    }

    /// [`Collectives::exchange`] of bytes.
    fn exchange_bytes(
        &self,
        send: &[u8],
        recv: &mut [u8],
        dtype: DType,
        peer: Rank,
    ) -> Result<(), CollectiveError> {
        let call = Call::new(CallKind::Exchange, dtype, send.len());
        let count = host_count(self, call, send.len())?;
        same(call, "receive buffer", recv.len(), send.len())?;
        // SAFETY: both slices have `count` elements and the borrows last until the call returns.
        unsafe { self.exchange(send.as_ptr(), recv.as_mut_ptr(), count, dtype, peer, Stream::HOST) }
    }

    /// [`Collectives::send`] of a typed slice.
    fn send_slice<T: Element>(&self, send: &[T], peer: Rank) -> Result<(), CollectiveError> {
        self.send_bytes(as_bytes(send), T::DTYPE, peer)
    }

    /// [`Collectives::send`] of bytes.
    fn send_bytes(&self, send: &[u8], dtype: DType, peer: Rank) -> Result<(), CollectiveError> {
        let count = host_count(self, Call::new(CallKind::SendRecv, dtype, send.len()), send.len())?;
        // SAFETY: the slice has `count` elements and the borrow lasts until the call returns.
        unsafe { self.send(send.as_ptr(), count, dtype, peer, Stream::HOST) }
    }

    /// [`Collectives::recv`] into a typed slice.
    fn recv_slice<T: Element>(&self, recv: &mut [T], peer: Rank) -> Result<(), CollectiveError> {
        self.recv_bytes(as_bytes_mut(recv), T::DTYPE, peer)
    }

    /// [`Collectives::recv`] into bytes.
    fn recv_bytes(&self, recv: &mut [u8], dtype: DType, peer: Rank) -> Result<(), CollectiveError> {
        let count = host_count(self, Call::new(CallKind::SendRecv, dtype, recv.len()), recv.len())?;
        // SAFETY: the slice has `count` elements and the borrow lasts until the call returns.
        unsafe { self.recv(recv.as_mut_ptr(), count, dtype, peer, Stream::HOST) }
    }
}

impl<C: Collectives + ?Sized> HostSlices for C {}

/// The elements in `bytes`, if the backend takes host memory and the bytes are whole elements.
fn host_count<C: Collectives + ?Sized>(on: &C, call: Call, bytes: usize) -> Result<usize, CollectiveError> {
    if on.memory() != MemoryKind::Host {
        let reason = format!(
            "the {} backend takes device memory, this is host memory",
            on.backend()
        );
        return Err(CollectiveError::Unsupported { call, reason });
    }
    let size = call.dtype.size();
    if !bytes.is_multiple_of(size) {
        let reason = format!("{bytes} bytes are not whole elements of {size} bytes");
        return Err(CollectiveError::Invalid { call, reason });
    }
    Ok(bytes / size)
}

fn same(call: Call, what: &str, is: usize, wanted: usize) -> Result<(), CollectiveError> {
    if is == wanted {
        return Ok(());
    }
    let reason = format!("the {what} has length {is}, it needs {wanted}");
    Err(CollectiveError::Invalid { call, reason })
}

fn whole(call: Call, block: usize, world: usize) -> Result<usize, CollectiveError> {
    block.checked_mul(world).ok_or_else(|| {
        let reason = format!("{block} bytes a rank on {world} ranks are more than an address can hold");
        CollectiveError::Invalid { call, reason }
    })
}

fn as_bytes<T: Element>(slice: &[T]) -> &[u8] {
    // SAFETY: an element is plain data without padding, and a byte slice of the same extent borrows the same memory.
    unsafe { std::slice::from_raw_parts(slice.as_ptr().cast(), size_of_val(slice)) }
}

fn as_bytes_mut<T: Element>(slice: &mut [T]) -> &mut [u8] {
    // SAFETY: as above; every bit pattern is a value of every element type, so any bytes may be written.
    unsafe { std::slice::from_raw_parts_mut(slice.as_mut_ptr().cast(), size_of_val(slice)) }
}
