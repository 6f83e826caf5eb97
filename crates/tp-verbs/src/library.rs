//! A libibverbs that was found and has what this project calls.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt::Write as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::Search;
use crate::os;
use crate::sys::*;

/// One file that was tried as libibverbs, and why it was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {reason}", candidate.display())]
pub struct Attempt {
    /// A path, or a bare name that the system's loader searches for.
    pub candidate: PathBuf,
    /// The loader's own words, or the symbols that the file lacks.
    pub reason: String,
}

/// No usable libibverbs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// Every candidate of the search was tried.
    #[error(
        "failed to load libibverbs: tried {}; install rdma-core (libibverbs1 and ibverbs-providers), or name the file in \
         TF_IBVERBS_LIB",
        list(attempts)
    )]
    NotFound {
        /// What was tried, in order.
        attempts: Vec<Attempt>,
    },
    /// `TF_IBVERBS_LIB` names a file that is no usable libibverbs. Nothing else is tried then.
    #[error(
        "failed to load libibverbs from TF_IBVERBS_LIB: {attempt}; name a libibverbs.so.1, or unset it to search"
    )]
    Override {
        /// The file and what was wrong with it.
        attempt: Attempt,
    },
}

impl LoadError {
    /// What was tried, in order.
    pub fn attempts(&self) -> &[Attempt] {
        match self {
            Self::NotFound { attempts } => attempts,
            Self::Override { attempt } => std::slice::from_ref(attempt),
        }
    }
}

fn list(attempts: &[Attempt]) -> String {
    let mut text = String::new();
    for (number, attempt) in attempts.iter().enumerate() {
        let separator = if number == 0 { "" } else { "; " };
        let _ = write!(text, "{separator}{attempt}");
    }
    if text.is_empty() {
        "nothing".to_owned()
    } else {
        text
    }
}

/// Defines the table of functions, each with the symbol version that it was introduced or last changed in, and checks
/// each type against the one that bindgen made of the header.
macro_rules! functions {
    (required { $($name:ident @ $version:literal: fn($($arg:ty),*) $(-> $ret:ty)?;)* }
     optional { $($oname:ident @ $oversion:literal: fn($($oarg:ty),*) $(-> $oret:ty)?;)* }) => {
        /// The functions of libibverbs.
        #[derive(Clone, Copy, Debug)]
        #[expect(missing_docs, reason = "named and documented by the library's manual pages")]
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            $(pub $oname: Option<unsafe extern "C" fn($($oarg),*) $(-> $oret)?>,)*
        }

        $(const _: unsafe extern "C" fn($($arg),*) $(-> $ret)? = crate::sys::$name;)*
        $(const _: unsafe extern "C" fn($($oarg),*) $(-> $oret)? = crate::sys::$oname;)*

        /// The functions that a library must have to be taken.
        pub const REQUIRED: &[&str] = &[$(stringify!($name)),*];

        /// Looks every function up in an open library; the error names those that are needed and absent.
        fn resolve(handle: *mut c_void) -> Result<Functions, Vec<&'static str>> {
            let mut absent = Vec::new();
            $(
                let $name = lookup(handle, concat!(stringify!($name), "\0"), concat!($version, "\0"));
                if $name.is_none() { absent.push(stringify!($name)); }
            )*
            // All addresses are looked at together, so that one message names all that is absent.
            let ($(Some($name),)*) = ($($name,)*) else { return Err(absent) };
            Ok(Functions {
                // SAFETY: the symbol of that name and version has that type, by the header.
                $($name: unsafe {
                    std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) $(-> $ret)?>($name)
                },)*
                $($oname: lookup(handle, concat!(stringify!($oname), "\0"), concat!($oversion, "\0")).map(|address| {
                    // SAFETY: as above.
                    unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($oarg),*) $(-> $oret)?>(address)
                    }
                }),)*
            })
        }
    };
}

functions! {
    required {
        ibv_get_device_list @ "IBVERBS_1.1": fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list @ "IBVERBS_1.1": fn(*mut *mut ibv_device);
        ibv_get_device_name @ "IBVERBS_1.1": fn(*mut ibv_device) -> *const c_char;
        ibv_open_device @ "IBVERBS_1.1": fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device @ "IBVERBS_1.1": fn(*mut ibv_context) -> c_int;
        ibv_query_device @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port @ "IBVERBS_1.1": fn(*mut ibv_context, u8, *mut _compat_ibv_port_attr) -> c_int;
        ibv_query_gid @ "IBVERBS_1.1": fn(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
        ibv_create_cq @ "IBVERBS_1.1":
            fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
        ibv_create_qp @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_modify_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_query_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        ibv_destroy_qp @ "IBVERBS_1.1": fn(*mut ibv_qp) -> c_int;
        ibv_get_async_event @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event @ "IBVERBS_1.1": fn(*mut ibv_async_event);
        ibv_wc_status_str @ "IBVERBS_1.1": fn(ibv_wc_status) -> *const c_char;
        ibv_event_type_str @ "IBVERBS_1.1": fn(ibv_event_type) -> *const c_char;
    }
    optional {
        _ibv_query_gid_ex @ "IBVERBS_1.11": fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize) -> c_int;
    }
}

/// A loaded libibverbs. It stays in the process for ever: its providers keep threads and fork handlers.
#[derive(Debug)]
pub struct Verbs {
    functions: Functions,
    path: PathBuf,
    attempts: Vec<Attempt>,
}

impl Verbs {
    /// Loads the first candidate of `search` that opens and has every function of [`REQUIRED`].
    ///
    /// # Errors
    /// [`LoadError`] with every file that was tried and why it was not taken.
    pub fn load(search: &Search) -> Result<Self, LoadError> {
        let mut attempts = Vec::new();
        for candidate in search.candidates() {
            match open(candidate) {
                Ok((functions, path)) => {
                    return Ok(Self {
                        functions,
                        path,
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

    /// What was tried before this library and not taken.
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }

    /// The functions themselves.
    pub fn functions(&self) -> &Functions {
        &self.functions
    }
}

/// Opens one candidate; the error is what a person is told about it.
fn open(candidate: &Path) -> Result<(Functions, PathBuf), String> {
    let name = CString::new(candidate.as_os_str().as_bytes())
        .map_err(|_| "a path cannot contain a zero byte".to_owned())?;
    // SAFETY: running the constructors of a library that a person or the system names as libibverbs is what loading means.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err(loader_error());
    }
    let functions = resolve(handle)
        .map_err(|absent| format!("is no usable libibverbs, it lacks {}", absent.join(", ")))?;
    let path = file_of(functions.ibv_get_device_list as *const c_void);
    Ok((functions, path.unwrap_or_else(|| candidate.to_owned())))
}

/// The address of a symbol; both names end in a zero byte.
fn lookup(handle: *mut c_void, name: &str, version: &str) -> Option<*mut c_void> {
    let name = CStr::from_bytes_with_nul(name.as_bytes()).ok()?;
    let version = CStr::from_bytes_with_nul(version.as_bytes()).ok()?;
    let address = os::symbol(handle, name, version);
    (!address.is_null()).then_some(address)
}

/// What the loader says about the last failure in this thread.
fn loader_error() -> String {
    // SAFETY: the string, if any, lives until the next call of the loader in this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the loader gave no reason".to_owned();
    }
    // SAFETY: not null, terminated, copied at once.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
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
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = Path::new(std::ffi::OsStr::from_bytes(name.to_bytes())).to_owned();
    Some(path.canonicalize().unwrap_or(path))
}

/// A C string of the library as text; empty where there is none.
///
/// # Safety
/// `string` is null or a terminated string that lives through the call.
pub(crate) unsafe fn text(string: *const c_char) -> String {
    if string.is_null() {
        return String::new();
    }
    // SAFETY: not null; the caller vouches for the rest.
    unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned()
}
