//! What this host has for GPUs and RDMA, found out without failing: libcuda, libibverbs, libnccl, the embedded kernels.
//!
//! The libraries are loaded, asked for their versions and devices, and stay loaded; no context, communicator or queue
//! pair is made. libibverbs is loaded before libnccl, which then uses the copy that is in the process.

use std::ffi::{CStr, CString, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use crate::gpu::Capability;

/// The embedded kernels, asked without loading anything.
pub use tp_kernels::{Image, NoImage, image};

use cudarc::driver::sys::{CUdevice, CUdevice_attribute, CUresult};

/// What was found of one library, or of the kernels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// `libcuda`, `libibverbs`, `libnccl` or `kernels`.
    pub library: &'static str,
    /// The file that is used; for the kernels, this program. None: there is none that can be used.
    pub found: Option<PathBuf>,
    /// Its version; for the kernels, the first twelve digits of the image's SHA-256.
    pub version: Option<String>,
    /// What it offers, or why there is none and what was tried.
    pub detail: String,
    /// What would mend it; none where nothing is amiss.
    pub fix: Option<String>,
}

/// One GPU, as the driver tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The driver's number of it.
    pub index: u32,
    /// The driver's name for it.
    pub name: String,
    /// Compute capability: major and minor number.
    pub capability: (u32, u32),
}

/// Everything, in the order libcuda, kernels, libibverbs, libnccl. Overrides are read from this process's environment:
/// `TF_CUDA_LIB`, `TF_IBVERBS_LIB`, `TF_NCCL_LIB`, each one file.
pub fn probe_all() -> Vec<Finding> {
    probe_all_with(&|name| std::env::var_os(name))
}

/// As [`probe_all`], with overrides from `env`.
pub fn probe_all_with(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<Finding> {
    survey(env).0
}

/// As [`probe_all_with`], and the GPUs that the driver lists, none where it cannot be loaded or asked.
pub fn survey(env: &dyn Fn(&str) -> Option<OsString>) -> (Vec<Finding>, Vec<Gpu>) {
    let (libcuda, gpus) = libcuda(env);
    let findings = vec![libcuda, kernels(&gpus), libibverbs(env), libnccl(env)];
    (findings, gpus)
}

/// What this rank's host `host` has, for the choice of a backend.
pub fn capability(host: &str) -> Capability {
    let env = |name: &str| std::env::var_os(name);
    let (_, gpus) = libcuda(&env);
    let gpu = image().is_ok_and(|image| {
        gpus.iter()
            .any(|gpu| image.serves(gpu.capability.0, gpu.capability.1))
    });
    Capability {
        host: host.to_owned(),
        gpu,
        nccl: gpu && tp_nccl::probe(&tp_nccl::Search::new(&env)).version.is_some(),
    }
}

fn libibverbs(env: &dyn Fn(&str) -> Option<OsString>) -> Finding {
    let probe = tp_verbs::probe(&tp_verbs::Search::new(env), Path::new("/"));
    Finding {
        library: "libibverbs",
        version: None,
        detail: probe.detail(),
        fix: probe.fix(),
        found: probe.path,
    }
}

/// Version of the NCCL that would be used, where one is found.
pub fn nccl_version(env: &dyn Fn(&str) -> Option<OsString>) -> Option<(u32, u32, u32)> {
    let version = tp_nccl::probe(&tp_nccl::Search::new(env)).version?;
    Some((version.major, version.minor, version.patch))
}

fn libnccl(env: &dyn Fn(&str) -> Option<OsString>) -> Finding {
    let probe = tp_nccl::probe(&tp_nccl::Search::new(env));
    let fix = match &probe.error {
        Some(tp_nccl::LoadError::Override { .. }) => {
            Some("name a libnccl.so.2 in TF_NCCL_LIB, or unset it to search")
        }
        Some(tp_nccl::LoadError::NotFound { .. }) => {
            Some("install libnccl2, or the wheel nvidia-nccl-cu13, or name the file in TF_NCCL_LIB")
        }
        None => None,
    };
    Finding {
        library: "libnccl",
        version: probe.version.map(|version| version.to_string()),
        detail: probe.detail(),
        fix: fix.map(str::to_owned),
        found: probe.path,
    }
}

/// The embedded kernels, held against the GPUs of this host.
fn kernels(gpus: &[Gpu]) -> Finding {
    let image = match tp_kernels::image() {
        Ok(image) => image,
        Err(missing) => {
            return Finding {
                library: "kernels",
                found: None,
                version: None,
                detail: missing.to_string(),
                fix: Some("build with TP_NVCC=/path/to/nvcc".to_owned()),
            };
        }
    };
    let unserved: Vec<String> = gpus
        .iter()
        .filter(|gpu| !image.serves(gpu.capability.0, gpu.capability.1))
        .map(|gpu| format!("GPU {} is sm_{}{}", gpu.index, gpu.capability.0, gpu.capability.1))
        .collect();
    let fix =
        (!unserved.is_empty()).then(|| format!("{}: build with it in TP_CUDA_ARCHS", unserved.join(", ")));
    Finding {
        library: "kernels",
        found: std::env::current_exe().ok(),
        version: image.sha256.get(..12).map(str::to_owned),
        detail: image.summary(),
        fix,
    }
}

/// Where libcuda is looked for: `TF_CUDA_LIB` alone; else the system's loader, then NixOS, the Debian multiarch folder,
/// `/usr/lib64` and WSL. A file that is loaded under the name `libcuda.so.1` serves whoever asks for that name later.
fn candidates(env: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    if let Some(file) = env("TF_CUDA_LIB").filter(|file| !file.is_empty()) {
        return vec![file.into()];
    }
    let multiarch = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = [
        "/run/opengl-driver/lib",
        multiarch.as_str(),
        "/usr/lib64",
        "/usr/lib/wsl/lib",
    ];
    let known = folders
        .into_iter()
        .map(|folder| Path::new(folder).join("libcuda.so.1"));
    std::iter::once(PathBuf::from("libcuda.so.1"))
        .chain(known.filter(|file| file.exists()))
        .collect()
}

/// The functions of libcuda that are asked; all are as old as the library.
struct Driver {
    path: PathBuf,
    init: unsafe extern "C" fn(u32) -> CUresult,
    version: unsafe extern "C" fn(*mut c_int) -> CUresult,
    count: unsafe extern "C" fn(*mut c_int) -> CUresult,
    get: unsafe extern "C" fn(*mut CUdevice, c_int) -> CUresult,
    name: unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> CUresult,
    attribute: unsafe extern "C" fn(*mut c_int, CUdevice_attribute, CUdevice) -> CUresult,
}

fn libcuda(env: &dyn Fn(&str) -> Option<OsString>) -> (Finding, Vec<Gpu>) {
    let mut tried = Vec::new();
    for candidate in candidates(env) {
        match Driver::open(&candidate) {
            Ok(driver) => return driver.finding(),
            Err(reason) => tried.push(format!("{}: {reason}", candidate.display())),
        }
    }
    let detail = format!("failed to load libcuda: tried {}", tried.join("; "));
    let fix = match env("TF_CUDA_LIB").filter(|file| !file.is_empty()) {
        Some(_) => "name a libcuda.so.1 in TF_CUDA_LIB, or unset it to search",
        None => "install the NVIDIA driver; in a container, start it with the GPUs (--gpus all)",
    };
    let finding = Finding {
        library: "libcuda",
        found: None,
        version: None,
        detail,
        fix: Some(fix.to_owned()),
    };
    (finding, Vec::new())
}

impl Driver {
    fn open(candidate: &Path) -> Result<Self, String> {
        let name = CString::new(candidate.as_os_str().as_bytes())
            .map_err(|_| "a path cannot contain a zero byte".to_owned())?;
        // SAFETY: running the constructors of a library that a person or the system names as libcuda is what loading means.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        if handle.is_null() {
            // SAFETY: the string, if any, lives until the next call of the loader in this thread.
            return Err(unsafe { text(libc::dlerror()) });
        }
        let symbol = |name: &CStr| {
            // SAFETY: the handle is open, the name is terminated.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if address.is_null() {
                Err(format!("is no libcuda, it lacks {}", name.to_string_lossy()))
            } else {
                Ok(address)
            }
        };
        let init = symbol(c"cuInit")?;
        // SAFETY: the functions of these names have these types in every CUDA driver.
        unsafe {
            Ok(Self {
                path: file_of(init).unwrap_or_else(|| candidate.to_owned()),
                init: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(u32) -> CUresult>(init),
                version: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> CUresult>(
                    symbol(c"cuDriverGetVersion")?,
                ),
                count: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut c_int) -> CUresult>(
                    symbol(c"cuDeviceGetCount")?,
                ),
                get: std::mem::transmute::<*mut c_void, unsafe extern "C" fn(*mut CUdevice, c_int) -> CUresult>(
                    symbol(c"cuDeviceGet")?,
                ),
                name: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_char, c_int, CUdevice) -> CUresult,
                >(symbol(c"cuDeviceGetName")?),
                attribute: std::mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_int, CUdevice_attribute, CUdevice) -> CUresult,
                >(symbol(c"cuDeviceGetAttribute")?),
            })
        }
    }

    fn finding(&self) -> (Finding, Vec<Gpu>) {
        let version = self.driver_version();
        let number = version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
        let mut finding = Finding {
            library: "libcuda",
            found: Some(self.path.clone()),
            version: number.clone(),
            detail: String::new(),
            fix: None,
        };
        let gpus = match self.gpus() {
            Ok(gpus) => gpus,
            Err((call, code)) => {
                finding.detail = format!("{call} gave error {code}");
                finding.fix = Some(remedy(code).to_owned());
                return (finding, Vec::new());
            }
        };
        let names: Vec<String> = gpus
            .iter()
            .map(|gpu| {
                format!(
                    "GPU {} {} sm_{}{}",
                    gpu.index, gpu.name, gpu.capability.0, gpu.capability.1
                )
            })
            .collect();
        let runtime = number.map_or_else(String::new, |number| format!("CUDA {number} driver; "));
        finding.detail = if names.is_empty() {
            format!("{runtime}no GPU")
        } else {
            runtime + &names.join(", ")
        };
        if gpus.is_empty() {
            finding.fix = Some(remedy(100).to_owned());
        } else if version.is_some_and(|version| version < OLDEST_DRIVER) {
            finding.fix = Some("install a driver of CUDA 13.0 or newer (580)".to_owned());
        }
        (finding, gpus)
    }

    /// `1000 major + 10 minor` of the newest CUDA that the driver serves.
    fn driver_version(&self) -> Option<i32> {
        let mut version = 0;
        // SAFETY: the pointer is to a live int; this call needs no initialisation.
        let code = unsafe { (self.version)(&raw mut version) };
        (code == CUresult::CUDA_SUCCESS && version > 0).then_some(version)
    }

    /// The GPUs, or the call that failed and its code.
    fn gpus(&self) -> Result<Vec<Gpu>, (&'static str, u32)> {
        let check = |call, code: CUresult| {
            if code as u32 == 0 {
                Ok(())
            } else {
                Err((call, code as u32))
            }
        };
        // SAFETY: no flags are defined.
        check("cuInit", unsafe { (self.init)(0) })?;
        let mut count = 0;
        // SAFETY: the pointer is to a live int.
        check("cuDeviceGetCount", unsafe { (self.count)(&raw mut count) })?;
        (0..count)
            .map(|index| {
                let mut device = 0;
                // SAFETY: the pointer is to a live int and the number is below the count.
                check("cuDeviceGet", unsafe { (self.get)(&raw mut device, index) })?;
                let mut name = [0 as c_char; 128];
                // SAFETY: the buffer has the length that is given, less the last byte, which stays zero.
                check("cuDeviceGetName", unsafe {
                    (self.name)(name.as_mut_ptr(), 127, device)
                })?;
                let capability = [
                    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
                    CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
                ]
                .map(|attribute| {
                    let mut value = 0;
                    // SAFETY: the pointer is to a live int.
                    let code = unsafe { (self.attribute)(&raw mut value, attribute, device) };
                    if code == CUresult::CUDA_SUCCESS {
                        u32::try_from(value).unwrap_or(0)
                    } else {
                        0
                    }
                });
                // SAFETY: terminated, since the last byte was never written.
                let name = unsafe { text(name.as_ptr()) };
                let index = u32::try_from(index).unwrap_or(0);
                Ok(Gpu {
                    index,
                    name,
                    capability: (capability[0], capability[1]),
                })
            })
            .collect()
    }
}

/// CUDA 13.0, which the kernels' images are made for.
const OLDEST_DRIVER: i32 = 13_000;

/// What to do about an error of `cuInit`.
fn remedy(code: u32) -> &'static str {
    match code {
        34 => {
            "that is the toolkit's stub: take its folder off LD_LIBRARY_PATH, or name the driver's file in TF_CUDA_LIB"
        }
        100 => "no GPU is visible: look at CUDA_VISIBLE_DEVICES, nvidia-smi, and --gpus of the container",
        803 => "the library and the kernel's driver are of different versions: reboot, or install both anew",
        999 | 101 | 802 => "look at `dmesg` for the NVIDIA driver's own messages",
        _ => "look at `nvidia-smi`, and the meaning of the code in the CUDA driver's documentation",
    }
}

/// The file that the code at `address` was loaded from.
fn file_of(address: *mut c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about; on success the name is a string of the loader's own.
    let found = unsafe { libc::dladdr(address, &raw mut info) } != 0;
    // SAFETY: null, or the loader's string, which lives as long as the library.
    let name = unsafe { text(info.dli_fname) };
    if !found || name.is_empty() {
        return None;
    }
    let path = PathBuf::from(name);
    Some(path.canonicalize().unwrap_or(path))
}

/// A C string as text; empty where there is none.
///
/// # Safety
/// `string` is null or a terminated string that lives through the call.
unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_library_is_reported_wherever_this_runs() {
        let found = probe_all();
        let names: Vec<_> = found.iter().map(|finding| finding.library).collect();
        assert_eq!(names, ["libcuda", "kernels", "libibverbs", "libnccl"]);
        for finding in &found {
            assert!(!finding.detail.is_empty(), "{finding:?}");
            assert!(
                finding.found.is_some() || finding.fix.is_some(),
                "what is missing has a remedy: {finding:?}"
            );
        }
    }

    #[test]
    fn an_override_is_the_only_file_that_is_tried() {
        let found = probe_all_with(&|name| name.ends_with("_LIB").then(|| "/nowhere/lib.so".into()));
        for (number, variable) in [(0, "TF_CUDA_LIB"), (2, "TF_IBVERBS_LIB"), (3, "TF_NCCL_LIB")] {
            let finding = &found[number];
            assert_eq!(finding.found, None);
            assert!(finding.detail.contains("/nowhere/lib.so"), "{}", finding.detail);
            assert!(
                finding.fix.as_deref().is_some_and(|fix| fix.contains(variable)),
                "{finding:?}"
            );
        }
    }

    #[test]
    fn a_driver_that_refuses_is_reported_with_its_code_and_a_remedy() {
        let folder = std::env::temp_dir().join(format!("tp-fabric-devices-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (code, file) = (folder.join("cuda.c"), folder.join("stub.so"));
        std::fs::write(
            &code,
            "int cuInit(unsigned f) { return 34; } int cuDriverGetVersion(int *v) { *v = 13020; return 0; }\n\
             int cuDeviceGetCount(int *n) { return 3; } int cuDeviceGet(int *d, int i) { return 3; }\n\
             int cuDeviceGetName(char *n, int l, int d) { return 3; } int cuDeviceGetAttribute(int *v, int a, int d) { return 3; }\n",
        )
        .unwrap();
        let compiled = std::process::Command::new("cc")
            .args(["-shared", "-fPIC", "-o"])
            .arg(&file)
            .arg(&code)
            .status();
        if !compiled.is_ok_and(|status| status.success()) {
            eprintln!("skipped: no C compiler `cc`");
            return;
        }
        let (finding, gpus) = libcuda(&|name| (name == "TF_CUDA_LIB").then(|| file.clone().into()));
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(gpus.is_empty());
        assert_eq!(finding.version.as_deref(), Some("13.2"));
        assert!(
            finding.detail.contains("cuInit") && finding.detail.contains("34"),
            "{}",
            finding.detail
        );
        assert!(finding.fix.is_some_and(|fix| fix.contains("stub")));
    }
}
