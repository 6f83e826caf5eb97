//! Settings: one table of variables, read once into typed values.
//!
//! Everything is parsed and checked here, before a socket, a library or a GPU is touched. The table ([`TABLE`]) is the
//! only place that knows names, ranges and defaults; `docs/settings.md` ([`page()`]) and `tf-tp-test explain`
//! ([`Settings::rows`]) are printed from it.

mod launcher;
mod page;
mod resolve;
mod source;
mod spec;
mod table;

pub use page::page;
pub use resolve::{Row, SettingsError, Warning};
pub use source::{Source, Sources};
pub use spec::{Kind, Pin, Reader, Spec, Value};
pub use table::{MAX_WORLD, RETIRED, TABLE, find};

use crate::gpu::{InboxKind, Large};
use crate::secret::Secret;
use crate::types::{BackendKind, Rank, WireKind, World};
use resolve::Resolved;
use std::time::Duration;

/// All settings of one rank.
#[derive(Clone, Debug)]
pub struct Settings {
    /// This rank.
    pub rank: Rank,
    /// Number of ranks.
    pub world: World,
    /// Where the others reach rank 0: a name or an address without brackets.
    pub master: String,
    /// The port that rank 0 listens on.
    pub port: u16,
    /// How long all ranks have to come together, and the limit of each later step of the boot.
    pub boot_timeout: Duration,
    /// What ranks prove to each other.
    pub secret: Option<Secret>,
    /// Whether ranks may meet beyond loopback without a secret.
    pub insecure: bool,
    /// Name of the run; empty where nobody named it.
    pub session: String,
    /// What makes two ranks count as on one host, where it is not to be worked out.
    pub host_id: Option<String>,
    /// Longest time of abort hooks.
    pub grace: Duration,
    /// Time between heartbeats.
    pub heartbeat: Duration,
    /// Silence after which a rank counts as lost.
    pub heartbeat_limit: Duration,
    /// Time between memory reports.
    pub peer_mem: Duration,
    /// What carries out the collectives, where it is set.
    pub backend: Option<BackendKind>,
    /// How bytes travel, where it is set.
    pub wire: Option<WireKind>,
    /// Slot size, bytes.
    pub slot_bytes: usize,
    /// How long a collective waits for a peer.
    pub wait: Duration,
    /// CUDA ordinal.
    pub device: u32,
    /// How the GPU backends route and where their memory lies.
    pub gpu: Gpu,
    /// The NCCL library to load.
    pub nccl_lib: String,
    /// RDMA port choice and RoCE shape.
    pub roce: Roce,
    /// A kernel image to use instead of the built-in one.
    pub kernel_image: Option<String>,
    /// How long a follower polls for a plan before it blocks; zero: blocks at once.
    pub plan_spin: Duration,
    /// Where the plan thread runs.
    pub plan_pin: Pin,
    /// `NCCL_IB_HCA` as given.
    pub nccl_ib_hca: Option<String>,
    rows: Vec<Row>,
    warnings: Vec<Warning>,
}

/// What is set, sound or not.
#[derive(Clone, Debug)]
pub struct Survey {
    /// Every row, in the order of the table.
    pub rows: Vec<Row>,
    /// What is probably not meant.
    pub warnings: Vec<Warning>,
    /// What keeps a rank from starting, each naming its variable.
    pub problems: Vec<String>,
}

/// Settings of the GPU backends.
#[derive(Clone, Copy, Debug)]
pub struct Gpu {
    /// Where the mailbox's inboxes lie, where it is set.
    pub inbox: Option<InboxKind>,
    /// Who carries large payloads.
    pub large: Large,
    /// Largest payload of the small path, bytes, where it is set.
    pub route_max: Option<u64>,
    /// NCCL's own order for its reductions.
    pub fast_order: bool,
}

/// Settings of the RoCE backend.
#[derive(Clone, Debug)]
pub struct Roce {
    /// `TF_TP_ROCE_HCA` as given; its grammar is `tp-hca`'s.
    pub hca: Option<String>,
    /// Most rails for a pair of ranks.
    pub rails: u32,
    /// Whether ranks go on with NCCL where RoCE cannot be set up.
    pub fallback_to_nccl: bool,
    /// Traffic class of RDMA packets.
    pub traffic_class: u8,
    /// CPU of the proxy thread.
    pub proxy_cpu: Option<u32>,
    /// Lean doorbell and extra pollers.
    pub fast: bool,
    /// Pollers per flag and block.
    pub pollers: u32,
    /// How far apart pollers start, nanoseconds.
    pub stagger_ns: u32,
    /// Largest grid.
    pub blocks: u32,
}

impl Settings {
    /// Reads and checks everything. The error lists every problem at once.
    pub fn load(sources: &Sources) -> Result<Self, SettingsError> {
        let mut resolved = Resolved::of(sources);
        let settings = Self::typed(&mut resolved);
        match settings {
            Some(settings) if resolved.problems.is_empty() => Ok(Self {
                rows: resolved.rows,
                warnings: resolved.warnings,
                ..settings
            }),
            _ => Err(SettingsError {
                problems: resolved.problems,
            }),
        }
    }

    /// Every row, also where some cannot be used: for a person who wants to see what is wrong.
    pub fn survey(sources: &Sources) -> Survey {
        let mut resolved = Resolved::of(sources);
        // Rules that join several variables can be applied where each of them is sound.
        let _ = Self::typed(&mut resolved);
        Survey {
            rows: resolved.rows,
            warnings: resolved.warnings,
            problems: resolved.problems,
        }
    }

    /// Every row with the value in force and who set it, in the order of the table.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// What is probably not meant; to be said before the run starts.
    pub fn warnings(&self) -> &[Warning] {
        &self.warnings
    }

    /// Whether ranks may reach each other by RDMA under these settings.
    pub fn may_use_rdma(&self) -> bool {
        self.world.0 > 1 && matches!(self.wire, None | Some(WireKind::Verbs))
    }

    /// The settings that all ranks must share, as the agreement compares them. Unset ones stand as `unset`.
    pub fn agreed_fields(&self) -> Vec<(String, String)> {
        let must = |row: &&Row| find(row.name).is_some_and(|spec| spec.agree);
        self.rows
            .iter()
            .filter(must)
            .map(|row| (row.name.to_owned(), self.canonical(row)))
            .collect()
    }

    /// Seconds can be written in several ways; ranks must not differ over `0.5` and `.5`.
    fn canonical(&self, row: &Row) -> String {
        match find(row.name).map(|spec| spec.kind.parse(&row.value)) {
            Some(Ok(Value::Seconds(time))) => format!("{} s", time.as_secs_f64()),
            _ => row.value.clone(),
        }
    }

    fn typed(resolved: &mut Resolved) -> Option<Self> {
        use table as t;
        let r = &*resolved;
        let small = |spec| r.integer(spec).and_then(|n| u32::try_from(n).ok());
        let port = |spec| r.integer(spec).and_then(|n| u16::try_from(n).ok());
        let time = |spec| match r.value(spec) {
            Some(Value::Seconds(time)) => Some(*time),
            _ => None,
        };
        let text = |spec| match r.value(spec) {
            Some(Value::Text(text)) => Some(text.clone()),
            _ => None,
        };
        let on = |spec| match r.value(spec) {
            Some(Value::Switch(on)) => Some(*on),
            _ => None,
        };
        let roce = Roce {
            hca: text(&t::ROCE_HCA),
            rails: small(&t::ROCE_HCAS).unwrap_or(32),
            fallback_to_nccl: text(&t::ROCE_FALLBACK)? == "nccl",
            traffic_class: u8::try_from(small(&t::ROCE_TC).or(small(&t::NCCL_IB_TC)).unwrap_or(0)).ok()?,
            proxy_cpu: small(&t::ROCE_CPU),
            fast: on(&t::ROCE_FAST)?,
            pollers: small(&t::ROCE_POLLERS)?,
            stagger_ns: small(&t::ROCE_STAGGER)?,
            blocks: small(&t::ROCE_BLOCKS)?,
        };
        let spins = matches!(text(&t::PLAN_LINK)?.as_str(), "spin" | "rdma");
        let settings = Self {
            rank: Rank(small(&t::RANK)?),
            world: World(small(&t::WORLD)?),
            master: text(&t::MASTER)?,
            port: port(&t::PLAN_PORT).or(port(&t::PORT))?,
            boot_timeout: time(&t::BOOT_TIMEOUT)?,
            // The table has checked its length already.
            secret: text(&t::SECRET).and_then(|text| Secret::from_text(&text).ok()),
            insecure: on(&t::INSECURE)?,
            session: text(&t::SESSION).unwrap_or_default(),
            host_id: text(&t::HOST_ID),
            grace: time(&t::GRACE)?,
            heartbeat: time(&t::HEARTBEAT)?,
            heartbeat_limit: time(&t::HEARTBEAT_LIMIT)?,
            peer_mem: time(&t::PEER_MEM)?,
            backend: text(&t::BACKEND).and_then(|word| word.parse().ok()),
            wire: text(&t::WIRE).and_then(|word| word.parse().ok()),
            slot_bytes: usize::try_from(small(&t::SLOT_KB)?).ok()? * 1024,
            wait: time(&t::WAIT)?,
            device: small(&t::DEVICE)?,
            gpu: Gpu {
                inbox: text(&t::INBOX).and_then(|word| word.parse().ok()),
                large: match text(&t::LARGE)?.as_str() {
                    "nccl" => Large::Nccl,
                    "own" => Large::Own,
                    _ => Large::Auto,
                },
                route_max: r.integer(&t::ROUTE_MAX).map(|kib| kib << 10),
                fast_order: on(&t::FAST_ORDER)?,
            },
            nccl_lib: text(&t::NCCL_LIB)?,
            roce,
            kernel_image: text(&t::KERNEL_IMAGE),
            plan_spin: Duration::from_micros(if spins { small(&t::PLAN_SPIN)?.into() } else { 0 }),
            plan_pin: match r.value(&t::PLAN_PIN) {
                Some(Value::Pin(pin)) => *pin,
                _ => return None,
            },
            nccl_ib_hca: text(&t::NCCL_IB_HCA),
            rows: Vec::new(),
            warnings: Vec::new(),
        };
        settings.check_together(resolved);
        Some(settings)
    }

    /// Checks that concern more than one variable.
    fn check_together(&self, resolved: &mut Resolved) {
        if self.rank.0 >= self.world.0 {
            resolved.problems.push(format!(
                "{} `{}` is not below the world: want 0 to {} with {} {}",
                resolved.called(&table::RANK),
                self.rank,
                self.world.0 - 1,
                resolved.called(&table::WORLD),
                self.world
            ));
        }
        if self.heartbeat_limit < self.heartbeat * 2 {
            resolved.problems.push(format!(
                "TF_TP_HEARTBEAT_LIMIT_S `{}` is less than twice TF_TP_HEARTBEAT_S `{}`: one late beat would count as a death",
                self.heartbeat_limit.as_secs_f64(),
                self.heartbeat.as_secs_f64()
            ));
        }
        if !self.slot_bytes.is_multiple_of(4096) {
            let kb = self.slot_bytes / 1024;
            resolved
                .problems
                .push(format!("TF_TP_MAILBOX_MAX_KB `{kb}` is not a multiple of 4 KiB"));
        }
        if self.session.len() > 128 || self.session.chars().any(char::is_control) {
            resolved
                .problems
                .push("TF_TP_SESSION is not one line of at most 128 bytes".to_owned());
        }
        if self
            .host_id
            .as_ref()
            .is_some_and(|id| id.len() > 256 || id.chars().any(char::is_control))
        {
            resolved
                .problems
                .push("TF_TP_HOST_ID is not one line of at most 256 bytes".to_owned());
        }
        if self.secret.is_none() && self.world.0 > 1 {
            self.check_without_secret(resolved);
        }
    }

    fn check_without_secret(&self, resolved: &mut Resolved) {
        let text = if crate::bootstrap::is_loopback(&self.master) {
            "no TF_TP_SECRET: every user of this host can join the run".to_owned()
        } else if self.insecure {
            "no TF_TP_SECRET, and TF_TP_INSECURE is set: everybody who reaches the port can join the run"
                .to_owned()
        } else {
            let problem = crate::bootstrap::BootError::NoSecret {
                master: self.master.clone(),
            };
            resolved.problems.push(problem.to_string());
            return;
        };
        resolved.warnings.push(Warning {
            code: "no-secret",
            text,
        });
    }
}
