//! The small types that every part shares: ranks, element types, reduction operations, backends, wires.

use std::fmt;
use std::str::FromStr;

/// Number of one process of the group, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

/// Number of ranks, at least 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct World(pub u32);

impl Rank {
    /// The rank as an index into per-rank tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl World {
    /// All ranks, in order.
    pub fn ranks(self) -> impl DoubleEndedIterator<Item = Rank> + ExactSizeIterator {
        (0..self.0).map(Rank)
    }

    /// The number of ranks as a length.
    pub fn size(self) -> usize {
        self.0 as usize
    }

    /// All ranks but `me`, in order.
    pub fn peers(self, me: Rank) -> impl DoubleEndedIterator<Item = Rank> {
        self.ranks().filter(move |r| *r != me)
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Defines a fieldless enum with its words: `name()`, `ALL`, `FromStr` and `Display`.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$vmeta])* $variant,)* }

        impl $name {
            /// Every variant, in documented order.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)*];

            /// The word that people and settings use.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $word,)* }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;
            fn from_str(word: &str) -> Result<Self, UnknownWord> {
                match word {
                    $($word => Ok(Self::$variant),)*
                    other => Err(UnknownWord { word: other.to_owned(), known: &[$($word),*] }),
                }
            }
        }
    };
}

/// A word that is none of the known ones.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{word}` is none of {}", known.join(", "))]
pub struct UnknownWord {
    /// What was given.
    pub word: String,
    /// What is taken.
    pub known: &'static [&'static str],
}

words! {
    /// Element type of a buffer.
    DType {
        /// Unsigned byte.
        U8 = "u8",
        /// Signed 32-bit integer; sums wrap.
        I32 = "i32",
        /// Signed 64-bit integer; sums wrap.
        I64 = "i64",
        /// IEEE 754 binary16.
        F16 = "f16",
        /// bfloat16.
        Bf16 = "bf16",
        /// IEEE 754 binary32.
        F32 = "f32",
        /// IEEE 754 binary64.
        F64 = "f64",
    }
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::I32 | Self::F32 => 4,
            Self::I64 | Self::F64 => 8,
        }
    }
}

words! {
    /// How a reduction combines two values.
    ReduceOp {
        /// Addition.
        Sum = "sum",
        /// The larger; NaN wins, −0 is below +0.
        Max = "max",
        /// The smaller; NaN wins, −0 is below +0.
        Min = "min",
    }
}

words! {
    /// What carries out the collectives.
    BackendKind {
        /// Host memory, any wire, no GPU.
        Host = "host",
        /// NVIDIA NCCL.
        Nccl = "nccl",
        /// GPUs of one host through shared inboxes.
        Mailbox = "mailbox",
        /// GPUs of several hosts through RDMA writes.
        Roce = "roce",
    }
}

words! {
    /// How bytes get to the peer's inbox.
    WireKind {
        /// RDMA writes.
        Verbs = "verbs",
        /// Shared memory of one host.
        Shm = "shm",
        /// TCP.
        Tcp = "tcp",
    }
}
