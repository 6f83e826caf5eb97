//! Commands and options.

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

/// Brings up tensor-parallel ranks on all hosts of an inventory, tries every arm and step, and leaves a receipt.
#[derive(Debug, Parser)]
#[command(
    name = "tp-orchestrate",
    version,
    subcommand_required = true,
    max_term_width = 100
)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Write an inventory by asking the hosts
    Init(InitArgs),
    /// Look at every host at once, change nothing, and say what would mend each finding
    Doctor(DoctorArgs),
    /// Show which RDMA ports the ranks pick, and why
    Hca(HcaArgs),
    /// Print the variables that an engine should be started with
    Env(EnvArgs),
    /// Print what `run` would do: every command, on every host, in order
    Plan(PlanArgs),
    /// Bring the runner to every host
    Push(PushArgs),
    /// Run the plan and leave a receipt
    Run(RunArgs),
    /// End what an interrupted run left on the hosts
    Stop(StopArgs),
    /// Print a receipt as the Markdown that people paste into a pull request, or in another form
    Report(ReportArgs),
    /// Look at receipts
    Receipt(ReceiptArgs),
    /// Print the completions of a shell
    Completions(CompletionsArgs),
    /// Write the man pages into a directory, or print the main one
    Man(ManArgs),
}

/// An inventory and the runner that its ranks are started with.
#[derive(Debug, Args)]
pub struct Target {
    /// The inventory, a TOML file
    pub inventory: PathBuf,
    /// The runner; the tf-tp-test beside this program unless given. Once for each system where the hosts have several
    #[arg(long, value_name = "FILE")]
    pub runner: Vec<PathBuf>,
}

/// What of the matrix is meant.
#[derive(Debug, Default, Args)]
pub struct Select {
    /// Arms, separated by commas: none, nccl, roce
    #[arg(long, value_name = "ARM,…", value_delimiter = ',')]
    pub arms: Vec<String>,
    /// Steps, as patterns separated by commas, e.g. suite-*,failfast-*-kill-0
    #[arg(long, value_name = "GLOB,…", value_delimiter = ',')]
    pub steps: Vec<String>,
    /// Backends, separated by commas: host, nccl, mailbox, roce
    #[arg(long, value_name = "BACKEND,…", value_delimiter = ',')]
    pub backends: Vec<String>,
    /// Let ranks share a GPU where there are fewer GPUs than ranks: a rehearsal, and the receipt says so
    #[arg(long)]
    pub share_gpu: bool,
}

/// Arguments of `hca`.
#[derive(Debug, Args)]
pub struct HcaArgs {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `init`.
#[derive(Debug, Args)]
pub struct InitArgs {
    /// The hosts, rank 0's first: addresses or aliases of ~/.ssh/config; USER@HOST where the user differs
    #[arg(required_unless_present = "local", conflicts_with = "local")]
    pub hosts: Vec<String>,
    /// Ranks on this machine instead: how many
    #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub local: Option<u32>,
    /// Name of the cluster
    #[arg(long, value_name = "NAME", default_value = "cluster")]
    pub name: String,
    /// Where the inventory goes, which must not exist; standard output unless given
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// The runner; the tf-tp-test beside this program unless given
    #[arg(long, value_name = "FILE")]
    pub runner: Option<PathBuf>,
    /// Print one JSON document and nothing else on standard output: the inventory's text and what was found
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// Also show what is well, and notes
    #[arg(long)]
    pub all: bool,
    /// Start no rank: leave out the collective at the end
    #[arg(long)]
    pub no_collective: bool,
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `env`.
#[derive(Debug, Args)]
pub struct EnvArgs {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// Only this rank; every rank unless given
    #[arg(long, value_name = "N", conflicts_with = "host")]
    pub rank: Option<u32>,
    /// Only this host
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,
    /// How: sh (export lines), dotenv (NAME=value lines), json
    #[arg(long, value_name = "FORMAT", default_value = "sh")]
    pub format: EnvFormat,
    /// Write one file a host, HOST.env, into this directory, which is made where it is missing
    #[arg(long, value_name = "DIR", conflicts_with_all = ["rank", "host", "json"])]
    pub into: Option<PathBuf>,
    /// Refuse unless this receipt's run passed with the same ports
    #[arg(long, value_name = "DIR")]
    pub proved_by: Option<PathBuf>,
    /// As --format json, for the sake of scripts that give it to every command
    #[arg(long)]
    pub json: bool,
}

/// Forms of `env`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum EnvFormat {
    /// Lines that a shell reads.
    Sh,
    /// Lines that Docker and Compose read.
    Dotenv,
    /// One document.
    Json,
}

/// Arguments of `plan`.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// What.
    #[command(flatten)]
    pub select: Select,
    /// Ask the hosts what they can do, as `run` does; without it the inventory is believed where hosts are elsewhere
    #[arg(long)]
    pub ask: bool,
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `push`.
#[derive(Debug, Args)]
pub struct PushArgs {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// A file that goes with the runner, e.g. libnccl.so.2
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,
    /// Send such files from here to every host, also where hosts could pass them on to each other
    #[arg(long)]
    pub no_relay: bool,
    /// Take away every other runner and file that nobody uses
    #[arg(long)]
    pub prune: bool,
    /// Add the keys of hosts of which none is known to ~/.ssh/known_hosts, one host after the other
    #[arg(long)]
    pub accept_new_host_keys: bool,
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `stop`.
#[derive(Debug, Args)]
pub struct StopArgs {
    /// The inventory, a TOML file
    pub inventory: PathBuf,
    /// End this run's ranks too, whoever began it: the first part of a session's name
    #[arg(long, value_name = "RUN")]
    pub run: Vec<String>,
    /// Only list what there is
    #[arg(long)]
    pub list: bool,
    /// Print one JSON document and nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Where.
    #[command(flatten)]
    pub target: Target,
    /// What.
    #[command(flatten)]
    pub select: Select,
    /// Directory for the receipt, which must not exist; ./receipts/NAME-DATE-TIME unless given
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Stop after the first step that does not pass
    #[arg(long)]
    pub fail_fast: bool,
    /// Run every step N times, whatever comes out
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub repeat: u32,
    /// Try a failed step again, at most N times; a step that passes then is FLAKY
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100))]
    pub retries: u32,
    /// Print the run's records as JSON lines on standard output
    #[arg(long)]
    pub json: bool,
    /// Keep names of hosts, users, addresses and paths in the receipt
    #[arg(long)]
    pub no_redact: bool,
    /// Continue the interrupted run of this receipt
    #[arg(long, value_name = "DIR", conflicts_with_all = ["out", "no_redact"])]
    pub resume: Option<PathBuf>,
}

/// Arguments of `report`.
#[derive(Debug, Args)]
pub struct ReportArgs {
    /// A receipt's directory
    pub receipt: PathBuf,
    /// The form
    #[arg(long, value_name = "FORM", value_enum, default_value_t = Form::Markdown)]
    pub format: Form,
}

/// What `report` prints.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Form {
    /// Tables for a pull request
    Markdown,
    /// The page with plots and diagrams
    Html,
    /// JUnit XML
    Junit,
}

/// Arguments of `receipt`.
#[derive(Debug, Args)]
pub struct ReceiptArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: ReceiptCommand,
}

/// The commands of `receipt`.
#[derive(Debug, Subcommand)]
pub enum ReceiptCommand {
    /// Print the verdict, the matrix and the failures
    Show {
        /// A receipt's directory
        receipt: PathBuf,
        /// Print receipt.json and nothing else on standard output
        #[arg(long)]
        json: bool,
    },
    /// Check that nothing in it was changed and that every total follows from its events
    Verify {
        /// A receipt's directory
        receipt: PathBuf,
        /// Also compare the runner's hash with this file's
        #[arg(long, value_name = "FILE")]
        binary: Option<PathBuf>,
        /// Also want a signature (SHA256SUMS.sig) by one of this file, the allowed_signers of ssh-keygen -Y
        #[arg(long, value_name = "FILE")]
        allowed_signers: Option<PathBuf>,
        /// The one of that file who must have signed; anyone of it unless given
        #[arg(long, value_name = "NAME", requires = "allowed_signers")]
        signer: Option<String>,
        /// Print one JSON document and nothing else on standard output
        #[arg(long)]
        json: bool,
    },
    /// Compare two receipts: where they come from, what came out, which latencies moved beyond their noise
    Diff {
        /// The earlier receipt's directory
        before: PathBuf,
        /// The later receipt's directory
        after: PathBuf,
        /// Exit with 1 where a step no longer passes or a latency grew by more than this many percent beyond the noise
        #[arg(long, value_name = "PERCENT", value_parser = percent)]
        fail_on_regression: Option<f64>,
    },
}

fn percent(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "want a number".to_owned())?;
    if number.is_finite() && number >= 0.0 {
        Ok(number)
    } else {
        Err("want a number of at least 0".to_owned())
    }
}

/// Arguments of `completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    pub shell: Shell,
}

/// Arguments of `man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory for one page a command; made where it is missing
    pub dir: Option<PathBuf>,
}
