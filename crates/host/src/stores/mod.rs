//! The stores that there are. Each has a file or folder of its own, and the host knows none of
//! them: a caller hands a [`StoreSpec`](crate::store::StoreSpec) over.

pub mod ram;
pub mod volume;

pub use ram::RamSpec;
pub use volume::{NodePlace, VolumeCall, VolumeSpec};
