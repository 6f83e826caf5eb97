//! The command line. Numbers and words that are also settings stay text here: the settings table judges them, so that
//! option and variable follow one grammar.

use clap::builder::NonEmptyStringValueParser as Text;
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// One process is one rank: brings up its part of the group, proves the collectives, measures them, fails on purpose.
#[derive(Debug, Parser)]
#[command(name = "tf-tp-test", version = crate::version::VERSION, long_version = crate::version::long(),
    subcommand_required = true, max_term_width = 100)]
pub struct Cli {
    /// Options that every command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Options that every command takes, before or after its name.
#[derive(Debug, Default, Args)]
pub struct Global {
    /// This process's rank, from 0 (TF_TP_RANK)
    #[arg(long, global = true, value_name = "N", value_parser = Text::new(), allow_negative_numbers = true)]
    pub rank: Option<String>,
    /// Number of ranks (TF_TP_WORLD)
    #[arg(long, global = true, value_name = "N", value_parser = Text::new(), allow_negative_numbers = true)]
    pub world: Option<String>,
    /// Rank 0's address as the others reach it (TF_TP_MASTER)
    #[arg(long, global = true, value_name = "HOST", value_parser = Text::new())]
    pub master: Option<String>,
    /// TCP port that rank 0 listens on (TF_TP_PORT)
    #[arg(long, global = true, value_name = "PORT", value_parser = Text::new(), allow_negative_numbers = true)]
    pub port: Option<String>,
    /// host, nccl, mailbox or roce (TF_COMM_BACKEND)
    #[arg(long, global = true, value_name = "BACKEND", value_parser = Text::new())]
    pub backend: Option<String>,
    /// verbs, shm or tcp (TF_TP_ROCE_WIRE)
    #[arg(long, global = true, value_name = "WIRE", value_parser = Text::new())]
    pub wire: Option<String>,
    /// Write events to standard output, one JSON object a line
    #[arg(long, global = true)]
    pub events: bool,
    /// Take settings, secret and signs of life from there; leave with 70 when they stop
    #[arg(long, global = true, value_name = "FROM")]
    pub lease: Option<LeaseFrom>,
    /// Name of the session, the same on every rank
    #[arg(long, global = true, value_name = "NAME", value_parser = Text::new())]
    pub session: Option<String>,
}

impl Global {
    /// The options that stand for a setting, by the variable that each wins over.
    pub fn settings(&self) -> [(&'static str, Option<&str>); 7] {
        [
            ("TF_TP_RANK", self.rank.as_deref()),
            ("TF_TP_WORLD", self.world.as_deref()),
            ("TF_TP_MASTER", self.master.as_deref()),
            ("TF_TP_PORT", self.port.as_deref()),
            ("TF_COMM_BACKEND", self.backend.as_deref()),
            ("TF_TP_ROCE_WIRE", self.wire.as_deref()),
            ("TF_TP_SESSION", self.session.as_deref()),
        ]
    }
}

/// Where the lease comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeaseFrom {
    /// Standard input.
    Stdin,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Find the RDMA ports that reach the peers
    Hca(HcaArgs),
    /// Prove the exchange protocol on host memory: 1,000 gathers bit for bit, then latencies
    RoceHost(RoceHostArgs),
    /// Prove every collective of a backend against the oracle, bit for bit
    Suite(SuiteArgs),
    /// Fail on purpose: the victim fails in the middle of collectives, every other rank must leave with 70
    Failfast(FailfastArgs),
    /// Measure the collectives
    Bench(BenchArgs),
    /// Print a new session secret
    Secret,
    /// Say which variables matter here and what each is set to
    Explain(ExplainArgs),
    /// Say what this host can run, and why not
    Doctor(DoctorArgs),
    /// Run a rank under a parent that holds its lease and reports how it ended
    Supervise(SuperviseArgs),
    /// Pass a file on to the next host while it arrives; tp-orchestrate push starts it
    Relay(RelayArgs),
}

impl Command {
    /// The word on the command line.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Hca(_) => "hca",
            Self::RoceHost(_) => "roce-host",
            Self::Suite(_) => "suite",
            Self::Failfast(_) => "failfast",
            Self::Bench(_) => "bench",
            Self::Secret => "secret",
            Self::Explain(_) => "explain",
            Self::Doctor(_) => "doctor",
            Self::Supervise(_) => "supervise",
            Self::Relay(_) => "relay",
        }
    }
}

/// Arguments of `hca`.
#[derive(Debug, Args)]
pub struct HcaArgs {
    /// Write this host's facts as TOML to standard output
    #[arg(long, conflicts_with_all = ["facts", "json"])]
    pub capture: bool,
    /// With --capture: put pseudonyms for host names and addresses
    #[arg(long, requires = "capture")]
    pub redact: bool,
    /// Pick for every rank in this facts file, without a network
    #[arg(long, value_name = "FILE")]
    pub facts: Option<PathBuf>,
    /// Print one JSON document and nothing else on standard output
    #[arg(long, conflicts_with = "events")]
    pub json: bool,
    /// Read devices from a captured tree instead of /sys
    #[arg(long, value_name = "DIR", conflicts_with = "facts", hide = true)]
    pub root: Option<PathBuf>,
}

/// Arguments of `roce-host`.
#[derive(Debug, Args)]
pub struct RoceHostArgs {
    /// Timed gathers of each size; 0 leaves the latencies out
    #[arg(long, value_name = "N", default_value_t = crate::roce_host::LATENCY_CALLS,
        value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(0..=1_000_000))]
    pub calls: usize,
}

/// Arguments of `suite`.
#[derive(Debug, Args)]
pub struct SuiteArgs {
    /// Backend to prove; as --backend
    #[arg(value_parser = Text::new())]
    pub which: Option<String>,
    /// Only the checks whose names contain this text
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// Print the names of the checks and leave
    #[arg(long)]
    pub list: bool,
}

/// Arguments of `failfast`.
#[derive(Debug, Args)]
pub struct FailfastArgs {
    /// The rank that fails
    pub victim: u32,
    /// How it fails
    pub kind: FailKind,
    /// Fail in this phase of the boot instead of in the collectives
    #[arg(long, value_name = "PHASE", value_parser = Text::new())]
    pub at: Option<String>,
    /// With transport: a shell command that takes the victim's link down; --link-up mends it
    #[arg(long, value_name = "COMMAND", requires = "link_up", value_parser = Text::new())]
    pub link_down: Option<String>,
    /// With transport: the shell command that brings the link up again
    #[arg(long, value_name = "COMMAND", requires = "link_down", value_parser = Text::new())]
    pub link_up: Option<String>,
}

/// How the victim fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailKind {
    /// It reports a failure of its own
    Fatal,
    /// SIGKILL
    Kill,
    /// SIGSTOP
    Stall,
    /// Its transport fails
    Transport,
}

impl FailKind {
    /// The word on the command line and in events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fatal => "fatal",
            Self::Kill => "kill",
            Self::Stall => "stall",
            Self::Transport => "transport",
        }
    }
}

/// Arguments of `bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Bytes per rank, separated by commas; K, M and G are powers of 1,024
    #[arg(long, value_name = "LIST", value_parser = Text::new(), default_value = "4K,8K,16K,32K,64K,128K,256K,512K,1M,2M,4M")]
    pub sizes: String,
    /// Operations to measure, separated by commas
    #[arg(long, value_name = "LIST", value_parser = Text::new(), default_value = "all_reduce,all_gather")]
    pub ops: String,
    /// Timed calls of each; 200 unless given, 50 from 1 MiB on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(5..=1_000_000))]
    pub calls: Option<u32>,
    /// Measure the rails between two ranks instead: each alone, all together, and TCP on the same ports
    #[arg(long, conflicts_with_all = ["sizes", "ops"])]
    pub rails: bool,
}

/// Arguments of `explain`.
#[derive(Debug, Args)]
pub struct ExplainArgs {
    /// Only variables whose names contain this text
    pub filter: Option<String>,
    /// Print the documentation page of all settings instead
    #[arg(long)]
    pub markdown: bool,
    /// Print one JSON document and nothing else on standard output: every variable with its range and value
    #[arg(long, conflicts_with_all = ["markdown", "events"])]
    pub json: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Only try whether this address answers, and say whether it is open, closed or filtered; may be repeated
    #[arg(long, value_name = "HOST:PORT", value_parser = Text::new())]
    pub reach: Vec<String>,
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `supervise`.
#[derive(Debug, Args)]
pub struct SuperviseArgs {
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Arguments of `relay`.
#[derive(Debug, Args)]
pub struct RelayArgs {
    /// The file; until its hash is checked it has .part behind its name
    #[arg(long, value_name = "FILE")]
    pub file: PathBuf,
    /// Its SHA-256
    #[arg(long, value_name = "HEX", value_parser = Text::new())]
    pub sha256: String,
    /// Its size in bytes
    #[arg(long, value_name = "BYTES")]
    pub size: u64,
    /// It is here, or is being written here: only send it on
    #[arg(long)]
    pub source: bool,
}
