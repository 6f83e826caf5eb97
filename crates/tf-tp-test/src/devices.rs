//! What this binary and this host have for GPUs: the embedded kernels and the libraries found at run time.

/// One line for `--version`: which GPUs the embedded kernels are for, or why there are none.
pub fn kernels_line() -> String {
    "none (built without a CUDA compiler; TP_KERNELS=require makes that an error of the build)".to_owned()
}
