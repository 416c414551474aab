//! Benches of all units that draw one item of one bucket, from the kernels to the draw engine with
//! its memories. All results are compared with the software's `Bucket::choose`.
#![cfg(feature = "verilator")]

mod buckets;
mod campaign;
mod engine;
mod image;
mod kernels;
mod latency;
