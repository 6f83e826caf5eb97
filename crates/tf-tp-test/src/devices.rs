//! What this binary and this host have for GPUs: the embedded kernels and the libraries found at run time.

use crate::exit_code::Refusal;
use tp_fabric::devices;
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
pub fn refuse(backend: BackendKind) -> Result<(), Refusal> {
    if backend == BackendKind::Host {
        return Ok(());
    }
    match devices::image() {
        Err(none) => Err(Refusal::cannot(format!(
            "backend {backend} needs GPU kernels: {none}; backend host runs without"
        ))),
        Ok(_) => Err(Refusal::cannot(format!(
            "backend {backend} is not opened by this runner yet; backend host is"
        ))),
    }
}
