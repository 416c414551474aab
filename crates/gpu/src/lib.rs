//! Programs of a GPU.
pub mod card;
pub mod cuda;
pub mod device;
pub mod driver;
mod host_memory;
pub mod interpreter;
pub mod model;
pub mod place;
pub mod prepare;
pub mod program;
mod ptx;
pub mod selftest;

pub use card::{Card, LoadError, Loaded};
pub use device::GpuDevice;
pub use prepare::{Policy, Threshold};
