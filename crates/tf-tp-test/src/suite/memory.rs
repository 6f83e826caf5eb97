//! Buffers of the checks. A check writes and reads them through this interface, so that it need not know where the
//! backend's memory lies.

/// Buffers start on multiples of this, bytes; offsets count from there.
pub const ALIGN: usize = 64;
/// Bytes around the data that no call may touch.
pub const GUARD: usize = 64;
/// What the guards and the not yet written parts hold.
pub const UNTOUCHED: u8 = 0xa5;

/// Memory that a backend's calls take.
pub trait Buffer {
    /// Its address in the backend's memory, a multiple of [`ALIGN`].
    fn address(&mut self) -> *mut u8;
    /// Its bytes.
    fn len(&self) -> usize;
    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Puts `bytes` at `at`.
    fn write(&mut self, at: usize, bytes: &[u8]);
    /// All its bytes.
    fn read(&self) -> Vec<u8>;
}

/// Host memory.
pub struct HostBuffer {
    bytes: Vec<u8>,
    begin: usize,
    len: usize,
}

impl HostBuffer {
    /// `len` bytes, all [`UNTOUCHED`].
    pub fn new(len: usize) -> Self {
        let bytes = vec![UNTOUCHED; len + ALIGN];
        let begin = bytes.as_ptr().align_offset(ALIGN);
        Self { bytes, begin, len }
    }
}

impl Buffer for HostBuffer {
    fn address(&mut self) -> *mut u8 {
        self.bytes[self.begin..].as_mut_ptr()
    }

    fn len(&self) -> usize {
        self.len
    }

    fn write(&mut self, at: usize, bytes: &[u8]) {
        self.bytes[self.begin + at..][..bytes.len()].copy_from_slice(bytes);
    }

    fn read(&self) -> Vec<u8> {
        self.bytes[self.begin..][..self.len].to_vec()
    }
}
