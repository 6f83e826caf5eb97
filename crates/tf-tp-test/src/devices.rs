//! What this binary and this host have for GPUs: the embedded kernels and the libraries found at run time.

use crate::exit_code::Refusal;
use crate::os;
use tp_fabric::devices;
use tp_fabric::settings::Settings;
use tp_fabric::types::BackendKind;

/// One line for `--version`: which GPUs the embedded kernels are for, or why there are none.
pub fn kernels_line() -> String {
    match devices::image() {
        Ok(image) => format!("{}, SHA-256 {}", image.summary(), image.sha256),
        Err(none) => format!("none ({})", none.note),
    }
}

/// SHA-256 of the embedded kernel image; `None` in a binary without kernels.
pub fn image_sha256() -> Option<String> {
    devices::image().ok().map(|image| image.sha256.to_owned())
}

/// Why a backend cannot be run by this binary, found out before anything is opened.
pub fn refuse(backend: Option<BackendKind>, settings: &Settings) -> Result<(), Refusal> {
    let world = settings.world;
    let most = match backend {
        Some(BackendKind::Mailbox | BackendKind::Roce) => 8,
        _ => 64,
    };
    let named = backend.map_or("none", BackendKind::name);
    if world.0 > most {
        return Err(Refusal::usage(format!(
            "the {named} backend serves up to {most} ranks; TF_TP_WORLD (or --world) is {world}"
        )));
    }
    if world.0 < 2 && most == 8 {
        return Err(Refusal::usage(format!(
            "the {named} backend needs a second rank; TF_TP_WORLD (or --world) is {world}"
        )));
    }
    let needs_kernels = match backend {
        None | Some(BackendKind::Host) => false,
        // Two operands have one order, so NCCL's own sums do.
        Some(BackendKind::Nccl) => world.0 > 2,
        Some(BackendKind::Mailbox | BackendKind::Roce) => true,
    };
    let gpu = !matches!(backend, None | Some(BackendKind::Host));
    match devices::image() {
        Err(none) if needs_kernels && settings.kernel_image.is_none() => Err(Refusal::cannot(format!(
            "backend {named} at world {world} needs GPU kernels: {none}; backend host runs without"
        ))),
        _ if gpu && !os::may_have_gpu() => Err(Refusal::cannot(format!(
            "backend {named} needs a GPU, and this host shows none: no NVIDIA device on PCI or in /dev (in a container: \
             --gpus all); backend host runs without"
        ))),
        _ => Ok(()),
    }
}
