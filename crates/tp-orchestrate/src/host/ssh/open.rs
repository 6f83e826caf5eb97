//! Logging in to all hosts of an inventory at once.

use super::about::{ABOUT_SCRIPT, About};
use super::connection::Connection;
use super::dial::HostKeys;
use super::target::{Surroundings, Target};
use super::{HostError, SshHost, Trouble};
use crate::host::Fault;
use crate::inventory::{self, Inventory};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Logins that run at once.
const LOGINS_MAX: usize = 16;
/// How long a login may take, with every address and jump host.
const LOGIN_LIMIT: Duration = Duration::from_secs(15);

/// How hosts are logged in to.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// What is done with a host key that is not known. With [`HostKeys::AcceptNew`] one host is logged in to after the
    /// other, so that what is added to the file can be followed.
    pub keys: HostKeys,
    /// How long a login may take; 15 s unless given.
    pub limit: Option<Duration>,
}

/// Logs in to every host of the inventory and learns about it; the results stand in the inventory's order.
pub fn connect(inventory: &Inventory, options: &Options) -> Vec<Result<Arc<SshHost>, HostError>> {
    let around = Surroundings::of_user();
    let jumps = Arc::new(Jumps::default());
    let results: Vec<OnceLock<Result<Arc<SshHost>, HostError>>> =
        inventory.hosts.iter().map(|_| OnceLock::new()).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(host) = inventory.hosts.get(next.fetch_add(1, Ordering::AcqRel)) {
            let opened = around
                .clone()
                .map_err(|what| Trouble::new(Fault::Other, what))
                .and_then(|around| SshHost::open(host, &around, &jumps, options));
            let result = opened.map(Arc::new).map_err(|trouble| HostError {
                host: host.name.clone(),
                what: trouble.what,
                fault: trouble.fault,
            });
            let place = inventory.hosts.iter().position(|other| other.name == host.name);
            if let Some(place) = place.and_then(|index| results.get(index)) {
                let _ = place.set(result);
            }
        }
    };
    let threads = match options.keys {
        HostKeys::AcceptNew => 1,
        HostKeys::Known => inventory.hosts.len().min(LOGINS_MAX),
    };
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(work);
        }
    });
    let lost = |host: &inventory::Host| HostError {
        host: host.name.clone(),
        what: "log in: its thread ended".to_owned(),
        fault: Fault::Other,
    };
    results
        .into_iter()
        .zip(&inventory.hosts)
        .map(|(result, host)| result.into_inner().unwrap_or_else(|| Err(lost(host))))
        .collect()
}

impl SshHost {
    /// Logs in to one host and learns about it.
    fn open(
        host: &inventory::Host,
        around: &Surroundings,
        jumps: &Arc<Jumps>,
        options: &Options,
    ) -> Result<Self, Trouble> {
        let target = Target::of_host(host, around).map_err(|what| Trouble::new(Fault::Other, what))?;
        let deadline = Instant::now() + options.limit.unwrap_or(LOGIN_LIMIT);
        let connection = jumps.open(&target, options.keys, deadline)?;
        let mut this = Self {
            name: host.name.clone(),
            target,
            keys: options.keys,
            jumps: Arc::clone(jumps),
            connections: Mutex::new(vec![connection]),
            about: About::default(),
            runner: OnceLock::new(),
        };
        let dir = host.dir.clone().unwrap_or_default();
        let trouble = |error: HostError| Trouble::new(error.fault, error.what);
        let answer = this
            .answer("learn about the host", ABOUT_SCRIPT, &[dir])
            .map_err(trouble)?;
        this.about = About::read(&answer).map_err(|what| Trouble::new(Fault::Other, what))?;
        Ok(this)
    }
}

/// Connections to jump hosts, each shared by all hosts behind it.
#[derive(Default)]
pub(super) struct Jumps(Mutex<HashMap<String, Arc<Connection>>>);

impl Jumps {
    /// A connection to the target through its jump hosts.
    pub fn open(
        &self,
        target: &Target,
        keys: HostKeys,
        deadline: Instant,
    ) -> Result<Arc<Connection>, Trouble> {
        let mut way: Option<Arc<Connection>> = None;
        let mut name = String::new();
        for jump in &target.jumps {
            name = format!("{name}/{}", jump.place());
            // Held over the login: the others wait for the same connection.
            let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let there = known
                .get(&name)
                .filter(|connection| connection.lost().is_none())
                .cloned();
            let next = match there {
                Some(connection) => connection,
                None => Arc::new(
                    Connection::open(jump, keys, deadline, way.clone()).map_err(|trouble| {
                        Trouble::new(
                            trouble.fault,
                            format!("go through {}: failed to {}", jump.name, trouble.what),
                        )
                    })?,
                ),
            };
            known.insert(name.clone(), Arc::clone(&next));
            way = Some(next);
        }
        Connection::open(target, keys, deadline, way).map(Arc::new)
    }
}
