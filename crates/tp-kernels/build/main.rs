//! Puts the device code into the build: compiles it where nvcc is found, takes a ready image, or builds without.
//!
//! | variable | meaning |
//! |---|---|
//! | `TP_KERNELS` | `off`: never look for a compiler. `require`: no image is an error. Unset: a warning |
//! | `TP_KERNEL_IMAGE` | a fat binary made by `kernels/build.sh` elsewhere; no compiler is looked for |
//! | `TP_NVCC` | this compiler and no other: the program, or a folder with `bin/nvcc` |
//! | `TP_CUDA_ARCHS` | GPUs to make code for, such as `90,121`; unset: `90,100,120,121` |

mod nvcc;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use sha2::{Digest, Sha256};

/// H100 and H200, B200, RTX PRO Blackwell, GB10.
const ARCHS: &str = "90,100,120,121";

/// The intermediate code that a driver turns into code for GPUs that are not named: any from this one on. Left out with a
/// compiler from 13.1 on, whose intermediate code a CUDA 13.0 driver does not take.
const PTX_ARCH: &str = "90";

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("kernels: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    println!("cargo::rustc-check-cfg=cfg(tp_kernels)");
    for variable in ["TP_KERNELS", "TP_KERNEL_IMAGE", "TP_CUDA_ARCHS"]
        .iter()
        .chain(nvcc::VARIABLES)
    {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    let out = PathBuf::from(env("OUT_DIR").ok_or("OUT_DIR is unset; this is run by cargo")?);
    let mode = env("TP_KERNELS").unwrap_or_default();
    let required = match mode.to_str() {
        Some("off") => return without("left out by TP_KERNELS=off"),
        Some("require") => true,
        Some("" | "auto") => false,
        _ => {
            return Err(format!(
                "TP_KERNELS={} is none of off, require, auto",
                mode.display()
            ));
        }
    };
    if let Some(image) = env("TP_KERNEL_IMAGE").filter(|image| !image.is_empty()) {
        println!("cargo::rerun-if-changed={}", image.display());
        return embed(Path::new(&image), &out, "ready image", "");
    }
    let sources = sources()?;
    println!("cargo::rerun-if-changed={}", sources.display());
    if !sources.join("image.cu").exists() {
        return if required {
            Err("there are no kernels yet".to_owned())
        } else {
            without("no kernels in the source tree")
        };
    }
    match nvcc::find(&env) {
        Ok(compiler) => compile(&compiler, &sources, &out),
        Err(tried) if required || env("TP_NVCC").is_some() => Err(format!(
            "no working nvcc; tried {}. Name one in TP_NVCC, or build without kernels with TP_KERNELS=off",
            tried.join(", ")
        )),
        Err(_) => {
            println!(
                "cargo::warning=no nvcc found: this build has no GPU kernels (TP_NVCC names one, TP_KERNELS=require insists)"
            );
            without("no nvcc at build time; TP_NVCC names one")
        }
    }
}

fn env(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn sources() -> Result<PathBuf, String> {
    let manifest = env("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is unset; this is run by cargo")?;
    Ok(Path::new(&manifest).join("../../kernels"))
}

/// Compiles the sources for every GPU of `TP_CUDA_ARCHS` that this compiler knows.
fn compile(compiler: &nvcc::Nvcc, sources: &Path, out: &Path) -> Result<(), String> {
    let wanted = env("TP_CUDA_ARCHS")
        .filter(|list| !list.is_empty())
        .unwrap_or_else(|| ARCHS.into());
    let wanted = wanted.to_str().ok_or("TP_CUDA_ARCHS is not text")?;
    let mut options = Vec::new();
    for arch in wanted.split(',').map(str::trim).filter(|arch| !arch.is_empty()) {
        if compiler.codes.iter().any(|code| *code == format!("sm_{arch}")) {
            options.push(format!("-gencode=arch=compute_{arch},code=sm_{arch}"));
        } else {
            println!(
                "cargo::warning=nvcc {} makes no code for sm_{arch}: left out",
                compiler.release
            );
        }
    }
    if compiler.release.starts_with("13.0.") {
        options.push(format!(
            "-gencode=arch=compute_{PTX_ARCH},code=compute_{PTX_ARCH}"
        ));
    }
    if options.is_empty() {
        return Err(format!(
            "nvcc {} knows none of the GPUs {wanted}",
            compiler.release
        ));
    }
    let image = out.join("compiled.fatbin");
    let script = sources.join("build.sh");
    let output = Command::new("bash")
        .args([&script, &image, &compiler.path])
        .args(&options)
        .output()
        .map_err(|error| format!("failed to run bash {}: {error}", script.display()))?;
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        return Err(format!("{}{report}", String::from_utf8_lossy(&output.stderr)));
    }
    print!("{report}");
    embed(&image, out, &format!("nvcc {}", compiler.release), &report)
}

/// The magic number at the head of a fat binary, little-endian.
const FATBIN_MAGIC: [u8; 4] = [0x50, 0xed, 0x55, 0xba];

fn embed(image: &Path, out: &Path, note: &str, report: &str) -> Result<(), String> {
    let bytes =
        std::fs::read(image).map_err(|error| format!("failed to read {}: {error}", image.display()))?;
    if !bytes.starts_with(&FATBIN_MAGIC) {
        return Err(format!("{} is no fat binary of CUDA kernels", image.display()));
    }
    let hash = hex::encode(Sha256::digest(&bytes));
    for (name, content) in [
        ("kernels.fatbin", bytes.as_slice()),
        ("kernels.sha256", hash.as_bytes()),
        ("kernels.report", report.as_bytes()),
    ] {
        let file = out.join(name);
        std::fs::write(&file, content)
            .map_err(|error| format!("failed to write {}: {error}", file.display()))?;
    }
    println!("cargo::rustc-cfg=tp_kernels");
    println!("cargo::rustc-env=TP_KERNEL_NOTE={note}");
    Ok(())
}

fn without(note: &str) -> Result<(), String> {
    println!("cargo::rustc-env=TP_KERNEL_NOTE={note}");
    Ok(())
}
