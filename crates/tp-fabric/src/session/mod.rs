//! One rank's session: boot in a fixed order, work, clean close.
//!
//! Boot order: settings were checked before; identity; bootstrap; agreement; fate channel; backend; plan link. Whoever dies
//! after the bootstrap has begun ends all others, within the fate channel's limits.

mod error;

pub use error::SessionError;

use crate::bootstrap::{BootConfig, Bootstrap, PROTOCOL, Visitors};
use crate::collective::{CollectiveError, Collectives};
use crate::devices;
use crate::fate::{Exit, Fate, FateActions, FateConfig, FateHandle, OnFate, RealExit};
use crate::gpu::{self, Capability, Device, GpuConfig};
use crate::host::{self, Delivery, HostConfig};
use crate::identity;
use crate::meeting::{Meeting, MeetingError};
use crate::plan::{PlanConfig, PlanLink};
use crate::rails::RdmaConfig;
use crate::settings::Settings;
use crate::types::{BackendKind, Rank, World};
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use zeroize::Zeroizing;

/// What the owner of a session adds to it.
pub struct SessionHooks {
    /// Called once, on a thread of the fate channel, when any rank has failed and before this process leaves.
    pub on_fate: Option<OnFate>,
    /// How the process leaves on a failure; `_exit` unless replaced.
    pub exit: Arc<dyn Exit>,
    /// More `name = value` fields that all ranks must share: kernel image hash, NCCL version.
    pub agree: Vec<(String, String)>,
}

impl Default for SessionHooks {
    fn default() -> Self {
        Self {
            on_fate: None,
            exit: Arc::new(RealExit),
            agree: Vec::new(),
        }
    }
}

impl fmt::Debug for SessionHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionHooks")
            .field("agree", &self.agree)
            .finish_non_exhaustive()
    }
}

/// Who this rank is and how its boot went.
#[derive(Clone, Debug)]
pub struct BootReport {
    /// SHA-256 of the executable, the same on all ranks.
    pub binary_sha256: String,
    /// What makes ranks count as on one host.
    pub host_id: String,
    /// Names of the ranks' hosts; complete on rank 0, elsewhere `?` where unknown.
    pub hosts: Vec<String>,
    /// The address at which the others reach this rank; `None` in a world of 1.
    pub address: Option<IpAddr>,
    /// Who was turned away at rank 0's port.
    pub visitors: Visitors,
    /// Time to find out the identity, mostly hashing.
    pub identity: Duration,
    /// Time to meet: connect, prove, and on rank 0 wait for the others.
    pub connect: Duration,
    /// Time to agree.
    pub agree: Duration,
}

/// The ranks, met and agreed, each watched by the fate channel: all that commands need which move no data. Implements
/// [`Meeting`] through [`Group::meeting`].
pub struct Group {
    bootstrap: Bootstrap,
    fate: Fate,
    /// How the boot went.
    pub report: BootReport,
}

impl Group {
    /// Meets, agrees and starts the fate channel.
    pub fn open(settings: &Settings, hooks: SessionHooks) -> Result<Self, SessionError> {
        Self::open_as(settings, BootConfig::from_settings(settings), hooks)
    }

    /// [`Group::open`] with a bootstrap of one's own making; for embedding and tests.
    pub fn open_as(settings: &Settings, boot: BootConfig, hooks: SessionHooks) -> Result<Self, SessionError> {
        let started = Instant::now();
        let what = |what: &str, error: &dyn fmt::Display| SessionError::Local {
            what: what.to_owned(),
            reason: error.to_string(),
        };
        let binary_sha256 =
            identity::binary_sha256().map_err(|e| what("hash this program's own file", &e))?;
        let host_id =
            identity::host_id(settings.host_id.as_deref()).map_err(|e| what("identify this host", &e))?;
        let identity = started.elapsed();

        let mut bootstrap = Bootstrap::connect(boot)?;
        let met = Instant::now();
        // protocol 3.9
        let mut fields = vec![
            ("protocol".to_owned(), PROTOCOL.to_string()),
            ("binary_sha256".to_owned(), binary_sha256.clone()),
            ("version".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ];
        fields.extend(settings.agreed_fields());
        fields.extend(hooks.agree);
        bootstrap.agree("agree", &fields)?;
        let agree = met.elapsed();

        // protocol 4.1
        let config = FateConfig {
            rank: bootstrap.rank(),
            hosts: bootstrap.hosts().to_vec(),
            heartbeat: settings.heartbeat,
            limit: settings.heartbeat_limit,
            grace: settings.grace,
            memory_every: settings.peer_mem,
        };
        let actions = FateActions {
            on_fate: hooks.on_fate,
            exit: hooks.exit,
        };
        let links = bootstrap.take_control();
        let fate = Fate::start(links, config, actions).map_err(|e| what("start the fate channel", &e))?;
        let report = BootReport {
            binary_sha256,
            host_id,
            hosts: bootstrap.hosts().to_vec(),
            address: bootstrap.own_address(),
            visitors: bootstrap.visitors().clone(),
            identity,
            connect: bootstrap.elapsed(),
            agree,
        };
        Ok(Self {
            bootstrap,
            fate,
            report,
        })
    }

    /// The lock-step exchange among all ranks.
    pub fn meeting(&mut self) -> &mut dyn Meeting {
        &mut self.bootstrap
    }

    /// A handle on the fate channel.
    pub fn fate(&self) -> FateHandle {
        self.fate.handle()
    }

    /// What to do with a meeting's error: where a rank was lost, this one leaves as the fate channel says (and does not
    /// return); what was refused or out of step, all ranks know, and it comes back as an error.
    pub fn settle(&self, error: MeetingError) -> SessionError {
        if let MeetingError::Lost { op, rank, reason } = &error {
            let fate = self.fate.handle();
            fate.blame_peer(*rank, &fate.phase(), &format!("{reason} (in `{op}`)"));
        }
        SessionError::Meeting(error)
    }

    /// The clean end. Every rank calls it, in any order.
    pub fn close(self) {
        self.fate.handle().expect_stop();
        self.fate.close();
    }
}

/// A rank at work: collectives, plan link, fate channel.
pub struct Session {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub world: World,
    /// The plan link.
    pub plan: PlanLink,
    /// How the boot went.
    pub report: BootReport,
    /// What a person should know of how the backend came about.
    pub notes: Vec<String>,
    backend: Box<dyn Collectives>,
    device: Option<Arc<Device>>,
    fate: Fate,
}

/// The best backend that all ranks can have; they tell each other what they have.
fn best(group: &mut Group) -> Result<BackendKind, SessionError> {
    let mine = devices::capability(&group.report.host_id);
    let all = match group.bootstrap.all_gather("what each rank has", &mine.encode()) {
        Ok(all) => all,
        Err(error) => return Err(group.settle(error)),
    };
    // Bytes that say nothing are a rank that has nothing.
    let ranks: Option<Vec<Capability>> = all.iter().map(|raw| Capability::decode(raw)).collect();
    Ok(ranks.map_or(BackendKind::Host, |ranks| gpu::choose(&ranks)))
}

/// This host's ports as they are now, and the process's environment, where RDMA may be used.
fn rdma_of(settings: &Settings) -> Option<RdmaConfig> {
    let live = || RdmaConfig::live(&|name| std::env::var(name).ok());
    settings.may_use_rdma().then(live)
}

fn host_config(
    group: &Group,
    settings: &Settings,
    delivery: Delivery,
    rdma: Option<RdmaConfig>,
) -> HostConfig {
    HostConfig {
        wire: settings.wire,
        rdma: rdma.map(|rdma| RdmaConfig {
            traffic_class: settings.roce.traffic_class,
            liveness: settings.heartbeat_limit,
            ..rdma
        }),
        slot_bytes: settings.slot_bytes,
        wait: settings.wait,
        setup: settings.boot_timeout,
        delivery,
        host_id: group.report.host_id.clone(),
        address: group.report.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        secret: Zeroizing::new(
            settings
                .secret
                .as_ref()
                .map_or(Vec::new(), |secret| secret.key().to_vec()),
        ),
        ..HostConfig::default()
    }
}

impl Session {
    /// Boots with the backend that the settings name; where they name none, the best that all ranks can have.
    pub fn open(settings: &Settings, hooks: SessionHooks) -> Result<Self, SessionError> {
        Self::on(Group::open(settings, hooks)?, settings, rdma_of(settings))
    }

    /// Opens the backend that the settings name, or the best, on a group that has met, its rails picked from what `rdma`
    /// brings.
    pub fn on(mut group: Group, settings: &Settings, rdma: Option<RdmaConfig>) -> Result<Self, SessionError> {
        let kind = match settings.backend {
            Some(kind) => kind,
            None => best(&mut group)?,
        };
        match kind {
            BackendKind::Host => Self::with_host_by(group, settings, Delivery::Direct, rdma),
            other => Self::with_gpu(group, settings, other, rdma),
        }
    }

    /// Opens a GPU backend on a group that has met.
    pub fn with_gpu(
        mut group: Group,
        settings: &Settings,
        kind: BackendKind,
        rdma: Option<RdmaConfig>,
    ) -> Result<Self, SessionError> {
        let config = GpuConfig {
            kind,
            ordinal: settings.device as usize,
            image: settings.kernel_image.clone().map(Into::into),
            inbox: settings.gpu.inbox,
            large: settings.gpu.large,
            route_max: settings.gpu.route_max,
            fallback_to_nccl: settings.roce.fallback_to_nccl,
            fast_order: settings.gpu.fast_order,
            blocks: settings.roce.blocks,
            host: host_config(&group, settings, Delivery::Doorbell, rdma),
        };
        match gpu::open(&mut group.bootstrap, &config) {
            Ok(gpu::Opened { backend, notes }) => {
                let device = Arc::clone(backend.device());
                let mut session = Self::with_backend(group, settings, Box::new(backend))?;
                (session.device, session.notes) = (Some(device), notes);
                Ok(session)
            }
            Err(gpu::GpuError::Meeting(error @ MeetingError::Lost { .. })) => Err(group.settle(error)),
            Err(error) => {
                // Every rank has an error and goes; none of them is to blame for going.
                group.close();
                let (backend, reason) = (kind, error.to_string());
                Err(SessionError::Gpu { backend, reason })
            }
        }
    }

    /// Opens the host backend on a group that has met. Where RDMA may be used, the rails are picked from this host's ports as
    /// they are now and from the process's environment.
    pub fn with_host(group: Group, settings: &Settings) -> Result<Self, SessionError> {
        Self::with_host_by(group, settings, Delivery::Direct, rdma_of(settings))
    }

    /// As [`with_host`](Self::with_host), with messages delivered as `delivery` says and rails picked from what `rdma` brings.
    pub fn with_host_by(
        mut group: Group,
        settings: &Settings,
        delivery: Delivery,
        rdma: Option<RdmaConfig>,
    ) -> Result<Self, SessionError> {
        let config = host_config(&group, settings, delivery, rdma);
        match host::open(&mut group.bootstrap, &config) {
            Ok(backend) => Self::with_backend(group, settings, Box::new(backend)),
            Err(host::OpenError::Meeting(error @ MeetingError::Lost { .. })) => Err(group.settle(error)),
            Err(error) => {
                // Every rank has an error and goes; none of them is to blame for going.
                group.close();
                Err(SessionError::Host(error))
            }
        }
    }

    /// A session around a backend that the caller has opened over [`Group::meeting`].
    pub fn with_backend(
        group: Group,
        settings: &Settings,
        backend: Box<dyn Collectives>,
    ) -> Result<Self, SessionError> {
        let Group {
            bootstrap,
            fate,
            report,
        } = group;
        let (rank, world) = (bootstrap.rank(), bootstrap.world());
        let plan_config = PlanConfig {
            spin: settings.plan_spin,
            pin: settings.plan_pin,
            avoid_cpu: settings.roce.proxy_cpu,
        };
        let plan = PlanLink::new(rank, world, bootstrap.into_plan(), plan_config).map_err(|error| {
            SessionError::Local {
                what: "open the plan link".to_owned(),
                reason: error.to_string(),
            }
        })?;
        let session = Self {
            rank,
            world,
            plan,
            report,
            notes: Vec::new(),
            backend,
            device: None,
            fate,
        };
        let abort = session.collectives().abort_handle();
        let hook = Box::new(move || abort.abort("the fate channel ends this rank"));
        session.fate().register_hook("collectives", hook);
        session.fate().set_phase("run");
        Ok(session)
    }

    /// The collectives.
    pub fn collectives(&self) -> &dyn Collectives {
        self.backend.as_ref()
    }

    /// The GPU of a GPU backend.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }

    /// A handle on the fate channel.
    pub fn fate(&self) -> FateHandle {
        self.fate.handle()
    }

    /// Ends every rank, this one too, since a collective of this session failed. What is blamed is the rank that the failure
    /// names, unless the fate channel says within a moment who really failed first; this rank where nobody else can be.
    pub fn collective_failed(&self, phase: &str, reason: &str) -> ! {
        let failed = self.backend.check().err();
        blame(&self.fate.handle(), self.rank, failed.as_ref(), phase, reason);
        // Reached only where a test has put another exit in place of the real one.
        loop {
            std::thread::park();
        }
    }

    /// The clean end: a barrier, so that no rank still needs another, then backend, plan link and fate channel. Every rank
    /// calls it, in any order. A rank that is lost meanwhile ends this process like any other failure.
    pub fn close(self) -> Result<(), SessionError> {
        let handle = self.fate.handle();
        handle.set_phase("close");
        handle.expect_stop();
        let Self {
            rank,
            backend,
            plan,
            fate,
            ..
        } = self;
        // The close hands the barrier's last message to the wire; a rank that left before would keep the others waiting.
        let closed = backend.barrier().and_then(|()| backend.close());
        // Both ends of the plan link go before the bye, so that nobody takes its end for a loss.
        drop(plan);
        match closed {
            Ok(()) => {
                fate.close();
                Ok(())
            }
            Err(error) => {
                blame(&handle, rank, Some(&error), "close", &error.to_string());
                Err(SessionError::Collective(error))
            }
        }
    }
}

/// Ends every rank for a collective's failure; see [`Session::collective_failed`].
fn blame(fate: &FateHandle, own: Rank, error: Option<&CollectiveError>, phase: &str, reason: &str) {
    match error.and_then(CollectiveError::failure) {
        Some(failure) if failure.may_be_foreign() => {
            let culprit = failure.culprits().first().copied().unwrap_or(own);
            fate.blame_peer(culprit, phase, reason);
        }
        _ => fate.fail(phase, reason),
    }
}
