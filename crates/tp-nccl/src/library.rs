//! A libnccl that was found and has what this project calls.

use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};

use crate::sys::{NcclLibrary, ncclResult_t};
use crate::{Attempt, CallError, LoadError, Search, Version};

/// A loaded libnccl. It stays in the process for ever: NCCL keeps threads and exit handlers.
pub struct Nccl {
    raw: ManuallyDrop<NcclLibrary>,
    path: PathBuf,
    version: Version,
    attempts: Vec<Attempt>,
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nccl")
            .field("path", &self.path)
            .field("version", &self.version)
            .finish_non_exhaustive()
    }
}

/// Defines a list of symbols by name, and a function that says which of them a library lacks.
macro_rules! symbols {
    ($(#[$meta:meta])* $list:ident, $absent:ident: $($symbol:ident)*) => {
        $(#[$meta])*
        pub const $list: &[&str] = &[$(stringify!($symbol)),*];

        pub(crate) fn $absent(raw: &NcclLibrary) -> Vec<&'static str> {
            let mut absent = Vec::new();
            $(if raw.$symbol.is_err() { absent.push(stringify!($symbol)); })*
            absent
        }
    };
}

symbols! {
    /// The functions that a library must have to be taken.
    REQUIRED, absent_required:
    ncclGetVersion ncclGetUniqueId ncclGetErrorString ncclGetLastError
    ncclCommInitRank ncclCommInitRankConfig ncclCommFinalize ncclCommDestroy ncclCommAbort ncclCommGetAsyncError
    ncclAllReduce ncclReduceScatter ncclAllGather ncclBroadcast ncclSend ncclRecv ncclGroupStart ncclGroupEnd
}

symbols! {
    /// The functions that are used where the library has them; a call without gives [`CallError::Missing`].
    OPTIONAL, absent_optional:
    ncclCommSplit ncclCommShrink ncclCommRevoke ncclMemAlloc ncclMemFree ncclCommRegister ncclCommDeregister
    ncclCommWindowRegister ncclCommWindowDeregister
}

impl Nccl {
    /// Loads the first candidate of `search` that opens and has every symbol of [`REQUIRED`].
    ///
    /// # Errors
    /// [`LoadError`] with every file that was tried and why it was not taken.
    pub fn load(search: &Search) -> Result<Self, LoadError> {
        let mut attempts = Vec::new();
        for candidate in search.candidates() {
            match open(candidate) {
                Ok((raw, path, version)) => {
                    return Ok(Self {
                        raw,
                        path,
                        version,
                        attempts,
                    });
                }
                Err(reason) => attempts.push(Attempt {
                    candidate: candidate.clone(),
                    reason,
                }),
            }
        }
        match attempts.pop() {
            Some(attempt) if search.is_overridden() => Err(LoadError::Override { attempt }),
            last => {
                attempts.extend(last);
                Err(LoadError::NotFound { attempts })
            }
        }
    }

    /// The file that the loader took, as far as it says; else the candidate's name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The library's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// What was tried before this library and not taken.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The functions of [`OPTIONAL`] that this library lacks.
    pub fn absent(&self) -> Vec<&'static str> {
        absent_optional(&self.raw)
    }

    /// The functions themselves; see [`crate::call!`].
    pub fn raw(&self) -> &NcclLibrary {
        &self.raw
    }

    /// Turns a call's result into `Ok` or NCCL's own words. In progress counts as `Ok(false)`, success as `Ok(true)`.
    ///
    /// # Errors
    /// [`CallError::Failed`] for every other code.
    pub fn checked(&self, call: &'static str, result: ncclResult_t) -> Result<bool, CallError> {
        match result {
            ncclResult_t::ncclSuccess => Ok(true),
            ncclResult_t::ncclInProgress => Ok(false),
            ncclResult_t(code) => Err(CallError::Failed {
                call,
                code,
                text: self.text_of(result),
                last_error: self.last_error(),
                library: self.path.clone(),
            }),
        }
    }

    /// The error of a call that this library does not have.
    pub fn missing(&self, call: &'static str) -> CallError {
        CallError::Missing {
            call,
            library: self.path.clone(),
            version: self.version,
        }
    }

    fn text_of(&self, result: ncclResult_t) -> String {
        match &self.raw.ncclGetErrorString {
            // SAFETY: the function takes any code and returns a static string.
            Ok(function) => unsafe { text(function(result)) },
            Err(_) => String::new(),
        }
    }

    fn last_error(&self) -> String {
        match &self.raw.ncclGetLastError {
            // SAFETY: the communicator is unused by NCCL and may be null; the returned string belongs to the library.
            Ok(function) => unsafe { text(function(std::ptr::null_mut())) },
            Err(_) => String::new(),
        }
    }
}

/// Calls one NCCL function: `call!(nccl, ncclCommAbort(comm))` gives `Result<bool, CallError>`, `Ok(false)` for in
/// progress. To be used in an `unsafe` block, since NCCL trusts its arguments.
#[macro_export]
macro_rules! call {
    ($nccl:expr, $function:ident($($argument:expr),* $(,)?)) => {
        match &$nccl.raw().$function {
            Ok(function) => {
                let result = function($($argument),*);
                $nccl.checked(stringify!($function), result)
            }
            Err(_) => Err($nccl.missing(stringify!($function))),
        }
    };
}

/// Opens one candidate; the error is what a person is told about it.
fn open(candidate: &Path) -> Result<(ManuallyDrop<NcclLibrary>, PathBuf, Version), String> {
    // SAFETY: running the constructors of a library that a person or the system names as libnccl is what loading means.
    let library = unsafe { libloading::Library::new(candidate) }.map_err(|error| describe(&error))?;
    // SAFETY: the library is open; the generated code only looks symbols up by name.
    let raw = unsafe { NcclLibrary::from_library(library) }.map_err(|error| describe(&error))?;
    // It stays, whatever is found wrong with it: unloading a library that may have started threads is not safe.
    let raw = ManuallyDrop::new(raw);
    let absent = absent_required(&raw);
    if !absent.is_empty() {
        return Err(format!("is no usable NCCL, it lacks {}", absent.join(", ")));
    }
    let mut code = 0;
    let result = match &raw.ncclGetVersion {
        // SAFETY: the pointer is to a live int.
        Ok(function) => unsafe { function(&raw mut code) },
        Err(error) => return Err(describe(error)),
    };
    let code = match (result, u32::try_from(code)) {
        (ncclResult_t::ncclSuccess, Ok(code)) if code > 0 => code,
        (result, _) => {
            return Err(format!(
                "ncclGetVersion gave code {} and version {code}",
                result.0
            ));
        }
    };
    let path = match &raw.ncclGetVersion {
        Ok(function) => file_of(*function as *const c_void).unwrap_or_else(|| candidate.to_owned()),
        Err(_) => candidate.to_owned(),
    };
    Ok((raw, path, Version::from_code(code)))
}

/// The loader's words for an error, not only the name of the call that failed.
fn describe(error: &libloading::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => source.to_string(),
        None => error.to_string(),
    }
}

/// The file that the code at `address` was loaded from.
fn file_of(address: *const c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked about; on success the name is a string of the loader's own.
    let found = unsafe { libc::dladdr(address, &raw mut info) } != 0 && !info.dli_fname.is_null();
    if !found {
        return None;
    }
    // SAFETY: checked above to be there; it lives as long as the library, which is for ever.
    let name = unsafe { CStr::from_ptr(info.dli_fname) }
        .to_string_lossy()
        .into_owned();
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
