//! The bootstrap: all ranks meet at rank 0, prove the secret to each other and agree on what must be equal.
//!
//! A star of TCP connections, two from every follower to rank 0: the control one becomes the fate channel, the plan one
//! carries the meetings of the boot and then the plan link. `docs/protocol.md` is the wire's document; the numbers above
//! code (`protocol 2.3`) are its sentences.

mod agree;
mod auth;
mod error;
mod follower;
mod frame;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod gather;
mod handshake;
mod hello;
mod leader;
mod listen;
mod pump;
mod roster;

pub use agree::{Difference, Disagreement};
pub use error::BootError;

use crate::meeting::{Meeting, MeetingError};
use crate::secret::Secret;
use crate::settings::Settings;
use crate::types::{Rank, World};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// Version of everything that ranks say to each other; both ends must have the same.
pub const PROTOCOL: u32 = 1;

/// What the bootstrap needs to know.
#[derive(Debug)]
pub struct BootConfig {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks, 1 to [`crate::settings::MAX_WORLD`].
    pub world: World,
    /// Where the others reach rank 0: a name or an address without brackets.
    pub master: String,
    /// The port that rank 0 listens on.
    pub port: u16,
    /// How long all ranks have to come together, and the limit of every meeting after that.
    pub timeout: Duration,
    /// What ranks prove to each other.
    pub secret: Option<Secret>,
    /// Whether ranks may meet beyond loopback without a secret.
    pub insecure: bool,
    /// Name of the run; empty: any.
    pub session: String,
    /// This host's name for people.
    pub host: String,
    /// On rank 0, a socket that listens already, instead of `master` and `port`; for embedding and tests.
    pub listener: Option<TcpListener>,
}

impl BootConfig {
    /// The configuration that the settings describe.
    pub fn from_settings(settings: &Settings) -> Self {
        Self {
            rank: settings.rank,
            world: settings.world,
            master: settings.master.clone(),
            port: settings.port,
            timeout: settings.boot_timeout,
            secret: settings.secret.clone(),
            insecure: settings.insecure,
            session: settings.session.clone(),
            host: crate::identity::host_name(),
            listener: None,
        }
    }
}

/// Whether a master is this host's loopback: a loopback address, or `localhost`. A name that merely resolves to one is
/// not, since other hosts may resolve it to something else.
pub fn is_loopback(master: &str) -> bool {
    match master.parse::<IpAddr>() {
        Ok(address) => address.to_canonical().is_loopback(),
        Err(_) => {
            let name = master.trim_end_matches('.').to_ascii_lowercase();
            name == "localhost" || name.ends_with(".localhost")
        }
    }
}

/// All ranks, met. Implements [`Meeting`] over the plan connections.
#[derive(Debug)]
pub struct Bootstrap {
    rank: Rank,
    world: World,
    hosts: Vec<String>,
    /// On rank 0 one per follower, in rank order; on a follower the one to rank 0.
    control: Vec<TcpStream>,
    plan: Vec<TcpStream>,
    address: Option<IpAddr>,
    number: u64,
    limit: Duration,
    visitors: Visitors,
    elapsed: Duration,
}

/// Who came to rank 0's port and was not let in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Visitors {
    /// Connections that proved nothing: scanners, silent ones, foreign programs, wrong secrets and versions.
    pub strangers: u64,
    /// Why connections that could be understood were refused, one line each, the first few only.
    pub refused: Vec<String>,
}

/// What a meeting of the two kinds of ranks has come to: sockets and names.
pub(crate) struct Met {
    hosts: Vec<String>,
    control: Vec<TcpStream>,
    plan: Vec<TcpStream>,
    address: Option<IpAddr>,
    visitors: Visitors,
}

impl Bootstrap {
    /// Meets all other ranks. Rank 0 listens until all are in or the deadline has passed; the others try every address of
    /// the master until then.
    pub fn connect(config: BootConfig) -> Result<Self, BootError> {
        let started = Instant::now();
        let deadline = started + config.timeout;
        let (rank, world, limit) = (config.rank, config.world, config.timeout);
        if world.0 == 0 || world.0 > crate::settings::MAX_WORLD {
            return Err(BootError::World { world });
        }
        if rank.0 >= world.0 {
            return Err(BootError::Rank { rank, world });
        }
        // protocol 1.5
        let listens_on_loopback = match &config.listener {
            Some(listener) => listener
                .local_addr()
                .is_ok_and(|address| address.ip().is_loopback()),
            None => is_loopback(&config.master),
        };
        if world.0 > 1 && config.secret.is_none() && !config.insecure && !listens_on_loopback {
            return Err(BootError::NoSecret {
                master: config.master,
            });
        }
        let met = match (world.0, rank.0) {
            (1, _) => Met {
                hosts: vec![config.host.clone()],
                control: Vec::new(),
                plan: Vec::new(),
                address: None,
                visitors: Visitors::default(),
            },
            (_, 0) => leader::meet(config, deadline)?,
            _ => follower::meet(&config, deadline)?,
        };
        for socket in met.control.iter().chain(&met.plan) {
            // A refusal costs only a later notice of a vanished host, which heartbeats give anyway.
            let _ = crate::os::set_keepalive(socket);
        }
        let Met {
            hosts,
            control,
            plan,
            address,
            visitors,
        } = met;
        let elapsed = started.elapsed();
        Ok(Self {
            rank,
            world,
            hosts,
            control,
            plan,
            address,
            number: 0,
            limit,
            visitors,
            elapsed,
        })
    }

    /// Compares `name = value` fields among all ranks. Where any differ, every rank gets all the differing fields with all
    /// their values.
    pub fn agree(&mut self, op: &str, fields: &[(String, String)]) -> Result<(), BootError> {
        agree::agree(self, op, fields)
    }

    /// Names of the ranks' hosts, in rank order. Complete on rank 0; on the others those of rank 0 and of itself are
    /// known, the rest are `?`.
    pub fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// The address at which this rank is reached from where rank 0 is: the source address of the route to the master, on
    /// rank 0 the address that a follower connected to. `None` in a world of 1.
    pub fn own_address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Who was turned away; empty on followers.
    pub fn visitors(&self) -> &Visitors {
        &self.visitors
    }

    /// How long it took until all ranks were in (on a follower: until this rank was).
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Limit of every later meeting; the boot timeout unless set.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// The control connections, for the fate channel; empty when taken already.
    pub fn take_control(&mut self) -> Vec<TcpStream> {
        std::mem::take(&mut self.control)
    }

    /// Ends the meetings and gives the plan connections, for the plan link.
    pub fn into_plan(self) -> Vec<TcpStream> {
        self.plan
    }
}

impl Meeting for Bootstrap {
    fn rank(&self) -> Rank {
        self.rank
    }

    fn world(&self) -> World {
        self.world
    }

    fn all_gather(&mut self, op: &str, mine: &[u8]) -> Result<Vec<Vec<u8>>, MeetingError> {
        gather::all_gather(self, op, mine)
    }

    fn broadcast(&mut self, op: &str, mine: &[u8]) -> Result<Vec<u8>, MeetingError> {
        let give: &[u8] = if self.rank == Rank(0) { mine } else { &[] };
        gather::exchange(self, op, give, |all| Ok(all.first().cloned().unwrap_or_default()))
    }

    fn verdict(&mut self, op: &str, mine: Result<(), String>) -> Result<(), MeetingError> {
        let mut give = vec![u8::from(mine.is_ok())];
        if let Err(reason) = &mine {
            give.extend_from_slice(crate::text::cut(reason, 4096).as_bytes());
        }
        gather::exchange(self, op, &give, |all| gather::judge(op, all)).map(drop)
    }

    fn barrier(&mut self, op: &str) -> Result<(), MeetingError> {
        gather::exchange(self, op, &[], |_| Ok(Vec::new())).map(drop)
    }
}
