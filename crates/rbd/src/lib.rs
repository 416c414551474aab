//! RBD images of a Ceph cluster as block devices, as procedures without I/O.

pub mod error;
pub mod find;
pub mod format;
pub mod fuzz;
pub mod header;
pub mod image;
pub mod pool;
pub mod store;

pub use error::RbdError;
pub use image::{Image, ImageSpec, Phase, Timer};
