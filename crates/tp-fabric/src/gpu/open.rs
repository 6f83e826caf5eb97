//! Opening a GPU backend: the GPU, the small path, NCCL, and the comparison of the two. Collective; either every rank gets
//! a backend or every rank gets an error.

use super::backend::GpuBackend;
use super::buffer::DeviceBuffer;
use super::config::MailboxConfig;
use super::device::Device;
use super::error::GpuError;
use super::layout::InboxKind;
use super::mailbox::Mailbox;
use super::nccl::NcclPath;
use super::posted::{Posted, PostedConfig};
use super::transfer::SmallPath;
use super::work::Work;
use crate::fill::{self, Pattern};
use crate::host::{HostConfig, OpenError, open_way};
use crate::meeting::{Meeting, MeetingError};
use crate::oracle;
use crate::types::{BackendKind, DType, ReduceOp};
use cudarc::driver::sys::CUstream;
use std::path::PathBuf;
use std::sync::Arc;
use tp_nccl::{Nccl, Search};

/// Seed of the comparison's inputs: "prob" in ASCII.
const PROBE_SEED: u64 = 0x7072_6f62;
/// Bytes of the comparison's calls: by lines, by chunks, with an odd end.
const PROBE_BYTES: [usize; 3] = [4096, 65_552, 1 << 20];
/// Largest payload of the small path where nobody sets it, bytes: where NCCL over the same GPUs becomes as fast.
const ROUTE_MAX_PINNED: u64 = 1 << 20;
/// The same where somebody chose pinned inboxes although the GPUs can map each other, as NCCL then does.
const ROUTE_MAX_PINNED_NEAR: u64 = 64 << 10;
const ROUTE_MAX_DEVICE: u64 = 4 << 20;
/// The same for two ranks.
const ROUTE_MAX_DEVICE_TWO: u64 = 16 << 20;
const ROUTE_MAX_POSTED: u64 = 256 << 10;

/// Who carries payloads beyond the small path's largest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Large {
    /// NCCL where every rank has it and no two share a GPU; else the small path.
    Auto,
    /// NCCL; where it cannot be had, there is no backend.
    Nccl,
    /// The small path.
    Own,
}

/// What a GPU backend is opened with. All but `ordinal`, `image` and `wait` must be equal on all ranks.
#[derive(Clone, Debug)]
pub struct GpuConfig {
    /// `nccl`, `mailbox` or `roce`.
    pub kind: BackendKind,
    /// CUDA's number of this rank's GPU.
    pub ordinal: usize,
    /// A file with kernels instead of the embedded image.
    pub image: Option<PathBuf>,
    /// Where the mailbox's inboxes lie; `None`: in device memory where every GPU can map its peers'.
    pub inbox: Option<InboxKind>,
    /// Who carries large payloads.
    pub large: Large,
    /// Largest payload of the small path where NCCL is there too, bytes; `None`: the measured one.
    pub route_max: Option<u64>,
    /// Whether ranks go on with NCCL alone where `roce` cannot be set up.
    pub fallback_to_nccl: bool,
    /// NCCL's own order for its reductions.
    pub fast_order: bool,
    /// Largest grid of the exchange by post.
    pub blocks: u32,
    /// Bound of every wait, the wire, the host's identity; the time for opening.
    pub host: HostConfig,
}

/// A backend, and what to tell of how it came about.
pub struct Opened {
    /// The backend.
    pub backend: GpuBackend,
    /// What a person should know: why NCCL is not there, which GPU.
    pub notes: Vec<String>,
}

/// Opens the backend on all ranks.
///
/// # Errors
/// No driver, GPU, kernel or library; memory that cannot be had or mapped; ranks that differ. All ranks get an error.
pub fn open(meeting: &mut dyn Meeting, cfg: &GpuConfig) -> Result<Opened, GpuError> {
    let device = open_device(meeting.world().0, cfg);
    let device = agreed(meeting, "open the GPU", device)?;
    let place = Place::find(meeting, &device, &cfg.host.host_id)?;
    let mut notes = vec![format!("{}, {}", device.describe()?, place.describe())];
    let small = match open_small(meeting, &device, cfg, &place) {
        Ok(small) => small,
        // Every rank has an error then; a lost one is another matter.
        Err(error) if cfg.kind == BackendKind::Roce && cfg.fallback_to_nccl && !is_loss(&error) => {
            notes.push(format!(
                "WITHOUT ROCE: {error}; every rank goes on with NCCL alone"
            ));
            None
        }
        Err(error) => return Err(error),
    };
    let must = cfg.large == Large::Nccl || small.is_none();
    let nccl = open_nccl(meeting, &device, cfg, &place, must, &mut notes)?;
    let route_max = cfg.route_max.unwrap_or(match (cfg.kind, place.inbox(cfg.inbox)) {
        (BackendKind::Roce, _) => ROUTE_MAX_POSTED,
        (_, InboxKind::Device) if meeting.world().0 == 2 => ROUTE_MAX_DEVICE_TWO,
        (_, InboxKind::Device) => ROUTE_MAX_DEVICE,
        (_, InboxKind::PinnedHost) if place.mappable => ROUTE_MAX_PINNED_NEAR,
        (_, InboxKind::PinnedHost) => ROUTE_MAX_PINNED,
    });
    let (rank, world) = (meeting.rank(), meeting.world());
    let backend = GpuBackend::new(
        &device,
        cfg.kind,
        rank,
        world,
        cfg.host.wait,
        (small, nccl),
        route_max,
    );
    let backend = agreed(meeting, "set up the backend", backend)?;
    compare(meeting, &device, &backend)?;
    Ok(Opened { backend, notes })
}

fn is_loss(error: &GpuError) -> bool {
    matches!(
        error,
        GpuError::Meeting(MeetingError::Lost { .. } | MeetingError::OutOfStep { .. })
    )
}

/// Every rank's part went well, or none goes on.
fn agreed<T>(meeting: &mut dyn Meeting, what: &str, mine: Result<T, GpuError>) -> Result<T, GpuError> {
    let verdict = meeting.verdict(what, mine.as_ref().map(drop).map_err(ToString::to_string));
    let mine = mine?;
    verdict?;
    Ok(mine)
}

fn open_device(world: u32, cfg: &GpuConfig) -> Result<Arc<Device>, GpuError> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|source| GpuError::Io {
            what: format!("read the kernel image {}", path.display()),
            source,
        })
    };
    let given = cfg.image.as_ref().map(read).transpose()?;
    let embedded = tp_kernels::image();
    let image = match (&given, &embedded) {
        (Some(given), _) => Some(given.as_slice()),
        (None, Ok(image)) => Some(image.bytes),
        // Two operands have one order: NCCL's own reductions serve.
        (None, Err(_)) if cfg.kind == BackendKind::Nccl && world <= 2 => None,
        (None, Err(none)) => return Err(GpuError::Config(none.to_string())),
    };
    Device::open(cfg.ordinal, image).map(Arc::new)
}

/// How the ranks lie on hosts and GPUs.
struct Place {
    one_host: bool,
    /// Ranks on the fullest GPU.
    ranks_a_gpu: u32,
    /// Least number of multiprocessors of any GPU.
    multiprocessors: u32,
    /// Every GPU can map every other's memory.
    mappable: bool,
}

impl Place {
    fn find(meeting: &mut dyn Meeting, device: &Device, host: &str) -> Result<Self, GpuError> {
        let bus = agreed(meeting, "ask for the GPU's address", device.bus_id())?;
        let count = agreed(meeting, "ask for the GPU's size", device.multiprocessors())?;
        let mine = format!("{count}\n{bus}\n{host}");
        let all = meeting.all_gather("places", mine.as_bytes())?;
        let texts: Vec<String> = all
            .iter()
            .map(|raw| String::from_utf8_lossy(raw).into_owned())
            .collect();
        let parts: Vec<Vec<&str>> = texts.iter().map(|text| text.splitn(3, '\n').collect()).collect();
        let field = |rank: usize, at: usize| parts[rank].get(at).copied().unwrap_or_default();
        let ranks = 0..parts.len();
        let same_gpu = |a: usize, b: usize| field(a, 1) == field(b, 1) && field(a, 2) == field(b, 2);
        let one_host = ranks.clone().all(|rank| field(rank, 2) == field(0, 2));
        let crowd = ranks
            .clone()
            .map(|a| ranks.clone().filter(|b| same_gpu(a, *b)).count());
        let ranks_a_gpu = crowd.max().unwrap_or(1) as u32;
        let multiprocessors = ranks
            .clone()
            .filter_map(|rank| field(rank, 0).parse().ok())
            .min()
            .unwrap_or(count);
        let can = one_host
            && ranks
                .map(|rank| device.can_map(field(rank, 1)))
                .all(|can| can.unwrap_or(false));
        let all = meeting.all_gather("which GPUs can be mapped", &[u8::from(can)])?;
        Ok(Self {
            one_host,
            ranks_a_gpu,
            multiprocessors,
            mappable: all.iter().all(|can| can == &[1]),
        })
    }

    fn inbox(&self, wanted: Option<InboxKind>) -> InboxKind {
        wanted.unwrap_or(if self.mappable {
            InboxKind::Device
        } else {
            InboxKind::PinnedHost
        })
    }

    fn describe(&self) -> String {
        match self.ranks_a_gpu {
            1 => "one rank a GPU".to_owned(),
            several => format!("up to {several} ranks share a GPU"),
        }
    }
}

fn open_small(
    meeting: &mut dyn Meeting,
    device: &Arc<Device>,
    cfg: &GpuConfig,
    place: &Place,
) -> Result<Option<Box<dyn SmallPath>>, GpuError> {
    match cfg.kind {
        BackendKind::Mailbox => {
            if !place.one_host {
                let text = "refused the mailbox: not all ranks are on one host; take roce or nccl";
                return Err(GpuError::Config(text.to_owned()));
            }
            let (ranks, count) = (place.ranks_a_gpu, place.multiprocessors);
            let mailbox = MailboxConfig::of(place.inbox(cfg.inbox), ranks, count, cfg.host.wait);
            Ok(Some(Box::new(Mailbox::open(
                Arc::clone(device),
                meeting,
                mailbox,
            )?)))
        }
        BackendKind::Roce => {
            let way = open_way(meeting, &cfg.host).map_err(|error| match error {
                OpenError::Meeting(error) => GpuError::Meeting(error),
                other => GpuError::Config(other.to_string()),
            })?;
            let config = PostedConfig {
                wait: cfg.host.wait,
                blocks: cfg.blocks,
            };
            Ok(Some(Box::new(Posted::open(
                Arc::clone(device),
                meeting,
                way,
                config,
            )?)))
        }
        _ => Ok(None),
    }
}

fn open_nccl(
    meeting: &mut dyn Meeting,
    device: &Arc<Device>,
    cfg: &GpuConfig,
    place: &Place,
    must: bool,
    notes: &mut Vec<String>,
) -> Result<Option<NcclPath>, GpuError> {
    // Ranks of one GPU look like several hosts to NCCL, which then goes by sockets.
    if !must && (cfg.large == Large::Own || place.ranks_a_gpu > 1) {
        return Ok(None);
    }
    // RDMA: NCCL takes the copy of libibverbs that is in the process.
    let _ = tp_verbs::probe(&tp_verbs::Search::from_env(), std::path::Path::new("/"));
    let found = Nccl::load(&Search::from_env())
        .map(Arc::new)
        .map_err(|error| error.to_string());
    let has = meeting.all_gather("libnccl", &[u8::from(found.is_ok())])?;
    if !must && has.iter().any(|has| has != &[1]) {
        notes.push("no NCCL on some rank: the small path carries all sizes".to_owned());
        return Ok(None);
    }
    let nccl = agreed(meeting, "load NCCL", found.map_err(GpuError::Config))?;
    notes.push(format!("NCCL {} from {}", nccl.version(), nccl.path().display()));
    match NcclPath::open(device, meeting, &nccl, cfg.host.setup, cfg.fast_order) {
        Ok(path) => Ok(Some(path)),
        // All ranks got the same verdict, so all go on without.
        Err(error @ GpuError::Config(_)) if !must => {
            notes.push(format!("the small path carries all sizes: {error}"));
            Ok(None)
        }
        Err(GpuError::Meeting(error @ MeetingError::Refused { .. })) if !must => {
            notes.push(format!("the small path carries all sizes: {error}"));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Where both paths are there: the same sums by both, held against each other and against the oracle.
fn compare(meeting: &mut dyn Meeting, device: &Arc<Device>, backend: &GpuBackend) -> Result<(), GpuError> {
    let (Some(small), Some(nccl)) = (backend.small(), backend.nccl()) else {
        return Ok(());
    };
    if !nccl.ordered() {
        return Ok(());
    }
    let compared = || -> Result<(), GpuError> {
        let work = Work::new(device)?;
        let most = PROBE_BYTES[PROBE_BYTES.len() - 1];
        let (mut send, mut recv) = (DeviceBuffer::new(device, most)?, DeviceBuffer::new(device, most)?);
        let stream = work.stream().as_raw() as CUstream;
        for (bytes, dtype) in PROBE_BYTES.into_iter().zip([DType::Bf16, DType::F32, DType::F16]) {
            let inputs: Vec<Vec<u8>> = small
                .world()
                .ranks()
                .map(|rank| fill::bytes(bytes, dtype, PROBE_SEED, rank, Pattern::Special))
                .collect();
            send.write(0, &inputs[small.rank().index()])?;
            let all: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
            let wanted = oracle::reduce(&all, dtype, ReduceOp::Sum)
                .map_err(|error| GpuError::Config(format!("no oracle: {error}")))?;
            for by_nccl in [false, true] {
                recv.fill(0, bytes, 0xa5)?;
                let (from, to, length, op) = (send.address(), recv.address(), bytes as u64, ReduceOp::Sum);
                // SAFETY: both buffers hold the largest size, and the stream is waited for.
                unsafe {
                    if by_nccl {
                        nccl.all_reduce(from, to, length, dtype, op, stream)?;
                    } else {
                        small.all_reduce(from, to, length, dtype, op, stream)?;
                    }
                }
                work.begin()?;
                work.end()?;
                work.elapsed_us()?;
                if recv.read(0, bytes)? != wanted {
                    let path = if by_nccl { "NCCL's path" } else { "the small path" };
                    return Err(GpuError::Config(format!(
                        "refused the backend: {path} gave other bits than the oracle for {bytes} bytes of {dtype}"
                    )));
                }
            }
        }
        Ok(())
    };
    let mine = compared();
    agreed(meeting, "compare the small path with NCCL", mine)
}
