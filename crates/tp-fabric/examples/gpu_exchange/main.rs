//! Proves and measures the mailbox's exchange kernels with several ranks on one GPU.
//!
//! ```text
//! gpu_exchange [--ranks N] [--inbox pinned|device|both] [--check none|quick|full] [--bench none|quick|full]
//!              [--protocol NAME] [--fail] [--gpu N | --spread] [--image FILE] [--sweep] [--link] [--threads]
//! ```
//! Starts itself once a rank; with `--threads` the ranks are threads of this process, each with its own stream. With `--spread` rank r has GPU r; else the ranks share one and need an MPS daemon whose
//! `CUDA_MPS_PIPE_DIRECTORY` it inherits: without one their kernels take turns instead of running at once. Results are
//! compared with the oracle, bit for bit; latencies are medians of CUDA events, printed as JSON lines and as a table. Exit
//! code 0: all passed; 1: a check failed; 3: the GPU cannot be used.

mod bench;
mod checks;
mod fail;
mod link;
mod parent;
mod pipes;
mod rank;
mod sweep;
mod wrap;

use std::process::ExitCode;
use std::time::Duration;
use tp_fabric::gpu::InboxKind;
use tp_fabric::local::LocalMeeting;
use tp_fabric::types::World;

/// How much to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    None,
    Quick,
    Full,
}

/// The command line.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) ranks: u32,
    pub(crate) inboxes: Vec<InboxKind>,
    pub(crate) check: Depth,
    pub(crate) bench: Depth,
    /// The one protocol to check; unset: all.
    pub(crate) protocol: Option<String>,
    pub(crate) fail: bool,
    pub(crate) sweep: bool,
    pub(crate) link: bool,
    /// Ranks are threads of one process.
    pub(crate) threads: bool,
    pub(crate) gpu: usize,
    /// Rank r has GPU r; else all share one.
    pub(crate) spread: bool,
    pub(crate) image: Option<std::path::PathBuf>,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut this = Self {
            ranks: 2,
            inboxes: vec![InboxKind::PinnedHost, InboxKind::Device],
            check: Depth::Quick,
            bench: Depth::Quick,
            protocol: None,
            fail: false,
            sweep: false,
            link: false,
            threads: false,
            gpu: 0,
            spread: false,
            image: None,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--ranks" => this.ranks = number(&value()?)?,
                "--inbox" => {
                    let kind = value()?;
                    if kind != "both" {
                        this.inboxes = vec![kind.parse()?];
                    }
                }
                "--check" => this.check = depth(&value()?)?,
                "--bench" => this.bench = depth(&value()?)?,
                "--protocol" => this.protocol = Some(checks::protocol(&value()?)?),
                "--fail" => this.fail = true,
                "--spread" => this.spread = true,
                "--sweep" => this.sweep = true,
                "--link" => this.link = true,
                "--threads" => this.threads = true,
                "--gpu" => this.gpu = number(&value()?)?,
                "--image" => this.image = Some(value()?.into()),
                other => return Err(format!("`{other}` is no option")),
            }
        }
        if !(2..=8).contains(&this.ranks) {
            return Err(format!("{} ranks are not 2 to 8", this.ranks));
        }
        Ok(this)
    }
}

fn number<T: std::str::FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}` is no number"))
}

fn depth(word: &str) -> Result<Depth, String> {
    match word {
        "none" => Ok(Depth::None),
        "quick" => Ok(Depth::Quick),
        "full" => Ok(Depth::Full),
        other => Err(format!("`{other}` is none of none, quick, full")),
    }
}

/// All ranks in this process.
fn threads(options: &Options) -> ExitCode {
    let ends = LocalMeeting::group(World(options.ranks), Duration::from_secs(60));
    let passed = std::thread::scope(|scope| {
        let ranks: Vec<_> = ends
            .into_iter()
            .map(|end| scope.spawn(move || rank::run(options, Box::new(end)) == ExitCode::SUCCESS))
            .collect();
        // All are waited for, whatever the first ones say.
        let ended: Vec<bool> = ranks
            .into_iter()
            .map(|rank| matches!(rank.join(), Ok(true)))
            .collect();
        ended.into_iter().all(|passed| passed)
    });
    ExitCode::from(u8::from(!passed))
}

fn main() -> ExitCode {
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("gpu_exchange: {reason}");
            return ExitCode::from(2);
        }
    };
    match pipes::PipeMeeting::of_this_process(options.ranks) {
        Some(meeting) => rank::run(&options, Box::new(meeting)),
        None if options.threads => threads(&options),
        None => parent::run(&options),
    }
}
