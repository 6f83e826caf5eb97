//! Asynchronous events of a device.

use std::os::fd::RawFd;

use crate::PortNum;
use crate::device::{Context, last_errno};
use crate::error::Error;
use crate::library::text;
use crate::sys::*;

/// Something that happened to a device outside any request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// What.
    pub kind: EventKind,
    /// The library's words for it.
    pub text: String,
}

/// The kinds of events that a transport cares about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The GID table of a port changed: an address came or went. Connections made with an index of it must end.
    GidChange(PortNum),
    /// A port lost its link.
    PortError(PortNum),
    /// A port's link is up.
    PortActive(PortNum),
    /// The device failed as a whole.
    DeviceFatal,
    /// A queue pair failed.
    QueuePair,
    /// A completion queue overran.
    CompletionQueue,
    /// Any other, by its number.
    Other(u32),
}

impl EventKind {
    /// Whether connections over `port` cannot be trusted after it.
    pub fn ends(self, port: PortNum) -> bool {
        match self {
            Self::GidChange(which) | Self::PortError(which) => which == port,
            Self::DeviceFatal | Self::CompletionQueue | Self::QueuePair => true,
            Self::PortActive(_) | Self::Other(_) => false,
        }
    }
}

impl Context {
    /// The descriptor that becomes readable when an event is there; it belongs to the context.
    pub fn event_fd(&self) -> RawFd {
        // SAFETY: the context is open; the library does not change the field.
        unsafe { self.raw.as_ref().async_fd }
    }

    /// Lets [`Context::next_event`] return instead of waiting.
    pub(crate) fn make_events_nonblocking(&self) -> Result<(), Error> {
        // SAFETY: the descriptor is the open context's; both calls only read and set flags.
        let done = unsafe {
            let flags = libc::fcntl(self.event_fd(), libc::F_GETFL);
            flags >= 0 && libc::fcntl(self.event_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) == 0
        };
        if done {
            return Ok(());
        }
        let errno = last_errno();
        Err(self.error("watch the device's events", "fcntl", self.place(), Some(errno)))
    }

    /// The next event, if one is there; never waits.
    ///
    /// # Errors
    /// The device is gone.
    pub fn next_event(&self) -> Result<Option<Event>, Error> {
        let mut event = ibv_async_event {
            element: ibv_async_event__bindgen_ty_1 { port_num: 0 },
            event_type: ibv_event_type(0),
        };
        // SAFETY: the context is open, the struct is live.
        let code = unsafe { (self.verbs.functions().ibv_get_async_event)(self.raw.as_ptr(), &raw mut event) };
        if code != 0 {
            let errno = last_errno();
            if errno == libc::EAGAIN || errno == libc::EINTR {
                return Ok(None);
            }
            return Err(self.error(
                "read the device's events",
                "ibv_get_async_event",
                self.place(),
                Some(errno),
            ));
        }
        // SAFETY: the function takes any event and returns a static string.
        let text = unsafe { text((self.verbs.functions().ibv_event_type_str)(event.event_type)) };
        let kind = kind(&event);
        // SAFETY: the event came from this library and is acknowledged once.
        unsafe { (self.verbs.functions().ibv_ack_async_event)(&raw mut event) };
        Ok(Some(Event { kind, text }))
    }
}

fn kind(event: &ibv_async_event) -> EventKind {
    // SAFETY: read only where the event is one of a port, for which the library fills it.
    let port = || PortNum(u8::try_from(unsafe { event.element.port_num }).unwrap_or(0));
    match event.event_type {
        ibv_event_type::IBV_EVENT_GID_CHANGE => EventKind::GidChange(port()),
        ibv_event_type::IBV_EVENT_PORT_ERR => EventKind::PortError(port()),
        ibv_event_type::IBV_EVENT_PORT_ACTIVE => EventKind::PortActive(port()),
        ibv_event_type::IBV_EVENT_DEVICE_FATAL => EventKind::DeviceFatal,
        ibv_event_type::IBV_EVENT_CQ_ERR => EventKind::CompletionQueue,
        ibv_event_type::IBV_EVENT_QP_FATAL
        | ibv_event_type::IBV_EVENT_QP_REQ_ERR
        | ibv_event_type::IBV_EVENT_QP_ACCESS_ERR => EventKind::QueuePair,
        ibv_event_type(other) => EventKind::Other(other),
    }
}
