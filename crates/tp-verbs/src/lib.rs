//! libibverbs, loaded at run time: devices, regions, queue pairs, completions.
