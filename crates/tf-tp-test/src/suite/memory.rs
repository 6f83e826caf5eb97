//! Buffers of the checks. A check writes and reads them through this interface, so that it need not know where the
//! backend's memory lies.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use tp_fabric::gpu::{Device, DeviceBuffer};

/// Buffers start on multiples of this, bytes; offsets count from there.
pub const ALIGN: usize = 64;
/// Bytes around the data that no call may touch.
pub const GUARD: usize = 64;
/// What the guards and the not yet written parts hold.
pub const UNTOUCHED: u8 = 0xa5;

/// Memory that a backend's calls take. The errors are the driver's, for people.
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
    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), String>;
    /// All its bytes.
    fn read(&self) -> Result<Vec<u8>, String>;
}

/// Where buffers come from.
#[derive(Clone)]
pub enum Room {
    /// Host memory.
    Host,
    /// Memory of a GPU; what was taken before is used again, since an allocation takes longer than a check.
    Device(Arc<Device>, Rc<RefCell<Vec<DeviceBuffer>>>),
}

impl Room {
    /// The memory of this GPU, or of the host where there is none.
    pub fn of(device: Option<&Arc<Device>>) -> Self {
        device.map_or(Self::Host, |device| {
            Self::Device(Arc::clone(device), Rc::default())
        })
    }

    /// A buffer of `len` bytes, all [`UNTOUCHED`].
    pub fn buffer(&self, len: usize) -> Result<Box<dyn Buffer>, String> {
        match self {
            Self::Host => Ok(Box::new(HostBuffer::new(len))),
            Self::Device(device, kept) => {
                let found = kept
                    .borrow()
                    .iter()
                    .position(|buffer| (len..=4 * len.max(4096)).contains(&buffer.len()));
                let memory = match found {
                    Some(at) => kept.borrow_mut().swap_remove(at),
                    None => DeviceBuffer::new(device, len).map_err(|error| error.to_string())?,
                };
                let mut buffer = OnDevice {
                    memory: Some(memory),
                    len,
                    kept: Rc::clone(kept),
                };
                buffer.fill()?;
                Ok(Box::new(buffer))
            }
        }
    }
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

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), String> {
        self.bytes[self.begin + at..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        Ok(self.bytes[self.begin..][..self.len].to_vec())
    }
}

/// Device memory; goes back to where it came from.
struct OnDevice {
    /// There until the drop.
    memory: Option<DeviceBuffer>,
    len: usize,
    kept: Rc<RefCell<Vec<DeviceBuffer>>>,
}

impl OnDevice {
    fn fill(&mut self) -> Result<(), String> {
        let len = self.len;
        match &mut self.memory {
            Some(memory) => memory.fill(0, len, UNTOUCHED).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }
}

impl Buffer for OnDevice {
    fn address(&mut self) -> *mut u8 {
        self.memory
            .as_ref()
            .map_or(std::ptr::null_mut(), |memory| memory.address() as *mut u8)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn write(&mut self, at: usize, bytes: &[u8]) -> Result<(), String> {
        match &mut self.memory {
            Some(memory) => memory.write(at, bytes).map_err(|error| error.to_string()),
            None => Ok(()),
        }
    }

    fn read(&self) -> Result<Vec<u8>, String> {
        match &self.memory {
            Some(memory) => memory.read(0, self.len).map_err(|error| error.to_string()),
            None => Ok(Vec::new()),
        }
    }
}

impl Drop for OnDevice {
    fn drop(&mut self) {
        self.kept.borrow_mut().extend(self.memory.take());
    }
}
