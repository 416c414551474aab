//! A model of a Ceph cluster in memory, for tests of its clients and for measurements without
//! disks.
//!
//! * [`objects`]: pools, objects and their snapshots, as an OSD keeps them;
//! * [`classes`]: the classes `lock` and `rbd`, with the same stored keys and bytes as Ceph's;
//! * [`watches`]: watches and notifications;
//! * [`store`]: all of that as one cluster, with clients that are shut out, full pools, and errors
//!   for chosen objects;
//! * [`direct`]: a carrier of the calls of [`Cluster`](fieldstone_rados::cluster::Cluster)s,
//!   without messages: it carries out the calls of several clients in an order drawn from a seed;
//! * [`wire`]: monitors and OSDs that speak messages.
//!
//! What is modelled is what a client can see of a healthy cluster. There is no replication, no
//! recovery and no disk: all OSDs of the model share one memory.

pub mod classes;
mod commands;
pub mod direct;
pub mod objects;
pub mod store;
pub mod watches;
pub mod wire;

pub use direct::{ClientHandle, Delays, ModelCluster};
pub use store::{Fault, Store};
