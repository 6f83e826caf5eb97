//! Devices: finding and opening them, their ports and GIDs.

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::error::{Details, Error, Place};
use crate::gid::{Gid, GidType, PortNum};
use crate::library::{Verbs, text};
use crate::sys::*;

/// The device list of one moment, freed when dropped.
pub(crate) struct List<'a> {
    verbs: &'a Verbs,
    list: NonNull<*mut ibv_device>,
    count: usize,
}

impl<'a> List<'a> {
    /// Asks the library; the error number is the system's.
    pub(crate) fn new(verbs: &'a Verbs) -> Result<Self, i32> {
        let mut count: c_int = 0;
        // SAFETY: the pointer is to a live int.
        let list = unsafe { (verbs.functions().ibv_get_device_list)(&raw mut count) };
        let errno = last_errno();
        let list = NonNull::new(list).ok_or(errno)?;
        Ok(Self {
            verbs,
            list,
            count: usize::try_from(count).unwrap_or(0),
        })
    }

    /// The devices with their names, in the library's order.
    pub(crate) fn devices(&self) -> impl Iterator<Item = (*mut ibv_device, String)> {
        (0..self.count).map(|number| {
            // SAFETY: the list has `count` entries and lives as long as `self`; each device keeps its own name.
            unsafe {
                let device = *self.list.as_ptr().add(number);
                (device, text((self.verbs.functions().ibv_get_device_name)(device)))
            }
        })
    }
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        // SAFETY: the list came from this library and nothing of it is kept: an open context holds its own reference.
        unsafe { (self.verbs.functions().ibv_free_device_list)(self.list.as_ptr()) };
    }
}

/// The error number that the last call of this thread left, never 0.
pub(crate) fn last_errno() -> i32 {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(errno) if errno != 0 => errno,
        _ => libc::EIO,
    }
}

/// State of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PortState {
    /// No link.
    Down,
    /// Link without configuration yet.
    Init,
    /// Configured, not yet in use.
    Armed,
    /// In use.
    Active,
    /// Something else, by its number.
    Other(u32),
}

/// A path's largest packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mtu(u32);

impl Mtu {
    /// From the number that the verbs use: 1 for 256 bytes to 5 for 4096.
    pub fn from_code(code: u32) -> Option<Self> {
        (1..=5).contains(&code).then_some(Self(code))
    }

    /// The number that the verbs use.
    pub fn code(self) -> u32 {
        self.0
    }

    /// Bytes of payload in one packet.
    pub fn bytes(self) -> u32 {
        128 << self.0
    }
}

/// What a port is and can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortAttributes {
    /// Its state.
    pub state: PortState,
    /// Whether its link is Ethernet; else it is InfiniBand or unknown.
    pub ethernet: bool,
    /// The MTU in force; none where the driver gives no known one.
    pub active_mtu: Option<Mtu>,
    /// Entries of its GID table.
    pub gids: u32,
    /// Local identifier; 0 on Ethernet.
    pub lid: u16,
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    pub(crate) verbs: Arc<Verbs>,
    pub(crate) raw: NonNull<ibv_context>,
    name: String,
}

// SAFETY: libibverbs allows calls on one context from any thread, several at a time.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// The names of all devices, in the library's order, which is the order in which the kernel met them.
    ///
    /// # Errors
    /// The library gives no list.
    pub fn names(verbs: &Verbs) -> Result<Vec<String>, Error> {
        match List::new(verbs) {
            Ok(list) => Ok(list.devices().map(|(_, name)| name).collect()),
            Err(errno) => Err(list_error(verbs, errno)),
        }
    }

    /// Opens the device of that name.
    ///
    /// # Errors
    /// There is none of that name, or it cannot be opened.
    pub fn open(verbs: &Arc<Verbs>, name: &str) -> Result<Arc<Self>, Error> {
        let list = List::new(verbs).map_err(|errno| list_error(verbs, errno))?;
        let mut others = Vec::new();
        for (device, found) in list.devices() {
            if found != name {
                others.push(found);
                continue;
            }
            // SAFETY: the device belongs to the live list.
            let raw = unsafe { (verbs.functions().ibv_open_device)(device) };
            let errno = last_errno();
            let raw = NonNull::new(raw).ok_or_else(|| {
                Error::new(Details {
                    action: "open the RDMA device",
                    call: "ibv_open_device",
                    place: Place::device(name),
                    errno: Some(errno),
                    reason: None,
                    library: verbs.path().to_owned(),
                })
            })?;
            let context = Arc::new(Self {
                verbs: Arc::clone(verbs),
                raw,
                name: found,
            });
            context.make_events_nonblocking()?;
            return Ok(context);
        }
        let there = if others.is_empty() {
            "none".to_owned()
        } else {
            others.join(", ")
        };
        Err(Error::new(Details {
            action: "open the RDMA device",
            call: "ibv_get_device_list",
            place: Place::device(name),
            errno: None,
            reason: Some(format!("there is no such device, there are: {there}")),
            library: verbs.path().to_owned(),
        }))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The library.
    pub fn verbs(&self) -> &Verbs {
        &self.verbs
    }

    /// What a port is and can do.
    ///
    /// # Errors
    /// There is no such port, or the device is gone.
    pub fn port(&self, port: PortNum) -> Result<PortAttributes, Error> {
        let mut attributes = ibv_port_attr::default();
        let compat = (&raw mut attributes).cast::<_compat_ibv_port_attr>();
        // SAFETY: the function fills the leading part of the struct, which is a live one of the full size.
        let code = unsafe { (self.verbs.functions().ibv_query_port)(self.raw.as_ptr(), port.0, compat) };
        self.checked(code, "query the port", "ibv_query_port", || {
            self.place().with_port(port)
        })?;
        let state = match attributes.state {
            ibv_port_state::IBV_PORT_DOWN => PortState::Down,
            ibv_port_state::IBV_PORT_INIT => PortState::Init,
            ibv_port_state::IBV_PORT_ARMED => PortState::Armed,
            ibv_port_state::IBV_PORT_ACTIVE => PortState::Active,
            ibv_port_state(other) => PortState::Other(other),
        };
        Ok(PortAttributes {
            state,
            ethernet: u32::from(attributes.link_layer) == IBV_LINK_LAYER_ETHERNET.0,
            active_mtu: Mtu::from_code(attributes.active_mtu.0),
            gids: u32::try_from(attributes.gid_tbl_len).unwrap_or(0),
            lid: attributes.lid,
        })
    }

    /// One GID of a port.
    ///
    /// # Errors
    /// The entry is empty or there is none of that index.
    pub fn gid(&self, port: PortNum, index: u32) -> Result<Gid, Error> {
        let place = || self.place().with_port(port).with_gid(index, None);
        let number = c_int::try_from(index).unwrap_or(c_int::MAX);
        let mut gid = ibv_gid::default();
        // SAFETY: the pointer is to a live union of 16 bytes.
        let code = unsafe {
            (self.verbs.functions().ibv_query_gid)(self.raw.as_ptr(), port.0, number, &raw mut gid)
        };
        self.checked(code, "read the GID", "ibv_query_gid", place)?;
        // SAFETY: every bit pattern of the union is 16 bytes.
        let gid = Gid(unsafe { gid.raw });
        if gid.is_empty() {
            return Err(self.error("read the GID", "ibv_query_gid", place(), Some(libc::ENODATA)));
        }
        Ok(gid)
    }

    /// The type of one GID of a port, where this library and kernel can say.
    pub fn gid_type(&self, port: PortNum, index: u32) -> Option<GidType> {
        let query = self.verbs.functions()._ibv_query_gid_ex?;
        let mut entry = ibv_gid_entry::default();
        let size = size_of::<ibv_gid_entry>();
        // SAFETY: the pointer is to a live struct of the size that is given; no flags are defined.
        let code = unsafe {
            query(
                self.raw.as_ptr(),
                u32::from(port.0),
                index,
                &raw mut entry,
                0,
                size,
            )
        };
        (code == 0).then_some(match ibv_gid_type(entry.gid_type) {
            ibv_gid_type::IBV_GID_TYPE_ROCE_V1 => GidType::RoceV1,
            ibv_gid_type::IBV_GID_TYPE_ROCE_V2 => GidType::RoceV2,
            _ => GidType::Infiniband,
        })
    }

    /// This device, for an error.
    pub(crate) fn place(&self) -> Place {
        Place::device(&self.name)
    }

    /// An error of this device; without an error number the one that the thread was left with.
    pub(crate) fn error(
        &self,
        action: &'static str,
        call: &'static str,
        place: Place,
        errno: Option<i32>,
    ) -> Error {
        let errno = Some(errno.unwrap_or_else(last_errno));
        Error::new(Details {
            action,
            call,
            place,
            errno,
            reason: None,
            library: self.verbs.path().to_owned(),
        })
    }

    /// Turns a call's code into an error. Verbs return the error number, or −1 and leave it to the thread.
    pub(crate) fn checked(
        &self,
        code: c_int,
        action: &'static str,
        call: &'static str,
        place: impl FnOnce() -> Place,
    ) -> Result<(), Error> {
        match code {
            0 => Ok(()),
            positive if positive > 0 => Err(self.error(action, call, place(), Some(positive))),
            _ => {
                let errno = last_errno();
                Err(self.error(action, call, place(), Some(errno)))
            }
        }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: everything made from the context holds it, so nothing of it is left; the pointer is not used after.
        unsafe { (self.verbs.functions().ibv_close_device)(self.raw.as_ptr()) };
    }
}

fn list_error(verbs: &Verbs, errno: i32) -> Error {
    Error::new(Details {
        action: "list RDMA devices",
        call: "ibv_get_device_list",
        place: Place::default(),
        errno: Some(errno),
        reason: None,
        library: verbs.path().to_owned(),
    })
}
