//! What kernels are launched with. Each struct is the one of the same name in `kernels/`.

/// One launch of `tp_ordered_sum`, which combines what every rank contributed to one block in rank order, by the oracle's
/// rules. Any grid does, with blocks of at most 256 threads. Addresses are the device's; each is aligned to an element.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrderedSumArgs {
    /// This rank's contribution.
    pub own: u64,
    /// Member r's contribution lies at `received + r * stride`; nothing is read at this rank's place.
    pub received: u64,
    /// The result; may be `own`.
    pub out: u64,
    /// Bytes between two contributions.
    pub stride: u64,
    /// Elements of each contribution.
    pub count: u64,
    /// Ranks, at least 1.
    pub members: u32,
    /// This rank.
    pub me: u32,
    /// Element type: u8 0, i32 1, i64 2, f16 3, bf16 4, f32 5, f64 6.
    pub element: u32,
    /// Operation: sum 0 (not over u8), max 1, min 2.
    pub op: u32,
}

const _: () = assert!(
    size_of::<OrderedSumArgs>() == 56,
    "the kernel's OrderedSumArgs asserts the same size"
);
