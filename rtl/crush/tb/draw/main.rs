//! Benches of everything that draws one item of one bucket, from the kernels to the draw engine with
//! its memories. All are compared with `Bucket::choose` of the software.
#![cfg(feature = "verilator")]

mod buckets;
mod campaign;
mod engine;
mod figures;
mod image;
mod kernels;
