//! Compiles kernels/*.cu into one embedded image and knows what is in it.
