//! One rank: opens the GPU and runs the checks, the measurements and the failures that were asked for.

use crate::{Depth, Options, bench, checks, fail, link, sweep};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tp_fabric::gpu::{Device, GpuError, InboxKind, Mailbox, MailboxConfig, Tuning};
use tp_fabric::meeting::Meeting;
use tp_fabric::types::Rank;

/// What every part needs.
pub(crate) struct Scene {
    pub(crate) device: Arc<Device>,
    pub(crate) meeting: Box<dyn Meeting>,
    pub(crate) spread: bool,
    pub(crate) passed: usize,
    pub(crate) failed: usize,
}

impl Scene {
    /// Whether this rank prints.
    pub(crate) fn first(&self) -> bool {
        self.meeting.rank() == Rank(0)
    }

    /// The measured configuration, for ranks that share one GPU.
    pub(crate) fn config(&self, kind: InboxKind, wait: Duration) -> Result<MailboxConfig, GpuError> {
        let ranks = if self.spread { 1 } else { self.meeting.world().0 };
        let multiprocessors = self.device.multiprocessors()?;
        Ok(MailboxConfig::of(kind, ranks, multiprocessors, wait))
    }

    /// A mailbox of this kind with the tuning changed.
    pub(crate) fn mailbox(
        &mut self,
        kind: InboxKind,
        change: impl Fn(&mut Tuning),
    ) -> Result<Mailbox, GpuError> {
        self.mailbox_of(kind, |config| change(&mut config.tuning))
    }

    /// A mailbox of this kind with its whole configuration changed.
    pub(crate) fn mailbox_of(
        &mut self,
        kind: InboxKind,
        change: impl Fn(&mut MailboxConfig),
    ) -> Result<Mailbox, GpuError> {
        let mut config = self.config(kind, Duration::from_secs(10))?;
        change(&mut config);
        Mailbox::open(Arc::clone(&self.device), self.meeting.as_mut(), config)
    }
}

pub(crate) fn run(options: &Options, meeting: Box<dyn Meeting>) -> ExitCode {
    match carry_out(options, meeting) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("gpu_exchange: {error}");
            ExitCode::from(3)
        }
    }
}

fn carry_out(options: &Options, mut meeting: Box<dyn Meeting>) -> Result<usize, GpuError> {
    let image = image(options)?;
    let gpu = if options.spread {
        meeting.rank().index()
    } else {
        options.gpu
    };
    let device = Arc::new(Device::open(gpu, Some(&image))?);
    if meeting.rank() == Rank(0) {
        println!(
            "{}, {} ranks, image of {} bytes",
            device.describe()?,
            options.ranks,
            image.len()
        );
    }
    meeting.barrier("ready")?;
    let mut scene = Scene {
        device,
        meeting,
        spread: options.spread,
        passed: 0,
        failed: 0,
    };
    if options.link {
        // The others wait: they would share the link.
        if scene.first() {
            link::run(&scene)?;
        }
        scene.meeting.barrier("after the link")?;
    }
    for kind in &options.inboxes {
        if options.check != Depth::None {
            checks::run(&mut scene, *kind, options.check, options.protocol.as_deref())?;
        }
        if options.bench != Depth::None {
            bench::run(&mut scene, *kind, options.bench)?;
        }
        if options.sweep {
            sweep::run(&mut scene, *kind)?;
        }
        if options.fail {
            fail::run(&mut scene, *kind)?;
        }
    }
    println!(
        "rank {}: {} checks passed, {} failed",
        scene.meeting.rank(),
        scene.passed,
        scene.failed
    );
    scene.meeting.barrier("done")?;
    Ok(scene.failed)
}

fn image(options: &Options) -> Result<Vec<u8>, GpuError> {
    match &options.image {
        Some(path) => std::fs::read(path).map_err(|source| GpuError::Io {
            what: format!("read {}", path.display()),
            source,
        }),
        None => match tp_kernels::image() {
            Ok(image) => Ok(image.bytes.to_vec()),
            Err(none) => Err(GpuError::Config(none.to_string())),
        },
    }
}
