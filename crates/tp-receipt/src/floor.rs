//! Below what a measured time is no latency: of operations that ran side by side, of a call that returned before
//! anything moved, of one graph of many.

/// Where the bytes of a call lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// A host's.
    Host,
    /// A GPU's.
    Device,
}

impl Memory {
    const ALL: [Self; 2] = [Self::Host, Self::Device];

    /// The least that a call takes, microseconds.
    fn call_us(self) -> f64 {
        match self {
            // A cache line takes that long from core to core and back.
            Self::Host => 0.05,
            // An empty kernel in a graph takes more on the GPUs of today.
            Self::Device => 0.3,
        }
    }

    /// The most that moves, bytes a microsecond.
    fn bytes_per_us(self) -> f64 {
        match self {
            // 4 TB/s: several times what the widest HBM of a CPU gives.
            Self::Host => 4e6,
            // 16 TB/s: twice what the HBM of a GPU gives.
            Self::Device => 16e6,
        }
    }

    /// The shortest time in which a call that writes `bytes` on one rank can be done, microseconds.
    pub fn floor_us(self, bytes: u64) -> f64 {
        self.call_us().max(bytes as f64 / self.bytes_per_us())
    }
}

/// The same where it is not known in which memory the bytes lie: what holds in any.
pub fn floor_us(bytes: u64) -> f64 {
    let call = Memory::ALL.map(Memory::call_us).into_iter().reduce(f64::min);
    let rate = Memory::ALL.map(Memory::bytes_per_us).into_iter().reduce(f64::max);
    match (call, rate) {
        (Some(call), Some(rate)) => call.max(bytes as f64 / rate),
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_in_any_memory_is_no_stricter_than_what_holds_in_one() {
        for bytes in [0, 16, 4096, 1 << 20, 1 << 30] {
            for memory in Memory::ALL {
                assert!(floor_us(bytes) <= memory.floor_us(bytes), "{memory:?} {bytes}");
            }
        }
        // A receipt judges by these figures, so that they are part of what `verify` derives.
        assert_eq!((floor_us(16), floor_us(16_000_000)), (0.05, 1.0));
        assert_eq!(Memory::Host.floor_us(16_000_000), 4.0);
        assert_eq!(Memory::Device.floor_us(16), 0.3);
    }
}
