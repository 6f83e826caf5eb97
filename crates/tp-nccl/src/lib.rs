//! libnccl, loaded at run time: bindings, communicators.
