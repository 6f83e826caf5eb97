//! Ranks as threads of this process, with the bootstrap alone.

#![allow(dead_code, reason = "each test file uses its part")]

use std::net::TcpListener;
use std::thread::JoinHandle;
use std::time::Duration;
use tp_fabric::bootstrap::{BootConfig, BootError, Bootstrap};
use tp_fabric::secret::Secret;
use tp_fabric::types::{Rank, World};

/// A secret for tests.
pub const SECRET: &str = "a secret for tests alone";

/// A listener on a free port of the loopback, and the port.
pub fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A rank's configuration.
pub fn config(rank: u32, world: u32, port: u16) -> BootConfig {
    BootConfig {
        rank: Rank(rank),
        world: World(world),
        master: "127.0.0.1".into(),
        port,
        timeout: Duration::from_secs(20),
        secret: Some(Secret::from_text(SECRET).unwrap()),
        insecure: false,
        session: "s".into(),
        host: format!("host-{rank}"),
        listener: None,
    }
}

/// A rank that boots on a thread.
pub type Boot = JoinHandle<Result<Bootstrap, BootError>>;

/// Rank 0 on a thread, and its port.
pub fn leader(world: u32, change: impl FnOnce(&mut BootConfig)) -> (Boot, u16) {
    let (listener, port) = listener();
    let mut config = config(0, world, port);
    config.listener = Some(listener);
    change(&mut config);
    (std::thread::spawn(move || Bootstrap::connect(config)), port)
}

/// Another rank on a thread.
pub fn follower(rank: u32, world: u32, port: u16) -> Boot {
    let config = config(rank, world, port);
    std::thread::spawn(move || Bootstrap::connect(config))
}

/// All ranks of a world, met.
pub fn met(world: u32) -> Vec<Bootstrap> {
    let (first, port) = leader(world, |_| {});
    let all: Vec<_> = std::iter::once(first)
        .chain((1..world).map(|rank| follower(rank, world, port)))
        .collect();
    all.into_iter()
        .map(|thread| thread.join().unwrap().unwrap())
        .collect()
}

/// Runs one call on all ranks at once.
pub fn together<T: Send>(ranks: &mut [Bootstrap], call: impl Fn(&mut Bootstrap) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = ranks.iter_mut().map(|rank| scope.spawn(|| call(rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
