//! Groups of ranks for the collective tests: threads of this process, each with its own backend.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::thread;
use std::time::Duration;
use tp_fabric::collective::Collectives;
use tp_fabric::host::{self, HostBackend, HostConfig};
use tp_fabric::local::LocalMeeting;
use tp_fabric::meeting::Meeting;
use tp_fabric::types::{WireKind, World};

/// Far longer than anything here takes; a hang becomes a failure.
pub const WAIT: Duration = Duration::from_secs(60);

/// The configuration of the tests over a wire.
pub fn config(wire: WireKind) -> HostConfig {
    HostConfig {
        wire: Some(wire),
        wait: WAIT,
        host_id: "one host".to_owned(),
        ..HostConfig::default()
    }
}

/// Runs `act` on every rank, each on a thread with an opened backend, and closes them in good order.
pub fn on_ranks<T: Send>(
    world: u32,
    cfg: &HostConfig,
    act: impl Fn(&HostBackend, &mut dyn Meeting) -> T + Sync,
) -> Vec<T> {
    let act = &act;
    thread::scope(|scope| {
        let ranks: Vec<_> = LocalMeeting::group(World(world), WAIT)
            .into_iter()
            .map(|mut meeting| {
                scope.spawn(move || {
                    let backend = host::open(&mut meeting, cfg).unwrap();
                    let out = act(&backend, &mut meeting);
                    if backend.check().is_ok() {
                        backend.close().unwrap();
                    }
                    out
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Runs `act` on every rank for both wires.
pub fn over_both(world: u32, change: impl Fn(&mut HostConfig), act: impl Fn(&HostBackend) + Sync) {
    for wire in [WireKind::Shm, WireKind::Tcp] {
        let mut cfg = config(wire);
        change(&mut cfg);
        on_ranks(world, &cfg, |backend, _| act(backend));
    }
}
