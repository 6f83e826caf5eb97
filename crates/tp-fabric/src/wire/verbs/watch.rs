//! The thread that reads the devices' events: a link that went down, an address that went away, a device that failed.

use super::RailEnd;
use super::link::Losses;
use crate::os;
use crate::types::Rank;
use nix::poll::{PollFd, PollFlags};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use tp_verbs::{Context, Event, EventKind};

/// One device and the rails that use it.
pub(super) struct Watched {
    pub context: Arc<Context>,
    pub uses: Vec<(Rank, RailEnd)>,
}

/// The thread; stopped and joined when dropped.
#[derive(Debug)]
pub(super) struct Watch {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start(devices: Vec<Watched>, losses: Arc<Losses>) -> io::Result<Self> {
        let (stopped, stop) = os::pipe()?;
        let builder = thread::Builder::new().name("tp-verbs-events".to_owned());
        let thread = builder.spawn(move || run(&devices, &losses, &stopped))?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // Were the pipe full, the thread would be on its way already.
        let _ = nix::unistd::write(&self.stop, &[1]);
        if let Some(thread) = self.thread.take() {
            // A panic in it was reported by its own hook.
            let _ = thread.join();
        }
    }
}

fn run(devices: &[Watched], losses: &Losses, stopped: &OwnedFd) {
    let mut open = vec![true; devices.len()];
    loop {
        let mut fds = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        for device in devices {
            // SAFETY: the descriptor belongs to the context, which `devices` keeps open.
            let fd = unsafe { BorrowedFd::borrow_raw(device.context.event_fd()) };
            fds.push(PollFd::new(fd, PollFlags::POLLIN));
        }
        let watched: Vec<usize> = (0..devices.len()).filter(|device| open[*device]).collect();
        let mut fds: Vec<PollFd<'_>> = std::iter::once(fds[0].clone())
            .chain(watched.iter().map(|device| fds[device + 1].clone()))
            .collect();
        if os::poll(&mut fds, None).is_err() || os::want_read(&fds[0]) {
            return;
        }
        for (fd, device) in fds[1..].iter().zip(watched) {
            if os::want_read(fd) {
                open[device] = take(&devices[device], losses);
            }
        }
    }
}

/// Reads what is there; false where the device is gone.
fn take(device: &Watched, losses: &Losses) -> bool {
    loop {
        match device.context.next_event() {
            Ok(None) => return true,
            Ok(Some(event)) => judge(device, &event, losses),
            Err(error) => {
                for (peer, _) in &device.uses {
                    losses.lose(*peer, error.to_string());
                }
                return false;
            }
        }
    }
}

/// Ends the rails that cannot be trusted after the event.
fn judge(device: &Watched, event: &Event, losses: &Losses) {
    for (peer, end) in &device.uses {
        if !event.kind.ends(end.port) {
            continue;
        }
        let reason = match event.kind {
            EventKind::GidChange(_) => {
                // Addresses come and go beside the one in use; only that one matters.
                match device.context.gid(end.port, u32::from(end.gid_index)) {
                    Ok(gid) if gid == end.gid => {
                        tracing::warn!(
                            code = "gid-change",
                            "{end}: the GID table changed ({}); entry {} is still {gid}",
                            event.text,
                            end.gid_index
                        );
                        continue;
                    }
                    Ok(gid) => format!(
                        "{end}: GID changed on this port ({}): entry {} was {}, now it is {gid}",
                        event.text, end.gid_index, end.gid
                    ),
                    Err(_) => format!(
                        "{end}: GID changed on this port ({}): entry {} was {}, now it is empty; its address is gone",
                        event.text, end.gid_index, end.gid
                    ),
                }
            }
            EventKind::PortError(_) => format!("{end}: the port's link is down ({})", event.text),
            EventKind::DeviceFatal => format!("{end}: the device failed ({}): look at `dmesg`", event.text),
            _ => format!("{end}: {}", event.text),
        };
        losses.lose(*peer, reason);
    }
}
