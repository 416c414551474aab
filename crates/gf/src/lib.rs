//! GF(2^8) kernels on byte slices and the LinearMap that they execute
