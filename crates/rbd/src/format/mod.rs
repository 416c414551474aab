//! The formats of RBD: names of objects, features, striping, object maps, the inputs and outputs of
//! the OSDs' classes, and the notifications among clients. All of it is pure.

pub mod class;
pub mod features;
pub mod lock;
pub mod names;
pub mod notice;
pub mod object_map;
pub mod request;
pub mod striping;

pub use features::Features;
pub use object_map::{ObjectMap, ObjectState};
pub use striping::{ImageExtent, Layout, ObjectExtent};
