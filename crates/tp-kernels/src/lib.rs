//! The GPU kernels that this binary carries: one fat binary, or none, and what is in it.
//!
//! The build compiles `kernels/` where it finds nvcc, takes a ready image, or leaves the kernels out and says so; the
//! variables that decide are in `build/main.rs`. [`image`] is asked before any command that needs a kernel starts.

mod args;
mod fatbin;

pub use args::OrderedSumArgs;
pub use fatbin::{Arch, archs};

/// The embedded device code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    /// A fat binary, as `cuModuleLoadData` takes it.
    pub bytes: &'static [u8],
    /// SHA-256 of the bytes, hexadecimal. Ranks of one group must agree on it.
    pub sha256: &'static str,
    /// The GPUs that it holds code for.
    pub archs: Vec<Arch>,
    /// How it came here: the compiler's release, or `ready image`.
    pub note: &'static str,
    /// Registers, stack and spills of each kernel and GPU, one a line, as the compiler told; empty for a ready image.
    pub report: &'static str,
}

impl Image {
    /// Whether a GPU of this compute capability can run it: by code for exactly that architecture's family, or by
    /// intermediate code that its driver compiles.
    pub fn serves(&self, major: u32, minor: u32) -> bool {
        self.archs.iter().any(|arch| arch.serves(major, minor))
    }

    /// One line for people: the GPUs, and how it came here.
    pub fn summary(&self) -> String {
        let archs: Vec<String> = self.archs.iter().map(ToString::to_string).collect();
        format!("{} ({})", archs.join(" "), self.note)
    }
}

/// The kernels of this binary; the error says why there are none and how to get them in.
///
/// # Errors
/// [`NoImage`] in a build without kernels.
pub fn image() -> Result<Image, NoImage> {
    embedded().ok_or(NoImage {
        note: env!("TP_KERNEL_NOTE"),
    })
}

/// This binary has no kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoImage {
    /// Why, in the build's words.
    pub note: &'static str,
}

impl std::fmt::Display for NoImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "this binary has no GPU kernels ({}): build it with TP_NVCC=/path/to/nvcc; TP_KERNELS=require makes their \
             absence an error of the build",
            self.note
        )
    }
}

impl std::error::Error for NoImage {}

#[cfg(tp_kernels)]
fn embedded() -> Option<Image> {
    let bytes: &'static [u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.fatbin"));
    Some(Image {
        bytes,
        sha256: include_str!(concat!(env!("OUT_DIR"), "/kernels.sha256")),
        archs: archs(bytes),
        note: env!("TP_KERNEL_NOTE"),
        report: include_str!(concat!(env!("OUT_DIR"), "/kernels.report")),
    })
}

#[cfg(not(tp_kernels))]
fn embedded() -> Option<Image> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_whole_and_a_missing_one_says_how_to_get_it() {
        match image() {
            Ok(image) => {
                use sha2::Digest as _;
                assert_eq!(image.sha256, hex::encode(sha2::Sha256::digest(image.bytes)));
                assert!(!image.archs.is_empty(), "code for at least one GPU");
                assert!(
                    !image.serves(7, 5),
                    "no code for a GPU that is older than all of them"
                );
            }
            Err(missing) => {
                let text = missing.to_string();
                assert!(text.contains("TP_NVCC") && text.contains(missing.note), "{text}");
                eprintln!("skipped: {text}");
            }
        }
    }
}
